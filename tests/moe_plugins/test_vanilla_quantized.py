"""The reference loop computes every format, from the report to the sum, next to the twin."""

from dataclasses import replace

import pytest
import torch

from moe_core.contract.deployment import MoEDeployment
from moe_core.contract.request import MoERequest
from moe_core.contract.vocabulary import DType, QuantAlgo
from moe_core.environment import preset
from moe_core.layer import ConfigurableMoE
from moe_core.quantization import QuantizedTensor, weight_format
from moe_core.reference import reference_moe
from moe_core.resolve import can_implement, resolve_moe_impl
from moe_core.routing import RoutingConfig, select_experts
from moe_core.testing.backends import CHECKS, BackendTrial
from moe_core.testing.numerics import assert_bitwise_equal, assert_close, relative_error, tolerance_in
from moe_core.testing.problems import ACTIVATIONS, small_problem
from moe_core.testing.weights import random_weights
from moe_plugins.vanilla import CANDIDATES

(CANDIDATE,) = CANDIDATES
QUANTS = [quant for quant in QuantAlgo if quant is not QuantAlgo.NONE]
STORED = {(weight_format(quant), quant is QuantAlgo.W4A16_AWQ): quant for quant in QUANTS}.values()
"""One algorithm for each way of storing weights; AWQ has zero points."""
EIGHT_BITS = {quant for quant in QUANTS if "FP4" not in quant and not quant.startswith("W4")}


def problem_of(quant, **changes):
    sizes = {"hidden_size": 128, "intermediate_size": 256, "num_experts": 4, "top_k": 2}
    return small_problem(quant=quant, **sizes | changes)


def layer_of(problem, weights, catalog):
    report = resolve_moe_impl(
        problem, MoEDeployment(environment=preset("cpu")), request=MoERequest(), candidates=catalog
    )
    assert report.winner().identity == CANDIDATE.identity
    return ConfigurableMoE.from_report(report, weights, catalog=catalog)


def tokens_of(problem, tokens=9):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(tokens, problem.hidden_size, generator=generator).to(getattr(torch, problem.dtype_act))
    return x, torch.randn(tokens, problem.num_experts, generator=generator)


def twin_of(problem, weights, x, logits):
    ids, scales = select_experts(RoutingConfig.of(problem), logits, None, None, None)
    return reference_moe(problem, x, weights, ids, scales)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("quant", STORED)
def test_conforms(check, quant):
    check(BackendTrial(CANDIDATE, problem_of(quant)))


@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.FLOAT16])
@pytest.mark.parametrize("quant", STORED)
def test_matches_its_twin_in_every_element_type(quant, dtype):
    check, *_ = CHECKS
    check(BackendTrial(CANDIDATE, problem_of(quant, dtype_act=dtype)))


@pytest.mark.parametrize("quant", QUANTS)
def test_is_selected_on_a_cpu_and_its_layer_matches_the_twin(quant, catalog):
    problem = problem_of(quant)
    weights = random_weights(problem)
    x, logits = tokens_of(problem)
    with layer_of(problem, weights, catalog) as layer:
        found = layer(x, logits)
    assert_close(found, twin_of(problem, weights, x, logits), tolerance_in(found.dtype, CANDIDATE.tolerance))


def test_gpt_oss_has_a_reference_path(catalog):
    problem = problem_of(QuantAlgo.W4A16_MXFP4, **ACTIVATIONS["swiglu_bias"])
    weights = random_weights(problem)
    x, logits = tokens_of(problem)
    found = layer_of(problem, weights, catalog)(x, logits)
    assert_close(found, twin_of(problem, weights, x, logits), tolerance_in(found.dtype, CANDIDATE.tolerance))


@pytest.mark.parametrize("quant", QUANTS)
def test_stays_near_the_layer_that_is_not_quantized(quant, catalog):
    problem = problem_of(quant, dtype_act=DType.FLOAT32)
    plain = problem.evolve(quant=QuantAlgo.NONE)
    x, logits = tokens_of(problem)
    found = layer_of(problem, random_weights(problem), catalog)(x, logits)
    expected = twin_of(plain, random_weights(plain, dtype=torch.float32), x, logits)
    assert_close(found, expected, 0.06 if quant in EIGHT_BITS else 0.25)


@pytest.mark.parametrize("quant", STORED)
def test_gate_and_up_are_not_confused(quant, catalog):
    problem = problem_of(quant)
    weights = random_weights(problem)
    x, logits = tokens_of(problem)
    swapped = replace(weights, w1_EIH=weights.w3_EIH, w3_EIH=weights.w1_EIH)
    right, wrong = (layer_of(problem, w, catalog)(x, logits) for w in (weights, swapped))
    assert relative_error(wrong, right) > 0.5


def test_blocks_may_be_ragged(catalog):
    problem = problem_of(QuantAlgo.FP8_BLOCK_SCALES, hidden_size=200, intermediate_size=136)
    for check in CHECKS:
        check(BackendTrial(CANDIDATE, problem))


@pytest.mark.parametrize("quant", [QuantAlgo.W4A16_AWQ, QuantAlgo.W4A16_GPTQ])
@pytest.mark.parametrize("group_size", [32, 64])
def test_groups_of_integers_may_have_any_size(quant, group_size):
    check, *_ = CHECKS
    check(BackendTrial(CANDIDATE, problem_of(quant, quant_group_size=group_size)))


def test_one_matrix_of_a_chosen_expert_is_dequantized_at_a_time(monkeypatch):
    trial = BackendTrial(CANDIDATE, problem_of(QuantAlgo.NVFP4, top_k=1))
    backend, batch = trial.bind(), trial.batch(3)
    batch.token_selected_slots.fill_(2)
    shapes = []
    dequantize = QuantizedTensor.dequantize

    def watched(self, dtype=torch.float32):
        shapes.append(tuple(self.shape))
        return dequantize(self, dtype)

    monkeypatch.setattr(QuantizedTensor, "dequantize", watched)
    trial.run(backend, batch)
    assert shapes == [(256, 128), (256, 128), (128, 256)]


def test_an_update_of_the_scales_in_place_is_seen():
    trial = BackendTrial(CANDIDATE, problem_of(QuantAlgo.FP8))
    backend, batch = trial.bind(), trial.batch(7)
    trial.weights.w2_EHI.scale.zero_()
    assert_bitwise_equal(trial.run(backend, batch), torch.zeros_like(batch.x))


@pytest.mark.parametrize(
    ("quant", "changes", "deployment", "fact"),
    [
        (QuantAlgo.NVFP4, {"quant_group_size": 32}, {}, "quant_group_size"),
        (QuantAlgo.MXFP8, {"quant_group_size": 16}, {}, "quant_group_size"),
        (QuantAlgo.FP8_BLOCK_SCALES, {"quant_group_size": 64}, {}, "quant_group_size"),
        (QuantAlgo.W4A16, {"hidden_size": 33}, {}, "hidden_size"),
        (QuantAlgo.W4A16, {"intermediate_size": 6}, {"tp_size": 2}, "intermediate_size_per_tp"),
        (QuantAlgo.W4A16_MXFP4, {"intermediate_size": 2880}, {"tp_size": 7}, "intermediate_size_per_tp"),
    ],
)
def test_what_is_refused(quant, changes, deployment, fact):
    answer = can_implement(
        CANDIDATE, problem_of(quant, **changes), MoEDeployment(environment=preset("cpu"), **deployment)
    )
    assert [r.fact for r in answer.rejections] == [fact]


@pytest.mark.parametrize(
    ("quant", "changes", "deployment"),
    [
        (QuantAlgo.FP8, {"hidden_size": 33, "intermediate_size": 7}, {"tp_size": 2}),
        (QuantAlgo.W8A16, {"intermediate_size": 7}, {"tp_size": 3}),
        (QuantAlgo.FP8_BLOCK_SCALES, {"intermediate_size": 200}, {}),
        (QuantAlgo.W4A16_MXFP4, {"intermediate_size": 96}, {"tp_size": 3}),
        (QuantAlgo.W4A16_MXFP4, {"intermediate_size": 2880}, {"tp_size": 8}),
        (QuantAlgo.FP8_BLOCK_SCALES, {"intermediate_size": 768}, {"tp_size": 8}),
        (QuantAlgo.FP8_BLOCK_SCALES, {"intermediate_size": 704}, {"tp_size": 3}),
    ],
)
def test_what_is_taken(quant, changes, deployment):
    place = MoEDeployment(environment=preset("cpu"), **deployment)
    assert can_implement(CANDIDATE, problem_of(quant, **changes), place).rejections == ()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("quant", STORED)
def test_conforms_on_cuda(quant):
    for check in CHECKS:
        check(BackendTrial(CANDIDATE, problem_of(quant), torch.device("cuda", 0)))
