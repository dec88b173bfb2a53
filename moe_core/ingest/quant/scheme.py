"""Which format applies to which layer: a default, exceptions by module name, and modules left unquantized."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from moe_core.ingest.quant.formats import UNQUANTIZED, Format, unknown
from moe_core.ingest.quant.modules import Coverage, Patterns, Place

_NOTHING = Patterns(())


@dataclass(frozen=True)
class Scheme:
    """A quantization config, reduced to what can be asked of it."""

    default: Format = UNQUANTIZED
    named: tuple[tuple[Patterns, Format], ...] = ()
    """Formats of modules that are named; they beat the default."""
    excluded: Patterns = field(default=_NOTHING)
    """Modules that are not quantized, whatever else is said of them."""

    def at(self, place: Place) -> Format:
        """The format of the routed experts at `place`; unknown where their projections differ."""
        excluded = self.excluded.cover(place)
        if excluded is Coverage.ALL:
            return UNQUANTIZED
        covers = [(patterns.cover(place), format_) for patterns, format_ in self.named]
        whole = [format_ for cover, format_ in covers if cover is Coverage.ALL]
        if excluded is Coverage.SOME or (not whole and any(cover is Coverage.SOME for cover, _ in covers)):
            return unknown(f"projections of one expert differ in layer {place.layer}")
        return whole[0] if whole else self.default


def by_format(modules: Iterable[tuple[str, Format]]) -> tuple[tuple[Patterns, Format], ...]:
    """Named formats from one format per module."""
    names: dict[Format, list[str]] = {}
    for name, format_ in modules:
        names.setdefault(format_, []).append(name)
    return tuple((Patterns(patterns), format_) for format_, patterns in names.items())
