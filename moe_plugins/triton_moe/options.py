"""The ways through each family of kernels, with tiles that the cost model knows the time of. Light: no torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from moe_plugins.triton_moe.cost import MULTIPROCESSORS, Rates, Shape, no_sort, tiled
from moe_plugins.triton_moe.formats import FP8, PLAIN, QUADS, WORDS

NO_SORT: Final = "no_sort"
SWAP_AB: Final = "swap_ab"
GROUPED: Final = "grouped"
GLUON: Final = "grouped_gluon"
PATHS: Final = (NO_SORT, SWAP_AB, GROUPED, GLUON)


class Option(NamedTuple):
    """A path with tiles, and what it should take."""

    microseconds: float
    path: str
    config: dict[str, Any]


class Tiles(NamedTuple):
    """Tiles of `rows` tokens, what they reach, and the fields of the path's configs that say so."""

    rows: int
    rates: Rates
    up: Mapping[str, Any]
    down: Mapping[str, Any]


_Timed = Callable[[Shape, int, int], Iterable[tuple[float, dict[str, Any]]]]


def options(path: str, shape: Shape, tokens: int, multiprocessors: int = MULTIPROCESSORS) -> list[Option]:
    """What `path` could run with; nothing where the kernels of the shape's format have no such path."""
    if path not in paths_of(shape):
        return []
    timed = _OPTIONS[shape.kernels][path](shape, tokens, multiprocessors)
    return [Option(time, path, config) for time, config in timed]


def predicted(
    path: str, shape: Shape, tokens: int, multiprocessors: int, config: Mapping[str, Any] | None = None
) -> float:
    """Microseconds of a path with the tiles that the cost model would take, or those as high as `config` has them."""
    found = options(path, shape, tokens, multiprocessors)
    alike = [option for option in found if config is not None and _height(option.config) == _height(config)]
    return min(option.microseconds for option in alike or found)


def _height(config: Mapping[str, Any]) -> Any:
    return config.get("up", {}).get("rows")


def paths_of(shape: Shape) -> tuple[str, ...]:
    """The paths of the kernels that read the shape's format."""
    return tuple(_OPTIONS[shape.kernels])


def _unsorted(rates: Rates) -> _Timed:
    return lambda shape, tokens, sms: [(no_sort(shape, tokens, rates, sms), {})]


def _tiled(*several: Tiles) -> _Timed:
    return lambda shape, tokens, sms: [
        (tiled(shape, tokens, tiles.rows, tiles.rates, sms), _config(tiles)) for tiles in several
    ]


def _config(tiles: Tiles) -> dict[str, Any]:
    return {name: dict(part) for name, part in (("up", tiles.up), ("down", tiles.down)) if part}


def _alike(height: int, rate: float, fixed: float, **fields: Any) -> Tiles:
    """The same tiles for both kernels."""
    return Tiles(height, Rates(rate, fixed), fields, fields)


def _swapped(rows: int, rate: float) -> Tiles:
    return _alike(rows, rate, 9.0, rows=rows)


def _fp8_swapped(rows: int, rate: float) -> Tiles:
    # Gate and up of a tile are taken apart in registers where there are 16 columns to a warp.
    return Tiles(rows, Rates(rate, 11.0), {"rows": rows, "columns": 128, "warps": 8}, {"rows": rows})


def _words(rows: int, rate: float, **wide: Any) -> Tiles:
    return _alike(rows, rate, 14.0, rows=rows, **wide)


_OPTIONS: Final[Mapping[str, Mapping[str, _Timed]]] = MappingProxyType(
    {
        PLAIN: {
            NO_SORT: _unsorted(Rates(40e6, 5.0)),
            SWAP_AB: _tiled(_swapped(8, 120e6), _swapped(16, 200e6), _swapped(32, 300e6), _swapped(64, 330e6)),
            GROUPED: _tiled(
                _alike(64, 480e6, 11.0, rows=64, warps=4),
                _alike(128, 600e6, 11.0, mixed=True),
            ),
            GLUON: _tiled(_alike(128, 700e6, 12.0)),
        },
        FP8: {
            NO_SORT: _unsorted(Rates(30e6, 5.0)),
            SWAP_AB: _tiled(
                _fp8_swapped(8, 150e6), _fp8_swapped(16, 250e6), _fp8_swapped(32, 380e6), _fp8_swapped(64, 420e6)
            ),
            GROUPED: _tiled(Tiles(64, Rates(750e6, 13.0), {"passes": 2}, {"columns": 128})),
            GLUON: _tiled(_alike(128, 1050e6, 14.0)),
        },
        WORDS: {
            NO_SORT: _unsorted(Rates(13e6, 8.0)),
            SWAP_AB: _tiled(
                _words(8, 140e6), _words(16, 240e6), _words(32, 420e6), _words(64, 560e6, weight_rows=128, short=32),
                _words(128, 420e6, group=8),
            ),
            GLUON: _tiled(_alike(160, 740e6, 14.0), _alike(128, 730e6, 14.0, rows=128, short=96)),
        },
        QUADS: {
            NO_SORT: _unsorted(Rates(6e6, 5.0)),
            SWAP_AB: _tiled(
                _words(16, 270e6), _words(32, 450e6), _words(64, 720e6, weight_rows=128),
                _words(128, 880e6, weight_rows=128, warps=8, group=8),
            ),
        },
    }
)  # fmt: skip
"""By family and path. Rates of weights as words are fitted to gpt-oss-120b and Kimi-K2 on an H200."""
