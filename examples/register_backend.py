"""Register a backend of your own in this process: it is asked like every other, wins when it is named, and runs."""

import torch

from moe_core.contract.candidate import MoEActivationSupport, MoECandidate
from moe_core.contract.declare import dtype_in, quant_in, sm_in
from moe_core.contract.deployment import MoEDeployment
from moe_core.contract.problem import MoEProblem
from moe_core.contract.request import MoERequest
from moe_core.contract.vocabulary import ActivationType, CandidateKind, DType, QuantAlgo
from moe_core.environment import preset
from moe_core.layer import ConfigurableMoE
from moe_core.registry import Declared, load_catalog
from moe_core.resolve import resolve_moe_impl
from moe_core.testing.weights import random_weights

CANDIDATE = MoECandidate(
    identity="acme.torch.every_expert.none",
    kind=CandidateKind.BACKEND,
    family="ACME",
    title="every expert for every token",
    factory="__main__:EveryExpert",  # in a package: "acme.kernels:EveryExpert"
    requirements=(quant_in(QuantAlgo.NONE), dtype_in(DType.FLOAT32), sm_in(0)),
    activation=MoEActivationSupport(kinds=(ActivationType.SWIGLU,)),
)


class EveryExpert:
    def __init__(self, binding):
        self.slot_L = torch.arange(binding.slot_start, binding.slot_end)
        self.activation = binding.activation

    def prepare(self, weights):
        self.weights = weights

    def quantize_input(self, x):
        return x, None

    def run_moe(self, context):
        w = self.weights
        gate_NLI, up_NLI = (torch.einsum("nh,lih->nli", context.x, part) for part in (w.w1_EIH, w.w3_EIH))
        y_NLH = torch.einsum("nli,lhi->nlh", self.activation(gate_NLI, up_NLI), w.w2_EHI)
        chosen_NKL = context.token_selected_slots.unsqueeze(-1) == self.slot_L
        weight_NL = torch.where(chosen_NKL, context.token_final_scales.unsqueeze(-1), 0.0).sum(dim=1)
        return torch.einsum("nl,nlh->nh", weight_NL, y_NLH)


if __name__ == "__main__":
    catalog = load_catalog(plugins=[Declared(CANDIDATE)])
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_experts": 8, "top_k": 2}
    problem = MoEProblem(quant="NONE", dtype_act="float32", routing="Renormalize", bias=False, **sizes)
    deployment = MoEDeployment(environment=preset("cpu"))
    report = resolve_moe_impl(problem, deployment, candidates=catalog, request=MoERequest(backend="ACME"))
    with ConfigurableMoE.from_report(report, random_weights(problem, dtype=torch.float32), catalog=catalog) as layer:
        y = layer(torch.randn(4, 32), torch.randn(4, 8))
    print(f"{report.winner().identity}, selected by {report.selected_by}, computed {list(y.shape)}")
