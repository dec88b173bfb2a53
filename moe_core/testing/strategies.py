"""Hypothesis strategies over everything that a resolution reads: valid values only, and any knowledge missing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, TypeVar

try:
    from hypothesis import strategies as st
except ImportError as error:
    raise ImportError(
        'moe_core.testing.strategies needs hypothesis, which is not installed: pip install "moe-core[test]"'
    ) from error

from moe_core.contract.candidate import MoECandidate
from moe_core.contract.deployment import MoEDeployment
from moe_core.contract.environment import Feature, Flag, MoEEnvironment, Package, PluginFact
from moe_core.contract.gates import gates_of
from moe_core.contract.problem import ActivationConstant, MoEProblem
from moe_core.contract.request import AUTO, MoERequest, ScopedRequest
from moe_core.contract.vocabulary import (
    ActivationType,
    CandidateKind,
    CudaGraphMode,
    Device,
    DType,
    GroupScore,
    LayerRole,
    LinkKind,
    QuantAlgo,
    RoutingMethodType,
)
from moe_core.testing.edges import CONSTANT_NAMES
from moe_core.testing.question import UNKNOWABLE, Question, forget

SMS: Final = (70, 75, 80, 86, 87, 89, 90, 100, 103, 107, 110, 120, 121)
PACKAGES: Final = ("torch", "triton", "deep_gemm", "flashinfer", "tensorrt_llm", "deep_ep")
"""Packages that environments list unless others are named."""

T = TypeVar("T")


def questions(
    *, packages: Sequence[str] = PACKAGES, features: Sequence[str] = (), flags: Sequence[str] = (),
    facts: Sequence[str] = (),
) -> st.SearchStrategy[Question]:  # fmt: skip
    """A problem on a deployment that do not contradict each other. Names are as in :func:`environments`."""
    machines = environments(packages=packages, features=features, flags=flags, facts=facts)
    return st.builds(_sound, problems(), deployments(machines), st.integers(0, 2))


def questions_about(candidate: MoECandidate) -> st.SearchStrategy[Question]:
    """Questions whose environments list what the requirements of `candidate` mention."""
    mentioned: dict[str, list[str]] = {"package": list(PACKAGES), "feature": [], "flag": [], "plugin": []}
    for gate in gates_of(candidate):
        for condition in (gate, *gate.when, *gate.unless):
            family, colon, name = condition.fact.partition(":")
            if colon and name not in mentioned[family]:
                mentioned[family].append(name)
    package, feature, flag, plugin = mentioned.values()
    return questions(packages=package, features=feature, flags=flag, facts=plugin)


def with_less_known(question: Question) -> st.SearchStrategy[Question]:
    """`question` with some of its knowledge forgotten."""
    return st.lists(st.sampled_from(UNKNOWABLE), unique=True).map(lambda fields: forget(question, *fields))


@st.composite
def problems(draw: st.DrawFn) -> MoEProblem:
    """Layers of any kind and size, fully known; see :func:`with_less_known` for the others."""
    group_size = draw(st.integers(1, 64))
    num_groups = draw(st.sampled_from([1, 1, 1, 2, 4, 8]))
    topk_group = draw(st.integers(1, num_groups))
    names = draw(st.lists(st.sampled_from(CONSTANT_NAMES), unique=True))
    top_k = draw(st.integers(1, min(topk_group * group_size, 32)))
    return MoEProblem(
        quant=draw(st.sampled_from(QuantAlgo)),
        quant_group_size=draw(st.sampled_from([None, 16, 32, 64, 128])),
        dtype_act=draw(st.sampled_from(DType)),
        hidden_size=draw(_widths()),
        model_hidden_size=draw(_widths()),
        intermediate_size=draw(_widths()),
        num_experts=num_groups * group_size,
        top_k=top_k,
        activation=draw(st.sampled_from(ActivationType)),
        activation_constants=tuple(ActivationConstant(name=n, value=draw(st.floats(0.5, 10))) for n in names),
        clamp_after_silu="clamp" in names and draw(st.booleans()),
        bias=draw(st.booleans()),
        routing=draw(st.sampled_from(RoutingMethodType)),
        num_expert_groups=num_groups,
        topk_group=topk_group,
        group_score=draw(st.sampled_from(GroupScore)),
        renormalize=draw(st.booleans()),
        routed_scaling_factor=draw(st.sampled_from([1.0, 2.5, 16.0])),
        routing_bias=draw(st.booleans()),
        hashed_routing=draw(st.booleans()),
        apply_router_weight_on_input=top_k == 1 and draw(st.booleans()),
        num_shared_experts=draw(st.integers(0, 2)),
        shared_intermediate_size=draw(_widths()),
        shared_expert_gate=draw(st.booleans()),
        weight_layout=draw(st.sampled_from(["checkpoint", "checkpoint", "shuffled"])),
    )


def _widths() -> st.SearchStrategy[int]:
    """Sizes from odd ones to multiples of every tile."""
    return st.builds(int.__mul__, st.sampled_from([1, 2, 16, 64, 128, 256, 512]), st.integers(1, 48))


@st.composite
def environments(
    draw: st.DrawFn, *, packages: Sequence[str] = PACKAGES, features: Sequence[str] = (), flags: Sequence[str] = (),
    facts: Sequence[str] = (),
) -> MoEEnvironment:  # fmt: skip
    """Machines with any of the named packages, features, flags and plugin facts."""
    sm = draw(st.sampled_from((0, *SMS)))
    versions = draw(st.dictionaries(st.sampled_from(packages), _versions(), max_size=len(packages))) if packages else {}
    gpu = sm > 0
    return MoEEnvironment(
        device=Device.CUDA if gpu else Device.CPU,
        device_name=f"sm{sm}" if gpu else "cpu",
        sm=sm,
        num_sms=draw(st.integers(1, 200)) if gpu else 0,
        device_memory=draw(st.sampled_from([2**33, 2**36, 2**37, 2**38])) if gpu else None,
        shared_memory_per_block=draw(st.sampled_from([65_536, 101_376, 166_912, 232_448])) if gpu else 0,
        devices_per_node=draw(st.sampled_from([1, 2, 4, 8, 72])) if gpu else 0,
        link=draw(st.sampled_from(LinkKind)) if gpu else LinkKind.NONE,
        cuda_version=draw(st.sampled_from(["12.4", "12.9", "13.0"])) if gpu else None,
        driver_version="580.65" if gpu else None,
        python_version="3.12",
        can_jit=draw(st.booleans()),
        packages=tuple(Package(name=n, version=v) for n, v in versions.items()),
        features=tuple(Feature(name=n, present=draw(st.booleans())) for n in _some(draw, features)),
        flags=tuple(Flag(name=n, value=draw(st.sampled_from(["0", "1"]))) for n in _some(draw, flags)),
        facts=tuple(PluginFact(name=n, value=draw(st.booleans() | st.integers(0, 9))) for n in _some(draw, facts)),
    )


def _versions() -> st.SearchStrategy[str]:
    return st.tuples(st.integers(0, 3), st.integers(0, 15), st.integers(0, 2)).map(lambda v: ".".join(map(str, v)))


def _some(draw: st.DrawFn, names: Sequence[T]) -> list[T]:
    return draw(st.lists(st.sampled_from(names), unique=True)) if names else []


@st.composite
def deployments(draw: st.DrawFn, machines: st.SearchStrategy[MoEEnvironment] | None = None) -> MoEDeployment:
    """Deployments whose sizes multiply out, on any of `machines`."""
    ep, tp, cluster = (draw(st.sampled_from(sizes)) for sizes in ([1, 2, 3, 4, 8, 16, 72], [1, 1, 2, 4], [1, 1, 1, 2]))
    world = ep * tp * cluster
    ranks_per_node = draw(st.sampled_from([r for r in (1, 2, 4, 8, 72, world) if world % r == 0]))
    tokens, has_eplb = draw(_token_limits()), draw(st.booleans())
    return MoEDeployment(
        environment=draw(environments() if machines is None else machines),
        ep_size=ep,
        tp_size=tp,
        cluster_size=cluster,
        dp_size=draw(st.sampled_from([1, world])),
        ranks_per_node=ranks_per_node,
        eplb_enabled=has_eplb,
        moe_lora_enabled=draw(st.booleans()),
        fused_finalize_enabled=draw(st.booleans()),
        locality_domain_requested=draw(st.booleans()),
        dwdp_size=1 if has_eplb or tp > 1 else draw(st.sampled_from([1, 1, 2])),
        max_num_tokens=tokens,
        moe_max_num_tokens=draw(st.sampled_from([None, tokens, -(-tokens // 4)])),
        max_dispatch_tokens=draw(_token_limits()),
        cuda_graph=draw(st.sampled_from(CudaGraphMode)),
        batch_invariant=draw(st.booleans()),
        allow_alltoall=draw(st.booleans()),
        low_precision_combine=draw(st.booleans()),
    )


def _token_limits() -> st.SearchStrategy[int]:
    return st.sampled_from([1, 64, 128, 1024, 8192, 131_072])


def _sound(problem: MoEProblem, deployment: MoEDeployment, redundancy: int) -> Question:
    experts = problem.num_experts or 1
    if experts < deployment.ep_size:
        experts *= deployment.ep_size
        problem = problem.evolve(num_experts=experts)
    if deployment.eplb_enabled:
        deployment = deployment.evolve(num_slots=experts + redundancy * deployment.ep_size)
    return Question(problem, deployment)


def requests(candidates: Iterable[MoECandidate] = ()) -> st.SearchStrategy[MoERequest]:
    """Requests for anything that `candidates` are called, with bans, token buckets and scopes."""
    known = tuple(candidates)
    layers = st.sampled_from([None, "0", "0-2", "4-", "1,3"])
    backend, communication = (
        _targets([c for c in known if c.kind is kind]) for kind in (CandidateKind.BACKEND, CandidateKind.COMMUNICATION)
    )
    scopes = st.builds(
        ScopedRequest,
        layers=layers,
        role=st.none() | st.sampled_from(LayerRole),
        quant=st.none() | st.sampled_from(QuantAlgo),
        backend=st.none() | backend,
    )
    return st.builds(
        MoERequest,
        backend=backend,
        communication=communication,
        allow_degradation=st.booleans(),
        bans=_tuples(_targets(known, auto=False)) if known else st.just(()),
        require_adapter=st.booleans(),
        token_buckets=_tuples(st.sampled_from([1, 64, 4096])),
        scopes=_tuples(scopes, most=1),
    )


def _targets(candidates: Sequence[MoECandidate], *, auto: bool = True) -> st.SearchStrategy[str]:
    names = [AUTO] * auto + [n for c in candidates for n in (c.family, c.identity)]
    return st.sampled_from(names)


def _tuples(elements: st.SearchStrategy[Any], most: int = 3) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(elements, unique=True, max_size=most).map(tuple)
