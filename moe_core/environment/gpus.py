"""What a node's GPUs are, whoever was asked: one row per GPU, made into the fields of an environment."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from moe_core.contract.vocabulary import Device, LinkKind

logger = logging.getLogger(__name__)

KIB = 1024
MIB = 1024 * KIB

# CUDA C++ Programming Guide, technical specifications per compute capability: an SM's shared memory less the 1 KiB
# that CUDA keeps per block. Not listed: unknown.
SHARED_MEMORY_PER_BLOCK: Mapping[int, int] = MappingProxyType(
    {
        **dict.fromkeys((80, 87), 163 * KIB),
        **dict.fromkeys((86, 89, 120, 121), 99 * KIB),
        **dict.fromkeys((90, 100, 103, 110), 227 * KIB),
    }
)
"""Compute capability times ten → bytes of shared memory that one block may opt in to."""

Fields = Mapping[str, Any]
"""Known fields of an environment."""

NOTHING: Fields = MappingProxyType({})

NO_GPU: Fields = MappingProxyType(
    {
        "name": "cpu",
        "device": Device.CPU,
        "sm": 0,
        "num_sms": 0,
        "shared_memory_per_block": 0,
        "devices_per_node": 0,
        "link": LinkKind.NONE,
    }
)
"""The fields of a machine without a GPU. The memory of the host is nobody's limit here: unknown."""


class Gpu(NamedTuple):
    """One GPU; ``None`` where the source cannot say. Memory in bytes, as the driver reports the total."""

    name: str | None
    sm: int | None
    memory: int | None = None
    num_sms: int | None = None


def node_fields(gpus: Sequence[Gpu], *, link: LinkKind | None, driver: str | None) -> Fields:
    """The fields of an environment whose node holds `gpus`, and no others."""
    fields = {
        **gpu_fields(gpus),
        "devices_per_node": len(gpus),
        "link": LinkKind.NONE if len(gpus) == 1 else link,
        "driver_version": driver,
    }
    return {field: value for field, value in fields.items() if value is not None}


def gpu_fields(gpus: Sequence[Gpu]) -> Fields:
    """The fields of an environment that a GPU gives, when it is one of `gpus`.

    What the GPUs of a mixed node disagree about is unknown: which of them a process gets is up to CUDA.
    """
    sm = _agreed("compute capability", (g.sm for g in gpus))
    name = _agreed("name", (g.name for g in gpus))
    fields = {
        "name": name,
        "device": Device.CUDA,
        "device_name": name,
        "sm": sm,
        "num_sms": _agreed("number of SMs", (g.num_sms for g in gpus)),
        "device_memory": _least(g.memory for g in gpus),
        "shared_memory_per_block": SHARED_MEMORY_PER_BLOCK.get(sm or 0),
    }
    return {field: value for field, value in fields.items() if value is not None}


def link_of(joined: Iterable[bool | None]) -> LinkKind | None:
    """The link of a node, from whether NVLink joins each pair of its GPUs."""
    pairs = list(joined)
    if None in pairs:
        return None
    if not any(pairs):
        return LinkKind.PCIE
    return LinkKind.NVLINK if all(pairs) else LinkKind.NVLINK_SPLIT


def hidden(environ: Mapping[str, str]) -> bool:
    """Whether ``CUDA_VISIBLE_DEVICES`` hides every GPU: CUDA stops at the first index that is none."""
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    return visible is not None and visible.partition(",")[0].strip() in ("", "-1")


def _agreed(what: str, values: Iterable[Any]) -> Any:
    found = set(values)
    if len(found) == 1:
        return found.pop()
    if None not in found:
        logger.warning("the GPUs of this node differ in %s (%s): unknown", what, ", ".join(map(str, sorted(found))))
    return None


def _least(values: Iterable[int | None]) -> int | None:
    found = set(values)
    return None if None in found else min(v for v in found if v is not None)
