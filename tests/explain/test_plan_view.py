"""Forward plans for people."""

from moe_core.explain.as_text import as_text
from moe_core.explain.plan_view import plan_document
from moe_core.resolve import plan_forward


def test_page_equals_golden_file(resolved, assert_golden):
    report = resolved(ep_size=4, dp_size=4, moe_max_num_tokens=20)
    plan = plan_forward(report, (12, 0, 7, 1))
    assert_golden("plan.txt", as_text(plan_document([("layers 0-3", report.problem, plan)])))


def test_equal_plans_are_one(resolved):
    report = resolved(ep_size=2, dp_size=2)
    plan = plan_forward(report, (1, 1))
    text = as_text(plan_document([(scope, report.problem, plan) for scope in ("layers 0", "layers 1")]))
    assert "for      layers 0; layers 1\n" in text


def test_what_is_not_quantized_is_not_said_to_be(resolved):
    report = resolved(ep_size=2, dp_size=2)
    plan = plan_forward(report, (1, 1))
    assert "quantize before dispatch\n" in as_text(plan_document([("", report.problem, plan)]))
    plain = report.problem.evolve(quant="NONE", quant_group_size=None)
    assert "quantize nothing: rows travel as they are\n" in as_text(plan_document([("", plain, plan)]))


def test_a_forward_without_tokens_says_so(resolved):
    report = resolved(ep_size=2, dp_size=2)
    text = as_text(plan_document([("", report.problem, plan_forward(report, (0, 0)))]))
    assert "no rank has a token" in text
