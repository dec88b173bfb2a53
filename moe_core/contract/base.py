"""The base of every value in the contract: frozen, hashable, closed, with a fingerprint."""

from __future__ import annotations

import hashlib
import json
from typing import Any, Final, Self

from pydantic import BaseModel, ConfigDict

SCHEMA_VERSION: Final = 1
"""Version of the JSON form of problem, deployment, environment, request and report."""


class Frozen(BaseModel):
    """A frozen value: equal content, equal hash, equal fingerprint, on any machine and in any process.

    Fields hold scalars, strings, enums, tuples and other frozen values; never a ``dict``, ``set`` or ``list``
    (``frozen=True`` would not freeze those). ``None`` means *unknown* and nothing else.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_enum_values=False)

    # The hash is asked for on every cached resolution; a slot keeps it out of copies, pickles and JSON.
    __slots__ = ("_hash",)

    def __hash__(self) -> int:
        try:
            return object.__getattribute__(self, "_hash")  # type: ignore[no-any-return]
        except AttributeError:
            content = self.__dict__
            value = hash((type(self).__name__, *[content[name] for name in type(self).model_fields]))
            object.__setattr__(self, "_hash", value)
            return value

    def canonical_json(self) -> str:
        """JSON with sorted keys and no white space: the text that :attr:`fingerprint` digests."""
        return json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"), ensure_ascii=True)

    @property
    def fingerprint(self) -> str:
        """First 16 hexadecimal digits of the SHA-256 of :meth:`canonical_json`."""
        return hashlib.sha256(self.canonical_json().encode()).hexdigest()[:16]

    def to_json(self, *, indent: int | None = 2) -> str:
        """JSON text from which :meth:`from_json` makes an equal value."""
        return self.model_dump_json(indent=indent)

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """The value whose :meth:`to_json` is `text`; raises ``pydantic.ValidationError`` with every error."""
        return cls.model_validate_json(text)

    def evolve(self, **changes: Any) -> Self:
        """A validated copy with `changes` (unlike ``model_copy``, which does not validate)."""
        content = self.__dict__
        return type(self).model_validate({**{name: content[name] for name in type(self).model_fields}, **changes})
