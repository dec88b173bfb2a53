"""``moe plan``."""

from moe_core.contract.plan import ForwardPlan


def test_one_rank_for_each_count(moe, qwen):
    said = moe("plan", qwen, "--hardware", "h200", "--tokens", "12,0,7,1")
    assert said.status == 0
    rows = [line.split() for line in said.out.splitlines()[-4:]]
    assert rows == [["0", "12", "12", "12"], ["1", "0", "12", "12"], ["2", "7", "12", "12"], ["3", "1", "12", "12"]]


def test_json_is_the_plan(moe, qwen):
    [found] = moe("plan", qwen, "--hardware", "h200", "--tokens", "8,8", "--chunk-tokens", "8", "--json").json
    plan = ForwardPlan.model_validate(found["plan"])
    assert found["layers"] == "layers 0-47"
    assert [chunk.sizes for chunk in plan.chunks] == [(4, 4), (4, 4)]


def test_the_deployment_can_be_given(moe, qwen):
    said = moe("plan", qwen, "--hardware", "h200", "--tp", "2", "--tokens", "5")
    assert said.status == 0
    assert "exchange moe_core.local.no_exchange.any\n" in said.out


def test_without_a_winner_there_is_no_plan_but_an_explanation(moe, qwen):
    said = moe("plan", qwen, "--hardware", "h200", "--tokens", "1,1", "--backend", "TRTLLM", "--strict")
    assert said.status == 1
    assert said.out.startswith("failed ")
