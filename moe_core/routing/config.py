"""What routing needs to know of a problem, with nothing left unknown."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from moe_core.contract.problem import MoEProblem
from moe_core.contract.vocabulary import GroupScore, RoutingMethodType

# Whether a method divides the chosen weights by their sum: fixed by the method's name, or what its models do.
_ALWAYS_RENORMALIZES = frozenset({RoutingMethodType.RENORMALIZE, RoutingMethodType.RENORMALIZE_NAIVE})
_NEVER_RENORMALIZES = frozenset({RoutingMethodType.DEFAULT, RoutingMethodType.LLAMA4, RoutingMethodType.SPARSE_MIXER})
_USUALLY_DOES_NOT = frozenset({RoutingMethodType.GROUPED_SOFTMAX})

GROUPED = frozenset({RoutingMethodType.DEEPSEEK_V3, RoutingMethodType.GROUPED_SOFTMAX})
"""Methods that narrow the choice to the best groups of experts first."""


@dataclass(frozen=True)
class RoutingConfig:
    """A routing method with its parameters. Raises ``ValueError`` with every contradiction."""

    method: RoutingMethodType
    num_experts: int
    top_k: int
    renormalize: bool
    scaling_factor: float = 1.0
    """Every weight is multiplied by it at the end."""
    num_groups: int = 1
    topk_group: int = 1
    """Groups of experts that are kept."""
    group_score: GroupScore = GroupScore.TOP2_SUM
    hashed: bool = False
    """Ids come from a table indexed by token id."""
    jitter_eps: float = 0.01
    """Sparse mixer: half the relative distance to the best logit within which experts compete."""

    def __post_init__(self) -> None:
        errors = []
        if self.top_k > self.num_experts:
            errors.append(f"top_k is {self.top_k}, more than num_experts {self.num_experts}")
        if self.num_experts % self.num_groups:
            errors.append(f"num_experts {self.num_experts} is not a multiple of num_groups {self.num_groups}")
        if self.topk_group > self.num_groups:
            errors.append(f"topk_group is {self.topk_group}, more than num_groups {self.num_groups}")
        if self.num_groups > 1 and self.method not in GROUPED:
            errors.append(f"{self.method} does not group experts, but num_groups is {self.num_groups}")
        reachable = self.topk_group * (self.num_experts // self.num_groups)
        if self.top_k > reachable:
            errors.append(f"top_k is {self.top_k}, but {self.topk_group} group(s) hold only {reachable} experts")
        if self.renormalize and self.method in _NEVER_RENORMALIZES:
            errors.append(f"{self.method} does not renormalize, but renormalize is set")
        if not self.renormalize and self.method in _ALWAYS_RENORMALIZES:
            errors.append(f"{self.method} renormalizes, but renormalize is off; use {RoutingMethodType.DEFAULT}")
        if errors:
            raise ValueError("; ".join(errors))

    @staticmethod
    def of(problem: MoEProblem) -> RoutingConfig:
        """The routing of `problem`. Raises ``ValueError`` when its method or a size is unknown."""
        return _config_of(problem)


@lru_cache(maxsize=1024)
def _config_of(problem: MoEProblem) -> RoutingConfig:
    method, num_experts, top_k = problem.routing, problem.num_experts, problem.top_k
    if method is None or method is RoutingMethodType.UNSPECIFIED or num_experts is None or top_k is None:
        raise ValueError(
            f"cannot route with routing={method}, num_experts={num_experts}, top_k={top_k}: all three must be known; "
            "give them in the problem"
        )
    # DeepSeek-V4 carries the group sizes of its predecessor, and chooses from all experts.
    num_groups = 1 if method is RoutingMethodType.DEEPSEEK_V4 else problem.num_expert_groups or 1
    if num_groups > 1 and problem.topk_group is None:
        raise ValueError(f"cannot route with {num_groups} groups of experts and topk_group unknown; give topk_group")
    renormalize = problem.renormalize
    if renormalize is None:
        renormalize = method not in _NEVER_RENORMALIZES | _USUALLY_DOES_NOT
    group_score = problem.group_score or (
        GroupScore.MAX if method is RoutingMethodType.GROUPED_SOFTMAX else GroupScore.TOP2_SUM
    )
    scale = problem.routed_scaling_factor
    return RoutingConfig(
        method=method,
        num_experts=num_experts,
        top_k=top_k,
        renormalize=renormalize,
        scaling_factor=1.0 if scale is None else scale,
        num_groups=num_groups,
        topk_group=1 if num_groups == 1 else problem.topk_group or 1,
        group_score=group_score,
        hashed=bool(problem.hashed_routing),
    )
