"""Symbols and abilities inside packages. Finding them means importing: for the deep probe only."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from types import MappingProxyType

from moe_core.contract.environment import Feature
from moe_core.environment.isolation import attempt

Look = Callable[[], bool]


def _has(module: str, *symbols: str) -> Look:
    """Whether `module` can be imported and has every symbol."""

    def look() -> bool:
        try:
            found = import_module(module)
        except ModuleNotFoundError as error:
            # This build lacks the module itself: an answer. Anything it fails to import in turn is a failure.
            if error.name and (module == error.name or module.startswith(f"{error.name}.")):
                return False
            raise
        return all(hasattr(found, symbol) for symbol in symbols)

    return look


def _either(*looks: Look) -> Look:
    return lambda: any(look() for look in looks)


def _flashinfer_mxfp8_moe() -> bool:
    moe = import_module("flashinfer.fused_moe")
    entry = getattr(moe, "trtllm_fp8_block_scale_routed_moe", None)
    if entry is None or not {"fp8_quantization_type", "activation_type"} <= set(inspect.signature(entry).parameters):
        return False
    return hasattr(moe.Fp8QuantizationType, "MxFp8") and hasattr(moe.ActivationType, "Relu2")


def _megamoe_op() -> bool:
    # The op is TensorRT-LLM's, written in this DSL; importing it registers its custom ops.
    if not _has("tensorrt_llm._torch")():
        return False
    torch = import_module("torch")
    names: list[str] = torch._C._dispatch_get_all_op_names()
    return any(name.startswith("trtllm::cute_dsl_megamoe_nvfp4") for name in names)


def _locality_domain() -> bool:
    return bool(import_module("tensorrt_llm._torch.locality_domain_utils").is_locality_domain_enabled())


FEATURES: Mapping[str, Look] = MappingProxyType(
    {
        "deep_gemm.mega_moe": _has("deep_gemm", "fp8_fp4_mega_moe", "get_symm_buffer_for_mega_moe"),
        "flashinfer.bf16_moe": _has("flashinfer.fused_moe", "trtllm_bf16_moe", "trtllm_bf16_routed_moe"),
        "flashinfer.mxfp8_moe": _flashinfer_mxfp8_moe,
        "nvidia_cutlass_dsl.megamoe_op": _megamoe_op,
        "nvidia_cutlass_dsl.rubin": _has("cutlass.utils.rubin_helpers"),
        "tensorrt_llm.locality_domain": _locality_domain,
        "torch.grouped_mm": _either(_has("torch.nn.functional", "grouped_mm"), _has("torch", "_grouped_mm")),
        "torch.scaled_grouped_mm": _either(
            _has("torch.nn.functional", "scaled_grouped_mm"), _has("torch", "_scaled_grouped_mm")
        ),
        "torch.symmetric_memory": _has("torch.distributed._symmetric_memory", "empty", "rendezvous"),
    }
)
"""``<package>.<feature>`` → how to find out. The package is the import name of the table of packages."""


def features_of(packages: Iterable[str]) -> tuple[Feature, ...]:
    """Every declared feature of the given installed packages, present or not."""
    installed = set(packages)
    return tuple(
        Feature(name=name, present=attempt(f"feature {name}", look, False))
        for name, look in FEATURES.items()
        if name.partition(".")[0] in installed
    )
