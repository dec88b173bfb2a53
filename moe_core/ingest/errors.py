"""Why a source yields no MoE problems."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import islice
from typing import Any, NamedTuple

MAX_VALUE_TEXT = 60


class Trouble(NamedTuple):
    """One thing that is wrong with a config: what was found, what is needed, and what to try."""

    found: str
    needed: str
    hint: str = ""

    def __str__(self) -> str:
        text = f"found {self.found}; needed {self.needed}"
        return f"{text}; try: {self.hint}" if self.hint else text


class IngestError(ValueError):
    """A config that yields no MoE problems. Holds every trouble that was met, not the first one."""

    def __init__(self, asked: str, troubles: tuple[Trouble, ...]) -> None:
        self.asked = asked
        self.troubles = troubles
        super().__init__("\n".join([f"asked for the MoE layers of {asked}:", *(f"  - {t}" for t in troubles)]))

    def __reduce__(self) -> tuple[type[IngestError], tuple[str, tuple[Trouble, ...]]]:
        return type(self), (self.asked, self.troubles)


def show(value: Any) -> str:
    """`value` as JSON, shortened to about `MAX_VALUE_TEXT` characters; a long list says how long it is."""
    head = value
    if isinstance(value, (list, tuple)):
        head = value[:MAX_VALUE_TEXT]
    elif isinstance(value, Mapping):
        head = dict(islice(value.items(), MAX_VALUE_TEXT))
    text = json.dumps(head, default=str, ensure_ascii=False)
    if len(text) <= MAX_VALUE_TEXT:
        return text
    ending = f" ({len(value)} items)" if head is not value else ""
    return f"{text[:MAX_VALUE_TEXT]}…{ending}"
