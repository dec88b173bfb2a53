"""Reports of all ranks are equal, or every rank raises with the ranks and the fields, before any collective."""

import time
from datetime import timedelta

import pytest
import torch.distributed as dist

from moe_core.communication.agreement import RankDisagreementError, agree
from moe_core.communication.late import LateRankError
from moe_core.contract.catalog import Catalog
from moe_core.contract.deployment import MoEDeployment
from moe_core.contract.reasons import MoERejectReason
from moe_core.resolve import resolve_moe_impl
from moe_core.testing.problems import small_problem
from moe_core.testing.ranks import run_on_ranks

LONG, SHORT = timedelta(seconds=60), timedelta(seconds=1)


def report_of(max_num_tokens=64, **changes):
    deployment = MoEDeployment(ep_size=3, dp_size=3, max_num_tokens=max_num_tokens)
    return resolve_moe_impl(small_problem(**changes), deployment, candidates=Catalog.of(()))


def raised(report, timeout):
    """What agreeing raises, if anything."""
    try:
        agree(report, dist.group.WORLD, timeout)
    except (RankDisagreementError, LateRankError) as error:
        return error
    return None


def equal_reports_agree(rank):
    for _ in range(2):
        assert raised(report_of(), LONG) is None


def unequal_reports_raise_everywhere(rank):
    error = raised(report_of(max_num_tokens=32 if rank == 1 else 64), LONG)
    assert isinstance(error, RankDisagreementError)
    assert error.reason is MoERejectReason.RANK_DISAGREEMENT
    assert error.found[0].path == "deployment.max_num_tokens"
    lines = str(error).splitlines()
    assert lines[0] == f"ranks resolved differently, in {len(error.found)} fields; needed equal reports on all ranks"
    assert lines[1] == "  RANK_DISAGREEMENT deployment.max_num_tokens: 64 on ranks 0, 2, 32 on rank 1"
    assert error.found[-1].path == "fingerprint"


def a_rank_that_comes_too_late_is_named_and_told(rank):
    if rank == 2:
        time.sleep(2 * SHORT.total_seconds())
    start = time.monotonic()
    error = raised(report_of(), SHORT)
    assert isinstance(error, LateRankError)
    assert error.ranks == (2,)
    assert f"agreement failed on rank {rank}: rank 2 did not come to it within 1 s" in str(error)
    assert time.monotonic() - start < SHORT.total_seconds() + 5


def everything(rank):
    equal_reports_agree(rank)
    unequal_reports_raise_everywhere(rank)
    # Late last: a rank that stays behind would be late for what follows.
    a_rank_that_comes_too_late_is_named_and_told(rank)


@pytest.mark.dist
def test_on_three_ranks():
    run_on_ranks(3, everything)
