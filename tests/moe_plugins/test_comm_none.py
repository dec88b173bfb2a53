"""Without an exchange, rows stay; partial outputs are summed where there are several ranks."""

import pytest
import torch
import torch.distributed as dist

from moe_core.contract.deployment import MoEDeployment
from moe_core.execution import Binding, ParallelGroups, bind_factory
from moe_core.testing.problems import small_problem
from moe_core.testing.ranks import run_on_ranks
from moe_plugins.comm_none import CANDIDATES

(CANDIDATE,) = CANDIDATES


def strategy(groups=ParallelGroups()):  # noqa: B008 - frozen
    binding = Binding(CANDIDATE, small_problem(), MoEDeployment(), torch.device("cpu"), torch.float32, groups)
    return bind_factory(CANDIDATE)(binding)


def test_nothing_moves_on_one_rank():
    x, ids, scales = torch.ones(3, 4), torch.zeros(3, 2, dtype=torch.int32), torch.ones(3, 2)
    with strategy() as comm:
        rows = comm.dispatch(x, None, ids, scales, (3,))
        assert (rows.x is x, rows.x_sf, rows.token_selected_slots is ids, rows.token_final_scales is scales) == (
            True,
            None,
            True,
            True,
        )
        assert comm.combine(x) is x


def sum_partial_outputs(rank):
    with strategy(ParallelGroups(rank=rank, group=dist.group.WORLD)) as comm:
        comm.dispatch(torch.ones(3, 4), None, torch.zeros(3, 2, dtype=torch.int32), torch.ones(3, 2), (3, 3))
        assert comm.combine(torch.full((3, 4), 1.0 + rank)).tolist() == [[3.0] * 4] * 3


@pytest.mark.dist
def test_partial_outputs_of_two_ranks_are_summed():
    run_on_ranks(2, sum_partial_outputs)
