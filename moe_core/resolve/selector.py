"""What a request names: anything, a family, one identity, or a query over identity segments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from moe_core.contract.candidate import MoECandidate
from moe_core.contract.request import AUTO

SEGMENTS = ("provider", "technique", "kernel", "quant")
WITHDRAWN = {
    "WIDEEP": "it was withdrawn: expert parallelism with EPLB is a deployment (--ep, --eplb) of the other families",
}
NEVER_DEGRADED = frozenset({"VANILLA"})


class UnknownRequestError(ValueError):
    """A request names nothing that is registered; the message has close matches."""


@dataclass(frozen=True, slots=True)
class Selector:
    """The candidates that a request means."""

    text: str
    identities: frozenset[str] | None
    """``None``: every candidate of the kind."""
    pinned: bool
    """Whether stepping down from it is never allowed."""

    def __contains__(self, candidate: MoECandidate) -> bool:
        return self.identities is None or candidate.identity in self.identities

    @property
    def is_auto(self) -> bool:
        """Whether nothing in particular was asked for."""
        return self.identities is None


def select(text: str, candidates: Sequence[MoECandidate]) -> Selector:
    """The selector that `text` means among `candidates` (of one kind).

    Raises :class:`UnknownRequestError` for a family, identity or token that nobody registered, a withdrawn family,
    or a query whose tokens do not name one segment each.
    """
    wanted = text.strip()
    if wanted.casefold() == AUTO:
        return Selector(AUTO, None, pinned=False)
    family = wanted.upper()
    if family in WITHDRAWN:
        raise UnknownRequestError(f"{family} cannot be requested: {WITHDRAWN[family]}")
    members = frozenset(c.identity for c in candidates if c.family == family)
    if members:
        return Selector(family, members, pinned=family in NEVER_DEGRADED)
    identity = wanted.casefold()
    if any(c.identity == identity for c in candidates):
        return Selector(identity, frozenset({identity}), pinned=True)
    return Selector(identity, _query(wanted, identity, candidates), pinned=True)


def _query(asked: str, text: str, candidates: Sequence[MoECandidate]) -> frozenset[str]:
    vocabulary = [{c.identity.split(".")[i] for c in candidates} for i in range(4)]
    tokens = text.split(".")
    if not text or "" in tokens or len(tokens) > 4:
        raise UnknownRequestError(
            f"{asked!r} is no request: give a family, an identity, or up to four of its segments joined by dots"
        )
    chosen: dict[int, str] = {}
    for token in tokens:
        if token == "*":
            continue
        fields = [i for i in range(4) if token in vocabulary[i]]
        if not fields:
            raise UnknownRequestError(_unknown(asked, token, candidates, vocabulary))
        if len(fields) > 1:
            both = " and ".join(SEGMENTS[i] for i in fields)
            raise UnknownRequestError(f"{token!r} in {asked!r} is ambiguous: it is a {both}; give the whole identity")
        if fields[0] in chosen:
            raise UnknownRequestError(f"{asked!r} names the {SEGMENTS[fields[0]]} twice: {chosen[fields[0]]}, {token}")
        chosen[fields[0]] = token
    if not chosen:
        raise UnknownRequestError(f"{asked!r} names no segment; use 'auto' for any implementation")
    found = frozenset(
        c.identity for c in candidates if all(c.identity.split(".")[i] == token for i, token in chosen.items())
    )
    if not found:
        raise UnknownRequestError(f"{asked!r} matches no identity; `moe candidates` lists them")
    return found


def _unknown(asked: str, token: str, candidates: Sequence[MoECandidate], vocabulary: list[set[str]]) -> str:
    from difflib import get_close_matches

    families = sorted({c.family for c in candidates})
    known = [f.casefold() for f in families] + [c.identity for c in candidates] + sorted(set().union(*vocabulary))
    close = get_close_matches(asked.casefold(), known, n=3) or get_close_matches(token, known, n=3)
    names = [c.upper() if c.upper() in families else c for c in dict.fromkeys(close)]
    suggestion = f"did you mean {', '.join(names)}?" if names else f"families: {', '.join(families)}"
    return f"{asked!r} names no registered family, identity or segment; {suggestion}"
