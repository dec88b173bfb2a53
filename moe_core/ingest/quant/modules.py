"""Whether the patterns of a quantization config name the routed experts of a layer.

Checkpoints disagree about the names of modules, so a layer's experts are tried under every usual name. A pattern is
a plain name, which also names all that is inside it and may begin in the middle of a path; a glob; or, after ``re:``,
a regular expression that must match from the beginning.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from fnmatch import translate
from typing import Final

_STEMS: Final = (
    "model.layers",
    "model.language_model.layers",
    "language_model.model.layers",
    "thinker.model.layers",
    "backbone.layers",
    "transformer.blocks",
    "layers",
)
_DRAFT_STEMS: Final = ("mtp.layers", "model.mtp.layers", "mtp")
_BLOCKS: Final = ("mlp", "block_sparse_moe", "feed_forward", "mixer", "ffn", "moe")
_EXPERTS: Final = "experts"
_ANYWHERE: Final = tuple((block, _EXPERTS) for block in _BLOCKS)
_BESIDE_MLP: Final = ((_EXPERTS,), ("moe", _EXPERTS))
_NAMINGS: Final = (
    ("gate_proj", "up_proj", "down_proj"),
    ("w1", "w2", "w3"),
    ("gate_up_proj", "down_proj"),
    ("up_proj", "down_proj"),
)
_CLASSES: Final = frozenset(("Linear", "FusedMoE"))
"""Targets that name classes of modules; experts are of either class."""

_LAYER_WORDS: Final = frozenset(("layers", "blocks", "mtp"))
_STEM_WORDS: Final = _LAYER_WORDS | frozenset(
    ("model", "language_model", "thinker", "backbone", "transformer", "decoder")
)
_TAIL_WORDS: Final = frozenset((*_BLOCKS, _EXPERTS, "0", *(name for naming in _NAMINGS for name in naming)))


class Coverage(Enum):
    """How many of a layer's expert projections are named."""

    NONE = 0
    SOME = 1
    ALL = 2


@dataclass(frozen=True)
class Place:
    """Where the experts of a layer may be in a checkpoint."""

    layer: int
    draft: int | None = None
    """Index among the draft layers."""
    mlp_beside: bool = False
    """The layer has a dense MLP too, so ``mlp`` is not where its experts are."""

    def stems(self) -> tuple[str, ...]:
        """Paths of the layer."""
        own = tuple(f"{stem}.{self.layer}" for stem in _STEMS)
        return own if self.draft is None else own + tuple(f"{stem}.{self.draft}" for stem in _DRAFT_STEMS)

    def experts(self) -> tuple[tuple[str, ...], ...]:
        """Paths of the experts inside the layer."""
        return _BESIDE_MLP if self.mlp_beside else _ANYWHERE

    def paths(self, projection: str) -> Iterator[tuple[str, ...]]:
        """Paths of a projection of the first expert inside the layer, fused with the others or apart."""
        for experts in self.experts():
            yield (*experts, "0", projection)
            yield (*experts, projection)


class Patterns:
    """The patterns of one list, prepared for asking about many layers."""

    def __init__(self, patterns: Iterable[str]) -> None:
        self._patterns: list[_Plain | _Wild] = []
        for pattern in patterns:
            prepared = _Wild(pattern) if re.search(r"^re:|[*?\[]", pattern) else _Plain.of(pattern)
            if prepared is not None:
                self._patterns.append(prepared)

    def cover(self, place: Place) -> Coverage:
        """Whether all, some or none of the expert projections at `place` are named."""
        about = [pattern for pattern in self._patterns if pattern.is_about(place)]
        best = Coverage.NONE
        for naming in _NAMINGS if about else ():
            named = [any(pattern.names(place, projection) for pattern in about) for projection in naming]
            if all(named):
                return Coverage.ALL
            if any(named):
                best = Coverage.SOME
        return best


@dataclass(frozen=True)
class _Plain:
    """A plain name that may name experts: of which layer, and the path inside that layer."""

    layer: int | None
    in_draft: bool
    tail: tuple[str, ...]

    @staticmethod
    def of(name: str) -> _Plain | None:
        """`name` taken apart; ``None`` when it cannot name routed experts."""
        if name in _CLASSES:
            return _Plain(None, in_draft=False, tail=())
        parts = name.split(".")
        at = next((i for i, part in enumerate(parts) if part not in _STEM_WORDS), len(parts))
        in_draft = "mtp" in parts[:at]
        layer = None
        if at < len(parts) and parts[at].isdecimal() and at and parts[at - 1] in _LAYER_WORDS:
            layer, at = int(parts[at]), at + 1
        tail = tuple(parts[at:])
        return _Plain(layer, in_draft, tail) if _TAIL_WORDS.issuperset(tail) else None

    def is_about(self, place: Place) -> bool:
        """Whether the name is about the layer at `place`."""
        if self.in_draft and place.draft is None:
            return False
        return self.layer in (None, place.layer) or (self.in_draft and self.layer == place.draft)

    def names(self, place: Place, projection: str) -> bool:
        """Whether it names that projection of the first expert at `place`."""
        return any(self._is_in(path) for path in place.paths(projection))

    def _is_in(self, path: tuple[str, ...]) -> bool:
        starts = (0,) if self.layer is not None else range(len(path))
        return any(path[start : start + len(self.tail)] == self.tail for start in starts)


class _Wild:
    """A glob or a regular expression."""

    def __init__(self, pattern: str) -> None:
        self.head = ""
        if pattern.startswith("re:"):
            source = pattern[3:]
        else:
            self.head = re.split(r"[*?\[]", pattern, maxsplit=1)[0]
            source = f"{translate(pattern)}|{translate(pattern + '.*')}"
        self._regex = re.compile(source)
        self._any_stem = pattern.startswith(("*", "re:.*"))
        # a pattern without digits cannot tell layers apart whose indices have equally many digits
        self._any_layer = not re.search(r"\d", re.sub(r"w\[?[123-]+\]?", "", pattern))
        self._answers: dict[tuple[int, int, str], bool] = {}

    def is_about(self, place: Place) -> bool:
        """Whether the part before the first wildcard fits the experts at `place`."""
        return not self.head or any(
            self._fits(f"{stem}.{'.'.join(experts)}")
            for stem in place.stems()
            if self._fits(stem)
            for experts in place.experts()
        )

    def _fits(self, name: str) -> bool:
        return name.startswith(self.head) or self.head.startswith(name)

    def names(self, place: Place, projection: str) -> bool:
        """Whether it names that projection of the first expert at `place`."""
        key = (
            len(str(place.layer)) if self._any_layer else place.layer,
            -1 if place.draft is None else len(str(place.draft)) if self._any_layer else place.draft,
            projection,
        )
        if key not in self._answers:
            self._answers[key] = self._match(place, projection)
        return self._answers[key]

    def _match(self, place: Place, projection: str) -> bool:
        stems = [stem for stem in place.stems() if self._fits(stem)]
        if self._any_stem:
            stems = stems[:1] if place.draft is None else [stems[0], stems[-1]]
        names = (f"{stem}.{'.'.join(path)}" for stem in stems for path in place.paths(projection))
        return any(name.startswith(self.head) and self._regex.match(name) for name in names)
