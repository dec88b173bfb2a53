"""The one look at the machine."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from moe_core.contract.environment import MoEEnvironment
from moe_core.contract.vocabulary import Device
from moe_core.environment import nvidia_smi, nvml, torch_device
from moe_core.environment.features import features_of
from moe_core.environment.gpus import NO_GPU, NOTHING, Fields, hidden
from moe_core.environment.isolation import attempt
from moe_core.environment.jit import can_jit
from moe_core.environment.packages import cuda_version_of_torch, installed_packages
from moe_core.environment.plugin_facts import Found, checked_facts
from moe_core.environment.variables import flags_set

logger = logging.getLogger(__name__)

DEVICES = Path("/dev")


def probe(*, deep: bool = False, plugin_facts: Iterable[Found] = (), mentioned: Iterable[str] = ()) -> MoEEnvironment:
    """Look at this machine, and freeze what is found. Whatever cannot be found out is ``None``, never an error.

    The light probe imports none of the packages: it asks NVML (else ``nvidia-smi``) about GPUs and distribution
    metadata about packages. A `deep` one imports packages to look for their features, and torch for what NVML left
    open; it starts CUDA in this process.

    `plugin_facts` are what plugins found (:func:`moe_core.registry.plugin_facts`); those that break the rules are
    logged and left out. `mentioned` are names of facts to look at beside the declared ones, such as
    ``package:their_kernels`` and ``flag:THEIR_SWITCH`` (:func:`mentioned_facts`): unasked, a package counts as absent.
    """
    wanted = [name.partition(":")[::2] for name in mentioned]
    packages = installed_packages(fact.partition(".")[0] for family, fact in wanted if family in ("package", "feature"))
    facts, errors = checked_facts(plugin_facts)
    for error in errors:
        logger.warning("%s", error)
    return MoEEnvironment(
        **_gpu_fields(os.environ, deep=deep),
        cuda_version=attempt("torch's CUDA version", cuda_version_of_torch, None),
        python_version=f"{sys.version_info.major}.{sys.version_info.minor}",
        can_jit=attempt("the compiler", lambda: can_jit(os.environ), None),
        packages=packages,
        features=features_of(p.name for p in packages) if deep else (),
        flags=flags_set(os.environ, (fact for family, fact in wanted if family == "flag")),
        facts=facts,
    )


def _gpu_fields(environ: Mapping[str, str], *, deep: bool) -> Fields:
    if hidden(environ):
        return NO_GPU
    known = attempt("GPUs through NVML", nvml.read, NOTHING)
    known = known or attempt("GPUs through nvidia-smi", nvidia_smi.read, NOTHING)
    if deep:
        # NVML's word goes first: it sees the whole node, where torch sees what this process may use.
        known = {**attempt("GPUs through torch", torch_device.read, NOTHING), **known}
    return known or _device_nodes() or NO_GPU


def _device_nodes() -> Fields:
    """A GPU that nothing here can describe: in a container with its device node but none of the driver's tools."""
    nodes = [path for path in DEVICES.glob("nvidia*") if path.name.removeprefix("nvidia").isdigit()]
    if not nodes:
        return NOTHING
    logger.warning("this machine has GPUs, and neither NVML nor nvidia-smi to describe them: probe deep, with torch")
    return {"device": Device.CUDA, "devices_per_node": len(nodes)}
