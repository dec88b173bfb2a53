"""What was measured: for a device and a version of Triton, the fastest tiles of each path by shape and tokens."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Final, NamedTuple

from moe_plugins.triton_moe.cost import Shape
from moe_plugins.triton_moe.formats import FORMATS, NONE, alike
from moe_plugins.triton_moe.options import PATHS

SCHEMA: Final = 1
_SIZES: Final = ("experts", "top_k", "hidden", "intermediate")
_KEYS: Final = frozenset({"dtype", *_SIZES, "gated", "tokens", "path", "config", "microseconds"})
_OTHER_FORMAT: Final = 0.25
"""Doublings of tokens that an entry of another format, which is alike, counts as farther."""
_FORMAT: Final = "format"
"""The key that only entries of quantized weights have."""


class TableError(ValueError):
    """A file is no tuning table of this release."""


class Entry(NamedTuple):
    """The fastest tiles of one path for one shape and number of tokens."""

    shape: Shape
    tokens: int
    path: str
    config: Mapping[str, Any]
    microseconds: float


class Table:
    """Entries of one device and one version of Triton (``major.minor``)."""

    def __init__(self, device: str, triton: str, entries: Sequence[Entry]) -> None:
        self.device, self.triton = device, triton
        self.entries = tuple(sorted(entries, key=lambda e: (e.shape, e.tokens, e.path)))

    @classmethod
    def parse(cls, text: str, name: str) -> Table:
        """The table in a file's `text`. Raises :class:`TableError`, which begins with the file's `name`."""
        try:
            return cls.of(json.loads(text))
        except (ValueError, KeyError, TypeError) as error:
            raise TableError(f"{name}: {error}") from error

    @classmethod
    def of(cls, data: Any) -> Table:
        """The table in parsed JSON. Raises ``ValueError``, ``KeyError`` or ``TypeError``."""
        if not isinstance(data, dict) or data.get("schema") != SCHEMA:
            found = data.get("schema") if isinstance(data, dict) else type(data).__name__
            raise ValueError(f"found schema {found}, needed {SCHEMA}; tune again with this release")
        return cls(str(data["device"]), str(data["triton"]), [_entry(item) for item in data["entries"]])

    def merged(self, newer: Sequence[Entry]) -> Table:
        """With `newer` in place of what is there for the same shape, tokens and path."""
        kept = {(e.shape, e.tokens, e.path): e for e in (*self.entries, *newer)}
        return Table(self.device, self.triton, tuple(kept.values()))

    def as_json(self) -> dict[str, Any]:
        """What :meth:`of` reads."""
        entries = [
            {
                "dtype": e.shape.dtype, "experts": e.shape.experts, "top_k": e.shape.top_k, "hidden": e.shape.hidden,
                "intermediate": e.shape.inner, "gated": e.shape.gated, "tokens": e.tokens, "path": e.path,
                "config": dict(e.config), "microseconds": e.microseconds,
                **({} if e.shape.format == NONE else {_FORMAT: e.shape.format}),
            }
            for e in self.entries
        ]  # fmt: skip
        return {"schema": SCHEMA, "device": self.device, "triton": self.triton, "entries": entries}

    def nearest(self, shape: Shape, tokens: int, path: str) -> Entry | None:
        """The entry of `path` that is closest, within a factor of two in all sizes together and four in tokens.

        More tokens than in any entry of the shape, of whatever path, is no distance: there, time grows with them. Among
        entries of a shape, one of another format that is alike is taken where its tokens are nearer.
        """
        distances = {known: _distance(shape, known) for known in self._shapes}
        for distance in sorted({d for d in distances.values() if d <= 1}):
            group = [self._shapes[known] for known, d in distances.items() if d == distance]
            offered = [entry for paths in group for entry in paths.get(path, [])]
            best = min(offered, key=lambda e: (_farther(e, shape, tokens), e.tokens), default=None)
            most = max(e.tokens for paths in group for entries in paths.values() for e in entries)
            if best is not None and (abs(math.log2(best.tokens / tokens)) <= 2 or best.tokens == most < tokens):
                return best
        return None

    @cached_property
    def _shapes(self) -> dict[Shape, dict[str, list[Entry]]]:
        found: dict[Shape, dict[str, list[Entry]]] = {}
        for entry in self.entries:
            found.setdefault(entry.shape, {}).setdefault(entry.path, []).append(entry)
        return found


def _entry(item: Any) -> Entry:
    if item.keys() - {_FORMAT} != _KEYS:
        odd = ", ".join(sorted((item.keys() - {_FORMAT}) ^ _KEYS))
        raise ValueError(f"an entry has or lacks {odd}")
    numbers = [item[name] for name in (*_SIZES, "tokens", "microseconds")]
    if any(isinstance(n, bool) or not isinstance(n, int | float) or n <= 0 for n in numbers):
        raise ValueError(f"sizes, tokens and microseconds must be positive numbers, found {numbers}")
    if not isinstance(item["config"], dict) or not isinstance(item["gated"], bool):
        raise ValueError("config must be an object and gated a boolean")
    if not all(isinstance(item["config"].get(kernel, {}), dict) for kernel in ("up", "down")):
        raise ValueError(f"up and down of config must be objects, found {item['config']}")
    if item["path"] not in PATHS:
        raise ValueError(f"path must be one of {', '.join(PATHS)}; found {item['path']}")
    if item.get(_FORMAT, NONE) not in FORMATS:
        raise ValueError(f"format must be one of {', '.join(FORMATS)}; found {item[_FORMAT]}")
    shape = Shape(
        str(item["dtype"]), item["experts"], item["top_k"], item["hidden"], item["intermediate"], item["gated"],
        item.get(_FORMAT, NONE),
    )  # fmt: skip
    return Entry(shape, item["tokens"], item["path"], item["config"], item["microseconds"])


def _distance(one: Shape, other: Shape) -> float:
    """Doublings between two shapes, over all sizes; both element types are two bytes, so they count as one."""
    if one.gated != other.gated or not alike(one.format, other.format):
        return math.inf
    pairs = (
        (one.experts, other.experts), (one.top_k, other.top_k), (one.hidden, other.hidden), (one.inner, other.inner)
    )  # fmt: skip
    return sum(abs(math.log2(a / b)) for a, b in pairs)


def _farther(entry: Entry, shape: Shape, tokens: int) -> float:
    """Doublings of tokens between an entry and what is asked for."""
    return abs(math.log2(entry.tokens / tokens)) + (_OTHER_FORMAT if entry.shape.format != shape.format else 0.0)
