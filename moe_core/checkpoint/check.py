"""Everything in which a checkpoint differs from what is needed of it: keys, shapes, element types, cuts, meanings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from itertools import product
from typing import Final

import torch

from moe_core.checkpoint.files import Checkpoint, OpenFiles
from moe_core.checkpoint.places import Span
from moe_core.checkpoint.plan import Plan
from moe_core.checkpoint.storages import HARMLESS, ORDER, ROUTER_IN_EXPERTS

MOST_COMPARED: Final = 8
"""Missing keys whose close matches are looked for: comparing thousands takes minutes."""


def troubles(checkpoint: Checkpoint, files: OpenFiles, plan: Plan, experts: range, share: Span) -> list[str]:
    """All of it, as lines ``key: found …, needed …``.

    Keys are checked for all experts, so that ranks agree about them; what the files hold is checked for `experts`, so
    that a rank opens no file that it does not read. Of static scales of inputs it reads those of all experts.
    """
    lines = [
        *_settings(checkpoint, plan),
        *_keys(checkpoint, plan),
        *_cuts(plan, share),
        *_contents(checkpoint, files, plan, experts),
        *_input_scales(checkpoint, files, plan),
        *_orders(checkpoint, files, plan, experts),
        *_nonzero(checkpoint, files, plan, experts),
    ]
    return list(dict.fromkeys(lines))  # gate and up may be in one tensor


def _settings(checkpoint: Checkpoint, plan: Plan) -> Iterator[str]:
    for name, legal in plan.storage.settings.items():
        value = checkpoint.quantization.get(name)
        if value is not None and str(value).lower() not in legal:
            yield f"quantization_config.{name}: found {value}, needed {' or '.join(legal)} to read {plan.storage.name}"


def _keys(checkpoint: Checkpoint, plan: Plan) -> Iterator[str]:
    every = range(plan.sizes.num_experts)
    needed = {place.key(expert): place for place in (*plan.places(), *plan.input_places()) for expert in every}
    known = needed.keys() | _beside(plan, every)
    found = plan.found
    scopes = tuple(found.block + scope for scope in found.scheme.scopes)
    strange = [key for path in found.paths if path.startswith(scopes) and (key := found.prefix + path) not in known]
    missing = [key for key in needed if key not in checkpoint.file_of]
    for number, key in enumerate(missing):
        close = get_close_matches(key, strange, n=1, cutoff=0.8) if number < MOST_COMPARED else []
        hint = f"; did you mean {close[0]}?" if close else ""
        yield f"{key}: found no such key, needed {needed[key].needed}{hint}"
    what = f"{plan.sizes.num_experts} experts named as in {found.scheme.name}, {plan.storage.name}"
    bias = ", without bias" if plan.sizes.bias is False else ""
    for key in strange:
        yield f"{key}: found a key that may change what the experts compute, needed those of {what}{bias}"


def _beside(plan: Plan, experts: range) -> set[str]:
    words = (*HARMLESS, *ORDER, *plan.storage.beside, *plan.storage.zero)
    of_router = {plan.found.prefix + plan.found.block + path for path in ROUTER_IN_EXPERTS}
    return of_router.union(_named(plan, words, experts))


def _named(plan: Plan, words: Iterable[str], experts: range) -> Iterator[str]:
    for projection, word in product(plan.found.scheme.projections, words):
        yield from plan.found.keys(projection, word, experts)


def _cuts(plan: Plan, share: Span) -> Iterator[str]:
    for field, parts in plan.fields.items():
        for place in parts.values():
            for line in place.uncuttable(plan.spans(field, share)[1]):
                yield f"{place.template}: {line}"


def _contents(checkpoint: Checkpoint, files: OpenFiles, plan: Plan, experts: range) -> Iterator[str]:
    every = range(plan.sizes.num_experts)
    read = [(place, experts) for place in plan.places()] + [(place, every) for place in plan.input_places()]
    for place, of in read:
        legal = place.part.dtypes or (plan.sizes.dtype,)
        for key in dict.fromkeys(map(place.key, of)):
            if key not in checkpoint.file_of:
                continue
            if not place.fits(files.shape(key)):
                yield f"{key}: found {list(files.shape(key))}, needed {place.needed}"
            found = files.dtype(key)
            if found not in legal:
                yield f"{key}: found {found}, needed {' or '.join(map(str, legal))}"
            elif isinstance(found, torch.dtype):
                legal = (found,)  # experts become one tensor, so the others need to be alike


def _input_scales(checkpoint: Checkpoint, files: OpenFiles, plan: Plan) -> Iterator[str]:
    for place in plan.input_places():
        for key in dict.fromkeys(map(place.key, range(plan.sizes.num_experts))):
            if key in checkpoint.file_of and not bool(
                ((found := files.read(key).float()) > 0).all() & found.isfinite().all()
            ):
                yield f"{key}: found {found.tolist()}, needed positive numbers: inputs are divided by them"


def _orders(checkpoint: Checkpoint, files: OpenFiles, plan: Plan, experts: range) -> Iterator[str]:
    group = None if plan.sizes.format is None else plan.sizes.format.block[1]
    for key in _named(plan, ORDER, experts):
        if group and key in checkpoint.file_of and _is_shuffled(files.read(key), group):
            yield (
                f"{key}: found columns grouped by importance, needed groups of {group} neighbours; quantize without "
                "desc_act"
            )


def _is_shuffled(group_of: torch.Tensor, size: int) -> bool:
    return not group_of.equal(torch.arange(len(group_of), dtype=group_of.dtype) // size)


def _nonzero(checkpoint: Checkpoint, files: OpenFiles, plan: Plan, experts: range) -> Iterator[str]:
    read = {place.key(expert) for place in plan.places() for expert in experts}
    for key in _named(plan, plan.storage.zero, experts):
        if key in checkpoint.file_of and key not in read and bool(files.read(key).any()):
            yield f"{key}: found values, needed zeros: the problem has no such tensor"
