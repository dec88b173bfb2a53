"""Named hardware: what a probe finds on such a machine with torch, triton and nothing else installed."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from moe_core.contract.environment import MoEEnvironment, Package
from moe_core.contract.facts import ABSENT
from moe_core.contract.vocabulary import Device, LinkKind
from moe_core.environment.gpus import MIB, NO_GPU, SHARED_MEMORY_PER_BLOCK

SOFTWARE: Mapping[str, str] = MappingProxyType({"torch": "2.11.0", "triton": "3.6.0"})
"""The packages of every preset; torch is built for CUDA 13.0."""

_COMMON = {
    "python_version": "3.12",
    "can_jit": True,
    "packages": tuple(Package(name=name, version=version) for name, version in SOFTWARE.items()),
}


def _node(
    name: str, device_name: str, sm: int, num_sms: int, mebibytes: int, link: LinkKind, devices_per_node: int
) -> MoEEnvironment:
    return MoEEnvironment(
        name=name,
        device=Device.CUDA,
        device_name=device_name,
        sm=sm,
        num_sms=num_sms,
        device_memory=mebibytes * MIB,
        shared_memory_per_block=SHARED_MEMORY_PER_BLOCK[sm],
        link=link,
        devices_per_node=devices_per_node,
        cuda_version="13.0",
        **_COMMON,
    )


NVLINK, PCIE, ALONE = LinkKind.NVLINK, LinkKind.PCIE, LinkKind.NONE

# Memory is the total that nvidia-smi reports, in MiB: what is sold as 80 GB is 81 559 of them on an H100. A DGX Spark
# shares its memory with the host, and its total is what CUDA reports. GPUs per node are those of the usual server (8),
# tray (4 on GB200, whose NVLink joins the 72 GPUs of a rack), workstation (4) or superchip (1).
_NODES = (
    #     name            device                                          sm  SMs      MiB  link   per node
    _node("a100", "NVIDIA A100-SXM4-80GB", 80, 108, 81_920, NVLINK, 8),
    _node("l40s", "NVIDIA L40S", 89, 142, 46_068, PCIE, 8),
    _node("rtx4090", "NVIDIA GeForce RTX 4090", 89, 128, 24_564, PCIE, 4),
    _node("h100", "NVIDIA H100 80GB HBM3", 90, 132, 81_559, NVLINK, 8),
    _node("h200", "NVIDIA H200", 90, 132, 143_771, NVLINK, 8),
    _node("h20", "NVIDIA H20", 90, 78, 97_871, NVLINK, 8),
    _node("gh200", "NVIDIA GH200 480GB", 90, 132, 97_871, ALONE, 1),
    _node("b200", "NVIDIA B200", 100, 148, 183_359, NVLINK, 8),
    _node("gb200", "NVIDIA GB200", 100, 152, 189_471, NVLINK, 4),
    _node("b300", "NVIDIA B300 SXM6 AC", 103, 148, 275_040, NVLINK, 8),
    _node("rtx-pro-6000", "NVIDIA RTX PRO 6000 Blackwell Server Edition", 120, 188, 97_887, PCIE, 8),
    _node("rtx5090", "NVIDIA GeForce RTX 5090", 120, 170, 32_607, PCIE, 4),
    _node("dgx-spark", "NVIDIA GB10", 121, 48, 124_610, ALONE, 1),
    MoEEnvironment(**NO_GPU, cuda_version=ABSENT, **_COMMON),
)

PRESETS: Mapping[str, MoEEnvironment] = MappingProxyType({node.name: node for node in _NODES if node.name})
"""Preset by name."""


def preset(name: str) -> MoEEnvironment:
    """The preset of a name, in any case, ``_`` and space standing for ``-``. Raises ``ValueError`` for no preset."""
    found = PRESETS.get(_key(name))
    if found is None:
        raise ValueError(f"no preset is called {name!r}; {presets_like(name)}")
    return found


def is_preset(name: str) -> bool:
    """Whether :func:`preset` knows the name."""
    return _key(name) in PRESETS


def presets_like(name: str) -> str:
    """Advice for a name that is no preset: the close ones, and all."""
    from difflib import get_close_matches

    close = get_close_matches(_key(name), PRESETS, n=3)
    asked = f"did you mean {' or '.join(close)}? " if close else ""
    return f"{asked}presets are {', '.join(PRESETS)}"


def _key(name: str) -> str:
    return name.casefold().replace("_", "-").replace(" ", "-")
