"""Every row reaches every rank in rank order, and every sum its owner; with uneven counts and with none."""

import pytest
import torch
import torch.distributed as dist

from moe_core.contract.deployment import MoEDeployment
from moe_core.execution import BindError, Binding, ParallelGroups, bind_factory
from moe_core.testing.numerics import assert_bitwise_equal
from moe_core.testing.problems import small_problem
from moe_core.testing.ranks import run_on_ranks
from moe_plugins.comm_all_gather import CANDIDATES

(CANDIDATE,) = CANDIDATES
COUNTS = ([3, 5, 1], [2, 2, 2], [0, 4, 1], [0, 0, 0])
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.uint8)


def strategy(groups):
    deployment = MoEDeployment(ep_size=3, dp_size=3)
    return bind_factory(CANDIDATE)(
        Binding(CANDIDATE, small_problem(), deployment, torch.device("cpu"), torch.float32, groups)
    )


def rows_of(rank, count, dtype):
    """What `rank` sends: rows, scales of a quantized row, ids and router weights, all its own."""
    values = torch.arange(count * 8).view(count, 8) + 10 * rank
    ids = torch.arange(count * 2, dtype=torch.int32).view(count, 2) + 100 * rank
    return values.to(dtype), values[:, :2].to(torch.uint8), ids, ids.float() / 8


def exchange(rank):
    with strategy(ParallelGroups(rank=rank, group=dist.group.WORLD)) as comm:
        for counts in COUNTS:
            for dtype in DTYPES:
                dispatched = comm.dispatch(*rows_of(rank, counts[rank], dtype), counts)
                sent = [rows_of(source, count, dtype) for source, count in enumerate(counts)]
                for received, parts in zip(dispatched, zip(*sent, strict=True), strict=True):
                    assert_bitwise_equal(received, torch.cat(parts))
                y = dispatched.token_final_scales.to(torch.float32) * (rank + 1)
                assert_bitwise_equal(comm.combine(y), rows_of(rank, counts[rank], dtype)[3] * 6)
        without_scales = comm.dispatch(torch.ones(1, 8), None, *rows_of(rank, 1, torch.float32)[2:], [1, 1, 1])
        assert without_scales.x_sf is None


def refuse_wrong_counts(rank):
    comm = strategy(ParallelGroups(rank=rank, group=dist.group.WORLD))
    with pytest.raises(ValueError, match="has 2 counts, needed one for each of 3 ranks"):
        comm.dispatch(*rows_of(rank, 1, torch.float32), [1, 1])
    with pytest.raises(ValueError, match=f"rank {rank} has 1 rows, but all_rank_num_tokens says 2"):
        comm.dispatch(*rows_of(rank, 1, torch.float32), [2, 2, 2])


def both(rank):
    refuse_wrong_counts(rank)
    exchange(rank)


@pytest.mark.dist
def test_three_ranks_exchange_rows():
    run_on_ranks(3, both)


def test_needs_a_group():
    with pytest.raises(BindError, match="give groups"):
        strategy(ParallelGroups())
