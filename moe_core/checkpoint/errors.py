"""Why a checkpoint does not hold what was asked of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

MOST_LINES: Final = 16
"""Lines of a message; a layer has thousands of keys, and usually they are all wrong for one reason."""


class CheckpointError(ValueError):
    """A checkpoint that does not fit the problem. `lines` holds everything that was found, not the first thing."""

    def __init__(self, asked: str, lines: Sequence[str]) -> None:
        self.asked = asked
        self.lines = tuple(lines)
        shown = [f"  - {line}" for line in self.lines[:MOST_LINES]]
        if more := len(self.lines) - len(shown):
            shown.append(f"  … and {more} more")
        super().__init__("\n".join([f"asked for {asked}:", *shown]))

    def __reduce__(self) -> tuple[type[CheckpointError], tuple[str, tuple[str, ...]]]:
        return type(self), (self.asked, self.lines)
