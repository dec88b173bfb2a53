"""Questions from everywhere: well-known layers on well-known machines, and one of which nothing is known."""

from __future__ import annotations

from itertools import product
from typing import Final

from moe_core.contract.deployment import MoEDeployment
from moe_core.contract.environment import MoEEnvironment
from moe_core.contract.problem import ActivationConstant, MoEProblem
from moe_core.contract.vocabulary import ActivationType, CudaGraphMode, DType, QuantAlgo, RoutingMethodType
from moe_core.environment import preset
from moe_core.testing.question import Question

LAYERS: Final = (
    MoEProblem(),
    MoEProblem(
        quant=QuantAlgo.NONE, hidden_size=64, intermediate_size=96, num_experts=4, top_k=2, bias=False,
        routing=RoutingMethodType.RENORMALIZE,
    ),
    MoEProblem(
        quant=QuantAlgo.NONE, hidden_size=4096, intermediate_size=14_336, num_experts=8, top_k=2, bias=False,
        routing=RoutingMethodType.RENORMALIZE,
    ),
    MoEProblem(
        quant=QuantAlgo.FP8_BLOCK_SCALES, hidden_size=7168, intermediate_size=2048, num_experts=256, top_k=8,
        bias=False, routing=RoutingMethodType.DEEPSEEK_V3, num_expert_groups=8, topk_group=4, routing_bias=True,
    ),
    MoEProblem(
        quant=QuantAlgo.NVFP4, dtype_act=DType.BFLOAT16, hidden_size=4096, intermediate_size=1536, num_experts=128,
        top_k=8, bias=False, routing=RoutingMethodType.RENORMALIZE_NAIVE,
    ),
    MoEProblem(
        quant=QuantAlgo.W4A16_MXFP4, hidden_size=2880, intermediate_size=2880, num_experts=128, top_k=4, bias=True,
        activation=ActivationType.SWIGLU_BIAS, routing=RoutingMethodType.RENORMALIZE,
        activation_constants=(
            ActivationConstant(name="alpha", value=1.702), ActivationConstant(name="beta", value=1.0),
            ActivationConstant(name="clamp", value=7.0),
        ),
    ),
    MoEProblem(
        quant=QuantAlgo.FP8, hidden_size=2688, intermediate_size=1856, num_experts=128, top_k=6, bias=False,
        activation=ActivationType.RELU2, routing=RoutingMethodType.DEEPSEEK_V3,
    ),
)  # fmt: skip
MACHINES: Final = (MoEEnvironment(), *map(preset, ("cpu", "h100", "b200")))
PLACES: Final = (
    MoEDeployment(),
    MoEDeployment(ep_size=8, dp_size=8, max_num_tokens=1024, cuda_graph=CudaGraphMode.FULL),
    MoEDeployment(ep_size=2, tp_size=4, num_slots=288, eplb_enabled=True, batch_invariant=True),
)
EXAMPLES: Final = tuple(
    Question(layer, place.evolve(environment=machine)) for layer, place, machine in product(LAYERS, PLACES, MACHINES)
)
"""A grid of layers, places and machines. Nothing says that a question makes sense: it must be answered."""
