"""Which layers have experts: one rule for each way that configs say it, the most explicit first.

A rule takes a reader and a number of layers (the model's own, then its draft layers) and gives one flag per layer,
or ``None`` when the config does not use it. A list may leave the draft layers out; then it says nothing of them
(``None`` flags).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from moe_core.ingest import aliases
from moe_core.ingest.errors import show
from moe_core.ingest.reader import Reader

Flags = tuple[bool | None, ...]
Rule = Callable[[Reader, int], Flags | None]

_MOE_WORDS = frozenset({"moe", "sparse", "hash_moe"})
_DENSE_WORDS = frozenset({"dense", "mlp"})
_BLOCK_LETTERS = {"E": True, "M": False, "*": False, "-": False}


def mlp_layer_types(reader: Reader, total: int) -> Flags | None:
    """``mlp_layer_types``: a word per layer."""
    words = reader.sequence(["mlp_layer_types"])
    if words is None:
        return None
    unknown = sorted({show(w) for w in words if w not in _MOE_WORDS and w not in _DENSE_WORDS})
    if unknown:
        known = ", ".join(sorted(_MOE_WORDS | _DENSE_WORDS))
        reader.journal.trouble(f"mlp_layer_types with {', '.join(unknown)}", f"only {known}")
    return tuple(word in _MOE_WORDS for word in words)


def block_pattern(reader: Reader, total: int) -> Flags | None:
    """``hybrid_override_pattern``: a letter per layer, E for experts; or a list of block types, one of them moe."""
    pattern = reader.text(["hybrid_override_pattern"])
    if pattern is not None:
        return letters(reader, "hybrid_override_pattern", pattern)
    for key in ("layers_block_type", "layer_types"):
        words = reader.sequence([key])
        if words is not None and "moe" in words:
            return tuple(word == "moe" for word in words)
    return None


def letters(reader: Reader, key: str, pattern: str) -> Flags:
    """One flag per letter of a hybrid pattern; bars, which mark pipeline stages, are skipped."""
    unknown = sorted(set(pattern) - set(_BLOCK_LETTERS) - {"|"})
    if unknown:
        reader.journal.trouble(f"{key} with {', '.join(unknown)}", f"only the letters {' '.join(_BLOCK_LETTERS)}")
    return tuple(_BLOCK_LETTERS.get(letter, False) for letter in pattern if letter != "|")


def block_configs(reader: Reader, total: int) -> Flags | None:
    """``block_configs``: a mapping per layer, with its block type or with ``ffn.moe``."""
    blocks = reader.sequence(["block_configs"])
    return None if blocks is None else tuple(moe_block(block) is not None for block in blocks)


def moe_block(block: Any) -> Mapping[str, Any] | None:
    """The description of the experts in one entry of ``block_configs``; ``None`` when it has none."""
    if not isinstance(block, Mapping):
        return None
    if block.get("block_type") == "moe":
        return block
    ffn = block.get("ffn")
    inner = ffn.get("moe") if isinstance(ffn, Mapping) else None
    return inner if isinstance(inner, Mapping) else None


def moe_layers(reader: Reader, total: int) -> Flags | None:
    """``moe_layers`` or ``moe_layers_enum``: the indices of the MoE layers, as a list or a comma-separated text."""
    found = reader.find(["moe_layers", "moe_layers_enum"])
    if found is None:
        return None
    items = found.value.split(",") if isinstance(found.value, str) else found.value
    try:
        indices = {int(item) for item in items if str(item).strip()}
    except (TypeError, ValueError):
        indices = {-1}
    if not indices <= set(range(total)):
        reader.journal.trouble(f"{found.path} = {show(found.value)}", f"layer indices from 0 to {total - 1}")
    return tuple(i in indices for i in range(total))


def moe_layer_freq(reader: Reader, total: int) -> Flags | None:
    """``moe_layer_freq`` as a list of 0 and 1, or as the text of one, such as ``[0]*3+[1]*58``."""
    found = reader.find(["moe_layer_freq"])
    if found is None or isinstance(found.value, (int, float)):
        return None
    flags = _expand(found.value) if isinstance(found.value, str) else found.value
    if not isinstance(flags, (list, tuple)) or any(flag not in (0, 1) for flag in flags):
        reader.journal.trouble(f"{found.path} = {show(found.value)}", "a period, or 0 or 1 for each layer")
        return None
    return tuple(bool(flag) for flag in flags)


def _expand(text: str) -> list[int] | None:
    """The list that a sum of repeated lists of digits means; ``None`` when `text` is nothing of the kind."""
    plain = re.sub(r"[\s()'\"]", "", text)
    if not re.fullmatch(r"\[[\d,]*\](\*\d+)?(\+\[[\d,]*\](\*\d+)?)*", plain):
        return None
    flags: list[int] = []
    for items, times in re.findall(r"\[([\d,]*)\](?:\*(\d+))?", plain):
        flags += [int(item) for item in items.split(",") if item] * int(times or 1)
    return flags


def sparse_step(reader: Reader, total: int) -> Flags | None:
    """``decoder_sparse_step``: every n-th layer, except ``mlp_only_layers``."""
    step, only = reader.integer(["decoder_sparse_step"]), reader.counts(["mlp_only_layers"])
    if step is None and only is None:
        return None
    dense = set(only) if isinstance(only, tuple) else {only}
    return _every(1 if step is None else step, total, dense)


def interleave_step(reader: Reader, total: int) -> Flags | None:
    """``interleave_moe_layer_step`` and its like: every n-th layer."""
    step = reader.integer(["interleave_moe_layer_step", "moe_layer_frequency", "moe_every_n_layers"])
    return None if step is None else _every(step, total)


def expert_period(reader: Reader, total: int) -> Flags | None:
    """``expert_layer_period`` and ``expert_layer_offset``: every n-th layer, beginning at the offset."""
    period, offset = reader.integer(["expert_layer_period"]), reader.integer(["expert_layer_offset"]) or 0
    return None if period is None else tuple(period > 0 and i % period == offset for i in range(total))


def layer_range(reader: Reader, total: int) -> Flags | None:
    """``moe_layer_start_index``, ``moe_layer_end_index`` (-1 is the last layer) and ``moe_layer_interval``."""
    start, end = _first(reader, "moe_layer_start_index"), _first(reader, "moe_layer_end_index")
    interval = reader.integer(["moe_layer_interval"])
    if start is None and end is None and interval is None:
        return None
    last = total - 1 if end is None or end == -1 else end
    every = _every(interval or 1, total)
    return tuple(every[i] and (start or 0) <= i <= last for i in range(total))


def first_dense(reader: Reader, total: int) -> Flags | None:
    """``first_k_dense_replace`` and its like, and ``moe_layer_freq`` as a period counted from layer 0."""
    first = reader.integer(aliases.FIRST_DENSE)
    found = reader.find(["moe_layer_freq"])
    period = found.value if found is not None and isinstance(found.value, int) else None
    if first is None and period is None:
        return None
    return tuple(i >= (first or 0) and period != 0 and i % (period or 1) == 0 for i in range(total))


def _every(step: int, total: int, dense: Iterable[int | None] = ()) -> tuple[bool, ...]:
    return tuple(step > 0 and (i + 1) % step == 0 and i not in dense for i in range(total))


def _first(reader: Reader, key: str) -> int | None:
    """An index that may be given once for text and once for vision, or be -1."""
    found = reader.find([key])
    if found is None:
        return None
    value = found.value[0] if isinstance(found.value, (list, tuple)) and found.value else found.value
    if isinstance(value, int) and not isinstance(value, bool) and value >= -1:
        return value
    reader.journal.trouble(f"{found.path} = {show(found.value)}", "a layer index, or -1 for the last layer")
    return None


RULES: Final[tuple[tuple[str, Rule], ...]] = (
    ("mlp_layer_types", mlp_layer_types),
    ("the list of block types", block_pattern),
    ("block_configs", block_configs),
    ("moe_layers", moe_layers),
    ("the list in moe_layer_freq", moe_layer_freq),
    ("decoder_sparse_step", sparse_step),
    ("interleave_moe_layer_step", interleave_step),
    ("expert_layer_period", expert_period),
    ("moe_layer_start_index", layer_range),
    ("first_k_dense_replace", first_dense),
)
"""Rules by the key that people know them by."""
