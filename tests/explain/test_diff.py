"""What differs between two reports."""

import pytest

from moe_core.contract.model_report import LayerReport, MoEModelReport
from moe_core.contract.vocabulary import LayerRole
from moe_core.explain.as_text import as_text
from moe_core.explain.diff import diff_document, differences
from moe_core.explain.outcome import alone


def paths(found):
    return [d.path for d in found]


def test_equal_reports_do_not_differ(resolved):
    assert differences(resolved(tp_size=8), alone(resolved(tp_size=8))) == ()


def test_inputs_come_before_what_follows_from_them(resolved):
    found = differences(resolved(ep_size=8), resolved(tp_size=8))
    assert paths(found)[:2] == ["deployment.ep_size", "deployment.tp_size"]
    assert "backend.winner" in paths(found)
    grouped = "backend.delta.triton.grouped.fp8_block_scales"
    assert (f"{grouped}", "eligible", "refused") in [(d.path, d.left, d.right) for d in found]
    reason = f"{grouped} SHAPE_UNALIGNED intermediate_size_per_tp: needed a multiple of 128"
    assert (reason, "(not there)", "found 96") in [(d.path, d.left, d.right) for d in found]


def test_a_package_is_a_path_of_its_own(resolved, hopper):
    found = differences(resolved(), resolved(environment=hopper.with_packages(beta="1.0", torch="2.13.0")))
    values = {d.path: (d.left, d.right) for d in found}
    assert values["deployment.environment.packages.torch"] == ("2.11.0", "2.13.0")
    assert values["deployment.environment.packages.beta"] == ("(not there)", "1.0")


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"backend": "ALPHA"}, "request.backend"),
        ({"bans": ("ALPHA",)}, "request.bans"),
        ({"dp_size": 3}, "invalid.dp_size"),
        ({"token_buckets": (64,)}, "backend up to 64 tokens.winner"),
    ],
)
def test_every_part_of_a_report_is_compared(fields, path, resolved):
    assert path in paths(differences(resolved(), resolved(**fields)))


def test_another_entry_of_a_table_is_a_difference(resolved, tuned_catalog):
    small, large = (resolved(candidates=tuned_catalog, max_num_tokens=tokens) for tokens in (64, 128))
    entry = "Test GPU, E128 H2048 I768 K8, 64 tokens"
    values = {d.path: (d.left, d.right) for d in differences(small, large)}
    assert values["backend.delta.triton.grouped.fp8_block_scales tuning"] == (f"table {entry}", f"nearest {entry}")


def test_another_catalog_is_a_difference(resolved, catalog):
    found = differences(resolved(), resolved(candidates=catalog.candidates[1:]))
    assert "catalog" in paths(found)


def test_groups_of_layers_are_named(resolved):
    def model(second):
        layers = (
            LayerReport(role=LayerRole.TARGET, layers=(0, 1), report=resolved()),
            LayerReport(role=LayerRole.DRAFT, layers=(2,), report=second),
        )
        return MoEModelReport(layers=layers, weight_bytes=None)

    found = differences(model(resolved()), model(resolved(backend="BETA")))
    assert "draft layers 2: request.backend" in paths(found)


def test_page(resolved, assert_golden):
    found = differences(resolved(ep_size=8), resolved(tp_size=8))
    assert_golden("diff.txt", as_text(diff_document(found, "ep.json", "tp.json")))
    assert as_text(diff_document((), "a", "b")) == "equal: a and b\n"
