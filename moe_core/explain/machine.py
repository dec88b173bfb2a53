"""A machine, in one row beside a report, or on a page of its own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from moe_core.contract.environment import MoEEnvironment
from moe_core.contract.predicate import show
from moe_core.contract.vocabulary import Device
from moe_core.explain.document import Document, Item, Row, Section, joined, muted, words
from moe_core.explain.phrases import known, size


def machine_row(environment: MoEEnvironment, comment: str = "") -> Row:
    """The machine that was resolved for; `comment` says why it is that one."""
    e = environment
    facts = [e.name or e.device_name or "unnamed machine"]
    if e.device is Device.CPU:
        facts.append("no GPU")
    elif e.sm is not None:
        facts += [f"SM {e.sm}", f"{size(e.device_memory)} per GPU"]
        facts += [f"{e.devices_per_node} per node over {known(e.link)}"] if (e.devices_per_node or 0) > 1 else []
    else:
        facts.append("device unknown")
    if e.packages is None:
        facts.append("packages unknown")
    facts += [f"{p} {version}" for p in ("torch", "triton") if (version := e.package_version(p))]
    return Row("machine", words(", ".join(facts), f" ({comment})" if comment else ""))


def environment_document(environment: MoEEnvironment) -> Document:
    """Every fact of a machine; what is unknown says so."""
    sections = (
        Section("", tuple(_hardware(environment))),
        Section("packages", _entries((p.name, p.version) for p in environment.packages or ())),
        Section("features", _entries((f.name, show(f.present)) for f in environment.features)),
        Section("environment variables", _entries((f.name, f.value) for f in environment.flags)),
        Section("facts of plugins", _entries((f.name, show(f.value)) for f in environment.facts)),
    )
    return Document(environment.name or "machine", tuple(s for s in sections if s.blocks))


def _hardware(e: MoEEnvironment) -> Iterator[Row]:
    facts = {
        "machine": show(e.name),
        "device": f"{show(e.device)}, {show(e.device_name)}" if e.device is not Device.CPU else "cpu",
        "sm": show(e.sm),
        "SMs": show(e.num_sms),
        "memory": size(e.device_memory),
        "shared": f"{size(e.shared_memory_per_block)} per block",
        "per node": show(e.devices_per_node),
        "link": show(e.link),
        "CUDA": show(e.cuda_version),
        "driver": show(e.driver_version),
        "python": show(e.python_version),
        "can jit": show(e.can_jit),
    }
    for label, value in facts.items():
        yield Row(label, words(value))
    yield Row("digest", words(muted(e.fingerprint)))


def _entries(pairs: Iterable[tuple[str, str]]) -> tuple[Item, ...]:
    texts = [words(f"{name} {value}") for name, value in pairs]
    return (Item(joined(texts)),) if texts else ()
