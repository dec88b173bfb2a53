"""Backends that are right, wrong, broken or tunable, as the tests of measuring need them."""

import time

import torch

from moe_core.execution import TORCH_DTYPE
from moe_core.reference import reference_moe


class Right:
    """The twin itself, of this rank's experts."""

    def __init__(self, binding):
        self.binding = binding

    def prepare(self, weights):
        self.weights = weights

    def quantize_input(self, x):
        return x, None

    def run_moe(self, context):
        ids = context.token_selected_slots - self.binding.slot_start
        y = reference_moe(self.binding.problem, context.x, self.weights, ids, context.token_final_scales)
        return y.to(TORCH_DTYPE[self.binding.problem.dtype_act])


class Wrong(Right):
    """Off by a tenth, and fast."""

    def run_moe(self, context):
        return super().run_moe(context) * 1.1


class NotANumber(Right):
    def run_moe(self, context):
        return super().run_moe(context) * torch.nan


class Broken(Right):
    def run_moe(self, context):
        raise RuntimeError("out of luck\nand more")


class Unbindable(Right):
    def __init__(self, binding):
        raise RuntimeError("no kernels here")


class Adjustable(Right):
    """Takes as long as its configuration says: quick and right, quickest and wrong, or slow by itself."""

    config = None

    def configs(self, num_tokens):
        return ({"name": "slower"}, {"name": "quick"}, {"name": "wrong"})

    def use(self, config):
        self.config = config

    def table(self, tuned, existing):
        kept = existing or {}
        return {**kept, **{str(row.tokens): [row.config["name"], len(kept)] for row in tuned}}

    def run_moe(self, context):
        name = "default" if self.config is None else self.config["name"]
        time.sleep({"default": 0.006, "slower": 0.009, "quick": 0.003, "wrong": 0}[name])
        return super().run_moe(context) * (2 if name == "wrong" else 1)
