"""The GPUs of this node, from the driver's management library through ``nvidia-ml-py``."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from importlib import import_module
from itertools import combinations
from types import MappingProxyType
from typing import Any

from moe_core.contract.vocabulary import LinkKind
from moe_core.environment.gpus import NOTHING, Fields, Gpu, link_of, node_fields

logger = logging.getLogger(__name__)

# NVML counts FP32 cores, not SMs. Cores per SM by compute capability: CUDA C++ Programming Guide, arithmetic
# throughput. Not listed: unknown.
CORES_PER_SM: Mapping[int, int] = MappingProxyType(
    {80: 64, **dict.fromkeys((86, 87, 89, 90, 100, 103, 110, 120, 121), 128)}
)


def read() -> Fields:
    """The fields of this node's environment; none when the binding, the library or a GPU is missing."""
    try:
        nvml = import_module("pynvml")
    except ModuleNotFoundError:
        return NOTHING
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        logger.info("NVML does not start: %s", error)
        return NOTHING
    try:
        handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
        if not handles:
            return NOTHING
        driver = _text(_ask(nvml, "nvmlSystemGetDriverVersion"))
        return node_fields([_gpu(nvml, h) for h in handles], link=_link(nvml, handles), driver=driver)
    finally:
        nvml.nvmlShutdown()


def _gpu(nvml: Any, handle: Any) -> Gpu:
    name = _text(_ask(nvml, "nvmlDeviceGetName", handle))
    capability = _ask(nvml, "nvmlDeviceGetCudaComputeCapability", handle)
    sm = None if capability is None else capability[0] * 10 + capability[1]
    sliced = _ask(nvml, "nvmlDeviceGetMigMode", handle)
    if sliced is not None and sliced[0]:
        # CUDA sees a slice of this GPU, and NVML counts the whole.
        return Gpu(name, sm)
    memory = _ask(nvml, "nvmlDeviceGetMemoryInfo", handle)
    cores = _ask(nvml, "nvmlDeviceGetNumGpuCores", handle)
    per_sm = CORES_PER_SM.get(sm or 0)
    return Gpu(
        name,
        sm,
        memory=None if memory is None else int(memory.total),
        num_sms=None if cores is None or per_sm is None else cores // per_sm,
    )


def _link(nvml: Any, handles: Sequence[Any]) -> LinkKind | None:
    nvlink = getattr(nvml, "NVML_P2P_CAPS_INDEX_NVLINK", None)
    found = (_ask(nvml, "nvmlDeviceGetP2PStatus", a, b, nvlink) for a, b in combinations(handles, 2))
    return link_of(None if status is None else status == nvml.NVML_P2P_STATUS_OK for status in found)


def _ask(nvml: Any, function: str, *arguments: Any) -> Any:
    """The answer to one question; ``None`` when this binding, driver or GPU has none."""
    try:
        return getattr(nvml, function)(*arguments)
    except (AttributeError, nvml.NVMLError) as error:
        logger.debug("NVML cannot say: %s: %s", function, error)
        return None


def _text(value: str | bytes | None) -> str | None:
    return value.decode() if isinstance(value, bytes) else value  # bindings before 11.5 answer bytes
