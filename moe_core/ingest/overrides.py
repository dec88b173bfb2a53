"""Layers whose keys differ from those of the rest of the model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from moe_core.ingest.layer_rules import moe_block
from moe_core.ingest.layers import Layers
from moe_core.ingest.reader import Reader, Section

_SKIPPABLE: Final = frozenset(("mlp", "moe", "ffn", "feed_forward", "block_sparse_moe", "experts"))


def read_overrides(reader: Reader, layers: Layers) -> dict[int, Reader]:
    """A reader for each MoE layer that has keys of its own: it looks there first, then where the others look.

    ``per_layer_config`` maps an index to such keys, and may ``skip`` parts of a layer; ``block_configs`` lists them.
    """
    own = {**_by_index(reader), **_by_block(reader, layers)}
    return {layer: Reader([own[layer], *reader.sections], reader.journal) for layer in layers.moe if layer in own}


def _by_index(reader: Reader) -> dict[int, Section]:
    found = reader.find(["per_layer_config"])
    if found is None or not isinstance(found.value, Mapping):
        return {}
    return {
        int(index): Section(f"{found.path}.{index}.", keys)
        for index, keys in found.value.items()
        if str(index).isdecimal() and isinstance(keys, Mapping)
    }


def _by_block(reader: Reader, layers: Layers) -> dict[int, Section]:
    blocks = reader.sequence(["block_configs"]) or ()
    own = {
        index: Section(f"block_configs[{index}].", keys)
        for index, block in enumerate(blocks)
        if (keys := moe_block(block)) is not None
    }
    if own:
        last = own[max(own)]
        own |= dict.fromkeys(range(layers.num_target, layers.total), last)  # draft layers are like the last layer
    return own


def has_no_experts(own: Reader) -> bool:
    """Whether a layer's own keys leave its experts out."""
    skip = own.sections[0].values.get("skip")
    return isinstance(skip, (list, tuple)) and not _SKIPPABLE.isdisjoint(map(str, skip))
