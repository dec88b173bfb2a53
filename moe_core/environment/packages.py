"""Installed packages by import name, from distribution metadata alone: nothing is imported."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping
from functools import partial
from types import MappingProxyType

from moe_core.contract.environment import Package, normalize_package
from moe_core.contract.facts import ABSENT
from moe_core.environment.isolation import attempt

logger = logging.getLogger(__name__)

DISTRIBUTIONS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "deep_ep": ("deep_ep",),
        "deep_gemm": ("deep_gemm",),
        "flashinfer": ("flashinfer-python",),
        "flashinfer_jit_cache": ("flashinfer-jit-cache",),
        "kernels": ("kernels",),
        "nccl": ("nccl4py",),
        "nccl_ep": ("nccl-extensions",),
        "nvidia_cutlass_dsl": ("nvidia-cutlass-dsl",),
        "nvidia_nccl": ("nvidia-nccl-cu13", "nvidia-nccl-cu12"),
        "nvidia_nvshmem": ("nvidia-nvshmem-cu13", "nvidia-nvshmem-cu12"),
        "prims_ts": ("prims_ts",),
        "quack": ("quack-kernels",),
        "sgl_kernel": ("sgl-kernel",),
        "sonicmoe": ("sonic-moe",),
        "tensorrt_llm": ("tensorrt_llm",),
        "torch": ("torch",),
        "transformers": ("transformers",),
        "triton": ("triton", "pytorch-triton", "triton-windows"),
        "triton_kernels": ("triton_kernels",),
        "vllm": ("vllm",),
    }
)
"""Import name (or what stands for it) → the distributions that provide it, best first.

``nvidia_nccl`` and ``nvidia_nvshmem`` are libraries, whose modules nobody imports; ``nccl`` is the Python binding of
the former. ``nccl_ep`` is imported as ``nccl.ep`` and has versions of its own, which ``nccl4py``'s do not tell.
"""

# PyPI lists other people's projects under these names; the real packages are installed from their repositories, and
# carry a local version (1.0.0+4499c4c) or a later one, so the exact version tells them apart.
IMPOSTORS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"deep_gemm": ("1.0.0",), "deep_ep": ("1.0.0",), "triton_kernels": ("0.1.0",)}
)

_IMPORT_NAME = {normalize_package(d): name for name, found in DISTRIBUTIONS.items() for d in found}


def import_name(package: str) -> str:
    """The name that facts use for a package: ``flashinfer-python`` is ``flashinfer``."""
    key = normalize_package(package)
    return _IMPORT_NAME.get(key, key)


def installed_packages(more: Iterable[str] = ()) -> tuple[Package, ...]:
    """Every package of the table, and of `more` (import names), that is installed."""
    found = []
    for name in sorted({*DISTRIBUTIONS, *map(import_name, more)}):
        version = attempt(f"package {name}", partial(_version, name), None)
        if version is not None:
            found.append(Package(name=name, version=version))
    return tuple(found)


def cuda_version_of_torch() -> str | None:
    """CUDA ``major.minor`` that the installed torch was built for; ``absent`` for none, ``None`` if it cannot be read.

    The wheel's name does not tell (PyPI's has no local version), so this reads the text of ``torch/version.py``.
    """
    from importlib import metadata

    try:
        text = metadata.distribution("torch").locate_file("torch/version.py").read_text()
    except metadata.PackageNotFoundError:
        return ABSENT
    except OSError:
        return None
    written = re.search(r"^cuda\b[^=\n]*=\s*(None|'\d+\.\d+)", text, re.MULTILINE)
    if written is None:
        return None
    return ABSENT if written[1] == "None" else written[1].strip("'")


def _version(name: str) -> str | None:
    from importlib import metadata

    for distribution in DISTRIBUTIONS.get(name, (name,)):
        try:
            version = metadata.version(distribution)
        except metadata.PackageNotFoundError:
            continue
        if version in IMPOSTORS.get(name, ()):
            logger.warning("%s %s is another project of that name, not %s: it counts as absent", name, version, name)
            continue
        return version
    return None
