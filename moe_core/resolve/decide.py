"""From answers to decisions: rank, pair, narrow to the request, step down where that is allowed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from moe_core.contract.candidate import MoECandidate
from moe_core.contract.decision import Decision, Degradation, RankedCandidate, RejectedCandidate
from moe_core.contract.deployment import MoEDeployment
from moe_core.contract.eligibility import Assumption, MoEEligibility, Rejection
from moe_core.contract.evidence import Evidence
from moe_core.contract.problem import MoEProblem
from moe_core.contract.request import MoERequest
from moe_core.contract.vocabulary import CandidateKind, RequestedBy, SelectedBy
from moe_core.resolve.ask import Answers
from moe_core.resolve.degrade import step_down, too_late_to_quantize
from moe_core.resolve.pair import Pair, best_pair, mismatch, no_partner
from moe_core.resolve.rank import Ranking, rank
from moe_core.resolve.selector import Selector

UPSTREAM_FALLBACK = "CUTLASS"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The decisions of one token bucket."""

    decisions: list[Decision]
    degradations: list[Degradation] = field(default_factory=list)
    assumptions: list[Assumption] = field(default_factory=list)


def decide(
    answers: Answers,
    selectors: dict[CandidateKind, Selector],
    problem: MoEProblem,
    deployment: MoEDeployment,
    request: MoERequest,
    evidence: Evidence,
    bucket: int | None,
) -> Outcome:
    """Decide backend and communication as a pair, then routing."""
    ranked = {
        kind: rank([c for c, a in answers[kind] if a], problem, deployment, evidence, bucket) for kind in CandidateKind
    }
    backend_request = selectors[CandidateKind.BACKEND]
    exchange_request = selectors[CandidateKind.COMMUNICATION]
    strategies = ranked[CandidateKind.COMMUNICATION].order
    pairs: list[Pair] = []
    alone: dict[str, Rejection] = {}
    for candidate in ranked[CandidateKind.BACKEND].order:
        pair = best_pair(candidate, strategies, exchange_request, candidate in backend_request)
        if pair is None:
            alone[candidate.identity] = no_partner(candidate, strategies)
        else:
            pairs.append(pair)
    pairs.sort(key=lambda pair: pair.tier)
    winner = next((p for p in pairs if _allowed(p, backend_request, exchange_request, request)), None)

    backend = _backend_decision(answers, ranked, pairs, alone, winner, backend_request, request, bucket)
    exchange = _exchange_decision(answers, ranked, winner, exchange_request, request, bucket)
    outcome = Outcome([backend, exchange])
    if answers[CandidateKind.ROUTING]:
        outcome.decisions.append(_routing_decision(answers, ranked[CandidateKind.ROUTING], bucket))
    if winner is not None:
        outcome.degradations.extend(step_down(backend, backend_request, winner.backend))
        if winner.communication is not None:
            outcome.degradations.extend(step_down(exchange, exchange_request, winner.communication))
            outcome.degradations.extend(too_late_to_quantize(problem, winner.communication))
        elif not exchange_request.is_auto:
            outcome.degradations.extend(step_down(exchange, exchange_request, winner.backend))
    for decision in outcome.decisions:
        if decision.winning is not None:
            outcome.assumptions.extend(decision.winning.assumptions)
    return outcome


def _allowed(pair: Pair, backend: Selector, exchange: Selector, request: MoERequest) -> bool:
    if pair.tier == 0:
        return True
    if not request.allow_degradation:
        return False
    if pair.tier in (2, 3) and (backend.pinned or (request.upstream and pair.backend.family != UPSTREAM_FALLBACK)):
        return False
    return not (pair.tier in (1, 3) and exchange.pinned)


def _backend_decision(
    answers: Answers,
    ranked: dict[CandidateKind, Ranking],
    pairs: Sequence[Pair],
    alone: dict[str, Rejection],
    winner: Pair | None,
    requested: Selector,
    request: MoERequest,
    bucket: int | None,
) -> Decision:
    asked = answers[CandidateKind.BACKEND]
    ranking = ranked[CandidateKind.BACKEND]
    # The winner first, then the order in which the others would have been taken.
    order = sorted(pairs, key=lambda pair: pair is not winner)
    partner = {p.backend.identity: None if p.communication is None else p.communication.identity for p in pairs}
    return Decision(
        kind=CandidateKind.BACKEND,
        token_bucket=bucket,
        requested=requested.text,
        requested_by=_asked_by(requested, request.backend_requested_by),
        selected_by=SelectedBy.FAILED if winner is None else _rule(requested, winner.backend, ranking),
        winner=None if winner is None else winner.backend.identity,
        eligible=_rows([p.backend for p in order], asked, ranking, requested, partner),
        rejected=_refused(asked, alone),
        notes=ranking.notes,
    )


def _exchange_decision(
    answers: Answers,
    ranked: dict[CandidateKind, Ranking],
    winner: Pair | None,
    requested: Selector,
    request: MoERequest,
    bucket: int | None,
) -> Decision:
    asked = answers[CandidateKind.COMMUNICATION]
    ranking = ranked[CandidateKind.COMMUNICATION]
    unfit: dict[str, Rejection] = {}
    chosen: MoECandidate | None = None
    rule = SelectedBy.FAILED
    if winner is not None:
        chosen = winner.communication
        unfit = {c.identity: m for c in ranking.order if (m := mismatch(winner.backend, c)) is not None}
        rule = SelectedBy.FUSED if chosen is None else _rule(requested, chosen, ranking)
    order = sorted((c for c in ranking.order if c.identity not in unfit), key=lambda c: c is not chosen)
    return Decision(
        kind=CandidateKind.COMMUNICATION,
        token_bucket=bucket,
        requested=requested.text,
        requested_by=_asked_by(requested, request.communication_requested_by),
        selected_by=rule,
        winner=None if chosen is None else chosen.identity,
        eligible=_rows(order, asked, ranking, requested, {}),
        rejected=_refused(asked, unfit),
        notes=ranking.notes,
    )


def _routing_decision(answers: Answers, ranking: Ranking, bucket: int | None) -> Decision:
    asked = answers[CandidateKind.ROUTING]
    auto = Selector("auto", None, pinned=False)
    best = ranking.order[0] if ranking.order else None
    return Decision(
        kind=CandidateKind.ROUTING,
        token_bucket=bucket,
        requested=auto.text,
        requested_by=RequestedBy.AUTO,
        selected_by=SelectedBy.FAILED if best is None else _rule(auto, best, ranking),
        winner=None if best is None else best.identity,
        eligible=_rows(ranking.order, asked, ranking, auto, {}),
        rejected=_refused(asked, {}),
        notes=ranking.notes,
    )


def _rule(requested: Selector, winner: MoECandidate, ranking: Ranking) -> SelectedBy:
    if not requested.is_auto:
        return SelectedBy.REQUEST if winner in requested else SelectedBy.FALLBACK
    if ranking.moved and winner.identity in ranking.microseconds:
        return SelectedBy.EVIDENCE
    return SelectedBy.PRIORITY


def _asked_by(requested: Selector, by: RequestedBy) -> RequestedBy:
    # Whoever builds a request without saying so passed it as an argument.
    return RequestedBy.ARGUMENT if by is RequestedBy.AUTO and not requested.is_auto else by


def _rows(
    order: Sequence[MoECandidate],
    asked: Sequence[tuple[MoECandidate, MoEEligibility]],
    ranking: Ranking,
    requested: Selector,
    partner: dict[str, str | None],
) -> tuple[RankedCandidate, ...]:
    answer_of = {c.identity: a for c, a in asked}
    return tuple(
        RankedCandidate(
            identity=c.identity,
            family=c.family,
            priority=c.priority,
            scheduler_kind=c.scheduler_kind,
            in_request=c in requested,
            microseconds=ranking.microseconds.get(c.identity),
            partner=partner.get(c.identity),
            assumptions=answer_of[c.identity].assumptions,
            adjustments=answer_of[c.identity].adjustments,
        )
        for c in order
    )


def _refused(
    asked: Sequence[tuple[MoECandidate, MoEEligibility]], unfit: dict[str, Rejection]
) -> tuple[RejectedCandidate, ...]:
    refused = []
    for candidate, answer in asked:
        reasons = answer.rejections or ((unfit[candidate.identity],) if candidate.identity in unfit else ())
        if reasons:
            refused.append(RejectedCandidate(identity=candidate.identity, family=candidate.family, rejections=reasons))
    return tuple(refused)
