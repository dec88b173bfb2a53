"""Whether all ranks hold the same report, asked where every rank passes, before the first collective of a layer."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from datetime import timedelta

import torch.distributed as dist
from torch.distributed import ProcessGroup

from moe_core.communication.late import LateRankError, named
from moe_core.communication.stores import shared_part, store_of, until
from moe_core.contract.model_report import MoEModelReport
from moe_core.contract.reasons import MoERejectReason
from moe_core.contract.report import MoEResolutionReport
from moe_core.explain.agree import FIRST, Disagreement, disagreements
from moe_core.explain.flat import flatten


class RankDisagreementError(RuntimeError):
    """Ranks hold different reports: they would wait for each other in different collectives."""

    reason = MoERejectReason.RANK_DISAGREEMENT

    def __init__(self, found: Sequence[Disagreement]) -> None:
        self.found = tuple(found)
        """Every field that differs, inputs before what follows from them."""
        lines = [f"ranks resolved differently, in {len(found)} fields; needed equal reports on all ranks"]
        lines += [f"  {each}" for each in self.found[:FIRST]]
        lines += [f"  and {len(found) - FIRST} more"] if len(found) > FIRST else []
        super().__init__("\n".join(lines))


def agree(report: MoEModelReport | MoEResolutionReport, group: ProcessGroup, timeout: timedelta) -> None:
    """Return when all ranks of `group` hold equal reports; all ranks call it, none waits longer than `timeout`.

    Goes through the store of the group and runs no collective, so that ranks that will not come can be named.

    Raises:
        RankDisagreementError: reports differ; on every rank, with the ranks and the fields.
        LateRankError: ranks did not call it in time; on every rank, those that come later included.
    """
    exchange = _Exchange(group, timeout)
    fingerprints = exchange.gather("fingerprint", report.fingerprint)
    if len(set(fingerprints)) == 1:
        return
    # Flat, which ranks with different versions of the contract can read from each other.
    flat = {**flatten(report), "fingerprint": report.fingerprint}
    flats = exchange.gather("report", json.dumps(flat))
    raise RankDisagreementError(disagreements([json.loads(text) for text in flats]))


class _Exchange:
    """One question to all ranks, in rounds, with one deadline."""

    def __init__(self, group: ProcessGroup, timeout: timedelta) -> None:
        self._rank, self._num_ranks = dist.get_rank(group), dist.get_world_size(group)
        self._store = shared_part(store_of(group), "agree", self._rank)
        self._timeout = timeout.total_seconds()
        self._deadline = time.monotonic() + self._timeout

    def gather(self, what: str, value: str) -> list[str]:
        """Each rank's value, in order of rank."""
        keys = [f"{what}/{rank}" for rank in range(self._num_ranks)]
        self._store.set(keys[self._rank], value)
        until(lambda: self._store.check(keys) or self._store.check(["late"]), self._deadline - time.monotonic())
        # Who gives up says so: a rank that comes later must not go on alone.
        if not self._store.check(keys):
            self._store.set("late", json.dumps([r for r, key in enumerate(keys) if not self._store.check([key])]))
        if self._store.check(["late"]):
            late = json.loads(self._store.get("late"))
            raise LateRankError(
                f"agreement failed on rank {self._rank}: {named(late)} did not come to it within {self._timeout:g} s; "
                f"see what became of {named(late)}, or allow more time",
                late,
            )
        return [self._store.get(key).decode() for key in keys]
