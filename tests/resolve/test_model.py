"""Whole models: equal questions once, scopes, memory counted together."""

from dataclasses import dataclass

import pytest

from moe_core.contract.deployment import MoEDeployment
from moe_core.contract.memory import weight_bytes_per_rank
from moe_core.contract.model_report import MoEModelReport
from moe_core.contract.problem import MoEProblem
from moe_core.contract.reasons import MoERejectReason as Reason
from moe_core.contract.request import MoERequest, ScopedRequest
from moe_core.contract.vocabulary import LayerRole
from moe_core.resolve import resolve_model
from moe_core.resolve.model import in_layers


@dataclass(frozen=True)
class Group:
    layers: tuple[int, ...]
    problem: MoEProblem
    role: LayerRole = LayerRole.TARGET


@pytest.fixture
def groups(bf16, fp8):
    return [Group(tuple(range(3, 10)), bf16), Group((0,), fp8, LayerRole.DRAFT)]


def test_one_report_per_distinct_question(catalog, groups, ep8):
    report = resolve_model(groups, ep8, candidates=catalog, model="tiny")
    assert [(g.role, g.layers) for g in report.layers] == [("target", tuple(range(3, 10))), ("draft", (0,))]
    assert report.winners[0] == ("acme.mega.kernel.none", None, 7)
    assert MoEModelReport.from_json(report.to_json()) == report


def test_the_other_layers_count_as_reserved_memory(catalog, groups, ep8, bf16, fp8):
    total = 7 * weight_bytes_per_rank(bf16, ep8) + weight_bytes_per_rank(fp8, ep8)
    report = resolve_model(groups, ep8, candidates=catalog)
    assert report.weight_bytes == total
    assert [g.report.memory.weights + g.report.memory.reserved for g in report.layers] == [total, total]
    exact = ep8.evolve(
        environment=ep8.environment.evolve(device_memory=total - 1), max_num_tokens=None, moe_max_num_tokens=None
    )
    tight = resolve_model(groups, exact, candidates=catalog)
    assert not tight.ok
    assert Reason.RESOURCE_EXCEEDED in {r.reason for r in tight.layers[0].report.backend.rejected[0].rejections}


SCOPES = {
    "layers": ScopedRequest(layers="3-4,9", backend="VANILLA"),
    "role": ScopedRequest(role="draft", backend="VANILLA"),
    "quant": ScopedRequest(quant="FP8_BLOCK_SCALES", backend="VANILLA"),
}


@pytest.mark.parametrize(("scope", "where"), [("layers", {3, 4, 9}), ("role", {0}), ("quant", {0})], ids=SCOPES)
def test_requests_are_scoped(catalog, groups, ep8, scope, where):
    report = resolve_model(groups, ep8, candidates=catalog, request=MoERequest(scopes=(SCOPES[scope],)))
    vanilla = {layer for g in report.layers if g.report.request.backend == "VANILLA" for layer in g.layers}
    assert vanilla == where
    assert all(g.report.backend.winner == "acme.loop.reference.any" for g in report.layers if g.layers[0] in where)


def test_of_two_scopes_the_later_wins(catalog, groups, ep8):
    scopes = (ScopedRequest(layers="0-", backend="PADS"), ScopedRequest(layers="5", backend="VANILLA"))
    report = resolve_model(groups[:1], ep8, candidates=catalog, request=MoERequest(scopes=scopes))
    assert {g.report.request.backend: g.layers for g in report.layers} == {
        "PADS": (3, 4, 6, 7, 8, 9),
        "VANILLA": (5,),
    }


def test_malformed_layer_patterns_are_refused():
    assert [n for n in range(8) if in_layers("0-1, 3,6-", n)] == [0, 1, 3, 6, 7]
    with pytest.raises(ValueError, match="found 'x', needed an index"):
        in_layers("x", 0)


def test_unknown_sizes_leave_the_total_unknown(catalog, ep8):
    assert resolve_model([Group((0,), MoEProblem())], MoEDeployment(), candidates=catalog).weight_bytes is None
