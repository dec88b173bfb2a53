"""Ask every candidate, whatever was requested; collect every answer."""

from __future__ import annotations

from dataclasses import dataclass, field

from moe_core.contract.candidate import MoECandidate
from moe_core.contract.catalog import Catalog, CatalogEntry
from moe_core.contract.deployment import MoEDeployment
from moe_core.contract.eligibility import MoEEligibility, Rejection
from moe_core.contract.facts import Facts, facts_of
from moe_core.contract.problem import MoEProblem
from moe_core.contract.reasons import MoERejectReason
from moe_core.contract.request import MoERequest
from moe_core.contract.tuning import Tuning
from moe_core.contract.vocabulary import CandidateKind, FixableBy
from moe_core.resolve.evaluate import evaluate
from moe_core.resolve.pair import NO_EXCHANGE

NO_ADAPTER = Rejection.of(
    MoERejectReason.PATH_NOT_ENABLED, fact="factory", found="none", needed="an adapter in an installed plugin",
    hint="declared only: no installed plugin can run it yet", fixable_by=FixableBy.INSTALL,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Answers:
    """What every candidate said, whatever was requested."""

    eligibility: dict[CandidateKind, dict[MoECandidate, MoEEligibility]] = field(
        default_factory=lambda: {kind: {} for kind in CandidateKind}
    )
    tuning: dict[str, Tuning] = field(default_factory=dict)
    """What eligible backends expect of themselves, by identity."""


def ask_all(problem: MoEProblem, deployment: MoEDeployment, request: MoERequest, catalog: Catalog) -> Answers:
    """Every candidate's answer, with the user's bans and missing adapters added to its own reasons."""
    facts = facts_of(problem, deployment)
    bans = frozenset(ban.casefold() for ban in request.bans)
    answers = Answers()
    for entry in catalog.entries:
        candidate = entry.candidate
        if request.upstream and not candidate.upstream and candidate.family != NO_EXCHANGE:
            continue
        answer = _ask(entry, problem, deployment, facts)
        if bans and (ban := _ban(entry, bans)) is not None:
            answer = MoEEligibility(eligible=False, rejections=(ban, *answer.rejections))
        if candidate.factory is None and request.require_adapter and not request.upstream:
            answer = MoEEligibility(eligible=False, rejections=(*answer.rejections, NO_ADAPTER))
        if answer and candidate.kind is CandidateKind.BACKEND:
            tuning = _tuning(entry, problem, deployment)
            if isinstance(tuning, Rejection):
                answer = MoEEligibility.no(tuning)
            elif tuning is not None:
                answers.tuning[candidate.identity] = tuning
        answers.eligibility[candidate.kind][candidate] = answer
    return answers


def _ask(entry: CatalogEntry, problem: MoEProblem, deployment: MoEDeployment, facts: Facts) -> MoEEligibility:
    if entry.can_implement is None:
        return evaluate(entry.candidate, facts)
    try:
        answer = entry.can_implement(problem, deployment)
    # A stranger's code: whatever it raises is that plugin's row in the report, never a crash.
    except Exception as error:
        return MoEEligibility.no(_broken("can_implement", _raised(error), "a MoEEligibility"))
    if not isinstance(answer, MoEEligibility):
        returned = f"returned {type(answer).__name__}, not MoEEligibility"
        return MoEEligibility.no(_broken("can_implement", returned, "a MoEEligibility"))
    return answer


def _tuning(entry: CatalogEntry, problem: MoEProblem, deployment: MoEDeployment) -> Tuning | Rejection | None:
    """What the plugin expects at the most tokens that a rank brings; ``None`` as well when those are unknown."""
    tokens = deployment.max_num_tokens
    if entry.moe_tuning is None or tokens is None:
        return None
    try:
        tuning = entry.moe_tuning(problem, deployment, tokens)
    # The same. With tables that cannot be read it would run by defaults, and nobody would know: it is refused.
    except Exception as error:
        return _broken("moe_tuning", _raised(error), "a Tuning or None")
    if isinstance(tuning, Tuning | None):
        return tuning
    return _broken("moe_tuning", f"returned {type(tuning).__name__}, not Tuning", "a Tuning or None")


def _broken(hook: str, did: str, needed: str) -> Rejection:
    return Rejection.of(
        MoERejectReason.PLUGIN_ERROR, fact=hook, found=f"{hook} {did}", needed=needed,
        hint="report it to the plugin's author; ban it to silence it",
    )  # fmt: skip


def _raised(error: Exception) -> str:
    first_line = (str(error).splitlines() or [""])[0]
    return f"raised {type(error).__name__}: {first_line}"


def _ban(entry: CatalogEntry, bans: frozenset[str]) -> Rejection | None:
    candidate = entry.candidate
    names = (candidate.identity, candidate.family, entry.distribution or "")
    banned = next((n for n in names if n and n.casefold() in bans), None)
    if banned is None:
        return None
    return Rejection.of(
        MoERejectReason.BANNED, fact="ban", found=banned, needed="not banned", hint=f"lift the ban of {banned}"
    )
