"""The values of the contract: frozen, hashable, closed, with stable fingerprints and loss-free JSON."""

import os
import subprocess
import sys

import pytest
from pydantic import ValidationError

from moe_core.contract.base import Frozen
from moe_core.contract.deployment import MoEDeployment
from moe_core.contract.environment import Feature, Flag, MoEEnvironment, Package, PluginFact
from moe_core.contract.evidence import Evidence, Measurement
from moe_core.contract.problem import ActivationConstant, MoEProblem, canonical_quant
from moe_core.contract.reasons import MoERejectReason
from moe_core.contract.request import MoERequest, ScopedRequest
from moe_core.contract.vocabulary import FixableBy, QuantAlgo

ENVIRONMENT = MoEEnvironment(
    device="cuda",
    sm=90,
    device_memory=141 * 10**9,
    packages=(Package(name="triton", version="3.6.0"), Package(name="torch", version="2.11.0")),
    features=(Feature(name="flashinfer.bf16_moe", present=True),),
    flags=(Flag(name="TRTLLM_GEN_FUSED_MOE_USE_FLASHINFER", value="1"),),
    facts=(PluginFact(name="hello.ready", value=True),),
)
VALUES = {
    "problem": MoEProblem(
        quant="fp8_block_scales",
        hidden_size=7168,
        intermediate_size=2048,
        num_experts=256,
        top_k=8,
        activation="SwigluBias",
        activation_constants=(
            ActivationConstant(name="clamp", value=7.0),
            ActivationConstant(name="alpha", value=1.702),
        ),
        routing="DeepSeekV3",
        num_expert_groups=8,
        topk_group=4,
        routed_scaling_factor=2.5,
    ),
    "environment": ENVIRONMENT,
    "deployment": MoEDeployment(environment=ENVIRONMENT, ep_size=8, dp_size=8, cuda_graph="full"),
    "request": MoERequest(
        backend="DEEPGEMM", bans=("moe-hello",), scopes=(ScopedRequest(layers="0-2", backend="VANILLA"),)
    ),
    "evidence": Evidence(
        source="bench",
        measurements=(
            Measurement(identity="a.b.c.none", problem="0" * 16, environment="1" * 16, tokens=8, microseconds=2.5),
        ),
    ),
}
EACH = pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)


@EACH
def test_json_there_and_back_loses_nothing(value):
    again = type(value).from_json(value.to_json())
    assert again == value
    assert hash(again) == hash(value)
    assert again.fingerprint == value.fingerprint


@EACH
def test_values_are_frozen_and_closed(value):
    name = next(iter(type(value).model_fields))
    with pytest.raises(ValidationError, match="frozen"):
        setattr(value, name, None)
    with pytest.raises(ValidationError, match="Extra inputs"):
        type(value).model_validate({**value.model_dump(), "speed": "very fast"})


@EACH
def test_every_public_value_carries_a_schema_version(value):
    assert value.model_dump()["schema_version"] == 1


def test_fingerprints_are_equal_across_processes_and_hash_seeds():
    code = (
        "import sys, importlib\n"
        "for line in sys.stdin.read().splitlines():\n"
        "    module, name, text = line.split('|', 2)\n"
        "    print(getattr(importlib.import_module(module), name).from_json(text).fingerprint)\n"
    )
    lines = "\n".join(f"{type(v).__module__}|{type(v).__name__}|{v.to_json(indent=None)}" for v in VALUES.values())
    for seed in ("0", "1", "4242"):
        done = subprocess.run(
            [sys.executable, "-c", code], input=lines, capture_output=True, text=True, check=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        )  # fmt: skip
        assert done.stdout.split() == [v.fingerprint for v in VALUES.values()]


def test_a_change_changes_hash_and_fingerprint_even_through_copies():
    problem = VALUES["problem"]
    hash(problem)
    copy = problem.model_copy(update={"top_k": 4})
    assert copy.fingerprint != problem.fingerprint
    assert hash(copy) == hash(problem.evolve(top_k=4))
    assert problem.evolve(top_k=8) == problem


def test_order_of_entries_never_matters():
    constants = VALUES["problem"].activation_constants
    assert VALUES["problem"].evolve(activation_constants=constants[::-1]) == VALUES["problem"]
    assert ENVIRONMENT.evolve(packages=ENVIRONMENT.packages[::-1]) == ENVIRONMENT


def frozen_types(base=Frozen):
    for sub in base.__subclasses__():
        yield sub
        yield from frozen_types(sub)


def test_no_value_holds_a_mutable_container():
    import moe_core.contract.model_report
    import moe_core.contract.plan  # noqa: F401 - the import defines the types looked at

    for value in set(frozen_types()):
        if not value.__module__.startswith("moe_core.contract"):
            continue
        for name, field in value.model_fields.items():
            text = str(field.annotation)
            assert not any(word in text for word in ("dict[", "list[", "set[")), f"{value.__name__}.{name}: {text}"


BAD_PROBLEMS = {
    "top_k over experts": ({"top_k": 9, "num_experts": 8}, ["top_k is 9, more than num_experts 8"]),
    "all at once": (
        {"top_k": 9, "num_experts": 8, "num_expert_groups": 3, "topk_group": 4},
        ["top_k is 9", "num_experts 8 is not a multiple of num_expert_groups 3", "topk_group is 4"],
    ),
    "groups too small": (
        {"num_experts": 16, "num_expert_groups": 8, "topk_group": 2, "top_k": 6},
        ["top_k is 6, but 2 groups hold only 4 experts"],
    ),
    "clamp": ({"activation_constants": ({"name": "clamp", "value": 0.0},)}, ["clamp must be > 0, got 0.0"]),
    "situ caps": (
        {"activation": "SiTu", "activation_constants": ({"name": "alpha", "value": -1.0},)},
        ["alpha must be > 0"],
    ),
    "clamp after silu without clamp": ({"clamp_after_silu": True}, ["clamp_after_silu needs"]),
    "sizes": ({"hidden_size": 0, "num_experts": -1}, ["hidden_size", "num_experts"]),
    "infinite": ({"routed_scaling_factor": float("inf")}, ["finite"]),
}


@pytest.mark.parametrize(("fields", "messages"), BAD_PROBLEMS.values(), ids=BAD_PROBLEMS)
def test_impossible_problems_are_refused_with_every_error(fields, messages):
    with pytest.raises(ValidationError) as caught:
        MoEProblem(**fields)
    for message in messages:
        assert message in str(caught.value)


def test_impossible_environments_are_refused():
    with pytest.raises(ValidationError, match="device is cpu, but sm is 90"):
        MoEEnvironment(device="cpu", sm=90)
    with pytest.raises(ValidationError, match="packages lists twice: torch"):
        MoEEnvironment(packages=(Package(name="torch", version="1"), Package(name="torch", version="2")))


def test_a_machine_without_cuda_has_sm_zero():
    assert MoEEnvironment(device="cpu").sm == 0
    assert MoEEnvironment().sm is None


@pytest.mark.parametrize(
    ("activation", "bias", "style"),
    [
        ("SwigluBias", None, True),
        ("Swiglu", True, True),
        ("Swiglu", False, False),
        ("Swiglu", None, None),
        (None, False, None),
    ],
)
def test_gptoss_style_is_inferred_in_three_values(activation, bias, style):
    assert MoEProblem(activation=activation, bias=bias).swiglu_gptoss_style is style


def test_upstream_quant_names_are_canonical():
    assert canonical_quant("NVFP4_AWQ") is QuantAlgo.NVFP4
    assert canonical_quant("no_quant") is QuantAlgo.NONE
    assert canonical_quant("MIXED_PRECISION") is None
    with pytest.raises(ValueError, match="FP7"):
        canonical_quant("FP7")


def test_every_reason_has_a_meaning_and_who_fixes_it():
    for reason in MoERejectReason:
        assert reason.meaning
        assert isinstance(reason.usually_fixable_by, FixableBy)


def test_parallel_sizes_are_filled_in():
    deployment = MoEDeployment(ep_size=4, tp_size=2, dp_size=2, num_nodes=2)
    assert (deployment.parallel_size, deployment.attention_tp_size, deployment.ranks_per_node) == (8, 4, 4)
    assert MoEDeployment(ep_size=8).ranks_per_node is None
