"""Questions for ``can_implement``: a problem on a deployment, and how much of it is known."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple, get_args

from moe_core.contract.base import Frozen
from moe_core.contract.deployment import MoEDeployment
from moe_core.contract.environment import MoEEnvironment
from moe_core.contract.facts import Facts, facts_of
from moe_core.contract.problem import MoEProblem

# Where None is no unknown: it stands for a default, or is filled in from other fields.
_DEFAULTED = {
    "problem": {"quant_group_size"},
    "deployment": {"num_slots", "moe_max_num_tokens", "parallel_size", "attention_tp_size"},
    "environment": {"name"},
}


class Question(NamedTuple):
    """What ``can_implement`` is asked."""

    problem: MoEProblem
    deployment: MoEDeployment

    @property
    def environment(self) -> MoEEnvironment:
        """The machine."""
        return self.deployment.environment

    @property
    def facts(self) -> Facts:
        """Every fact of the question."""
        return facts_of(self.problem, self.deployment)

    def with_problem(self, **changes: Any) -> Question:
        """A copy with fields of the problem changed; raises ``ValidationError`` where they contradict."""
        return self._replace(problem=self.problem.evolve(**changes))

    def with_deployment(self, **changes: Any) -> Question:
        """A copy with fields of the deployment changed."""
        return self._replace(deployment=self.deployment.evolve(**changes))

    def with_environment(self, **changes: Any) -> Question:
        """A copy with fields of the environment changed."""
        return self.with_deployment(environment=self.environment.evolve(**changes))

    def __repr__(self) -> str:
        """Only what differs from the defaults, as JSON."""
        parts = (("problem", self.problem), ("deployment", self.deployment))
        return " ".join(f"{name}={value.model_dump_json(exclude_defaults=True)}" for name, value in parts)


def _unknowable() -> Iterator[str]:
    models: tuple[tuple[str, type[Frozen]], ...] = (
        ("problem", MoEProblem),
        ("deployment", MoEDeployment),
        ("environment", MoEEnvironment),
    )
    for part, model in models:
        for name, field in model.model_fields.items():
            if type(None) in get_args(field.annotation) and name not in _DEFAULTED[part]:
                yield f"{part}.{name}"
    yield from ("environment.features", "environment.facts")


UNKNOWABLE = tuple(_unknowable())
"""Fields that may be unknown, as ``problem.quant``: those in which ``None`` stands for nothing else."""

NEEDED_TO_TUNE: Final = (
    *(f"problem.{size}" for size in ("hidden_size", "intermediate_size", "num_experts", "top_k")),
    "environment.device",
    "environment.device_name",
)
"""Without one of these there is nothing to expect: ``moe_tuning`` returns ``None``."""

TOKENS: Final = (1, 64, 4096)
"""Numbers of tokens per rank that ``moe_tuning`` is asked for."""


def forget(question: Question, *fields: str) -> Question:
    """`question` without the knowledge of `fields` (from :data:`UNKNOWABLE`).

    What follows from the other fields stays known: SM is 0 on a CPU, the style of a SwigluBias activation.
    """
    gone: dict[str, dict[str, Any]] = {"problem": {}, "deployment": {}, "environment": {}}
    for field in fields:
        part, _, name = field.partition(".")
        gone[part][name] = None
    environment = gone["environment"]
    if "features" in environment:
        # A feature of a package that is known to be absent is known to be absent too.
        packages = None if "packages" in environment else question.environment.packages
        installed = None if packages is None else {p.name for p in packages}
        environment["features"] = tuple(
            f
            for f in question.environment.features
            if installed is not None and f.name.partition(".")[0] not in installed
        )
    if "facts" in environment:
        environment["facts"] = ()
    machine = question.environment.evolve(**environment)
    return Question(
        question.problem.evolve(**gone["problem"]),
        question.deployment.evolve(**gone["deployment"], environment=machine),
    )


def knows_no_more(less: Question, more: Question) -> bool:
    """Whether `less` is the same question as `more`, with at most its knowledge."""
    return (
        _fields_agree(less.problem, more.problem)
        and _fields_agree(less.deployment, more.deployment, apart=("environment",))
        and _fields_agree(less.environment, more.environment, apart=("features", "facts"))
        and set(less.environment.features) <= set(more.environment.features)
        and set(less.environment.facts) <= set(more.environment.facts)
    )


def _fields_agree(less: Frozen, more: Frozen, apart: tuple[str, ...] = ()) -> bool:
    return all(
        getattr(less, name) in (None, getattr(more, name)) for name in type(less).model_fields if name not in apart
    )
