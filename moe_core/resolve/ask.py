"""Ask every candidate, whatever was requested; collect every answer."""

from __future__ import annotations

from typing import TypeAlias

from moe_core.contract.candidate import MoECandidate
from moe_core.contract.catalog import Catalog, CatalogEntry
from moe_core.contract.deployment import MoEDeployment
from moe_core.contract.eligibility import MoEEligibility, Rejection
from moe_core.contract.facts import Facts, facts_of
from moe_core.contract.problem import MoEProblem
from moe_core.contract.reasons import MoERejectReason
from moe_core.contract.request import MoERequest
from moe_core.contract.vocabulary import CandidateKind, FixableBy
from moe_core.resolve.evaluate import evaluate
from moe_core.resolve.pair import NO_EXCHANGE

Answers: TypeAlias = dict[CandidateKind, dict[MoECandidate, MoEEligibility]]

NO_ADAPTER = Rejection.of(
    MoERejectReason.PATH_NOT_ENABLED, fact="factory", found="none", needed="an adapter in an installed plugin",
    hint="declared only: no installed plugin can run it yet", fixable_by=FixableBy.INSTALL,
)  # fmt: skip


def ask_all(problem: MoEProblem, deployment: MoEDeployment, request: MoERequest, catalog: Catalog) -> Answers:
    """Every candidate's answer, with the user's bans and missing adapters added to its own reasons."""
    facts = facts_of(problem, deployment)
    bans = frozenset(ban.casefold() for ban in request.bans)
    answers: Answers = {kind: {} for kind in CandidateKind}
    for entry in catalog.entries:
        candidate = entry.candidate
        if request.upstream and not candidate.upstream and candidate.family != NO_EXCHANGE:
            continue
        answer = _ask(entry, problem, deployment, facts)
        if bans and (ban := _ban(entry, bans)) is not None:
            answer = MoEEligibility(eligible=False, rejections=(ban, *answer.rejections))
        if candidate.factory is None and request.require_adapter and not request.upstream:
            answer = MoEEligibility(eligible=False, rejections=(*answer.rejections, NO_ADAPTER))
        answers[candidate.kind][candidate] = answer
    return answers


def _ask(entry: CatalogEntry, problem: MoEProblem, deployment: MoEDeployment, facts: Facts) -> MoEEligibility:
    if entry.can_implement is None:
        return evaluate(entry.candidate, facts)
    try:
        answer = entry.can_implement(problem, deployment)
    # A stranger's code: whatever it raises is that plugin's row in the report, never a crash.
    except Exception as error:
        return _broken(f"can_implement raised {type(error).__name__}: {_first_line(error)}")
    if not isinstance(answer, MoEEligibility):
        return _broken(f"can_implement returned {type(answer).__name__}, not MoEEligibility")
    return answer


def _broken(found: str) -> MoEEligibility:
    return MoEEligibility.no(
        Rejection.of(
            MoERejectReason.PLUGIN_ERROR, fact="can_implement", found=found, needed="a MoEEligibility",
            hint="report it to the plugin's author; ban it to silence it",
        )
    )  # fmt: skip


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0]


def _ban(entry: CatalogEntry, bans: frozenset[str]) -> Rejection | None:
    candidate = entry.candidate
    names = (candidate.identity, candidate.family, entry.distribution or "")
    banned = next((n for n in names if n and n.casefold() in bans), None)
    if banned is None:
        return None
    return Rejection.of(
        MoERejectReason.BANNED, fact="ban", found=banned, needed="not banned", hint=f"lift the ban of {banned}"
    )
