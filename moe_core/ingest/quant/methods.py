"""One reader per ``quant_method``, from its keys to a :class:`Scheme`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from moe_core.contract.problem import canonical_quant
from moe_core.contract.vocabulary import QuantAlgo
from moe_core.ingest.errors import show
from moe_core.ingest.quant.compressed import compressed_tensors, quark
from moe_core.ingest.quant.formats import UNQUANTIZED, Format, named, unknown
from moe_core.ingest.quant.modules import Patterns
from moe_core.ingest.quant.scheme import Scheme, by_format
from moe_core.ingest.reader import Reader

_ALGO = QuantAlgo
_EXCLUDED: Final = ("exclude_modules", "modules_to_not_convert", "ignored_layers", "ignore")
_MODELOPT_NAMES: Final = {
    "FP8_PB_WO": _ALGO.FP8_BLOCK_SCALES,
    "FP8_PB_REAL": _ALGO.FP8_BLOCK_SCALES,
    "W8A8_SQ_PER_CHANNEL": _ALGO.W8A8_SQ,
    "MXFP4": _ALGO.W4A16_MXFP4,
}


def excluded(reader: Reader, others: Iterable[str] = ()) -> Patterns:
    """The modules that a quantization config leaves unquantized, and `others`."""
    return Patterns([*(str(name) for name in reader.sequence(_EXCLUDED) or ()), *others])


def fp8(reader: Reader) -> Scheme:
    """FP8 weights: with ``weight_block_size`` in blocks, without it one scale per tensor."""
    block = reader.sequence(["weight_block_size"])
    if block is None:
        note = "activation scales are computed at run time; the checkpoint has none"
        static = reader.text(["activation_scheme"]) == "static"
        return Scheme(Format(_ALGO.FP8, None, "" if static else note), excluded=excluded(reader))
    sizes: dict[tuple[Any, ...], QuantAlgo] = {(128, 128): _ALGO.FP8_BLOCK_SCALES, (1, 32): _ALGO.MXFP8}
    algo = sizes.get(block)
    format_ = unknown(f"fp8 in blocks of {show(block)}") if algo is None else named(algo)
    return Scheme(format_, excluded=excluded(reader))


def modelopt(reader: Reader) -> Scheme:
    """ModelOpt: ``quant_algo``, null where only the KV cache is quantized; for MIXED_PRECISION one per module."""
    name = reader.text(["quant_algo"])
    if name is not None and name.upper() != "MIXED_PRECISION":
        return Scheme(_modelopt_format(name, reader.integer(["group_size"])), excluded=excluded(reader))
    found = reader.find(["quantized_layers"])
    if found is not None and isinstance(found.value, Mapping):
        modules = [(module, _modelopt_module(entry)) for module, entry in found.value.items()]
        return Scheme(named=by_format(modules), excluded=excluded(reader))
    if reader.find(["config_groups"]) is not None:
        return compressed_tensors(reader)
    if name is None and "quant_algo" in reader.sections[0].values:
        return Scheme()
    return Scheme(unknown("ModelOpt without quant_algo" if name is None else f"{name} without quantized_layers"))


def _modelopt_module(entry: Any) -> Format:
    if not isinstance(entry, Mapping) or not isinstance(entry.get("quant_algo"), str):
        return UNQUANTIZED
    group = entry.get("group_size")
    return _modelopt_format(entry["quant_algo"], group if isinstance(group, int) else None)


def _modelopt_format(name: str, group_size: int | None) -> Format:
    try:
        algo = _MODELOPT_NAMES.get(name.upper()) or canonical_quant(name)
    except ValueError:
        algo = None
    if algo is None:
        return unknown(f"quant_algo {name}")
    return UNQUANTIZED if algo is _ALGO.NONE else named(algo, group_size)


def awq(reader: Reader) -> Scheme:
    """AWQ: 4-bit weights with zero points."""
    return _weight_only(reader, "AWQ", {4: _ALGO.W4A16_AWQ})


def gptq(reader: Reader) -> Scheme:
    """GPTQ: 4- or 8-bit weights; ``dynamic`` leaves modules out (``-:``) or gives them other bits."""
    scheme = _weight_only(reader, "GPTQ", {4: _ALGO.W4A16_GPTQ, 8: _ALGO.W8A16})
    dynamic = reader.find(["dynamic"])
    rules = dynamic.value if dynamic is not None and isinstance(dynamic.value, Mapping) else {}
    out = [f"re:{rule[2:]}" for rule in rules if rule.startswith("-:")]
    other = [f"re:{rule.removeprefix('+:')}" for rule in rules if not rule.startswith("-:")]
    own = unknown("a rule in dynamic gives the experts settings of their own")
    return Scheme(scheme.default, ((Patterns(other), own),), excluded(reader, out))


def auto_round(reader: Reader) -> Scheme:
    """AutoRound: 4-bit weights packed as AWQ or GPTQ; ``extra_config`` gives modules other bits."""
    packing = (reader.text(["packing_format"]) or "").lower()
    algo = _ALGO.W4A16_AWQ if "awq" in packing else _ALGO.W4A16_GPTQ
    scheme = _weight_only(reader, "AutoRound", {4: algo, 8: _ALGO.W8A16})
    extra = reader.find(["extra_config"])
    entries = extra.value.items() if extra is not None and isinstance(extra.value, Mapping) else ()
    wide = [name for name, entry in entries if isinstance(entry, Mapping) and (entry.get("bits") or 0) >= 16]
    return Scheme(scheme.default, excluded=excluded(reader, wide))


def _weight_only(reader: Reader, label: str, algos: Mapping[int, QuantAlgo]) -> Scheme:
    bits = reader.integer(["bits", "w_bit"])
    found = reader.find(["group_size", "q_group_size"])
    stated = found.value if found is not None and isinstance(found.value, int) else None
    group = stated if stated is not None and stated > 0 else None
    algo = algos.get(bits or 0)
    if bits == 4 and stated == -1:
        note = f"{label} with group_size -1: one scale per output channel"
        return Scheme(Format(_ALGO.W4A16, None, note), excluded=excluded(reader))
    format_ = unknown(f"{label} with {bits} bits") if algo is None else named(algo, group)
    return Scheme(format_, excluded=excluded(reader))


def _always(format_: Format) -> Callable[[Reader], Scheme]:
    return lambda reader: Scheme(format_, excluded=excluded(reader))


METHODS: Final[dict[str, Callable[[Reader], Scheme]]] = {
    "fp8": fp8,
    "modelopt": modelopt,
    "modelopt-fp4": modelopt,
    "modelopt-mixed": modelopt,
    "compressed-tensors": compressed_tensors,
    "quark": quark,
    "mxfp4": _always(named(_ALGO.W4A16_MXFP4)),
    "mxfp8": _always(named(_ALGO.MXFP8)),
    "fbgemm-fp8": _always(Format(_ALGO.FP8_PER_CHANNEL_PER_TOKEN)),
    "ptpc-fp8": _always(Format(_ALGO.FP8_PER_CHANNEL_PER_TOKEN)),
    "experts-int8": _always(Format(_ALGO.W8A16)),
    "awq": awq,
    "gptq": gptq,
    "auto-round": auto_round,
}
"""By method, with hyphens."""
