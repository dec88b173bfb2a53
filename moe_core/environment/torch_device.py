"""The GPU of this process, from torch. Importing torch and starting CUDA: for the deep probe only."""

from __future__ import annotations

from importlib import import_module

from moe_core.environment.gpus import NOTHING, Fields, Gpu, gpu_fields


def read() -> Fields:
    """The fields that this process's GPU gives an environment; none without torch, or without CUDA in it or under it.

    What the node holds beside it is left open: torch counts the GPUs that this process may use.
    """
    try:
        torch = import_module("torch")
    except ModuleNotFoundError:
        return NOTHING
    if torch.version.cuda is None or not torch.cuda.is_available():
        return NOTHING
    gpu = torch.cuda.get_device_properties(torch.cuda.current_device())
    return {
        **gpu_fields([Gpu(gpu.name, gpu.major * 10 + gpu.minor, gpu.total_memory, gpu.multi_processor_count)]),
        "shared_memory_per_block": gpu.shared_memory_per_block_optin,
    }
