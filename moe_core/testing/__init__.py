"""The published test kit: what holds for our own candidates, for yours as well.

``from moe_core.testing import PluginConformance`` is the whole of it for most plugins. Names are loaded when they are
first asked for: the processes that watch a plugin must not load a test framework beside it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from moe_core.testing.boundary import BoundaryCase, boundary_cases, typical_question
    from moe_core.testing.conformance import PluginConformance
    from moe_core.testing.nosync import HostSyncError, no_host_sync
    from moe_core.testing.question import Question, forget, knows_no_more
    from moe_core.testing.traps import ImpureError, armed

__all__ = [
    "PluginConformance",
    "Question",
    "BoundaryCase",
    "boundary_cases",
    "typical_question",
    "forget",
    "knows_no_more",
    "ImpureError",
    "armed",
    "HostSyncError",
    "no_host_sync",
]

_HOME = {
    "PluginConformance": "conformance",
    "Question": "question",
    "BoundaryCase": "boundary",
    "boundary_cases": "boundary",
    "typical_question": "boundary",
    "forget": "question",
    "knows_no_more": "question",
    "ImpureError": "traps",
    "armed": "traps",
    "HostSyncError": "nosync",
    "no_host_sync": "nosync",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
