"""Change a question so that one fact has a given value: the inverse of :func:`moe_core.contract.facts.facts_of`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from pydantic import ValidationError

from moe_core.contract.deployment import MoEDeployment
from moe_core.contract.environment import Feature, Flag, MoEEnvironment, Package, PluginFact, normalize_package
from moe_core.contract.facts import ABSENT, UNSET, FactValue
from moe_core.contract.problem import ActivationConstant, MoEProblem
from moe_core.contract.vocabulary import ActivationType, Device
from moe_core.testing.question import Question

_EXPERT_COUNTS: Final = ("num_experts", "top_k", "num_expert_groups", "topk_group")
_PARALLEL_SIZES: Final = ("ep_size", "tp_size", "cluster_size", "dp_size")
_FILLED_IN: Final = ("parallel_size", "attention_tp_size", "ranks_per_node")


def with_fact(question: Question, fact: str, value: FactValue) -> Question | None:
    """`question` with as little changed as makes `fact` be `value`; ``None`` where no change of fields does."""
    try:
        changed = _changed(question, fact, value)
    except ValidationError:
        return None
    return changed if changed is not None and changed.facts[fact] == value else None


def _changed(question: Question, fact: str, value: Any) -> Question | None:
    family, colon, name = fact.partition(":")
    if colon:
        return _OPEN[family](question, name, value)
    if fact in _STEERED:
        return _STEERED[fact](question, value)
    if fact in MoEProblem.model_fields:
        return _with_problem(question, fact, value)
    if fact in MoEDeployment.model_fields:
        return _with_deployment(question, fact, value)
    return _with_environment(question, fact, value) if fact in MoEEnvironment.model_fields else None


def _with_problem(question: Question, name: str, value: Any) -> Question:
    problem = question.problem
    changes: dict[str, Any] = {name: value}
    if name in ("activation", "bias"):
        changes["swiglu_gptoss_style"] = None  # to be inferred again
    elif name == "clamp_after_silu" and value and "clamp" not in (problem.activation_constant_names or ()):
        changes["activation_constants"] = (*(problem.activation_constants or ()), _constant("clamp"))
    elif name == "top_k" and problem.num_experts is not None:
        changes["num_experts"] = max(value, problem.num_experts)
    elif name == "num_experts" and problem.top_k is not None:
        changes["top_k"] = min(value, problem.top_k)
    try:
        return question.with_problem(**changes)
    except ValidationError:
        if name not in _EXPERT_COUNTS:
            raise
        # The counts contradict each other: keep only the one that is asked for.
        return question.with_problem(**{**dict.fromkeys(_EXPERT_COUNTS), name: value})


def _constant(name: Any) -> ActivationConstant:
    return ActivationConstant(name=name, value=1.0)


def _with_deployment(question: Question, name: str, value: Any) -> Question:
    changes: dict[str, Any] = {}
    if name in _PARALLEL_SIZES:
        changes = dict.fromkeys(_FILLED_IN)
    return question.with_deployment(**{**changes, name: value})


def _with_nodes(question: Question, value: int) -> Question:
    question = question.with_deployment(num_nodes=value, ranks_per_node=None)
    ep_size = question.deployment.ep_size
    if question.deployment.world_size % value:
        ep_size *= value
    return _with_deployment(question, "ep_size", ep_size)


def _with_ranks_per_node(question: Question, value: int) -> Question:
    deployment = question.deployment
    others = deployment.world_size // deployment.ep_size
    ep_size = max(value * (deployment.num_nodes or 1) // others, 1)
    return _with_deployment(question, "ep_size", ep_size)


def _with_environment(question: Question, name: str, value: Any) -> Question:
    changes: dict[str, Any] = {name: value}
    if name == "sm":
        changes["device"] = Device.CUDA if value else Device.CPU
    elif name == "device" and value != question.environment.device:
        changes["sm"] = None
    return question.with_environment(**changes)


def _with_package(question: Question, name: str, value: Any) -> Question:
    key = normalize_package(name)
    others = tuple(p for p in question.environment.packages or () if p.name != key)
    ours = () if value == ABSENT else (Package(name=key, version=value),)
    return question.with_environment(packages=others + ours)


def _with_feature(question: Question, name: str, value: Any) -> Question:
    others = tuple(f for f in question.environment.features if f.name != name)
    package = name.partition(".")[0]
    if question.facts[f"package:{package}"] == ABSENT:
        question = _with_package(question, package, "1.0")
    return question.with_environment(features=(*others, Feature(name=name, present=value)))


def _with_flag(question: Question, name: str, value: Any) -> Question:
    others = tuple(f for f in question.environment.flags if f.name != name)
    return question.with_environment(flags=others if value == UNSET else (*others, Flag(name=name, value=value)))


def _with_plugin_fact(question: Question, name: str, value: Any) -> Question:
    others = tuple(f for f in question.environment.facts if f.name != name)
    return question.with_environment(facts=(*others, PluginFact(name=name, value=value)))


def _with_gating(question: Question, value: Any) -> Question:
    return _with_problem(question, "activation", ActivationType.SWIGLU if value else ActivationType.RELU2)


def _with_constants(question: Question, value: Any) -> Question:
    kept = {c.name: c for c in question.problem.activation_constants or ()}
    constants = tuple(kept.get(name) or _constant(name) for name in value)
    after_silu = question.problem.clamp_after_silu and "clamp" in value
    return question.with_problem(activation_constants=constants, clamp_after_silu=after_silu)


def _with_intermediate(question: Question, size: float) -> Question | None:
    return _with_problem(question, "intermediate_size", int(size)) if size == int(size) else None


def _with_fc1_rows(question: Question, value: Any) -> Question | None:
    halves = 2 if question.problem.is_gated else 1
    return _with_intermediate(question, value * question.deployment.tp_size / halves)


def _with_groups(question: Question, value: Any) -> Question | None:
    group = question.facts["quant_group_size"]
    return _with_intermediate(question, value * group) if isinstance(group, int) else None


def _with_experts_per_group(question: Question, value: Any) -> Question:
    groups = max(question.problem.num_expert_groups or 1, 2)
    return question.with_problem(num_expert_groups=groups, num_experts=int(value * groups), topk_group=None, top_k=1)


def _with_data_parallel(question: Question, value: Any) -> Question:
    if not value:
        return _with_deployment(question, "dp_size", 1)
    if question.deployment.world_size == 1:
        question = _with_deployment(question, "ep_size", 2)
    return _with_deployment(question, "dp_size", question.deployment.world_size)


def _with_world(question: Question, value: Any) -> Question:
    alone = question.with_deployment(tp_size=1, cluster_size=1, dp_size=1, **dict.fromkeys(_FILLED_IN))
    return _with_deployment(alone, "ep_size", value)


def _with_memory_needed(question: Question, value: Any) -> Question | None:
    needed = question.facts["memory_needed"]
    if not isinstance(needed, int):
        return None
    return question.with_deployment(reserved_memory=question.deployment.reserved_memory + int(value) - needed)


_OPEN: Final[dict[str, Callable[[Question, str, Any], Question]]] = {
    "package": _with_package,
    "feature": _with_feature,
    "flag": _with_flag,
    "plugin": _with_plugin_fact,
}
_STEERED: Final[dict[str, Callable[[Question, Any], Question | None]]] = {
    "is_gated": _with_gating,
    "activation_constant_names": _with_constants,
    "slots_per_rank": lambda q, v: _with_deployment(q, "num_slots", v * q.deployment.ep_size),
    "intermediate_size_per_tp": lambda q, v: _with_intermediate(q, v * q.deployment.tp_size),
    "fc1_rows_per_tp": _with_fc1_rows,
    "intermediate_groups": _with_groups,
    "experts_per_group": _with_experts_per_group,
    "num_nodes": _with_nodes,
    "ranks_per_node": _with_ranks_per_node,
    "use_dp": _with_data_parallel,
    "smart_router": lambda q, v: _with_deployment(q, "cluster_size", 2 if v else 1),
    "world_size": _with_world,
    "weight_bytes": lambda q, v: None,  # no size is free to reach it
    "memory_needed": _with_memory_needed,
}
