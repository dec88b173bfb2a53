"""The hooks of a moe_core plugin. pluggy checks names and arguments; the loader calls each plugin alone.

A plugin is a module or a plain instance with functions marked :data:`hookimpl`. It stands for one candidate.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from moe_core.contract.candidate import MoECandidate
    from moe_core.contract.deployment import MoEDeployment
    from moe_core.contract.eligibility import MoEEligibility
    from moe_core.contract.environment import Scalar
    from moe_core.contract.problem import MoEProblem
    from moe_core.contract.report import MoEResolutionReport
    from moe_core.contract.tuning import Tuning

PROJECT = "moe_core"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)

# Specifications have no bodies, which mypy would have of functions that return something.


@hookspec
def moe_candidate() -> MoECandidate:  # type: ignore[empty-body]
    """Declare the plugin's candidate.

    Called once, when the catalog is built. Must be light: no torch, no triton, no look at the machine. Returning
    anything but a ``MoECandidate`` of a supported ``contract_version`` refuses the plugin. Required.
    """


@hookspec
def can_implement(problem: MoEProblem, deployment: MoEDeployment) -> MoEEligibility:  # type: ignore[empty-body]
    """Answer whether the candidate can compute `problem` on `deployment`.

    Called at every uncached resolution. Must be pure: a function of its arguments and nothing else. It abstains
    (records an assumption) where a fact is ``None``, and gives every reason that holds. An exception or another type
    becomes a ``PLUGIN_ERROR`` row of the report. Optional: without it, the declared requirements are evaluated.
    """


@hookspec
def moe_tuning(problem: MoEProblem, deployment: MoEDeployment, tokens: int) -> Tuning | None:
    """Return what the candidate is expected to take for `tokens` per rank, and what that rests on, or ``None``.

    Called at an uncached resolution that knows how many tokens to expect, for an eligible backend. As pure as
    ``can_implement``: tables are read when their module is imported, not in a call. ``None`` where a size or the
    device is unknown. An exception, a table that cannot be read among them, refuses the candidate. Optional.
    """


@hookspec
def moe_facts() -> Mapping[str, Scalar]:  # type: ignore[empty-body]
    """Look at the machine, and return facts as scalars under the plugin's own prefix (``"hello.ready": True``).

    Called by the probe only, never by a resolution; the only hook that may look at the machine. The prefix is the
    candidate's provider. Requirements read such a fact as ``plugin:hello.ready``. Optional.
    """


@hookspec
def moe_notes(report: MoEResolutionReport) -> str | None:
    """Return a remark for people on a report, or ``None``.

    Called when a report is shown. Notes are in no report and in no fingerprint, and cannot change anything. Optional.
    """
