"""The format of the experts of every layer, from the quantization config of a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from moe_core.contract.vocabulary import LayerRole, QuantAlgo
from moe_core.ingest import aliases
from moe_core.ingest.columns import PerLayer
from moe_core.ingest.families import Family
from moe_core.ingest.layers import Layers
from moe_core.ingest.quant.formats import UNQUANTIZED, named, unknown
from moe_core.ingest.quant.methods import METHODS, modelopt
from moe_core.ingest.quant.modules import Place
from moe_core.ingest.quant.scheme import Scheme
from moe_core.ingest.reader import Journal, Reader, Section
from moe_core.ingest.sizes import Columns
from moe_core.ingest.source import QUANT_FILE

_FILE_PREFIX = QUANT_FILE.removesuffix(".json") + "."


def read_quant(reader: Reader, layers: Layers, family: Family | None, quant_file: Mapping[str, Any] | None) -> Columns:
    """Format and group size per layer. Other quantities in the file (KV cache, attention) are no concern of experts."""
    scheme = _scheme(reader, quant_file)
    formats = [UNQUANTIZED] * layers.total
    for layer in layers.moe:
        draft = layer - layers.num_target if layers.role(layer) is LayerRole.DRAFT else None
        place = Place(layer, draft, mlp_beside=family is not None and family.mlp_beside)
        formats[layer] = scheme.at(place)
        if formats[layer].note:
            reader.journal.note(formats[layer].note)
    return {
        "quant": PerLayer(format_.algo for format_ in formats),
        "quant_group_size": PerLayer(format_.group_size for format_ in formats),
    }


def _scheme(reader: Reader, quant_file: Mapping[str, Any] | None) -> Scheme:
    inner = _quantization(reader)
    if quant_file is not None:
        beside = _quant_file_reader(quant_file, reader.journal)
        _check_agreement(beside, inner)
        if inner is None or beside.find(["quant_algo"]) is not None:
            return modelopt(beside)
    method = None if inner is None else _method(inner)
    if method in (None, "fp8") and (own := _expert_dtype(reader)) is not None:
        return own
    if inner is None or not inner.sections[0].values:
        return Scheme()
    read = METHODS.get(method or "")
    return Scheme(unknown(f"quant_method {method}")) if read is None else read(inner)


def _method(inner: Reader) -> str | None:
    method = inner.text(["quant_method"])
    if method is not None:
        return method.lower().replace("_", "-")
    if inner.find(["quant_algo"]) is not None:
        return "modelopt"
    return None if inner.find(["config_groups"]) is None else "compressed-tensors"


def _expert_dtype(reader: Reader) -> Scheme | None:
    """DeepSeek-V4: ``expert_dtype`` gives the experts a format of their own, beside the FP8 of all else."""
    word = reader.text(aliases.EXPERT_DTYPE)
    if word is None or word.startswith("fp8"):
        return None
    if word == "fp4":
        note = "expert_dtype fp4: MXFP4 weights, served with MXFP8 activations"
        return Scheme(named(QuantAlgo.W4A8_MXFP4_MXFP8, note=note))
    return Scheme(UNQUANTIZED if word in ("bf16", "bfloat16") else unknown(f"expert_dtype {word}"))


def _quantization(reader: Reader) -> Reader | None:
    return next((inner for key in aliases.QUANTIZATION if (inner := reader.section(key)) is not None), None)


def _quant_file_reader(quant_file: Mapping[str, Any], journal: Journal) -> Reader:
    inner = quant_file.get("quantization")
    if isinstance(inner, Mapping):
        return Reader([Section(f"{_FILE_PREFIX}quantization.", inner)], journal)
    return Reader([Section(_FILE_PREFIX, quant_file)], journal)


def _check_agreement(beside: Reader, inner: Reader | None) -> None:
    """The file beside the config says more than the config; where both name an algorithm, it must be the same."""
    in_file = beside.text(["quant_algo"])
    in_config = None if inner is None else inner.text(["quant_algo"])
    if in_file is not None and in_config is not None and in_file.upper() != in_config.upper():
        beside.journal.trouble(
            f"quant_algo {in_file} in {QUANT_FILE} and {in_config} in the config",
            "one algorithm",
            "remove the wrong file",
        )
