"""Small checkpoints in the key naming and packing of each family, written without the reader's tables."""

import json
from dataclasses import dataclass, field, replace

import pytest
import torch
from safetensors.torch import save_file
from torch.nn import functional as F

from moe_core.checkpoint import Checkpoint
from moe_core.contract.vocabulary import QuantAlgo
from moe_core.quantization import QuantizedTensor, dequantized, quantize, unpack
from moe_core.testing.numerics import assert_bitwise_equal
from moe_core.testing.problems import ACTIVATIONS, small_problem
from moe_core.testing.weights import calibrated, random_weights

LAYER = 3
QWEN = ("gate_proj", "up_proj", "down_proj")
QWEN_STEM = "model.layers.3.mlp.experts"


@dataclass(frozen=True)
class Family:
    """How experts become tensors by key, of what problem, and what is in the config that makes it so."""

    write: object
    problem: dict = field(default_factory=dict)
    config: dict = field(default_factory=dict)
    adapt: object = lambda matrix: matrix
    """Makes a random matrix one that the family can write exactly."""
    is_static: bool = False
    """Whether inputs have scales that were calibrated."""


def int32(nibbles, dim):
    """Eight codes a word along `dim`, the first in the lowest bits; the last word is filled up with zeros."""
    last = nibbles.movedim(dim, -1).long()
    groups = F.pad(last, (0, -last.shape[-1] % 8)).unflatten(-1, (-1, 8))
    words = (groups << 4 * torch.arange(8)).sum(-1)
    return torch.where(words >= 2**31, words - 2**32, words).int().movedim(-1, dim)


def zeros_of(matrix):
    """Codes of zero, 8 where there are none."""
    return torch.full(matrix.scale.shape, 8, dtype=torch.uint8) if matrix.zero is None else matrix.zero


def plain(matrix):
    return {"weight": matrix}


def tensor_fp8(matrix):
    return {"weight": matrix.data, "weight_scale": matrix.scale.reshape(())}


def transformers_fp8(matrix):
    return {"weight": matrix.data, "weight_scale_inv": matrix.scale.reshape(()).bfloat16()}


def deepseek_fp8(matrix):
    return {"weight": matrix.data, "weight_scale_inv": matrix.scale}


def scaled(matrix):
    return {"weight": matrix.data, "weight_scale": matrix.scale}


def one_dimensional_scale(matrix):
    return {"weight": matrix.data, "weight_scale": matrix.scale.flatten().bfloat16()}


def mx(matrix):
    return {"weight": matrix.data, "weight_scale": matrix.scale.view(torch.uint8)}


def deepseek_v4(matrix):
    return {"weight": matrix.data.view(torch.int8), "scale": matrix.scale}


def modelopt_nvfp4(matrix):
    globals_ = {"weight_scale_2": matrix.global_scale.reshape(()), "input_scale": torch.tensor(0.5)}
    return {"weight": matrix.data, "weight_scale": matrix.scale, **globals_}


def compressed_nvfp4(matrix):
    globals_ = {"weight_global_scale": 1 / matrix.global_scale.reshape(1), "input_global_scale": torch.tensor([2.0])}
    return {"weight_packed": matrix.data, "weight_scale": matrix.scale, **globals_}


def compressed_int4(matrix):
    size = torch.tensor(matrix.shape)
    tensors = {"weight_packed": int32(unpack(matrix.data), 1), "weight_scale": matrix.scale, "weight_shape": size}
    return tensors if matrix.zero is None else tensors | {"weight_zero_point": int32(matrix.zero, 0)}


def gptq(matrix):
    columns = matrix.shape[1]
    return {
        "qweight": int32(unpack(matrix.data).T.contiguous(), 0),
        "qzeros": int32((zeros_of(matrix) - 1).T.contiguous(), 1),
        "scales": matrix.scale.T,
        "g_idx": (torch.arange(columns) // matrix.format.block[1]).int(),
    }


def awq(matrix):
    def shuffled(codes):
        return codes.T.unflatten(1, (-1, 8))[:, :, [0, 2, 4, 6, 1, 3, 5, 7]].flatten(1)

    return {
        "qweight": int32(shuffled(unpack(matrix.data)), 1),
        "qzeros": int32(shuffled(zeros_of(matrix)), 1),
        "scales": matrix.scale.T,
    }


def signed(matrix):
    """Two's complement codes, as nibbles."""
    return (unpack(matrix.data).int() - 8) & 0xF


def modelopt_int4(matrix):
    codes = signed(matrix)
    return {
        "weight": (codes[0::2] + 16 * codes[1::2]).byte(),
        "weight_scale": matrix.scale,
        "weight_scale_2": torch.tensor(0.1),
        "input_scale": torch.tensor(0.5),
    }


def custom_int4(matrix):
    codes = signed(matrix)
    packed = (codes[:, 0::2] + 16 * codes[:, 1::2]).byte().view(torch.int8)
    return {"weight": packed, "weight_scale_inv": matrix.scale, "input_scale": torch.tensor(0.5)}


def per_expert(prefix, names, module):
    """A module for each projection of each expert; `names` are those of gate, up and down."""

    def write(weights):
        fields = zip(("w1_EIH", "w3_EIH", "w2_EHI"), names, strict=True)
        return {
            f"{prefix}.{expert}.{name}.{word}": tensor
            for field_name, name in fields
            if name is not None
            for expert in range(len(weights.w1_EIH))
            for word, tensor in module(getattr(weights, field_name)[expert]).items()
        }

    return write


def static_fp8(word, shape=(), module=tensor_fp8):
    """In Qwen's naming, with a static scale for each input: those that count are gate's and down's of the last."""

    def write(weights):
        tensors, last = qwen(module)(weights), len(weights.w1_EIH) - 1
        fc1, fc2 = (scale_E[0].reshape(shape) for scale_E in weights.input_scales().values())
        for expert in range(last + 1):
            for name, scale in zip(QWEN, (fc1, fc1 / 2, fc2), strict=True):
                tensors[f"{QWEN_STEM}.{expert}.{name}.{word}"] = scale if expert == last else scale / 2
        return tensors

    return write


def joined(gate, up, interleaved=False):
    """Gate and up of all experts in one, along dimension 1."""
    if interleaved:
        return torch.stack([gate, up], dim=2).flatten(1, 2)
    return torch.cat([gate, up], dim=1)


def fused(weights):
    return {
        "model.layers.3.mlp.experts.gate_up_proj": joined(weights.w1_EIH, weights.w3_EIH),
        "model.layers.3.mlp.experts.down_proj": weights.w2_EHI,
    }


def transposed(stem):
    def write(weights):
        return {
            f"{stem}.experts.gate_up_proj": joined(weights.w1_EIH, weights.w3_EIH).mT,
            f"{stem}.experts.down_proj": weights.w2_EHI.mT,
        }

    return write


def llama4_fp8(weights):
    """One scale for gate and up, and one for all experts."""
    stem = "language_model.model.layers.3.feed_forward.experts"
    assert (weights.w1_EIH.scale == weights.w3_EIH.scale).all()
    return {
        f"{stem}.gate_up_proj": joined(weights.w1_EIH.data, weights.w3_EIH.data).mT,
        f"{stem}.gate_up_proj_weight_scale": weights.w1_EIH.scale[0].reshape(()),
        f"{stem}.gate_up_proj_input_scale": weights.fc1_input_scale_E[0],
        f"{stem}.down_proj": weights.w2_EHI.data.mT,
        f"{stem}.down_proj_weight_scale": weights.w2_EHI.scale[0].reshape(()),
        f"{stem}.down_proj_input_scale": weights.fc2_input_scale_E[:1],
    }


def llama4_nvfp4(weights):
    stem = "language_model.model.layers.3.feed_forward.experts"
    gate, up, down = weights.w1_EIH, weights.w3_EIH, weights.w2_EHI
    return {
        f"{stem}.gate_up_proj": joined(gate.data, up.data).mT,
        f"{stem}.gate_up_proj_weight_scale": joined(gate.scale, up.scale).mT,
        f"{stem}.gate_up_proj_weight_scale_2": gate.global_scale[0].reshape(()),
        f"{stem}.down_proj": down.data.mT,
        f"{stem}.down_proj_weight_scale": down.scale.mT,
        f"{stem}.down_proj_weight_scale_2": down.global_scale[0].reshape(()),
    }


def gpt_oss_biases(weights, interleaved=True):
    return {
        "model.layers.3.mlp.experts.gate_up_proj_bias": joined(weights.b1_EI, weights.b3_EI, interleaved),
        "model.layers.3.mlp.experts.down_proj_bias": weights.b2_EH,
    }


def gpt_oss(weights, interleaved=True):
    stem = "model.layers.3.mlp.experts"
    return gpt_oss_biases(weights, interleaved) | {
        f"{stem}.gate_up_proj": joined(weights.w1_EIH, weights.w3_EIH, interleaved).mT,
        f"{stem}.down_proj": weights.w2_EHI.mT,
    }


def privacy_filter(weights):
    return gpt_oss(weights, interleaved=False)


def gpt_oss_mxfp4(weights):
    tensors = gpt_oss_biases(weights)
    gate, up, down = weights.w1_EIH, weights.w3_EIH, weights.w2_EHI
    for name, data, scale in (
        ("gate_up_proj", joined(gate.data, up.data, True), joined(gate.scale, up.scale, True)),
        ("down_proj", down.data, down.scale),
    ):
        tensors[f"model.layers.3.mlp.experts.{name}_blocks"] = data.unflatten(2, (-1, 16))
        tensors[f"model.layers.3.mlp.experts.{name}_scales"] = scale.view(torch.uint8)
    return tensors


def nemotron_fused(weights):
    return {
        "model.layers.3.mixer.experts.up_proj": weights.w1_EIH,
        "model.layers.3.mixer.experts.down_proj": weights.w2_EHI,
    }


def granite(weights):
    return {
        "model.layers.3.block_sparse_moe.input_linear.weight": joined(weights.w1_EIH, weights.w3_EIH),
        "model.layers.3.block_sparse_moe.output_linear.weight": weights.w2_EHI,
    }


def step_fp8(weights):
    tensors = {}
    for name, matrix in (("gate", weights.w1_EIH), ("up", weights.w3_EIH), ("down", weights.w2_EHI)):
        tensors[f"model.layers.3.moe.{name}_proj.weight"] = matrix.data
        tensors[f"model.layers.3.moe.{name}_proj.weight_scale_inv"] = matrix.scale
    return tensors


def one_scale(matrix):
    """The same static scale for all experts; its reciprocal is exact."""
    static = torch.full((len(matrix), 1, 1), 2.0 ** (-12 if matrix.format.is_two_level else -9))
    return quantize(matrix.dequantize(), matrix.format, static_scale=static)


def bfloat16_scale(matrix):
    return replace(matrix, scale=matrix.scale.bfloat16())


def with_zero_points(matrix):
    return quantize(matrix.dequantize(), matrix.format, zero_points=True)


def qwen(module):
    return per_expert(QWEN_STEM, QWEN, module)


MIXTRAL = per_expert("model.layers.3.block_sparse_moe.experts", ("w1", "w3", "w2"), plain)
NEMOTRON = ("up_proj", None, "down_proj")
BLOCKS = {"hidden_size": 128, "intermediate_size": 256, "num_experts": 3}
GROUPS = {"quant_group_size": 32, "intermediate_size": 64, "num_experts": 3}
FP8 = {"quant": QuantAlgo.FP8}
RELU2 = ACTIVATIONS["relu2"]
BIASED = ACTIVATIONS["swiglu_bias"]
FAMILIES = {
    "Mixtral": Family(MIXTRAL),
    "Qwen": Family(qwen(plain)),
    "float16": Family(qwen(plain), {"dtype_act": "float16"}),
    "Nemotron-H": Family(per_expert("backbone.layers.3.mixer.experts", NEMOTRON, plain), RELU2),
    "transformers 5": Family(fused),
    "transformers 5, not gated": Family(nemotron_fused, RELU2),
    "Llama 4": Family(transposed("language_model.model.layers.3.feed_forward")),
    "Qwen3-VL": Family(transposed("model.language_model.layers.3.mlp")),
    "Qwen3-VL, as wide as twice its experts": Family(
        transposed("model.language_model.layers.3.mlp"), {"hidden_size": 64}
    ),
    "gpt-oss": Family(gpt_oss, BIASED),
    "gpt-oss, as wide as its experts": Family(gpt_oss, {**BIASED, "intermediate_size": 64}),
    "OpenAI privacy filter": Family(privacy_filter, BIASED, {"model_type": "openai_privacy_filter"}),
    "Granite": Family(granite),
    "Step FP8": Family(step_fp8, {"quant": QuantAlgo.FP8_BLOCK_SCALES, **BLOCKS}),
    "DeepSeek FP8": Family(qwen(deepseek_fp8), {"quant": QuantAlgo.FP8_BLOCK_SCALES, **BLOCKS}),
    "compressed-tensors FP8 blocks": Family(qwen(scaled), {"quant": QuantAlgo.FP8_BLOCK_SCALES, **BLOCKS}),
    "compressed-tensors FP8 channels": Family(qwen(scaled), {"quant": QuantAlgo.FP8_PER_CHANNEL_PER_TOKEN}),
    "ModelOpt FP8": Family(static_fp8("input_scale"), FP8, is_static=True),
    "compressed-tensors FP8": Family(static_fp8("input_scale", (1,)), FP8, is_static=True),
    "transformers FP8, static": Family(
        static_fp8("activation_scale", module=transformers_fp8), FP8, adapt=bfloat16_scale, is_static=True
    ),
    "FP8, dynamic": Family(qwen(tensor_fp8), FP8),
    "Llama 4 FP8": Family(llama4_fp8, FP8, adapt=one_scale, is_static=True),
    "Llama 4 NVFP4": Family(llama4_nvfp4, {"quant": QuantAlgo.NVFP4}, adapt=one_scale),
    "ModelOpt NVFP4": Family(qwen(modelopt_nvfp4), {"quant": QuantAlgo.NVFP4}),
    "Nemotron-H NVFP4": Family(
        per_expert("backbone.layers.3.mixer.experts", NEMOTRON, modelopt_nvfp4), {"quant": QuantAlgo.NVFP4, **RELU2}
    ),
    "compressed-tensors NVFP4": Family(qwen(compressed_nvfp4), {"quant": QuantAlgo.W4A16_NVFP4}, adapt=one_scale),
    "ModelOpt MXFP4": Family(qwen(mx), {"quant": QuantAlgo.W4A16_MXFP4, "intermediate_size": 64}),
    "DeepSeek-V4": Family(
        per_expert("layers.3.ffn.experts", ("w1", "w3", "w2"), deepseek_v4),
        {"quant": QuantAlgo.W4A8_MXFP4_MXFP8, "intermediate_size": 64},
    ),
    "gpt-oss MXFP4": Family(gpt_oss_mxfp4, {"quant": QuantAlgo.W4A16_MXFP4, **BIASED, "intermediate_size": 64}),
    "ModelOpt MXFP8": Family(qwen(mx), {"quant": QuantAlgo.MXFP8, "intermediate_size": 64}),
    "int8": Family(qwen(one_dimensional_scale), {"quant": QuantAlgo.W8A16}, adapt=bfloat16_scale),
    "compressed-tensors int4": Family(qwen(compressed_int4), {"quant": QuantAlgo.W4A16_GPTQ, **GROUPS}),
    "compressed-tensors int4 with zero points": Family(qwen(compressed_int4), {"quant": QuantAlgo.W4A16_AWQ, **GROUPS}),
    "compressed-tensors int4 rows": Family(qwen(compressed_int4), {"quant": QuantAlgo.W4A16}),
    "GPTQ": Family(qwen(gptq), {"quant": QuantAlgo.W4A16_GPTQ, **GROUPS}),
    "GPTQ with zero points": Family(qwen(gptq), {"quant": QuantAlgo.W4A16_GPTQ, **GROUPS}, adapt=with_zero_points),
    "AWQ": Family(qwen(awq), {"quant": QuantAlgo.W4A16_AWQ, **GROUPS}, {"quantization_config": {"version": "gemm"}}),
    "ModelOpt int4": Family(qwen(modelopt_int4), {"quant": QuantAlgo.W4A8_AWQ, **GROUPS}),
    "W4A8 custom": Family(qwen(custom_int4), {"quant": QuantAlgo.W4A8_CUSTOM, **GROUPS}),
}


@dataclass(frozen=True)
class Written:
    """A checkpoint on disk, what is in it, and the experts that it stands for."""

    folder: object
    problem: object
    weights: object
    tensors: dict

    @property
    def checkpoint(self):
        return Checkpoint.open(self.folder)

    def rewritten(self, tensors):
        """The same folder with other tensors."""
        save(self.folder, tensors)
        return replace(self, tensors=tensors)


def save(folder, tensors):
    """In two files with an index, every other tensor in the second."""
    files = {"model-00001-of-00002.safetensors": {}, "model-00002-of-00002.safetensors": {}}
    for number, (key, tensor) in enumerate(tensors.items()):
        list(files.values())[number % 2][key] = tensor.contiguous()
    for file, content in files.items():
        save_file(content, folder / file)
    weight_map = {key: file for file, content in files.items() for key in content}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


@pytest.fixture
def written(tmp_path):
    """Writes the small checkpoint of a family."""

    def write(name, **changes):
        family = FAMILIES[name]
        problem = small_problem(**{"num_experts": 4, **family.problem, **changes})
        random = random_weights(problem, seed=1, dtype=getattr(torch, problem.dtype_act.value))
        weights = replace(random, **{f: family.adapt(m) for f, m in random.given().items()})
        if family.is_static:
            weights = calibrated(weights)
        tensors = family.write(weights) | {
            "model.embed_tokens.weight": torch.zeros(2, 2),
            "model.layers.0.mlp.gate_proj.weight": torch.zeros(2, 2),
            "model.layers.3.mlp.shared_experts.gate_proj.weight": torch.zeros(2, 2),
            "model.layers.3.mlp.gate.weight": torch.ones(problem.num_experts, problem.hidden_size),
        }
        save(tmp_path, tensors)
        (tmp_path / "config.json").write_text(json.dumps(family.config))
        return Written(tmp_path, problem, weights, tensors)

    return write


@pytest.fixture(params=FAMILIES)
def family(request, written):
    """The small checkpoint of every family."""
    return written(request.param)


@pytest.fixture
def assert_same_experts():
    """Equal fields, formats and values, to the bit."""

    def check(actual, expected):
        assert actual.given().keys() == expected.given().keys()
        assert actual.input_scales().keys() == expected.input_scales().keys()
        for name, scale in expected.input_scales().items():
            assert_bitwise_equal(actual.input_scales()[name], scale)
        for name, value in expected.given().items():
            found = actual.given()[name]
            if isinstance(value, QuantizedTensor):
                assert not found.misfits(name, value.format, value.shape)
            assert_bitwise_equal(dequantized(found, torch.float32), dequantized(value, torch.float32))

    return check
