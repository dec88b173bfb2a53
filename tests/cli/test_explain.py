"""``moe explain``."""

import json

import pytest

from moe_core.contract.evidence import Evidence, Measurement
from moe_core.contract.model_report import MoEModelReport
from moe_core.environment import preset


def report_of(said):
    return MoEModelReport.from_json(said.out)


def request_of(said):
    return report_of(said).layers[0].report.request


def test_a_winner_is_status_0_and_the_first_line(moe, qwen):
    said = moe("explain", qwen, "--hardware", "h200")
    assert said.status == 0
    assert said.out.startswith("winner   moe_core.")
    assert max(map(len, said.out.splitlines())) <= 80


def test_no_winner_is_status_1_with_every_reason(moe, qwen):
    said = moe("explain", qwen, "--hardware", "h200", "--backend", "TRTLLM", "--strict")
    assert said.status == 1
    assert said.out.startswith("failed   TRTLLM (asked by argument) cannot run")
    assert "more reason" not in said.out


def test_contradicting_sizes_are_status_1(moe, qwen):
    said = moe("explain", qwen, "--hardware", "h200", "--ep", "8", "--dp", "3")
    assert said.status == 1
    assert "INVALID_CONFIG dp_size" in said.out


def test_json_is_the_report(moe, qwen):
    said = moe("explain", qwen, "--hardware", "h200", "--ep", "8", "--dp", "8", "--json")
    model = report_of(said)
    assert model.ok
    assert model.to_json() + "\n" == said.out
    assert model.layers[0].report.deployment.environment == preset("h200")


def test_a_failed_report_is_json_too(moe, qwen):
    said = moe("explain", qwen, "--hardware", "h200", "--backend", "TRTLLM", "--strict", "--json")
    assert said.status == 1
    assert not report_of(said).ok


def test_this_machine_is_the_default_and_says_so(moe, qwen):
    text = " ".join(moe("explain", qwen).out.split())
    assert "(this machine; --hardware asks about another)" in text


def test_what_if(moe, qwen):
    said = moe("explain", qwen, "--hardware", "h200", "--assume", "flashinfer==0.7.2", "--json")
    environment = report_of(said).layers[0].report.deployment.environment
    assert environment.package_version("flashinfer") == "0.7.2"
    text = moe("explain", qwen, "--hardware", "h200", "--assume", "flashinfer==0.7.2").out
    assert "assuming flashinfer==0.7.2" in " ".join(text.split())


def test_a_saved_machine_is_asked_about_elsewhere(moe, qwen, tmp_path):
    path = tmp_path / "machine.json"
    assert moe("environment", "--hardware", "b200", "--save", path).status == 0
    saved = report_of(moe("explain", qwen, "--environment", path, "--json"))
    assert saved == report_of(moe("explain", qwen, "--hardware", "b200", "--json"))


def test_every_option_of_the_deployment_arrives(moe, qwen):
    options = (
        "--ep 4 --tp 2 --dp 8 --nodes 2 --eplb --slots 136 --chunk-tokens 512 --max-dispatch-tokens 128 "
        "--graph piecewise --lora --batch-invariant --reserve 1.5 --tokens 1024"
    )
    deployment = (
        report_of(moe("explain", qwen, "--hardware", "h200", *options.split(), "--json")).layers[0].report.deployment
    )
    found = deployment.model_dump(mode="json", exclude={"environment", "schema_version"})
    assert found | {"reserved_memory": 0} == {
        "ep_size": 4, "tp_size": 2, "cluster_size": 1, "dp_size": 8, "attention_tp_size": 1, "parallel_size": 8,
        "helix_cp": False, "num_nodes": 2, "ranks_per_node": 4, "num_slots": 136, "eplb_enabled": True,
        "moe_lora_enabled": True, "fused_finalize_enabled": True, "locality_domain_requested": False, "dwdp_size": 1,
        "max_num_tokens": 1024, "moe_max_num_tokens": 512, "max_dispatch_tokens": 128, "cuda_graph": "piecewise",
        "batch_invariant": True, "allow_alltoall": True, "low_precision_combine": False, "reserved_memory": 0,
    }  # fmt: skip
    assert deployment.reserved_memory >= int(1.5 * 2**30)


def test_several_token_counts_are_buckets(moe, qwen):
    report = report_of(moe("explain", qwen, "--hardware", "h200", "--tokens", "4096,64", "--json")).layers[0].report
    assert report.token_buckets == (64, 4096)
    assert report.deployment.max_num_tokens == 4096


@pytest.mark.parametrize(
    ("argument", "variable", "expected"),
    [
        ([], None, ("auto", "auto")),
        ([], "CUTLASS", ("CUTLASS", "environment")),
        (["--backend", "VANILLA"], "CUTLASS", ("VANILLA", "argument")),
        (["--backend", "auto"], "CUTLASS", ("auto", "argument")),
    ],
)
def test_an_argument_beats_a_variable_and_that_beats_auto(argument, variable, expected, moe, qwen, monkeypatch):
    if variable:
        monkeypatch.setenv("MOE_CORE_BACKEND", variable)
    request = request_of(moe("explain", qwen, "--hardware", "h200", *argument, "--json"))
    assert (request.backend, request.backend_requested_by) == expected


def test_communication_has_the_same_precedence(moe, qwen, monkeypatch):
    monkeypatch.setenv("MOE_CORE_COMMUNICATION", "ALLGATHER")
    request = request_of(moe("explain", qwen, "--hardware", "h200", "--json"))
    assert (request.communication, request.communication_requested_by) == ("ALLGATHER", "environment")


def test_bans_of_argument_and_variable_add_up(moe, qwen, monkeypatch):
    monkeypatch.setenv("MOE_CORE_BAN", "TRITON, TORCH_GROUPED")
    request = request_of(moe("explain", qwen, "--hardware", "h200", "--ban", "MARLIN,TRITON", "--json"))
    assert request.bans == ("MARLIN", "TRITON", "TORCH_GROUPED")


def test_strict_and_upstream_arrive(moe, qwen):
    request = request_of(moe("explain", qwen, "--hardware", "h200", "--strict", "--upstream", "--json"))
    assert (request.allow_degradation, request.upstream) == (False, True)


def test_backends_can_be_asked_for_some_layers(moe, deepseek):
    said = moe(
        "explain", deepseek, "--hardware", "b200", "--upstream",
        "--backend", "DEEPGEMM", "--backend", "draft=VANILLA", "--backend", "3-4=TRTLLM", "--json",
    )  # fmt: skip
    asked = {(g.role.value, g.layers[0]): g.report.request.backend for g in report_of(said).layers}
    assert asked == {("target", 3): "TRTLLM", ("target", 5): "DEEPGEMM", ("draft", 61): "VANILLA"}


def test_only_some_layers(moe, deepseek):
    said = moe("explain", deepseek, "--hardware", "b200", "--upstream", "--layers", "3-5", "--json")
    assert [group.layers for group in report_of(said).layers] == [(3, 4, 5)]


def test_evidence_decides(moe, qwen, tmp_path):
    plain = report_of(moe("explain", qwen, "--hardware", "h200", "--json")).layers[0].report
    first, second, *_ = (c.identity for c in plain.backend.eligible)
    measured = Evidence(
        measurements=tuple(
            Measurement(
                identity=identity, problem=plain.problem.fingerprint, tokens=64, microseconds=us,
                environment=plain.deployment.environment.fingerprint,
            )
            for identity, us in ((first, 9.0), (second, 3.0))
        )
    )  # fmt: skip
    path = tmp_path / "evidence.json"
    path.write_text(measured.to_json())
    said = moe("explain", qwen, "--hardware", "h200", "--evidence", path)
    assert said.out.startswith(f"winner   {second}: fastest of 2 measured, 3 us")


def test_why_says_what_is_missing(moe, deepseek):
    said = moe("explain", deepseek, "--hardware", "h200", "--tp", "32", "--why", "hopper_grouped_gemm")
    assert said.status == 1
    assert said.out.startswith("why      deepgemm.cuda.hopper_grouped_gemm.fp8_block_scales: refused")
    assert "SHAPE_UNALIGNED intermediate_size_per_tp: found 64, needed a multiple of 128" in said.out
    assert "legal here: tp_size " in said.out


def test_why_is_json_too_and_0_when_eligible(moe, qwen):
    said = moe("explain", qwen, "--hardware", "h200", "--why", "moe_core.torch.reference_loop.any", "--json")
    assert said.status == 0
    [answer] = said.json
    assert answer["scope"] == "layers 0-47"
    assert {finding["verdict"] for finding in answer["findings"]} <= {"passed", "exempt"}


def test_files_are_written_beside_the_answer(moe, deepseek, tmp_path):
    page, saved = tmp_path / "page.html", tmp_path / "report.json"
    said = moe("explain", deepseek, "--hardware", "h200", "--html", page, "--save", saved)
    assert said.out
    assert f"wrote {page}" in said.err
    html = page.read_text()
    assert html.startswith("<!doctype html>")
    assert "<table>" in html
    assert MoEModelReport.from_json(saved.read_text()).model == "deepseek-ai__DeepSeek-V3"


def test_a_broken_evidence_file_says_what_is_wrong(moe, qwen, tmp_path):
    path = tmp_path / "evidence.json"
    path.write_text(json.dumps({"measurements": [{"identity": "x", "tokens": 0}]}))
    said = moe("explain", qwen, "--hardware", "h200", "--evidence", path)
    assert said.status == 2
    assert "measurements.0.tokens: Input should be greater than 0, found 0" in said.err
    assert "measurements.0.problem: Field required" in said.err


def test_colour_only_where_it_is_wanted(moe, qwen, monkeypatch):
    assert "\x1b[" not in moe("explain", qwen, "--hardware", "h200").out
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b[" in moe("explain", qwen, "--hardware", "h200").out
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[" not in moe("explain", qwen, "--hardware", "h200").out
