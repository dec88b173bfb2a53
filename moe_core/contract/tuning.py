"""What a plugin expects of its candidate: the entry of a tuning table, or an estimate, with what it rests on."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from moe_core.contract.base import Frozen


class Tuning(Frozen):
    """How a candidate would run one problem on one deployment at one number of tokens.

    ``table``: the plugin's table has exactly this. ``nearest``: it has not, and the entry that comes closest is taken.
    ``cost_model``: nothing in it comes close, and the choice is computed.
    """

    source: Literal["table", "nearest", "cost_model"]
    key: str
    """The entry that is used, or what the cost model was asked for: device, type, sizes, tokens, versions."""
    microseconds: Annotated[float, Field(gt=0)] | None = None
    """Expected time; ``None``: the plugin does not say."""
    note: str = ""
    """What the table lacks; needed whenever it lacks something."""

    @model_validator(mode="after")
    def _a_miss_says_what_is_missing(self) -> Self:
        if self.is_miss and not self.note:
            raise ValueError(f"source is {self.source}, so note must say what the table lacks")
        return self

    @property
    def is_miss(self) -> bool:
        """Whether nothing was measured for exactly this."""
        return self.source != "table"
