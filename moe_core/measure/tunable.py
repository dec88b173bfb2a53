"""What a backend offers so that ``moe tune --kernels`` can choose among its configurations. Needs no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, runtime_checkable

Config: TypeAlias = Mapping[str, Any]
"""One way to launch the kernels, as JSON: tile sizes, stages, warps, which regime. Its keys are the backend's own."""


@dataclass(frozen=True, slots=True)
class Tuned:
    """The fastest configuration that was right, for one number of tokens."""

    tokens: int
    """Rows of the calls that were measured."""
    config: Config
    microseconds: float
    default_microseconds: float
    """Time of what the backend chose by itself, in the same run."""


@runtime_checkable
class Tunable(Protocol):
    """A backend whose kernels can be launched in several ways. All of its methods are called after ``prepare``."""

    def configs(self, num_tokens: int) -> Sequence[Config]:
        """Those worth measuring for so many tokens, in any order; its own choice need not be among them."""

    def use(self, config: Config | None) -> None:
        """Launch so from the next ``run_moe`` on, whatever the number of tokens; ``None``: choose by itself again.

        Graphs that were captured before stay valid: nothing that an earlier launch used is freed or moved. Raises
        ``ValueError`` when this problem, or this device, cannot be launched so.
        """

    def table(self, tuned: Sequence[Tuned], existing: Any) -> Any:
        """`existing` (parsed JSON of this method's own making, or ``None``) with `tuned` merged in, as JSON.

        The backend knows problem and device from its binding, and writes its key, with versions, by itself.
        """
