"""Facts: the flat, named view of a problem and a deployment that requirements are evaluated on.

Names of facts are the fields of problem, deployment and environment, the derived facts below, and four open
families: ``package:<name>`` (a version, or :data:`ABSENT`), ``feature:<package>.<feature>`` (bool),
``flag:<VARIABLE>`` (the value as set, or :data:`UNSET`) and ``plugin:<prefix>.<fact>``.
"""

from __future__ import annotations

from collections.abc import Hashable
from functools import lru_cache
from typing import TypeAlias

from moe_core.contract.deployment import MoEDeployment
from moe_core.contract.environment import MoEEnvironment, normalize_package
from moe_core.contract.memory import DEFAULT_GROUP_SIZE, memory_needed, weight_bytes_per_rank
from moe_core.contract.problem import MoEProblem

FactValue: TypeAlias = bool | int | float | str | tuple[str, ...] | None

ABSENT = "absent"
"""Value of a ``package:`` fact when the package is known not to be installed."""
UNSET = "unset"
"""Value of a ``flag:`` fact when the variable was not set."""

_PROBLEM_FACTS = tuple(n for n in MoEProblem.model_fields if n not in ("schema_version", "activation_constants"))
_DEPLOYMENT_FACTS = tuple(n for n in MoEDeployment.model_fields if n not in ("schema_version", "environment"))
_ENVIRONMENT_FACTS = tuple(
    n for n in MoEEnvironment.model_fields if n not in ("schema_version", "packages", "features", "flags", "facts")
)

DERIVED_FACTS: dict[str, str] = {
    "is_gated": "whether FC1 has a gate half",
    "activation_constant_names": "names of the activation constants that are set",
    "quant_group_size": "elements per scale along the contraction dimension",
    "num_slots": "EPLB slots, or as many as experts",
    "slots_per_rank": "num_slots / ep_size",
    "intermediate_size_per_tp": "intermediate_size / tp_size",
    "fc1_rows_per_tp": "rows of FC1 on one MoE-TP shard: 2 * intermediate_size / tp_size when gated",
    "intermediate_groups": "intermediate_size / quant_group_size: scale groups that tensor parallelism must divide",
    "experts_per_group": "num_experts / num_expert_groups",
    "use_dp": "attention data parallelism is on (dp_size > 1)",
    "smart_router": "cluster_size > 1",
    "world_size": "ep_size * tp_size * cluster_size",
    "weight_bytes": "bytes of the layer's routed experts on the fullest rank",
    "memory_needed": "weight_bytes + workspace + reserved_memory",
}
"""Facts that are computed, with what they are."""


class Facts:
    """Read-only lookup of facts; a name outside every family raises ``KeyError``: a misspelt requirement."""

    __slots__ = ("_values", "answers")

    def __init__(self, values: dict[str, FactValue]) -> None:
        self._values = values
        self.answers: dict[Hashable, bool | None] = {}
        """What was evaluated on these facts already: candidates share most of their requirements."""

    def __getitem__(self, name: str) -> FactValue:
        try:
            return self._values[name]
        except KeyError:
            return self._outside(name)

    def _outside(self, name: str) -> FactValue:
        family, _, rest = name.partition(":")
        if family == "package":
            return ABSENT if self._values["packages_known"] else None
        if family == "feature":
            package = self["package:" + rest.partition(".")[0]]
            return False if package == ABSENT else None
        if family == "flag":
            return UNSET
        if family == "plugin":
            return None
        raise KeyError(f"{name!r} is no fact; see moe_core.contract.facts")


def is_fact_name(name: str) -> bool:
    """Whether `name` is a fact that requirements may mention."""
    family, colon, rest = name.partition(":")
    if colon:
        return family in ("package", "feature", "flag", "plugin") and bool(rest)
    return name in DERIVED_FACTS or name in _PROBLEM_FACTS or name in _DEPLOYMENT_FACTS or name in _ENVIRONMENT_FACTS


def facts_of(problem: MoEProblem, deployment: MoEDeployment) -> Facts:
    """Every fact of a problem on a deployment."""
    values: dict[str, FactValue] = dict(_environment_facts(deployment.environment))
    fields = problem.__dict__
    for name in _PROBLEM_FACTS:
        values[name] = fields[name]
    fields = deployment.__dict__
    for name in _DEPLOYMENT_FACTS:
        values[name] = fields[name]
    ep, tp = deployment.ep_size, deployment.tp_size
    slots = deployment.num_slots or problem.num_experts
    per_tp = _ratio(problem.intermediate_size, tp)
    gated = problem.is_gated
    per_group = None if problem.num_expert_groups is None else _ratio(problem.num_experts, problem.num_expert_groups)
    group = problem.quant_group_size or (DEFAULT_GROUP_SIZE.get(problem.quant) if problem.quant else None)
    values.update(
        is_gated=gated,
        activation_constant_names=problem.activation_constant_names,
        quant_group_size=group,
        num_slots=slots,
        slots_per_rank=_ratio(slots, ep),
        intermediate_size_per_tp=per_tp,
        fc1_rows_per_tp=None if per_tp is None or gated is None else per_tp * (2 if gated else 1),
        intermediate_groups=None if group is None else _ratio(problem.intermediate_size, group),
        experts_per_group=per_group,
        use_dp=deployment.use_dp,
        smart_router=deployment.smart_router,
        world_size=deployment.world_size,
        weight_bytes=weight_bytes_per_rank(problem, deployment),
        memory_needed=memory_needed(problem, deployment),
    )
    return Facts(values)


def _ratio(size: int | None, parts: int) -> int | float | None:
    if size is None:
        return None
    return size // parts if size % parts == 0 else size / parts


@lru_cache(maxsize=64)
def _environment_facts(environment: MoEEnvironment) -> dict[str, FactValue]:
    values: dict[str, FactValue] = {name: getattr(environment, name) for name in _ENVIRONMENT_FACTS}
    values["packages_known"] = environment.packages is not None
    for package in environment.packages or ():
        values["package:" + normalize_package(package.name)] = package.version
    for feature in environment.features:
        values["feature:" + feature.name] = feature.present
    for flag in environment.flags:
        values["flag:" + flag.name] = flag.value
    for fact in environment.facts:
        values["plugin:" + fact.name] = fact.value
    return values
