"""Values that may differ from layer to layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class PerLayer(tuple[Any, ...]):
    """One value per layer: the model's own layers, then its draft layers."""

    __slots__ = ()


def at(column: Any, layer: int) -> Any:
    """The value of `column` in `layer`; what is no :class:`PerLayer` is the same in all layers."""
    return column[layer] if isinstance(column, PerLayer) else column


def combine(function: Callable[..., Any], total: int, *columns: Any) -> Any:
    """`function` of the columns' values, layer by layer where one of them differs between layers."""
    if not any(isinstance(column, PerLayer) for column in columns):
        return function(*columns)
    return PerLayer(function(*(at(column, i) for column in columns)) for i in range(total))
