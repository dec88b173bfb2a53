"""A small catalog with one candidate for each way to fare, and golden files.

Set the variable UPDATE_GOLDEN=1 to write the golden files anew; then read the difference before committing it.
"""

import os
from pathlib import Path

import pytest

from moe_core.contract.candidate import AdjustmentRule, MoEActivationSupport, MoECandidate
from moe_core.contract.catalog import Catalog, CatalogEntry
from moe_core.contract.declare import Equals, Reason, divisible, is_, need, package, quant_in, sm_at_least, sm_in
from moe_core.contract.deployment import MoEDeployment
from moe_core.contract.environment import MoEEnvironment, Package
from moe_core.contract.problem import MoEProblem
from moe_core.contract.request import MoERequest
from moe_core.contract.tuning import Tuning
from moe_core.contract.vocabulary import ActivationType, CandidateKind, Device, LinkKind, QuantAlgo, RoutingMethodType
from moe_core.resolve import resolve_moe_impl

GOLDEN = Path(__file__).parents[1] / "data" / "golden"
FP8, NVFP4, NONE = QuantAlgo.FP8_BLOCK_SCALES, QuantAlgo.NVFP4, QuantAlgo.NONE
SWIGLU = MoEActivationSupport(kinds=(ActivationType.SWIGLU,))
NEEDS_NO_DP = need(Reason.TOPOLOGY_UNSUPPORTED, "use_dp", Equals(value=False))
NEEDS_DP = need(Reason.TOPOLOGY_UNSUPPORTED, "use_dp", Equals(value=True))


def backend(identity, family, priority, *requirements, **more):
    return MoECandidate(
        identity=identity, kind=CandidateKind.BACKEND, family=family, title=f"{family.lower()} for tests",
        priority=priority, requirements=requirements, activation=SWIGLU, **more,
    )  # fmt: skip


def strategy(identity, family, priority, *requirements, **more):
    return MoECandidate(
        identity=identity, kind=CandidateKind.COMMUNICATION, family=family, title=f"{family.lower()} for tests",
        priority=priority, requirements=requirements, **more,
    )  # fmt: skip


RUNS = {"factory": "somewhere.module:factory"}
CANDIDATES = (
    backend("alpha.cuda.fused.nvfp4", "ALPHA", 90, quant_in(NVFP4), sm_in(100, 103), package("alpha", at_least="2.0")),
    backend("alpha.cuda.fused.fp8_block_scales", "ALPHA", 80, quant_in(FP8), sm_in(100, 103), **RUNS),
    backend("alpha.cuda.grouped.fp8_block_scales", "ALPHA", 75, quant_in(FP8), sm_in(100, 103), **RUNS),
    backend("beta.cuda.grouped.fp8_block_scales", "BETA", 70, quant_in(FP8), sm_in(90), package("beta"), **RUNS),
    backend("gamma.cuda.grouped.fp8_block_scales", "GAMMA", 60, quant_in(FP8)),
    backend(
        "delta.triton.grouped.fp8_block_scales", "DELTA", 50, quant_in(FP8), sm_at_least(80),
        divisible("intermediate_size_per_tp", 128, hint="use a smaller tp_size, or EP"), **RUNS,
    ),
    backend(
        "delta.triton.padded.fp8_block_scales", "DELTA", 40, quant_in(FP8),
        need(Reason.NOT_BATCH_INVARIANT, "batch_invariant", Equals(value=False), when=(is_("quant", "NVFP4"),)),
        adjustments=(AdjustmentRule(fact="intermediate_size_per_tp", multiple=128),), **RUNS,
    ),
    backend("omega.torch.loop.any", "VANILLA", 1, **RUNS),
    strategy("omega.local.nothing.any", "NONE", 30, NEEDS_NO_DP, **RUNS),
    strategy("alpha.nvlink.one_sided.any", "ONE_SIDED", 20, NEEDS_DP, package("alpha", at_least="2.0"), **RUNS),
    strategy("omega.collective.all_gather.any", "ALLGATHER", 10, NEEDS_DP, **RUNS),
)  # fmt: skip


@pytest.fixture(scope="session")
def catalog():
    return Catalog.of(CANDIDATES)


@pytest.fixture(scope="session")
def hopper():
    return MoEEnvironment(
        name="test-90", device=Device.CUDA, device_name="Test GPU", sm=90, device_memory=80 * 2**30,
        devices_per_node=8, link=LinkKind.NVLINK, can_jit=True, packages=(Package(name="torch", version="2.11.0"),),
    )  # fmt: skip


@pytest.fixture(scope="session")
def fp8_problem():
    return MoEProblem(
        quant=FP8, quant_group_size=128, hidden_size=2048, intermediate_size=768, num_experts=128, top_k=8,
        bias=False, routing=RoutingMethodType.RENORMALIZE,
    )  # fmt: skip


@pytest.fixture(scope="session")
def tuned_catalog(catalog):
    """The catalog in which one backend's plugin has a table, one has none for this machine, and one is far from it."""

    def has_table(problem, deployment, tokens):
        key = f"Test GPU, E128 H2048 I768 K8, {tokens} tokens"
        if tokens <= 64:
            return Tuning(source="table", key=key, microseconds=2.0 * tokens)
        key = "Test GPU, E128 H2048 I768 K8, 64 tokens"
        return Tuning(source="nearest", key=key, microseconds=3.0 * tokens, note=f"no entry for {tokens} tokens")

    def estimates(problem, deployment, tokens):
        return Tuning(source="cost_model", key="Test GPU", microseconds=100.0 + tokens, note="no table for Test GPU")

    def only_says_how(problem, deployment, tokens):
        return Tuning(source="table", key="any GPU")

    tunings = {
        "delta.triton.grouped.fp8_block_scales": has_table,
        "delta.triton.padded.fp8_block_scales": estimates,
        "omega.torch.loop.any": only_says_how,
    }
    return Catalog(CatalogEntry(c, moe_tuning=tunings.get(c.identity)) for c in catalog.candidates)


@pytest.fixture
def resolved(catalog, hopper, fp8_problem):
    """``resolved(backend="ALPHA", tp_size=8)``: the report of the FP8 problem; fields of request and deployment."""

    def resolve(problem=fp8_problem, environment=hopper, candidates=catalog, **fields):
        request = {name: fields.pop(name) for name in tuple(fields) if name in MoERequest.model_fields}
        deployment = MoEDeployment(environment=environment, **fields)
        return resolve_moe_impl(problem, deployment, candidates=candidates, request=MoERequest(**request))

    return resolve


@pytest.fixture
def assert_golden():
    def assert_equal_to_file(name, text):
        path = GOLDEN / name
        if os.environ.get("UPDATE_GOLDEN"):
            path.write_text(text, encoding="utf-8")
        assert path.exists(), f"{path} is missing; UPDATE_GOLDEN=1 writes it"
        assert text == path.read_text(encoding="utf-8")

    return assert_equal_to_file
