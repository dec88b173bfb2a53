"""Small phrases that views share: ranges, counts, sizes, one rejection."""

from __future__ import annotations

from collections.abc import Iterable

from moe_core.contract.eligibility import Rejection
from moe_core.contract.predicate import show
from moe_core.contract.tuning import Tuning
from moe_core.contract.vocabulary import CandidateKind
from moe_core.explain.document import Span, Text, Tone, words

ONE_OF = {
    CandidateKind.BACKEND: "backend",
    CandidateKind.COMMUNICATION: "communication strategy",
    CandidateKind.ROUTING: "routing kernel",
}
MANY_OF = {
    CandidateKind.BACKEND: "backends",
    CandidateKind.COMMUNICATION: "communication strategies",
    CandidateKind.ROUTING: "routing kernels",
}


def ranges(numbers: Iterable[int]) -> str:
    """Sorted numbers as ranges: ``0, 3-60``."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def counted(count: int, noun: str) -> str:
    """``1 layer``, ``2 layers``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def size(num_bytes: int | None) -> str:
    """Bytes in the unit that keeps them short."""
    if num_bytes is None:
        return "unknown"
    value, unit = float(num_bytes), "B"
    for larger in ("KiB", "MiB", "GiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:.4g} {unit}" if value < 1000 else f"{value:.0f} {unit}"


def duration(microseconds: float) -> str:
    """``12.3 us``, ``4.56 ms``, ``1.2 s``: three digits."""
    value, unit = microseconds, "us"
    for larger in ("ms", "s"):
        if value < 1000:
            break
        value, unit = value / 1000, larger
    return f"{value:.3g} {unit}"


def tuned(tuning: Tuning) -> str:
    """``tuned``, or ``untuned`` where no entry of a table comes close."""
    return "untuned" if tuning.source == "cost_model" else "tuned"


def basis(tuning: Tuning) -> Text:
    """What a tuning rests on: ``KEY``, ``nearest KEY (what the table lacks)``, ``cost model (the same)``."""
    text = {"table": tuning.key, "nearest": f"nearest {tuning.key}", "cost_model": "cost model"}[tuning.source]
    note = f" ({tuning.note})" if tuning.note else ""
    return words(Span(text + note, Tone.WARN if tuning.is_miss else Tone.PLAIN))


def reason(rejection: Rejection) -> Text:
    """``SM_UNSUPPORTED sm: found 90, needed 100 or 103``."""
    fact = f" {rejection.fact}" if rejection.fact else ""
    needed = f", needed {rejection.needed}" if rejection.needed else ""
    return words(Span(rejection.reason.name, Tone.CODE), f"{fact}: found {show(rejection.found)}{needed}")


def known(value: object) -> str:
    """A value, in as few digits as it needs; ``None`` is unknown."""
    return "unknown" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
