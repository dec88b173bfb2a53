"""Run in a process of its own: compiles what a small layer of a format launches for Hopper, without a GPU.

``python compile_for_hopper.py FORMAT`` writes a line for each path. The interpreter runs Python, and cannot tell what
the compiler refuses; the compiler needs no GPU, only a driver that says what it compiles for.
"""

import sys
from dataclasses import is_dataclass, replace
from types import SimpleNamespace

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver

from moe_core.activation import Activation
from moe_core.measure.experts import random_experts
from moe_core.measure.shapes import parse_shape
from moe_plugins.triton_moe import paths, quant_experts
from moe_plugins.triton_moe.choice import machine_of, plan
from moe_plugins.triton_moe.cost import Shape
from moe_plugins.triton_moe.formats import FORMATS, FP8, PLAIN, QUADS, WORDS, format_name
from moe_plugins.triton_moe.options import GLUON, NO_SORT

EXPERTS, TOP_K, HIDDEN, INTER, TOKENS = 4, 2, 256, 256, 8
FAMILIES = {
    PLAIN: paths.PLAIN, FP8: quant_experts.FP8, WORDS: quant_experts.WORDS, QUADS: quant_experts.QUADS
}  # fmt: skip
compiled = []


class Utils:
    """Takes a kernel, and says of the device what the compiler asks for."""

    def load_binary(self, name, kernel, shared, device):
        assert kernel
        compiled.append(name)
        return None, None, 32, 0, 1024  # module, function, registers, spilled bytes, threads

    def get_device_properties(self, device):
        return {"max_shared_mem": 227 * 1024, "multiprocessor_count": 132, "max_num_regs": 65536, "warpSize": 32}


class Driver:
    """Of a GPU that is not there: launches do nothing."""

    utils = Utils()

    def launcher_cls(self, src, metadata):
        return lambda *args, **kwargs: None

    def get_current_target(self):
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self):
        return 0

    def set_current_device(self, device):
        pass

    def get_current_stream(self, device):
        return 0

    def is_active(self):
        return True


def without_memory(part):
    """`part` with all its tensors' shapes, and none of their values."""
    if isinstance(part, torch.Tensor):
        return part.to("meta")
    if is_dataclass(part):
        return replace(part, **{name: without_memory(value) for name, value in vars(part).items()})
    return type(part)(*map(without_memory, part)) if hasattr(part, "_fields") else part


def main(name):
    driver.set_active(Driver())
    torch.cuda.is_available = lambda: True
    torch.cuda.get_device_capability = lambda device=None: (9, 0)
    torch.cuda.get_device_properties = lambda device=None: SimpleNamespace(
        name="NVIDIA H200", multi_processor_count=132
    )
    problem = parse_shape(f"{EXPERTS},{TOP_K},{HIDDEN},{INTER}{'' if name == 'none' else ',' + name}").problem
    stored = format_name(problem.quant, problem.quant_group_size)
    family = FAMILIES[FORMATS[stored].kernels]
    weights = random_experts(problem, torch.device("cpu"), 0)
    if family is not paths.PLAIN:
        prepared = family.prepared(torch.bfloat16)
        prepared.copy(weights)
        weights = prepared.weights
    layer = paths.Layer(
        without_memory(weights), family, torch.bfloat16, Activation.of(problem), 0, 132, pdl=True
    )  # fmt: skip
    shape = Shape("bfloat16", EXPERTS, TOP_K, HIDDEN, INTER, True, stored)
    inputs = [
        torch.empty(TOKENS, width, dtype=dtype, device="meta")
        for width, dtype in ((HIDDEN, torch.bfloat16), (TOP_K, torch.int32), (TOP_K, torch.float32))
    ]
    for path in (NO_SORT, *family.sorted):
        if path != GLUON:
            machine = machine_of("NVIDIA H200", 132, triton.__version__)
            compiled.clear()
            paths.run(layer, path, plan(machine, shape, TOKENS, (path,)).config, *inputs)
            sys.stdout.write(f"{path} {len(compiled)}\n")


if __name__ == "__main__":
    main(sys.argv[1])
