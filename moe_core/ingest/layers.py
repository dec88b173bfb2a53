"""How many layers a model has, which of them have experts, and which are draft layers."""

from __future__ import annotations

from dataclasses import dataclass

from moe_core.contract.vocabulary import LayerRole
from moe_core.ingest import aliases
from moe_core.ingest.families import Family
from moe_core.ingest.layer_rules import RULES, Flags, letters
from moe_core.ingest.reader import Reader

_ONE_PER_LAYER = ("hybrid_override_pattern", "layers_block_type", "mlp_layer_types", "block_configs")


@dataclass(frozen=True)
class Layers:
    """The model's own layers, numbered from 0, then its draft layers."""

    num_target: int
    num_draft: int
    moe: tuple[int, ...]
    """Indices of the layers with experts, ascending."""

    @property
    def total(self) -> int:
        """Own and draft layers."""
        return self.num_target + self.num_draft

    def role(self, layer: int) -> LayerRole:
        """Whether `layer` is the model's own or a draft layer."""
        return LayerRole.TARGET if layer < self.num_target else LayerRole.DRAFT


def read_layers(reader: Reader, family: Family | None) -> Layers:
    """The layers of a config that has experts. Without a number of layers: a trouble, and no layers."""
    num_target = _num_layers(reader)
    drafts = _drafts(reader, family)
    total = num_target + len(drafts)
    flags = _by_rules(reader, num_target, total)
    if reader.boolean(aliases.SWITCH) is False:
        flags = (False,) * total
    moe = [i for i in range(num_target) if flags[i]]
    for i, flag in enumerate(drafts, num_target):
        # a draft layer is like the layers of the model, unless the config tells them apart
        by_rule = True if flags[i] is None else flags[i]
        if moe and (by_rule if flag is None else flag):
            moe.append(i)
    return Layers(num_target, len(drafts), tuple(moe))


def _num_layers(reader: Reader) -> int:
    stated = reader.integer(aliases.LAYERS)
    if stated:
        return stated
    for key in _ONE_PER_LAYER:
        found = reader.find([key])
        if found is not None and isinstance(found.value, (str, list, tuple)):
            return len(found.value)
    reader.journal.trouble("no number of layers", f"one of {', '.join(aliases.LAYERS)}")
    return 0


def _by_rules(reader: Reader, num_target: int, total: int) -> Flags:
    """Flags of every layer by the first rule that speaks; a later rule that differs is noted."""
    spoken = [(key, flags) for key, rule in RULES if (flags := _fit(reader, rule(reader, total), num_target, total))]
    if not spoken:
        return (True,) * total
    first, flags = spoken[0]
    for key, others in spoken[1:]:
        if others[:num_target] != flags[:num_target]:
            reader.journal.note(f"{first} decides which layers have experts; {key} says otherwise")
    return flags


def _fit(reader: Reader, flags: Flags | None, num_target: int, total: int) -> Flags | None:
    """`flags` for `total` layers; a list may or may not include the draft layers."""
    if flags is None or len(flags) == total:
        return flags
    if len(flags) == num_target:
        return flags + (None,) * (total - num_target)
    reader.journal.trouble(
        f"{len(flags)} entries in a list with one per layer", f"{num_target} entries, as many as there are layers"
    )
    return None


def _drafts(reader: Reader, family: Family | None) -> Flags:
    """One flag per draft layer: whether it has experts; ``None`` where it is like the model's own layers."""
    count = reader.integer(aliases.DRAFT_LAYERS) or 0
    if not count or reader.boolean(["use_mtp"]) is False:
        return ()
    if family is not None and family.dense_drafts:
        reader.journal.note(f"{count} draft layers have no experts in this family")
        return (False,) * count
    each = reader.sequence(["mtp_mlp_layer_types"])
    if each is not None:
        return tuple(word != "dense" for word in each)
    blocks = reader.sequence(["mtp_layers_block_type"])
    if blocks is not None:
        return tuple(word == "moe" for word in blocks) * count
    pattern = reader.text(["mtp_hybrid_override_pattern"])
    if pattern is not None:
        return letters(reader, "mtp_hybrid_override_pattern", pattern) * count
    return (None,) * (count * (reader.integer(["mtp_transformer_layers"]) or 1))
