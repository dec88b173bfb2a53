"""Checkpoints in the naming and packing of published models, from their own config.json to the twin's numbers."""

import json
from pathlib import Path

import pytest
import torch

from moe_core.checkpoint import load_layer
from moe_core.contract.deployment import MoEDeployment
from moe_core.contract.vocabulary import DType, QuantAlgo
from moe_core.environment import preset
from moe_core.ingest import ingest
from moe_core.registry import load_catalog
from moe_core.resolve import resolve_moe_impl
from moe_core.testing.backends import BackendTrial
from moe_core.testing.numerics import assert_close

LAYER = 3
CONFIGS = Path(__file__).parents[1] / "data" / "configs"
DEEPSEEK = {"hidden_size": 128, "moe_intermediate_size": 256, "n_routed_experts": 3, "num_experts_per_tok": 2}
KIMI = {**DEEPSEEK, "hidden_size": 64, "moe_intermediate_size": 64}
QWEN = {"hidden_size": 64, "moe_intermediate_size": 32, "num_experts": 3, "num_experts_per_tok": 2}
GPT_OSS = {
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_local_experts": 3,
    "num_experts_per_tok": 2,
    "experts_per_token": 2,
}
PUBLISHED = {
    "deepseek-ai__DeepSeek-V3": ("DeepSeek FP8", {**DEEPSEEK, "n_group": 1, "topk_group": 1}, "fp8_block_scales"),
    "openai__gpt-oss-120b": ("gpt-oss MXFP4", GPT_OSS, "w4a16_mxfp4"),
    "nvidia__Qwen3-235B-A22B-NVFP4": ("ModelOpt NVFP4", QWEN, "nvfp4"),
    "moonshotai__Kimi-K2.5": ("compressed-tensors int4", KIMI, "w4a16_gptq"),
}
"""A model's config, small; the family that its experts are written as; the last word of the candidate's identity."""
OTHERS = {
    "ModelOpt FP8": "fp8",
    "Llama 4 FP8": "fp8",
    "transformers FP8, static": "fp8",
    "FP8, dynamic": "fp8",
    "compressed-tensors FP8 channels": "fp8_per_channel_per_token",
    "compressed-tensors FP8 blocks": "fp8_block_scales",
    "compressed-tensors NVFP4": "w4a16_nvfp4",
    "compressed-tensors int4 with zero points": "w4a16_awq",
    "compressed-tensors int4 rows": "w4a16",
    "AWQ": "w4a16_awq",
    "GPTQ with zero points": "w4a16_gptq",
    "int8": "w8a16",
}
TILES = {
    "fp8": {"up": {"rows": 16, "columns": 128}, "down": {"rows": 16, "columns": 128}},
    "words": {"up": {"rows": 16, "weight_rows": 128}, "down": {"rows": 16, "weight_rows": 128}},
}
CUDA = torch.cuda.is_available()
DTYPE = DType.BFLOAT16 if CUDA else DType.FLOAT16
"""Triton's interpreter multiplies no bfloat16."""
devices = [
    pytest.param("cpu", marks=pytest.mark.skipif(CUDA, reason="Triton compiles here")),
    pytest.param("cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not CUDA, reason="needs a CUDA device")]),
]


def shrunk(config, sizes):
    """`config` of another size, in the type that kernels are tried in."""
    inner = config.get("text_config", config)
    inner |= {**sizes, "num_hidden_layers": LAYER + 1, "torch_dtype": DTYPE.value, "dtype": DTYPE.value}
    return config


def assert_candidate_matches(given, problem, name, device):
    """What a H200 would run computes, from the files, what the written experts stand for."""
    catalog = load_catalog()
    report = resolve_moe_impl(problem, MoEDeployment(environment=preset("h200")), candidates=catalog)
    assert report.winner().identity == f"moe_core.triton.experts.{name}"
    loaded = load_layer(given.checkpoint, LAYER, problem, device=device)
    trial = BackendTrial(catalog.get(report.winner().identity), problem, torch.device(device))
    backend, batch = trial.bind(weights=loaded), trial.batch(7)
    if device == "cpu":
        backend.use({"path": "swap_ab", "config": TILES["fp8" if name.startswith("fp8") else "words"]})
    expected = trial.expected(batch, given.weights.map(lambda tensor: tensor.to(device)))
    assert_close(trial.run(backend, batch), expected, trial.tolerance)


@pytest.mark.parametrize("device", devices)
@pytest.mark.parametrize("model", PUBLISHED)
def test_published_layouts(written, model, device):
    family, sizes, name = PUBLISHED[model]
    given = written(family, dtype_act=DTYPE, num_experts=3)
    for path in (CONFIGS / model).glob("*.json"):
        config = json.loads(path.read_text())
        (given.folder / path.name).write_text(
            json.dumps(shrunk(config, sizes) if path.name == "config.json" else config)
        )
    problem = ingest(given.folder).problem_of(LAYER)
    assert_candidate_matches(given, problem, name, device)


@pytest.mark.parametrize("device", devices)
@pytest.mark.parametrize("family", OTHERS)
def test_other_layouts(written, family, device):
    given = written(family, dtype_act=DTYPE, num_experts=3)
    assert_candidate_matches(given, given.problem, OTHERS[family], device)


@pytest.mark.parametrize("device", devices)
def test_activations_become_fp8_where_the_problem_says_so(written, device):
    given = written("gpt-oss MXFP4", dtype_act=DTYPE, num_experts=3)
    asked = given.problem.evolve(quant=QuantAlgo.W4A8_MXFP4_FP8)
    assert_candidate_matches(given, asked, "w4a8_mxfp4_fp8", device)
    assert_candidate_matches(given, given.problem, "w4a16_mxfp4", device)
