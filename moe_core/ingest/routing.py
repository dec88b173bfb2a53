"""How tokens choose experts."""

from __future__ import annotations

from typing import Final, NamedTuple

from moe_core.contract.vocabulary import GroupScore, RoutingMethodType
from moe_core.ingest import aliases
from moe_core.ingest.columns import PerLayer
from moe_core.ingest.families import Family
from moe_core.ingest.layers import Layers
from moe_core.ingest.reader import Reader
from moe_core.ingest.sizes import Columns

_METHOD = RoutingMethodType
_SCORINGS: Final = ("softmax", "sigmoid", "sqrtsoftplus")
_SOFTCAPS: Final = ("moe_router_logit_softcapping", "router_logit_softcapping")


class _Router(NamedTuple):
    """A router as far as it is known."""

    scoring: str | None
    bias: bool | None
    renormalize: bool | None
    scale: float | None
    groups: int | None
    kept: int | None

    @property
    def grouped(self) -> bool:
        return self.groups is not None and self.groups > 1


def read_routing(reader: Reader, layers: Layers, family: Family | None) -> Columns:
    """Method, groups, scaling and bias. What neither a key nor the family states is unknown (``None``)."""
    router = _router(reader, family)
    on_input = reader.boolean(aliases.WEIGHT_ON_INPUT)
    if on_input is None:
        on_input = family is not None and family.weight_on_input
    columns: Columns = {
        "routing": _method(reader, family, router),
        "num_expert_groups": router.groups,
        "topk_group": router.kept,
        "group_score": _group_score(family, router),
        "renormalize": router.renormalize,
        "routed_scaling_factor": router.scale,
        "routing_bias": router.bias,
        "apply_router_weight_on_input": on_input,
    }
    hashed = _hashed(reader, layers)
    if any(hashed):
        columns["hashed_routing"] = hashed
        columns["routing_bias"] = PerLayer(router.bias and not by_table for by_table in hashed)
    return columns


def _router(reader: Reader, family: Family | None) -> _Router:
    scoring = reader.text(aliases.SCORING)
    topk_method = reader.text(["topk_method"])
    bias = reader.boolean(aliases.ROUTING_BIAS)
    if bias is None and topk_method is not None:
        bias = {"noaux_tc": True, "greedy": False, "group_limited_greedy": False}.get(topk_method)
    renormalize = reader.boolean(aliases.RENORMALIZE)
    scale = reader.number(aliases.ROUTED_SCALE)
    groups, kept = reader.integer(aliases.GROUPS), reader.integer(aliases.TOPK_GROUPS)
    if family is not None:
        scoring = family.scoring if scoring is None else scoring
        bias = family.routing_bias if bias is None else bias
        renormalize = family.renormalize if renormalize is None else renormalize
        scale = 1.0 if scale is None else scale
        groups = 1 if groups is None else groups
    if topk_method == "greedy" or (groups is not None and groups <= 1):
        groups = kept = 1
    elif groups is not None and kept is None:
        reader.journal.trouble(f"{groups} groups of experts", f"how many are kept: {' or '.join(aliases.TOPK_GROUPS)}")
    scoring = scoring and scoring.lower().replace("_", "")
    return _Router(scoring, bias, renormalize, scale, groups, kept)


def _method(reader: Reader, family: Family | None, router: _Router) -> RoutingMethodType | None:
    softcap = reader.number(_SOFTCAPS)
    if softcap:
        reader.journal.note(f"router logits are capped softly at {softcap:g}, which no named routing method does")
        return _METHOD.UNSPECIFIED
    if router.scoring is not None and router.scoring not in _SCORINGS:
        reader.journal.note(f"router logits are scored by {router.scoring}, which no named routing method does")
        return _METHOD.UNSPECIFIED
    if family is not None and family.routing is not None and router.scoring == family.scoring:
        return family.routing
    if router.scoring == "softmax":
        method = _softmax_method(router)
    elif router.scoring == "sigmoid":
        speaks_of_groups = reader.find(aliases.GROUPS) is not None or reader.find(["topk_method"]) is not None
        method = _sigmoid_method(router, speaks_of_groups)
    else:
        method = None if router.scoring is None else _METHOD.SQRT_SOFTPLUS
    if method is None:
        reader.journal.note("the routing method is unknown: the keys do not tell it, and the family is not known")
    return method


def _softmax_method(router: _Router) -> RoutingMethodType | None:
    if router.bias:
        return _METHOD.UNSPECIFIED
    if router.grouped:
        return _METHOD.GROUPED_SOFTMAX
    if router.renormalize is None:
        return None
    return _METHOD.RENORMALIZE if router.renormalize else _METHOD.DEFAULT


def _sigmoid_method(router: _Router, speaks_of_groups: bool) -> RoutingMethodType | None:
    """DeepSeek-V3 with one group and the MiniMax methods are one computation; a config's words tell which it is."""
    if router.bias is None:
        return None
    if router.grouped or (router.bias and speaks_of_groups):
        return _METHOD.DEEPSEEK_V3
    if not router.bias:
        return _METHOD.SIGMOID_RENORM
    return _METHOD.MINIMAX2 if router.scale in (None, 1.0) else _METHOD.MINIMAX3


def _group_score(family: Family | None, router: _Router) -> GroupScore | None:
    """Biased scores rank a group by the sum of its two best; others by the best, unless the family differs."""
    if not router.grouped or router.bias is None:
        return None
    if router.bias or family is None:
        return GroupScore.TOP2_SUM if router.bias else GroupScore.MAX
    return family.group_score


def _hashed(reader: Reader, layers: Layers) -> PerLayer:
    """Which layers take expert ids from a table: the first ``num_hash_layers``, or those called ``hash_moe``."""
    words = reader.sequence(["mlp_layer_types"]) or ()
    first = reader.integer(["num_hash_layers"]) or 0
    return PerLayer(i < first or words[i : i + 1] == ("hash_moe",) for i in range(layers.total))
