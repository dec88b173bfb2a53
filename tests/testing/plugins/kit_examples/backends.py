"""The backend of the honest plugin, and backends that break one promise each."""

import torch

from moe_core.execution import MoERunContext
from moe_core.reference import reference_moe


class Twin:
    """Honest: the twin itself, on this rank's slots."""

    def __init__(self, binding):
        self.binding = binding
        self.problem = binding.problem.evolve(apply_router_weight_on_input=False)

    def prepare(self, weights):
        self.weights = weights

    def quantize_input(self, x):
        return x, None

    def run_moe(self, context):
        ids = context.token_selected_slots - self.binding.slot_start
        y = reference_moe(self.problem, context.x, self.weights, ids, context.token_final_scales)
        return y.to(self.binding.dtype)


class OnePercentOff(Twin):
    def run_moe(self, context):
        return super().run_moe(context) * 1.01


class ForgetsTheLastRow(Twin):
    def run_moe(self, context):
        y = torch.empty_like(context.x)
        y[:-1] = super().run_moe(context)[:-1]
        return y


class WrongElementType(Twin):
    def run_moe(self, context):
        return super().run_moe(context).float()


class NeedsTokens(Twin):
    def run_moe(self, context):
        assert context.x.shape[0] > 0, "no tokens"
        return super().run_moe(context)


class SingleExpertCapacity(Twin):
    """Drops what one expert has no room for."""

    def run_moe(self, context):
        ids = context.token_selected_slots.clone()
        for expert in ids.unique().tolist():
            ids.view(-1)[(ids == expert).flatten().nonzero()[48:]] = -1
        return super().run_moe(MoERunContext(context.x, ids, context.token_final_scales))


class LeaksForeignRows(Twin):
    """Multiplies by a zero weight where it should not look."""

    def run_moe(self, context):
        return super().run_moe(context) + 0.0 * context.x


class ForgetsItsRank(Twin):
    def run_moe(self, context):
        y = reference_moe(
            self.problem, context.x, self.weights, context.token_selected_slots, context.token_final_scales
        )
        return y.to(self.binding.dtype)


class Trembles(Twin):
    def run_moe(self, context):
        y = super().run_moe(context)
        return (y.float() * (1 + 3e-3 * torch.rand(y.shape))).to(y.dtype)


class LoadsOnce(Twin):
    def prepare(self, weights):
        self.weights = getattr(self, "weights", weights)


class WritesToItsInput(Twin):
    def run_moe(self, context):
        y = super().run_moe(context)
        context.x.zero_()
        return y


class Detached(Twin):
    """Hides the router's weights from autograd."""

    def run_moe(self, context):
        scales = context.token_final_scales.detach()
        return super().run_moe(MoERunContext(context.x, context.token_selected_slots, scales))
