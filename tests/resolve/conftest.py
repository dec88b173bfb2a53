"""A small catalog in which every rule of the resolver has something to do."""

import pytest

from moe_core.contract.candidate import AdjustmentRule, MoEActivationSupport, MoECandidate, MoEStaticCapability
from moe_core.contract.catalog import Catalog
from moe_core.contract.declare import (
    AtLeast,
    Equals,
    Reason,
    divisible,
    need,
    package,
    quant_in,
    sm_in,
)
from moe_core.contract.deployment import MoEDeployment
from moe_core.contract.environment import MoEEnvironment
from moe_core.contract.problem import MoEProblem
from moe_core.contract.vocabulary import QuantAlgo

SWIGLU = MoEActivationSupport(kinds=("Swiglu",))
ANY = MoEActivationSupport(kinds=("Swiglu", "SwigluBias", "Relu2"), constants=("alpha", "beta", "clamp"))
DP_ON = need(Reason.TOPOLOGY_UNSUPPORTED, "use_dp", Equals(value=True), "use attention data parallelism")
DP_OFF = need(Reason.TOPOLOGY_UNSUPPORTED, "use_dp", Equals(value=False))
TP_ONE = need(Reason.TOPOLOGY_UNSUPPORTED, "tp_size", Equals(value=1), "use EP instead of MoE TP")
EP_TWO = need(Reason.TOPOLOGY_UNSUPPORTED, "ep_size", AtLeast(value=2))


def backend(identity, family, priority, *gates, **fields):
    fields = {"activation": SWIGLU, "factory": "pkg.mod:build", "title": identity, **fields}
    return MoECandidate(
        kind="backend", identity=identity, family=family, priority=priority, requirements=gates, **fields
    )


def strategy(identity, family, priority, *gates, **fields):
    fields = {"factory": "pkg.mod:build", "title": identity, **fields}
    return MoECandidate(
        kind="communication", identity=identity, family=family, priority=priority, requirements=gates, **fields
    )


CANDIDATES = (
    backend("acme.fast.fused.fp8_block_scales", "FASTFP8", 500, sm_in(100), quant_in(QuantAlgo.FP8_BLOCK_SCALES)),
    backend(
        "acme.tile.grouped.fp8_block_scales", "TILE", 400, sm_in(90), quant_in(QuantAlgo.FP8_BLOCK_SCALES),
        divisible("intermediate_size_per_tp", 128), upstream=True,
    ),
    backend("acme.tile.grouped.none", "TILE", 390, sm_in(90), quant_in(QuantAlgo.NONE), package("acme")),
    backend(
        "acme.mega.kernel.none", "MEGA", 380, sm_in(90), quant_in(QuantAlgo.NONE), DP_ON, scheduler_kind="FUSED_COMM"
    ),
    backend(
        "acme.router.inside.none", "INSIDE", 370, sm_in(90), quant_in(QuantAlgo.NONE), routing_split="in_kernel"
    ),
    backend(
        "acme.pad.grouped.none", "PADS", 360, sm_in(90), quant_in(QuantAlgo.NONE),
        adjustments=(AdjustmentRule(fact="intermediate_size_per_tp", multiple=64),),
    ),
    backend("acme.absent.grouped.none", "ABSENT", 999, sm_in(90), factory=None),
    backend("acme.cutlass.grouped.none", "CUTLASS", 300, upstream=True, factory=None),
    backend(
        "acme.loop.reference.any", "VANILLA", 10, activation=ANY,
        capabilities=MoEStaticCapability(
            supports_expert_bias=True, supports_eplb=True, supports_non_divisible_ep=True, batch_invariant=True
        ),
    ),
    strategy("acme.local.nothing.any", "NONE", 50, DP_OFF),
    strategy("acme.nvl.onesided.any", "NVLINK_ONE_SIDED", 40, DP_ON, TP_ONE, EP_TWO,
             need(Reason.TOPOLOGY_UNSUPPORTED, "link", Equals(value="nvlink"))),
    strategy("acme.ll.expertwise.any", "DEEPEPLOWLATENCY", 30, DP_ON, TP_ONE, EP_TWO, layouts=("expert_major",),
             max_chunks=1, bounded_tokens=True, post_quant=("NVFP4",)),
    strategy("acme.a2a.plain.any", "DEEPEP", 20, DP_ON, TP_ONE, EP_TWO, max_chunks=1, bounded_tokens=True,
             post_quant=()),
    strategy("acme.gather.scatter.any", "ALLGATHER", 10, DP_ON),
)  # fmt: skip


@pytest.fixture(scope="session")
def catalog():
    return Catalog.of(CANDIDATES)


@pytest.fixture
def bf16():
    """An unquantized problem."""
    return MoEProblem(
        quant="NONE",
        hidden_size=2048,
        intermediate_size=768,
        num_experts=128,
        top_k=8,
        bias=False,
        routing="Renormalize",
    )


@pytest.fixture
def fp8(bf16):
    """The same problem in FP8 with 128x128 blocks."""
    return bf16.evolve(quant="FP8_BLOCK_SCALES")


@pytest.fixture
def hopper():
    """A node of Hopper GPUs joined by NVLink."""
    return MoEEnvironment(device="cuda", sm=90, link="nvlink", device_memory=141 * 10**9)


@pytest.fixture
def ep8(hopper):
    """Expert parallelism with attention data parallelism over eight ranks."""
    return MoEDeployment(environment=hopper, ep_size=8, dp_size=8, max_num_tokens=4096, moe_max_num_tokens=4096)
