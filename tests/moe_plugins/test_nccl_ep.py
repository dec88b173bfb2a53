"""The launch limit of NCCL's EP kernels before 0.2, where its arithmetic has nothing to work with."""

from moe_core.contract.deployment import MoEDeployment
from moe_core.contract.environment import MoEEnvironment, Package
from moe_core.contract.problem import MoEProblem
from moe_plugins.declared.nccl_ep import CANDIDATE, NcclEP

PROBLEM = MoEProblem(num_experts=64, top_k=2, hidden_size=4096)


def refused_facts(**fields):
    environment = MoEEnvironment(packages=(Package(name="nccl_ep", version="0.1"),), **fields)
    answer = NcclEP(CANDIDATE).can_implement(PROBLEM, MoEDeployment(environment=environment, ep_size=2))
    return {rejection.fact for rejection in answer.rejections}


def test_shared_memory_is_compared_where_kernels_can_run():
    assert "shared_memory_per_block" in refused_facts(num_sms=132, shared_memory_per_block=1024)
    assert "shared_memory_per_block" not in refused_facts(num_sms=132, shared_memory_per_block=227 * 1024)


def test_no_multiprocessors_are_no_divisor():
    assert "num_slots" in refused_facts(num_sms=0, shared_memory_per_block=0)
