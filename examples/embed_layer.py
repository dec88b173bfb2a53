"""Embed the layer in a model: a small transformer block, trained for a few steps on the CPU."""

import torch
from torch import nn

from moe_core.contract.deployment import MoEDeployment
from moe_core.contract.problem import MoEProblem
from moe_core.contract.request import MoERequest
from moe_core.environment import preset
from moe_core.layer import ConfigurableMoE
from moe_core.registry import load_catalog
from moe_core.resolve import resolve_moe_impl
from moe_core.weights import ExpertWeights

# Hidden size, intermediate size, experts, experts per token.
H, I, E, K = 32, 64, 8, 2  # noqa: E741 - shape letters


def moe_layer(weights):
    sizes = {"hidden_size": H, "intermediate_size": I, "num_experts": E, "top_k": K}
    problem = MoEProblem(quant="NONE", dtype_act="float32", routing="Renormalize", bias=False, **sizes)
    deployment = MoEDeployment(environment=preset("cpu"))
    # The reference loop keeps the parameters themselves, so that gradients reach them and updates are seen.
    report = resolve_moe_impl(problem, deployment, candidates=load_catalog(), request=MoERequest(backend="VANILLA"))
    return ConfigurableMoE.from_report(report, weights)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(H) for _ in range(2))
        self.attention = nn.MultiheadAttention(H, num_heads=4, batch_first=True)
        self.router = nn.Linear(H, E, bias=False)
        self.w1, self.w3 = (nn.Parameter(torch.randn(E, I, H) * H**-0.5) for _ in range(2))
        self.w2 = nn.Parameter(torch.randn(E, H, I) * I**-0.5)
        self.moe = moe_layer(ExpertWeights(w1_EIH=self.w1, w2_EHI=self.w2, w3_EIH=self.w3))

    def forward(self, x):
        y = self.norms[0](x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        y = self.norms[1](x)
        return x + self.moe(y, self.router(y))


if __name__ == "__main__":
    torch.manual_seed(0)
    block, x = Block(), torch.randn(4, 16, H)
    optimizer = torch.optim.AdamW(block.parameters(), lr=1e-2)
    for step in range(21):
        loss = (block(x) - x.flip(-1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print(f"step {step:2}: loss {loss.item():.3f}")
    block.moe.destroy()
