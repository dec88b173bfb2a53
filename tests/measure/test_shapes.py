"""Shapes by name and by sizes."""

import pytest

from moe_core.contract.vocabulary import ActivationType, DType, QuantAlgo
from moe_core.measure.shapes import SHAPES, parse_shape


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


@pytest.mark.parametrize("text", ["mixtral", "8,2,64", "8,2,64,32,1", "8,2,64,32,float16,Relu2,x", ""])
def test_neither(text):
    with pytest.raises(ValueError, match="needed E,K,H,I"):
        parse_shape(text)


@pytest.mark.parametrize("text", ["8,2,64,32,float12", "8,2,64,32,float16,Swish", "2,8,64,32"])
def test_sizes_that_cannot_be(text):
    with pytest.raises(ValueError, match=r"float12|Swish|top_k is 8"):
        parse_shape(text)
