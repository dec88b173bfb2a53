"""Finds the part of a config that describes the language model with the experts."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

from moe_core.ingest import aliases
from moe_core.ingest.layer_rules import moe_block
from moe_core.ingest.reader import Journal, Reader, Section

TEXT_PARTS = ("text_config", "llm_config", "language_config", "language_model_config", "thinker_config", "lm_config")
"""Sub-configs of a multimodal model that hold, or lead to, its language model; preferred in this order."""
OTHER_PARTS = ("vision", "visual", "image", "audio", "speech", "quant", "compression", "draft")
"""What the names of sub-configs contain that never describe the language model."""
INNER_PARTS = ("ffn_config", "moe_config", "mtp_config", "per_layer_config")
"""Sub-configs that describe some layers of the part they are in; they are read with that part."""
MAX_DEPTH = 3


def open_config(config: Mapping[str, Any], journal: Journal) -> Reader:
    """A reader of the part with the experts, which falls back on the parts around it."""
    with_experts = [chain for chain in _parts(config) if has_experts(chain[0])]
    for chain in with_experts[1:]:
        journal.note(f"{chain[0].prefix[:-1]} holds experts too; they are not part of the result")
    return Reader(with_experts[0] if with_experts else [Section("", config)], journal)


def _parts(config: Mapping[str, Any]) -> Iterator[list[Section]]:
    """Every part, breadth first, as the chain of sections from itself out to the whole config."""
    queue = deque([[Section("", config)]])
    while queue:
        chain = queue.popleft()
        yield chain
        if len(chain) <= MAX_DEPTH:
            queue.extend([inner, *chain] for inner in _inside(chain[0]))


def _inside(part: Section) -> list[Section]:
    names = [name for name, value in part.values.items() if isinstance(value, Mapping) and _may_be_text(name)]
    names.sort(key=lambda name: TEXT_PARTS.index(name) if name in TEXT_PARTS else len(TEXT_PARTS))
    return [Section(f"{part.prefix}{name}.", part.values[name]) for name in names]


def _may_be_text(name: Any) -> bool:
    return isinstance(name, str) and name not in INNER_PARTS and not any(word in name for word in OTHER_PARTS)


def has_experts(part: Section) -> bool:
    """Whether a part says how many experts there are, for all layers or for one."""
    reader = Reader([part], Journal())
    if reader.find(aliases.NUM_EXPERTS, agree=False) is not None:
        return True
    return any(moe_block(block) is not None for block in reader.sequence(["block_configs"]) or ())
