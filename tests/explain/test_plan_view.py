"""Forward plans for people."""

from moe_core.explain.as_text import as_text
from moe_core.explain.plan_view import plan_document
from moe_core.resolve import plan_forward


def test_page_equals_golden_file(resolved, assert_golden):
    report = resolved(ep_size=4, dp_size=4, moe_max_num_tokens=20)
    assert_golden("plan.txt", as_text(plan_document([("layers 0-3", plan_forward(report, (12, 0, 7, 1)))])))


def test_equal_plans_are_one(resolved):
    plan = plan_forward(resolved(ep_size=2, dp_size=2), (1, 1))
    assert "for      layers 0; layers 1\n" in as_text(plan_document([("layers 0", plan), ("layers 1", plan)]))


def test_a_forward_without_tokens_says_so(resolved):
    text = as_text(plan_document([("", plan_forward(resolved(ep_size=2, dp_size=2), (0, 0)))]))
    assert "no rank has a token" in text
