"""Shapes by name and by sizes."""

import pytest

from moe_core.contract.vocabulary import ActivationType, DType, QuantAlgo
from moe_core.measure.shapes import FORMATS, SETS, SHAPES, parse_shape, parse_shapes


def test_by_name():
    problem = parse_shape("deepseek-v3").problem
    assert (problem.num_experts, problem.top_k, problem.hidden_size, problem.intermediate_size) == SHAPES["deepseek-v3"]
    assert problem.quant is QuantAlgo.NONE
    assert problem.dtype_act is DType.BFLOAT16


def test_by_sizes():
    assert parse_shape("8, 2,64,32,float16,Relu2").problem == parse_shape("8,2,64,32").problem.evolve(
        dtype_act=DType.FLOAT16, activation=ActivationType.RELU2, swiglu_gptoss_style=None
    )
    assert parse_shape("8,2,64,32").name == "8-2-64-32"


@pytest.mark.parametrize("name", FORMATS)
def test_formats(name):
    plain, quantized = parse_shape("8,2,64,32,float16"), parse_shape(f"8,2,64,32,float16, {name}")
    assert quantized.problem.quant is not QuantAlgo.NONE
    changes = {"quant": quantized.problem.quant, "quant_group_size": quantized.problem.quant_group_size}
    assert quantized.problem == plain.problem.evolve(**changes)
    assert quantized.name == f"8-2-64-32-float16-{name}"


def test_groups():
    sizes = {name: parse_shape(f"8,2,64,32,{name}").problem.quant_group_size for name in FORMATS}
    assert sizes == {
        "fp8_block": 128, "fp8": None, "fp8_channel": None, "mxfp4": 32, "mxfp4_fp8": 32, "nvfp4": 16, "int4_g32": 32,
        "int4_g128": 128, "awq": 128, "int4": None, "int8": None,
    }  # fmt: skip


def test_a_model_in_a_format():
    shape = parse_shape("deepseek-v3,fp8_block")
    assert (shape.name, shape.model) == ("deepseek-v3-fp8_block", "deepseek-v3")
    changes = {"quant": QuantAlgo.FP8_BLOCK_SCALES, "quant_group_size": 128}
    assert shape.problem == parse_shape("deepseek-v3").problem.evolve(**changes)


def test_gpt_oss_in_a_format_is_as_it_is_served():
    assert parse_shape("gpt-oss-120b").problem.activation is ActivationType.SWIGLU
    problem = parse_shape("gpt-oss-120b,mxfp4").problem
    assert (problem.activation, problem.bias) == (ActivationType.SWIGLU_BIAS, True)
    assert {c.name: c.value for c in problem.activation_constants} == {"alpha": 1.702, "beta": 1.0, "clamp": 7.0}


def test_sets():
    assert [shape.name for shape in parse_shapes("all")] == [name for name in SHAPES if name != "kimi-k2"]
    quantized = {shape.name for shape in parse_shapes("quantized")}
    assert {"kimi-k2-int4_g32", "gpt-oss-120b-mxfp4", "llama4-scout-fp8"} <= quantized
    assert len(quantized) == len(SETS["quantized"]) == 10
    assert [shape.name for shape in parse_shapes("8,2,64,32")] == ["8-2-64-32"]


@pytest.mark.parametrize(
    "text", ["mixtral", "mxfp4", "deepseek-v3,int3", "8,2,64", "8,2,64,32,1", "8,2,64,32,float16,Relu2,x", ""]
)
def test_neither(text):
    with pytest.raises(ValueError, match="needed E,K,H,I"):
        parse_shape(text)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("8,2,64,32,float12", r"found 'float12', needed a dtype \(.*bfloat16.*a format of .*mxfp4"),
        ("8,2,64,32,float16,Swish", r"found 'Swish', needed an activation \(.*Swiglu.*a format of .*mxfp4"),
        ("2,8,64,32", "top_k is 8"),
        ("8,2,64,32,mxfp4,float16", "found 'mxfp4', needed a dtype"),
    ],
)
def test_sizes_that_cannot_be(text, complaint):
    with pytest.raises(ValueError, match=complaint):
        parse_shape(text)
