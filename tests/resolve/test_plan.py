"""Forward plans: equal on all ranks, nobody waits for a rank that is not coming."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moe_core.contract.catalog import Catalog
from moe_core.contract.deployment import MoEDeployment
from moe_core.contract.plan import FinalizeOrder, QuantizeOrder
from moe_core.contract.request import MoERequest
from moe_core.resolve import InfeasibleWorkloadError, plan_forward, resolve_moe_impl, strategies_of


@pytest.fixture
def report(catalog, bf16, ep8):
    def of(deployment=ep8, **request):
        return resolve_moe_impl(bf16, deployment, candidates=catalog, request=MoERequest(**request))

    return of


def test_one_chunk_on_every_rank(report):
    plan = plan_forward(report(backend="PADS"), [1, 2, 3, 4, 5, 6, 7, 8])
    assert plan.communication == "acme.nvl.onesided.any"
    assert plan.padded_tokens == plan.num_tokens
    assert [c.sizes for c in plan.chunks] == [(1, 2, 3, 4, 5, 6, 7, 8)]
    assert plan.quantize is QuantizeOrder.BEFORE_DISPATCH


def test_a_rank_without_tokens_brings_zero_rows_to_every_collective(report):
    plan = plan_forward(report(backend="PADS"), [0, 5, 0, 3, 5, 5, 5, 5])
    assert plan.padded_tokens == (5,) * 8
    assert plan.num_tokens[0] == 0


def test_no_tokens_anywhere_need_no_collective(report):
    assert plan_forward(report(backend="PADS"), [0] * 8).chunks == ()
    assert plan_forward(report(), [0] * 8).chunks == ()


def test_chunks_follow_the_gathered_rows(report):
    plan = plan_forward(report(backend="PADS"), [1000] * 8)
    assert [c.sizes for c in plan.chunks] == [(500,) * 8, (500,) * 8]


def test_an_empty_piece_repeats_the_first_and_drops_the_result(report):
    plan = plan_forward(report(backend="PADS"), [4000, *[1] * 7])
    assert len(plan.chunks) == 8
    assert [c.sizes[1] for c in plan.chunks] == [1] * 8
    assert [c.kept[1] for c in plan.chunks] == [True] + [False] * 7


def test_the_fused_scheduler_counts_per_rank_and_keeps_empty_pieces(report, ep8):
    plan = plan_forward(report(ep8.evolve(moe_max_num_tokens=1000)), [4000, 0, 1, 2, 3, 4, 5, 6])
    assert plan.communication is None
    assert len(plan.chunks) == 4
    assert [c.sizes[1] for c in plan.chunks] == [0] * 4
    assert [c.sizes[2] for c in plan.chunks] == [1, 0, 0, 0]


def test_a_workload_that_the_strategy_cannot_serve_goes_to_all_gather_alone(report):
    asked = report(backend="PADS", communication="DEEPEP")
    assert plan_forward(asked, [8] * 8).communication == "acme.a2a.plain.any"
    large = plan_forward(asked, [1000] * 8)
    assert large.communication == "acme.gather.scatter.any"
    [step] = large.degradations
    assert step.reason == "it serves forwards of at most 1 chunk(s)"
    assert plan_forward(asked, [4000] * 8).degradations == (step,), "the same cause, whatever the numbers"
    assert plan_forward(asked, [8] * 8).communication == "acme.a2a.plain.any", "it comes back"


def test_buffers_bound_the_tokens(report, ep8):
    asked = report(ep8.evolve(max_dispatch_tokens=100, moe_max_num_tokens=None), communication="DEEPEP")
    [step] = plan_forward(asked, [101] * 8).degradations
    assert step.reason == "its buffers hold 100 tokens per rank"


PINS = [{"communication": "acme.a2a.plain.any"}, {"communication": "DEEPEP", "allow_degradation": False}]


@pytest.mark.parametrize("request_", PINS)
def test_a_pin_fails_on_every_rank_before_any_collective(report, request_):
    asked = report(**request_)
    with pytest.raises(InfeasibleWorkloadError, match=r"serves forwards of at most 1 chunk\(s\); found 2"):
        plan_forward(asked, [1000] * 8)


def test_buffers_bound_the_tokens_of_a_chunk_not_of_a_forward(catalog, bf16, ep8):
    chunked = Catalog.of(c.evolve(max_chunks=None) if c.family == "DEEPEP" else c for c in catalog.candidates)
    request = MoERequest(communication="DEEPEP", allow_degradation=False)
    deployment = ep8.evolve(moe_max_num_tokens=800, max_dispatch_tokens=100, max_num_tokens=None)
    report = resolve_moe_impl(bf16, deployment, candidates=chunked, request=request)
    plan = plan_forward(report, [1000] * 8)
    assert [c.sizes for c in plan.chunks] == [(100,) * 8] * 10
    few = resolve_moe_impl(bf16, deployment.evolve(max_dispatch_tokens=99), candidates=chunked, request=request)
    with pytest.raises(InfeasibleWorkloadError, match="its buffers hold 99 tokens per rank; found 100"):
        plan_forward(few, [1000] * 8)


def test_ranks_that_see_the_same_tokens_give_one_count(report, hopper):
    alone = report(MoEDeployment(environment=hopper, ep_size=8, moe_max_num_tokens=64))
    plan = plan_forward(alone, [100] * 8)
    assert plan.num_tokens == (100,)
    assert [c.sizes for c in plan.chunks] == [(50,), (50,)]
    assert plan.quantize is QuantizeOrder.LOCAL


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ([1, 2], "2 token counts were given, 8 are needed"),
        ([-1] * 8, ">= 0"),
        ([5000] * 8, "more than the deployment's"),
    ],
)
def test_counts_that_do_not_fit_are_refused(report, counts, message):
    with pytest.raises(ValueError, match=message):
        plan_forward(report(backend="PADS"), counts)


def test_rows_that_attention_has_padded_already(report, ep8):
    counts = [1, 2, 3, 4, 5, 6, 7, 8]
    plan = plan_forward(report(backend="PADS"), counts, use_dp_padding=True)
    assert (plan.num_tokens, plan.padded_tokens) == (tuple(counts), (8,) * 8)
    assert [c.sizes for c in plan.chunks] == [(8,) * 8]
    fused = plan_forward(report(), counts, use_dp_padding=True)
    assert [c.sizes for c in fused.chunks] == [tuple(counts)], "a kernel that exchanges itself sees no padding"


def test_weights_that_move_instead_of_tokens_leave_every_rank_alone(catalog, bf16, hopper):
    loop = catalog.get("acme.loop.reference.any")
    able = loop.evolve(capabilities=loop.capabilities.evolve(supports_dwdp=True))
    nothing = catalog.get("acme.local.nothing.any").evolve(requirements=())
    deployment = MoEDeployment(environment=hopper, ep_size=2, dp_size=2, dwdp_size=2, moe_max_num_tokens=4)
    plan = plan_forward(resolve_moe_impl(bf16, deployment, candidates=(able, nothing)), [5, 0])
    assert plan.quantize is QuantizeOrder.LOCAL
    assert plan.padded_tokens == (5, 0), "nobody waits for a rank without tokens"
    assert [c.sizes for c in plan.chunks] == [(3, 0), (2, 0)]
    assert [c.kept for c in plan.chunks] == [(True, False)] * 2


def test_who_weighs_and_which_chunks_may_overlap(report):
    gathered = plan_forward(report(backend="PADS", communication="ALLGATHER"), [1000] * 8)
    assert (gathered.finalize, gathered.may_overlap) == (FinalizeOrder.EXPERTS, True)
    exchanged = plan_forward(report(backend="PADS"), [1000] * 8)
    assert (exchanged.finalize, exchanged.may_overlap) == (FinalizeOrder.EXPERTS, False)


def test_combine_weighs_where_the_strategy_says_so(catalog, bf16, ep8):
    expertwise = catalog.get("acme.ll.expertwise.any").evolve(finalize_before_combine=False)
    takes = catalog.get("acme.pad.grouped.none").evolve(layouts=("expert_major",))
    plan = plan_forward(resolve_moe_impl(bf16, ep8, candidates=(expertwise, takes)), [1] * 8)
    assert plan.finalize is FinalizeOrder.COMBINE


def test_strategies_that_a_plan_may_name(report):
    limited = report(backend="PADS", communication="DEEPEP")
    assert strategies_of(limited) == ("acme.a2a.plain.any", "acme.gather.scatter.any")
    assert strategies_of(report(backend="PADS")) == ("acme.nvl.onesided.any",), "it has no limit to run into"
    assert strategies_of(report(**PINS[0])) == ("acme.a2a.plain.any",), "a pin never gives way"
    assert strategies_of(report()) == (), "the backend exchanges tokens itself"


@settings(max_examples=200, deadline=None)
@given(
    counts=st.lists(st.one_of(st.just(0), st.integers(0, 40)), min_size=8, max_size=8),
    limit=st.integers(1, 64),
    backend=st.sampled_from(["PADS", "MEGA"]),
    data=st.data(),
)
def test_nobody_waits_for_a_rank_that_is_not_coming(catalog, counts, limit, backend, data):
    from moe_core.contract.environment import MoEEnvironment
    from moe_core.contract.problem import MoEProblem

    problem = MoEProblem(quant="NONE", hidden_size=64, intermediate_size=64, num_experts=16, top_k=2, bias=False)
    deployment = MoEDeployment(
        environment=MoEEnvironment(device="cuda", sm=90, link="nvlink"), ep_size=8, dp_size=8, moe_max_num_tokens=limit
    )
    report = resolve_moe_impl(problem, deployment, candidates=catalog, request=MoERequest(backend=backend))
    plan = plan_forward(report, counts)
    assert plan == plan_forward(report, tuple(counts))
    assert plan.communication is None or plan.communication in strategies_of(report)
    for rank, count in enumerate(counts):
        kept = sum(c.sizes[rank] for c in plan.chunks if c.kept[rank])
        assert kept == (plan.padded_tokens[rank] if plan.chunks else 0), "every row is computed once"
        assert kept >= count
    for chunk in plan.chunks:
        assert len(chunk.sizes) == len(chunk.kept) == 8
        if backend == "PADS":
            assert min(chunk.sizes) > 0, "an empty rank would not reach the collective"
            assert sum(chunk.sizes) <= limit + 8
