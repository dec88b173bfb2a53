"""compressed-tensors and Quark: formats described by numbers, in groups of modules."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from moe_core.ingest.quant.formats import Format, Granularity, Operand, classify, unknown
from moe_core.ingest.quant.modules import Patterns
from moe_core.ingest.quant.scheme import Scheme
from moe_core.ingest.reader import Reader

_STRATEGIES: Final[dict[str, Granularity]] = {
    "tensor": "tensor",
    "channel": "channel",
    "token": "token",
    "group": "group",
    "tensor_group": "group",
    "block": "block",
}


def compressed_tensors(reader: Reader) -> Scheme:
    """``config_groups``: a format and its targets per group. A target by name beats a target by class."""
    found = reader.find(["config_groups"])
    if found is None or not isinstance(found.value, Mapping) or not found.value:
        return Scheme(unknown("compressed-tensors without config_groups"))
    by_name: list[tuple[Patterns, Format]] = []
    by_class: list[tuple[Patterns, Format]] = []
    for group in found.value.values():
        if not isinstance(group, Mapping):
            continue
        format_ = _group_format(group)
        targets = [str(target) for target in group.get("targets") or ()]
        classes = [target for target in targets if target.isidentifier() and target[0].isupper()]
        names = [target for target in targets if target not in classes]
        by_name += [(Patterns(names), format_)] if names else []
        by_class += [(Patterns(classes), format_)] if classes else []
    ignored = reader.sequence(["ignore", "exclude_modules"]) or ()
    return Scheme(named=(*by_name, *by_class), excluded=Patterns(str(name) for name in ignored))


def _group_format(group: Mapping[str, Any]) -> Format:
    weights, inputs = group.get("weights"), group.get("input_activations")
    if not isinstance(weights, Mapping):
        return unknown("a group of compressed-tensors that does not quantize weights")
    operand = _operand(weights)
    activations = _operand(inputs) if isinstance(inputs, Mapping) else None
    if operand is None or (activations is None and inputs is not None):
        return unknown("a group of compressed-tensors with keys that are not understood")
    return classify(operand, activations)


def _operand(entry: Mapping[str, Any]) -> Operand | None:
    kind, bits = entry.get("type", "int"), entry.get("num_bits")
    block = entry.get("block_structure")
    group = block[-1] if isinstance(block, (list, tuple)) and block else entry.get("group_size")
    group = group if isinstance(group, int) and group > 0 else None
    granularity = _STRATEGIES.get(str(entry.get("strategy") or ("group" if group else "tensor")))
    if kind not in ("int", "float") or not isinstance(bits, int) or granularity is None:
        return None
    return Operand(kind, bits, granularity, group, bool(entry.get("symmetric", True)))


_QUARK_DTYPES: Final[dict[str, tuple[str, int]]] = {
    "fp4": ("float", 4),
    "fp8_e4m3": ("float", 8),
    "int8": ("int", 8),
    "int4": ("int", 4),
    "uint4": ("int", 4),
}
_QUARK_SCHEMES: Final[dict[str, Granularity]] = {
    "per_tensor": "tensor",
    "per_channel": "channel",
    "per_token": "token",
    "per_group": "group",
}


def quark(reader: Reader) -> Scheme:
    """AMD Quark: one global config, ``layer_quant_config`` by module name, and ``exclude``."""
    overrides = reader.find(["layer_quant_config"])
    entries: Iterable[tuple[Any, Any]] = ()
    if overrides is not None and isinstance(overrides.value, Mapping):
        entries = overrides.value.items()
    found = reader.find(["global_quant_config"])
    left_out = reader.sequence(["exclude"]) or ()
    return Scheme(
        _quark_format(None if found is None else found.value),
        tuple((Patterns([str(name)]), _quark_format(entry)) for name, entry in entries),
        Patterns(str(name) for name in left_out),
    )


def _quark_format(entry: Any) -> Format:
    weights = entry.get("weight") if isinstance(entry, Mapping) else None
    inputs = entry.get("input_tensors") if isinstance(entry, Mapping) else None
    operand, activations = _quark_operand(weights), _quark_operand(inputs)
    if operand is None or (activations is None and inputs is not None):
        return unknown("a Quark config with keys that are not understood")
    return classify(operand, activations)


def _quark_operand(entry: Any) -> Operand | None:
    if not isinstance(entry, Mapping):
        return None
    kind = _QUARK_DTYPES.get(str(entry.get("dtype")))
    # a per-channel scale of activations is one per token
    granularity = _QUARK_SCHEMES.get(str(entry.get("qscheme")))
    if kind is None or granularity is None:
        return None
    group = entry.get("group_size")
    symmetric = bool(entry.get("symmetric", True)) and entry.get("dtype") != "uint4"
    # The tables' values are the words that Operand takes, which mypy sees as plain strings.
    return Operand(kind[0], kind[1], granularity, group if isinstance(group, int) else None, symmetric)  # type: ignore[arg-type]
