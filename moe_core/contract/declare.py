"""Short names for the requirements that candidates declare most."""

from __future__ import annotations

from moe_core.contract.predicate import (
    AtLeast,
    AtMost,
    Equals,
    Includes,
    Installed,
    MultipleOf,
    NoneOf,
    OneOf,
    Plain,
    Predicate,
    SameAs,
    SubsetOf,
)
from moe_core.contract.reasons import MoERejectReason as Reason
from moe_core.contract.requirement import Condition, Requirement
from moe_core.contract.vocabulary import ActivationType, DType, FixableBy, QuantAlgo, RoutingMethodType

__all__ = [
    "AtLeast",
    "AtMost",
    "Equals",
    "Includes",
    "Installed",
    "MultipleOf",
    "NoneOf",
    "OneOf",
    "SameAs",
    "SubsetOf",
    "Condition",
    "FixableBy",
    "Reason",
    "Requirement",
    "activation_in",
    "divisible",
    "dtype_in",
    "feature",
    "flag",
    "is_",
    "isnt",
    "moves_tokens",
    "moves_tokens_to_experts",
    "need",
    "no_eplb",
    "no_gptoss_style",
    "no_smart_router",
    "one_of",
    "package",
    "quant_in",
    "routing_in",
    "sm_at_least",
    "sm_in",
    "whole_groups",
]

Conditions = tuple[Condition, ...]


def need(
    reason: Reason,
    fact: str,
    test: Predicate,
    hint: str = "",
    *,
    when: Conditions = (),
    unless: Conditions = (),
    fixable: FixableBy | None = None,
) -> Requirement:
    """A requirement, positionally."""
    return Requirement(reason=reason, fact=fact, test=test, hint=hint, when=when, unless=unless, fixable=fixable)


def is_(fact: str, value: Plain) -> Condition:
    """The condition that a fact equals a value."""
    return Condition(fact=fact, test=Equals(value=value))


def isnt(fact: str, *values: Plain) -> Condition:
    """The condition that a fact is none of the values."""
    return Condition(fact=fact, test=NoneOf(values=values))


def one_of(fact: str, *values: Plain) -> Condition:
    """The condition that a fact is one of the values."""
    return Condition(fact=fact, test=OneOf(values=values))


def quant_in(*quants: QuantAlgo, when: Conditions = ()) -> Requirement:
    """Only these formats."""
    return need(Reason.QUANT_UNSUPPORTED, "quant", _exactly(*quants), when=when)


def sm_in(*sms: int, when: Conditions = ()) -> Requirement:
    """Only these compute capabilities (times ten), as built."""
    return need(Reason.SM_UNSUPPORTED, "sm", _exactly(*sms), when=when)


def sm_at_least(sm: int) -> Requirement:
    """This compute capability or any later one: only where the kernel is generic code."""
    return need(Reason.SM_UNSUPPORTED, "sm", AtLeast(value=sm))


def dtype_in(*dtypes: DType, when: Conditions = ()) -> Requirement:
    """Only these activation element types."""
    return need(Reason.DTYPE_UNSUPPORTED, "dtype_act", _exactly(*dtypes), when=when)


def activation_in(*kinds: ActivationType, when: Conditions = ()) -> Requirement:
    """Only these activations."""
    return need(Reason.ACTIVATION_UNSUPPORTED, "activation", _exactly(*kinds), when=when)


def routing_in(*methods: RoutingMethodType) -> Requirement:
    """Only these routing methods."""
    return need(Reason.ROUTING_UNSUPPORTED, "routing", _exactly(*methods))


def no_gptoss_style(*, when: Conditions = (), unless: Conditions = ()) -> Requirement:
    """Refuses SwigluBias and expert biases together with their constants."""
    return need(Reason.ACTIVATION_UNSUPPORTED, "swiglu_gptoss_style", Equals(value=False), when=when, unless=unless)


def no_eplb(*, when: Conditions = ()) -> Requirement:
    """Refuses expert-parallel load balancing."""
    return need(Reason.EPLB_UNSUPPORTED, "eplb_enabled", Equals(value=False), "turn EPLB off", when=when)


def no_smart_router() -> Requirement:
    """Refuses smart-router clusters."""
    return need(Reason.TOPOLOGY_UNSUPPORTED, "cluster_size", Equals(value=1), "turn the smart router off")


def moves_tokens() -> tuple[Requirement, ...]:
    """What every strategy that moves tokens needs: ranks with tokens of their own, and weights that stay."""
    return (
        need(
            Reason.TOPOLOGY_UNSUPPORTED,
            "use_dp",
            Equals(value=True),
            "without attention data parallelism every rank has every token: there is nothing to exchange",
        ),
        need(Reason.TOPOLOGY_UNSUPPORTED, "dwdp_size", Equals(value=1), "DWDP moves weights instead of tokens"),
    )


def moves_tokens_to_experts() -> tuple[Requirement, ...]:
    """What every strategy needs that sends a token only where its experts are: experts split by EP alone."""
    return (
        *moves_tokens(),
        need(Reason.TOPOLOGY_UNSUPPORTED, "ep_size", AtLeast(value=2), "spread the experts: ep_size 2 or more"),
        need(
            Reason.TOPOLOGY_UNSUPPORTED,
            "tp_size",
            Equals(value=1),
            "use expert parallelism alone, or AllGatherReduceScatter, which sums over MoE TP",
        ),
        no_smart_router(),
        need(Reason.PATH_NOT_ENABLED, "allow_alltoall", Equals(value=True), "allow all-to-all"),
    )


def divisible(
    fact: str,
    value: int = 1,
    *,
    by: str | None = None,
    when: Conditions = (),
    hint: str = "",
    reason: Reason = Reason.SHAPE_UNALIGNED,
) -> Requirement:
    """A size that must be a multiple of `value`, times the fact `by`."""
    return need(reason, fact, MultipleOf(value=value, times=by), hint, when=when)


def whole_groups(*, when: Conditions = ()) -> Requirement:
    """The scale groups of the intermediate size must divide over MoE TP: a group cannot be cut."""
    hint = "a scale group cannot be cut: use a tp_size that divides the groups, or EP"
    return divisible("intermediate_groups", by="tp_size", when=when, hint=hint)


def package(
    name: str, *, at_least: str | None = None, below: str | None = None, hint: str = "", when: Conditions = ()
) -> Requirement:
    """A package that must be installed, within versions; `name` is the import name."""
    return need(
        Reason.DEP_MISSING,
        f"package:{name}",
        Installed(at_least=at_least, below=below),
        hint or f"install {name}{f' >= {at_least}' if at_least else ''}",
        when=when,
    )


def feature(name: str, hint: str = "", *, when: Conditions = ()) -> Requirement:
    """A symbol or ability, ``<package>.<feature>``, that the installed package must have."""
    return need(
        Reason.DEP_MISSING,
        f"feature:{name}",
        Equals(value=True),
        hint or f"install a build of {name.partition('.')[0]} that has {name.partition('.')[2]}",
        when=when,
    )


def flag(name: str, value: str, *, default: str = "0", when: Conditions = ()) -> Requirement:
    """An environment variable that must be set to `value`; a `default` equal to it counts when unset."""
    accepted = (value, "unset") if default == value else (value,)
    return need(
        Reason.PATH_NOT_ENABLED,
        f"flag:{name}",
        OneOf(values=accepted) if len(accepted) > 1 else Equals(value=value),
        f"set {name}={value}",
        when=when,
    )


def _exactly(*values: Plain) -> Predicate:
    return Equals(value=values[0]) if len(values) == 1 else OneOf(values=values)
