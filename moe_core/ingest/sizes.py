"""Numbers of experts, widths, and the shared experts beside them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from moe_core.contract.vocabulary import DType
from moe_core.ingest import aliases
from moe_core.ingest.columns import PerLayer, combine
from moe_core.ingest.families import Family
from moe_core.ingest.layers import Layers
from moe_core.ingest.reader import Reader

Columns = dict[str, Any]
"""Fields of the problem, each one value for all layers or a :class:`PerLayer`."""


def read_sizes(reader: Reader, layers: Layers, family: Family | None) -> Columns:
    """Sizes of the routed experts. A size that no key states is a trouble: every MoE config states them."""
    hidden = reader.integer(aliases.HIDDEN)
    width = read_counts(reader, aliases.EXPERT_WIDTH, layers, family)
    if width is None:
        width = read_counts(reader, aliases.ANY_WIDTH, layers, family)
    columns = {
        "num_experts": read_counts(reader, aliases.NUM_EXPERTS, layers, family),
        "top_k": read_counts(reader, aliases.TOP_K, layers, family),
        "intermediate_size": width,
        "hidden_size": reader.integer(aliases.LATENT) or hidden,
        "model_hidden_size": hidden,
    }
    for name, keys in (
        ("num_experts", aliases.NUM_EXPERTS),
        ("top_k", aliases.TOP_K),
        ("intermediate_size", aliases.EXPERT_WIDTH + aliases.ANY_WIDTH),
        ("hidden_size", aliases.HIDDEN),
    ):
        if columns[name] is None:
            reader.journal.trouble(f"no {name}", f"one of {', '.join(keys)}")
    return columns


def read_surroundings(reader: Reader) -> Columns:
    """What is said of the model as a whole: the dtype of activations, and the attention heads."""
    return {"num_attention_heads": reader.integer(aliases.ATTENTION_HEADS), "dtype_act": _dtype(reader)}


def read_counts(reader: Reader, keys: Sequence[str], layers: Layers, family: Family | None) -> Any:
    """A count, or one per layer from a list; ``None`` when no key states it."""
    counts = reader.counts(keys)
    if not isinstance(counts, tuple):
        return counts
    if len(counts) in (layers.num_target, layers.total) and counts:
        return PerLayer(counts + counts[-1:] * (layers.total - len(counts)))
    if family is not None and family.modalities and len(counts) == 2:
        reader.journal.note("the problems describe the experts for text; those for vision are not part of the result")
        return counts[0]
    reader.journal.trouble(
        f"{len(counts)} values of {keys[0]} or its like", f"one value, or one per layer ({layers.num_target})"
    )
    return None


def read_shared(reader: Reader, layers: Layers, family: Family | None, routed_width: Any) -> Columns:
    """Shared experts: how many, and their total width."""
    count = read_counts(reader, aliases.NUM_SHARED, layers, family)
    width = read_counts(reader, aliases.SHARED_WIDTH, layers, family)
    if count is None:
        implied = None if family is None else family.num_shared
        count = combine(lambda w: implied if w is None else int(w > 0), layers.total, width)
    if width is None:
        width = routed_width
    total = combine(lambda n, w: n * w if n and w else None, layers.total, count, width)
    return {
        "num_shared_experts": combine(lambda n, w: 0 if w == 0 else n, layers.total, count, width),
        "shared_intermediate_size": total,
        "shared_expert_gate": None if family is None else family.shared_gate,
    }


def _dtype(reader: Reader) -> DType | None:
    name = reader.text(aliases.DTYPE)
    if name is None or name == "auto":
        reader.journal.note("activations are taken to be bfloat16: the config does not state a dtype")
        return DType.BFLOAT16
    if name in DType.__members__.values():
        return DType(name)
    reader.journal.note(f"activations have the dtype {name}, which is outside the vocabulary: unknown")
    return None
