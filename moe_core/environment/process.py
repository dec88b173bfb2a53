"""The environment of this process: probed once, unless a test or a question puts another in its place."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from moe_core.contract.environment import MoEEnvironment
from moe_core.environment.plugin_facts import mentioned_facts
from moe_core.environment.probing import probe

if TYPE_CHECKING:
    from moe_core.contract.catalog import Catalog
    from moe_core.registry import Registry

_override: ContextVar[MoEEnvironment | None] = ContextVar("moe_core.environment", default=None)
_probed: dict[Catalog | None, MoEEnvironment] = {}


def current(registry: Registry | None = None, *, force: bool = False) -> MoEEnvironment:
    """This process's environment: the overriding one, else the light probe's, cached.

    With a `registry`, its plugins are asked for their facts, and the packages and flags that its candidates mention
    are looked at. `force` looks again.
    """
    if (overriding := _override.get()) is not None:
        return overriding
    catalog = None if registry is None else registry.catalog
    if force or catalog not in _probed:
        _probed[catalog] = probe() if registry is None else _probe_for(registry)
    return _probed[catalog]


def reset() -> None:
    """Forget what was probed; the next :func:`current` looks again."""
    _probed.clear()


@contextmanager
def override(environment: MoEEnvironment) -> Iterator[MoEEnvironment]:
    """Make :func:`current` answer `environment` inside the ``with`` block, in this thread or task; may be nested."""
    token = _override.set(environment)
    try:
        yield environment
    finally:
        _override.reset(token)


def _probe_for(registry: Registry) -> MoEEnvironment:
    from moe_core.registry import plugin_facts

    return probe(plugin_facts=plugin_facts(registry), mentioned=mentioned_facts(registry.catalog))
