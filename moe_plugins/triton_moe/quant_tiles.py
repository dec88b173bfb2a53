"""Tiles of the kernels for quantized weights that are worth measuring."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from moe_plugins.triton_moe.cost import Shape
from moe_plugins.triton_moe.formats import FP8, INT8, QUADS
from moe_plugins.triton_moe.options import GROUPED, NO_SORT, SWAP_AB

Config = Mapping[str, Any]

_FP8_UNSORTED: Final[tuple[Config, ...]] = (
    {},
    {"up_neurons": 4, "up_block": 4096},
    {"up_neurons": 4},
    {"down_block": 1024},
    {"down_block": 2048, "down_warps": 4},
    {"down_columns": 4, "down_block": 256, "down_warps": 4},
)
# What `up` gives one scale, `down` takes in steps that it divides.
_FP8_SWAPPED: Final[tuple[tuple[Config, Config], ...]] = (
    ({"columns": 128, "warps": 8}, {}),
    ({"columns": 128, "warps": 8}, {"columns": 128, "warps": 8}),
    ({"columns": 128, "warps": 8, "unroll": 2, "stages": 2}, {"unroll": 2, "stages": 4}),
    ({}, {"block": 64, "stages": 4}),
)
_FP8_SWAPPED_DEEP: Final[tuple[tuple[Config, Config], ...]] = (
    ({"columns": 128, "warps": 8, "stages": 6}, {"columns": 128, "warps": 8, "stages": 6}),
    ({"columns": 128, "warps": 8, "unroll": 2}, {"unroll": 2}),
    ({"columns": 128, "warps": 8, "unroll": 2}, {"columns": 128, "warps": 8, "unroll": 2}),
)
_FP8_TILED: Final[tuple[tuple[Config, Config], ...]] = (
    ({"passes": 2}, {"columns": 128}),
    ({"passes": 2, "gathers": False}, {"columns": 128}),
    ({"passes": 2, "group": 16}, {"columns": 128, "group": 16}),
    ({"passes": 2, "stages": 4}, {"columns": 128, "stages": 4}),
    ({"rows": 128, "columns": 128, "warps": 8}, {"rows": 128, "columns": 128, "warps": 8}),
)
_FP8_IN_GLUON: Final[tuple[Config, ...]] = (
    {},
    {"group": 16},
    {"group": 4},
    {"group": 2},
    {"group": 1},
    {"rows": 192},
    {"rows": 192, "group": 16},
    {"rows": 192, "group": 4},
    {"rows": 192, "group": 2},
)
_WORDS_IN_GLUON: Final[tuple[Config, ...]] = (
    {},
    {"group": 4},
    {"short": 96},
    {"rows": 128},
    {"rows": 128, "short": 96},
    {"rows": 128, "short": 64},
)
_WORDS_UNSORTED: Final[tuple[Config, ...]] = (
    {},
    {"up_rows": 32},
    {"up_rows": 128},
    {"down_columns": 8},
    {"down_columns": 32},
    {"up_stages": 4, "down_stages": 4},
    {"up_rows": 128, "up_stages": 4, "unroll": 2, "down_columns": 8, "down_stages": 4},
    {"up_rows": 128, "up_stages": 4, "unroll": 2, "down_stages": 3, "down_warps": 8},
    {"up_rows": 128, "up_stages": 3, "unroll": 2, "down_stages": 3},
)
_WORDS_SHORT: Final[tuple[Config, ...]] = (
    {},
    {"weight_rows": 128},
    {"weight_rows": 128, "stages": 3, "unroll": 2},
    {"stages": 6},
    {"weight_rows": 128, "warps": 8},
)
_WORDS_DEEP: Final[tuple[Config, ...]] = ({"stages": 6, "unroll": 2},)
_WORDS_HALF: Final[tuple[Config, ...]] = (
    {"weight_rows": 128, "short": 32},
    {"weight_rows": 128, "short": 32, "group": 4},
)
_WORDS_TALL: Final[tuple[Config, ...]] = (
    {"weight_rows": 128, "warps": 8},
    {"weight_rows": 128, "warps": 8, "group": 8},
    {"group": 8},
)
_WORDS_TALL_INT8: Final[tuple[Config, ...]] = ({}, {"group": 8})
TALL: Final = 128
"""Tokens of a tile whose sums need the registers of eight warps, or half the weight rows."""
DEEP: Final = 32
"""Tokens of a tile up to which as many stages fit into shared memory."""
_HEIGHTS: Final[Mapping[str, Sequence[int]]] = {FP8: (8, 16, 32, 64), QUADS: (16, 32, 64, 128)}
_ALL_HEIGHTS: Final = (8, 16, 32, 64, 128)


def quantized_tiles(path: str, shape: Shape, tokens: int) -> Iterator[dict[str, Any]]:
    """Configs of `path` for the family that reads the shape's format."""
    fp8 = shape.kernels == FP8
    if path == NO_SORT:
        yield from map(dict, _FP8_UNSORTED if fp8 else _WORDS_UNSORTED)
    elif path == SWAP_AB:
        mean = tokens * shape.top_k / shape.experts
        heights = _HEIGHTS.get(shape.kernels, _ALL_HEIGHTS)
        fitting = [rows for rows in heights if rows >= mean][: 1 if mean <= 4 else 2] or [heights[-1]]
        for rows in fitting:
            for up, down in _of_fp8(rows) if fp8 else _alike(_of_words(rows, shape)):
                yield {"up": {"rows": rows, **up}, "down": {"rows": rows, **down}}
    else:
        in_gluon = _alike(_FP8_IN_GLUON if fp8 else _WORDS_IN_GLUON)
        for up, down in _FP8_TILED if path == GROUPED else in_gluon:
            yield {"up": dict(up), "down": dict(down)}


def _of_words(rows: int, shape: Shape) -> Sequence[Config]:
    if rows >= TALL:
        return _WORDS_TALL_INT8 if shape.format == INT8 else _WORDS_TALL
    return (*_WORDS_SHORT, *_WORDS_DEEP) if rows <= DEEP else (*_WORDS_SHORT, *_WORDS_HALF)


def _of_fp8(rows: int) -> Sequence[tuple[Config, Config]]:
    return (*_FP8_SWAPPED, *_FP8_SWAPPED_DEEP) if rows <= DEEP else _FP8_SWAPPED


def _alike(tiles: Sequence[Config]) -> list[tuple[Config, Config]]:
    """The same for both kernels."""
    return [(one, one) for one in tiles]
