"""Which scheme is found, and what TensorRT-LLM calls its mode."""

import pytest

from moe_core.checkpoint import WeightLoadingMode, layers_with_experts
from moe_core.checkpoint.plan import Sizes, plan_layer

VANILLA, FUSED, CUSTOM = WeightLoadingMode


@pytest.mark.parametrize(
    ("family", "scheme", "storage", "mode"),
    [
        ("Mixtral", "Mixtral", "not quantized", VANILLA),
        ("DeepSeek-V4", "Mixtral", "MXFP4", VANILLA),
        ("DeepSeek FP8", "Qwen, DeepSeek, GLM", "float8", VANILLA),
        ("Nemotron-H NVFP4", "Nemotron-H", "NVFP4 of ModelOpt", VANILLA),
        ("compressed-tensors NVFP4", "Qwen, DeepSeek, GLM", "NVFP4 of compressed-tensors", VANILLA),
        ("Llama 4", "transformers 5, Llama 4", "not quantized", FUSED),
        ("gpt-oss", "gpt-oss", "not quantized", FUSED),
        ("gpt-oss MXFP4", "gpt-oss", "MXFP4 blocks of gpt-oss", FUSED),
        ("OpenAI privacy filter", "OpenAI privacy filter", "not quantized", FUSED),
        ("Granite", "Granite", "not quantized", FUSED),
        ("AWQ", "Qwen, DeepSeek, GLM", "AWQ", VANILLA),
        ("compressed-tensors int4 with zero points", "Qwen, DeepSeek, GLM", "int4 of compressed-tensors", VANILLA),
        ("GPTQ", "Qwen, DeepSeek, GLM", "GPTQ", VANILLA),
        ("W4A8 custom", "Qwen, DeepSeek, GLM", "int4 of W4A8_CUSTOM", CUSTOM),
    ],
)
def test_keys_tell_the_scheme(written, family, scheme, storage, mode):
    given = written(family)
    with given.checkpoint.reading() as files:
        plan = plan_layer(given.checkpoint, files, 3, Sizes.of(given.problem))
    assert (plan.found.scheme.name, plan.storage.name, plan.mode) == (scheme, storage, mode)


def test_layers_with_experts(family):
    assert layers_with_experts(family.checkpoint) == (3,)
