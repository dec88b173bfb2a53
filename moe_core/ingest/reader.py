"""Reads keys of a config by alias, and remembers every key that it read and every trouble that it met."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from moe_core.ingest.errors import Trouble, show
from moe_core.ingest.values import KeyRead


class Journal:
    """What reading a config brought to light."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.notes: list[str] = []
        self.troubles: list[Trouble] = []

    def note(self, text: str) -> None:
        """Record an inference, once."""
        if text not in self.notes:
            self.notes.append(text)

    def trouble(self, found: str, needed: str, hint: str = "") -> None:
        """Record that the config is wrong, once."""
        trouble = Trouble(found, needed, hint)
        if trouble not in self.troubles:
            self.troubles.append(trouble)

    def keys_read(self) -> tuple[KeyRead, ...]:
        """Every key that was present and looked at."""
        return tuple(KeyRead(path=path, value=show(value)) for path, value in self.values.items())


class Section(NamedTuple):
    """A mapping inside a config, and where it is: `prefix` is empty or ends with a dot."""

    prefix: str
    values: Mapping[str, Any]


class Found(NamedTuple):
    """A value and the dotted path that it was read from."""

    path: str
    value: Any


class Reader:
    """Looks keys up in sections, innermost first. A key that is absent or null is not there.

    Each method takes the aliases of one thing; a dotted alias descends into a sub-mapping. When a section holds
    several aliases they must agree, unless the method says that the first one wins.
    """

    def __init__(self, sections: Sequence[Section], journal: Journal) -> None:
        self.sections = tuple(sections)
        self.journal = journal

    def find(self, aliases: Sequence[str], *, agree: bool = True) -> Found | None:
        """The value of the first alias that is there. Aliases that disagree are a trouble if `agree`."""
        for prefix, values in self.sections:
            found = [Found(prefix + a, v) for a in aliases if (v := _descend(values, a)) is not None]
            if not found:
                continue
            for each in found if agree else found[:1]:
                self.journal.values.setdefault(each.path, each.value)
            if agree and any(each.value != found[0].value for each in found[1:]):
                stated = ", ".join(f"{each.path} = {show(each.value)}" for each in found)
                self.journal.trouble(f"contradictory keys: {stated}", "one value", "remove the wrong key")
            return found[0]
        return None

    def integer(self, aliases: Sequence[str]) -> int | None:
        """A count: an integer that is not negative."""
        found = self.find(aliases)
        return None if found is None else self._count(found)

    def counts(self, aliases: Sequence[str]) -> int | tuple[int, ...] | None:
        """A count, or a list of counts."""
        found = self.find(aliases)
        if found is None or not isinstance(found.value, (list, tuple)):
            return None if found is None else self._count(found)
        items = [self._count(Found(f"{found.path}[{i}]", item)) for i, item in enumerate(found.value)]
        return tuple(item for item in items if item is not None)

    def number(self, aliases: Sequence[str]) -> float | None:
        """A number."""
        found = self._checked(aliases, (int, float), "a number")
        return None if found is None or isinstance(found, bool) else float(found)

    def boolean(self, aliases: Sequence[str]) -> bool | None:
        """A flag; numbers count as flags (DBRX writes a norm's order where others write ``true``)."""
        found = self._checked(aliases, (bool, int, float), "true or false")
        return None if found is None else bool(found)

    def sequence(self, aliases: Sequence[str]) -> tuple[Any, ...] | None:
        """A list, as a tuple."""
        found = self._checked(aliases, (list, tuple), "a list")
        return None if found is None else tuple(found)

    def text(self, aliases: Sequence[str], *, agree: bool = True) -> str | None:
        """A string. Other objects are taken by their name, so that a ``torch.dtype`` reads as its last part."""
        found = self.find(aliases, agree=agree)
        if found is None:
            return None
        if isinstance(found.value, (list, tuple, Mapping, bool, int, float)):
            self._wrong(found, "a string")
            return None
        return str(found.value).removeprefix("torch.")

    def section(self, alias: str) -> Reader | None:
        """A reader of the sub-mapping `alias`."""
        for prefix, values in self.sections:
            inner = _descend(values, alias)
            if isinstance(inner, Mapping):
                return Reader([Section(f"{prefix}{alias}.", inner)], self.journal)
        return None

    def _checked(self, aliases: Sequence[str], types: tuple[type, ...], needed: str) -> Any:
        found = self.find(aliases)
        if found is None or isinstance(found.value, types):
            return None if found is None else found.value
        self._wrong(found, needed)
        return None

    def _count(self, found: Found) -> int | None:
        value = found.value
        whole = value.is_integer() if isinstance(value, float) else isinstance(value, int)
        if whole and not isinstance(value, bool) and value >= 0:
            return int(value)
        self._wrong(found, "an integer that is not negative")
        return None

    def _wrong(self, found: Found, needed: str) -> None:
        self.journal.trouble(f"{found.path} = {show(found.value)}", needed)


def _descend(values: Mapping[str, Any], alias: str) -> Any:
    if "." not in alias:
        return values.get(alias)
    head, _, rest = alias.partition(".")
    inner = values.get(head)
    return _descend(inner, rest) if isinstance(inner, Mapping) else None
