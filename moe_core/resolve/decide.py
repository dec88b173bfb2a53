"""From answers to decisions: rank, pair, narrow to the request, step down where that is allowed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from moe_core.contract.candidate import MoECandidate
from moe_core.contract.decision import Decision, Degradation, ExchangeLimits, RankedCandidate, RejectedCandidate
from moe_core.contract.deployment import MoEDeployment
from moe_core.contract.eligibility import Assumption, Rejection
from moe_core.contract.evidence import Evidence
from moe_core.contract.problem import MoEProblem
from moe_core.contract.request import MoERequest
from moe_core.contract.vocabulary import CandidateKind, RequestedBy, RoutingMethodType, SelectedBy
from moe_core.resolve.ask import Answers
from moe_core.resolve.degrade import step_down, too_late_to_quantize
from moe_core.resolve.pair import GATHER, NO_EXCHANGE, Pair, best_pair, mismatch, no_partner
from moe_core.resolve.rank import Ranking, rank
from moe_core.resolve.selector import Selector

UPSTREAM_FALLBACK = "CUTLASS"
BACKEND, COMMUNICATION, ROUTING = CandidateKind.BACKEND, CandidateKind.COMMUNICATION, CandidateKind.ROUTING


@dataclass(frozen=True)
class Question:
    """Everything that the decisions of one token bucket are made of."""

    problem: MoEProblem
    deployment: MoEDeployment
    request: MoERequest
    evidence: Evidence
    bucket: int | None
    selectors: Mapping[CandidateKind, Selector]
    answers: Answers

    @cached_property
    def ranked(self) -> dict[CandidateKind, Ranking]:
        """The eligible candidates of each kind in order."""
        return {
            kind: rank(
                [candidate for candidate, answer in asked.items() if answer],
                self.problem,
                self.deployment,
                self.evidence,
                self.bucket,
                self.answers.tuning,
            )
            for kind, asked in self.answers.eligibility.items()
        }

    def allows(self, pair: Pair) -> bool:
        """Whether the request allows to step down as far as `pair`."""
        if pair.tier == 0:
            return True
        if not self.request.allow_degradation:
            return False
        if pair.steps_down_backend:
            if self.selectors[BACKEND].pinned:
                return False
            if self.request.upstream and pair.backend.family != UPSTREAM_FALLBACK:
                return False
        return not (pair.steps_down_communication and self.selectors[COMMUNICATION].pinned)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The decisions of one token bucket."""

    decisions: tuple[Decision, ...]
    degradations: tuple[Degradation, ...]
    assumptions: tuple[Assumption, ...]


@dataclass(slots=True)
class _Choice:
    """What was decided for one kind, before it is written down."""

    winner: MoECandidate | None
    order: Sequence[MoECandidate]
    unfit: Mapping[str, Rejection] = field(default_factory=dict)
    partner: Mapping[str, str | None] = field(default_factory=dict)
    settled_by: SelectedBy | None = None


def decide(question: Question) -> Outcome:
    """Decide backend and communication as a pair, then routing."""
    pairs, alone = _pairs(question)
    winner = next((p for p in pairs if question.allows(p)), None)
    if winner is None:
        pairs, alone = _apart_from_request(question, pairs, alone)
    decisions = [_backend(question, pairs, alone, winner), _communication(question, winner)]
    if question.answers.eligibility[ROUTING]:
        decisions.append(_routing(question))
    rows = [d.winning for d in decisions if d.winning is not None]
    return Outcome(
        tuple(decisions),
        () if winner is None else tuple(_degradations(question, decisions[0], decisions[1], winner)),
        tuple(assumption for row in rows for assumption in row.assumptions),
    )


def _pairs(question: Question) -> tuple[list[Pair], dict[str, Rejection]]:
    """Every backend with its best partner, best pair first; and why the others have none."""
    strategies = question.ranked[COMMUNICATION].order
    pairs: list[Pair] = []
    alone: dict[str, Rejection] = {}
    for backend in question.ranked[BACKEND].order:
        in_request = backend in question.selectors[BACKEND]
        pair = best_pair(backend, strategies, question.selectors[COMMUNICATION], in_request)
        if pair is None:
            alone[backend.identity] = no_partner(backend, strategies)
        else:
            pairs.append(pair)
    pairs.sort(key=lambda pair: pair.tier)
    return pairs, alone


def _apart_from_request(
    question: Question, pairs: list[Pair], alone: dict[str, Rejection]
) -> tuple[list[Pair], dict[str, Rejection]]:
    """When nothing may win: backends as requested that the requested strategies do not fit are refused for that."""
    requested = question.selectors[COMMUNICATION]
    strategies = [c for c in question.ranked[COMMUNICATION].order if c in requested]
    if requested.is_auto or not strategies:
        return pairs, alone
    fitting = [p.backend.identity for p in pairs if not p.steps_down_communication]
    refused = {
        p.backend.identity: no_partner(p.backend, strategies, fitting)
        for p in pairs
        if p.steps_down_communication and not p.steps_down_backend
    }
    return [p for p in pairs if p.backend.identity not in refused], {**alone, **refused}


def _backend(question: Question, pairs: list[Pair], alone: dict[str, Rejection], winner: Pair | None) -> Decision:
    # The winner first, then the order in which the others would have been taken.
    order = [p.backend for p in sorted(pairs, key=lambda pair: pair is not winner)]
    partner = {p.backend.identity: None if p.communication is None else p.communication.identity for p in pairs}
    return _decision(question, BACKEND, _Choice(winner.backend if winner else None, order, alone, partner))


def _communication(question: Question, winner: Pair | None) -> Decision:
    order: Sequence[MoECandidate] = question.ranked[COMMUNICATION].order
    if winner is None:
        return _decision(question, COMMUNICATION, _Choice(None, order))
    unfit = {c.identity: m for c in order if (m := mismatch(winner.backend, c)) is not None}
    chosen = winner.communication
    order = sorted((c for c in order if c.identity not in unfit), key=lambda c: c is not chosen)
    settled = SelectedBy.FUSED if chosen is None else None
    return _decision(question, COMMUNICATION, _Choice(chosen, order, unfit, settled_by=settled))


def _routing(question: Question) -> Decision:
    order = question.ranked[ROUTING].order
    if question.problem.routing is RoutingMethodType.UNSPECIFIED:
        return _decision(question, ROUTING, _Choice(None, order, settled_by=SelectedBy.MODEL))
    return _decision(question, ROUTING, _Choice(order[0] if order else None, order))


def _degradations(question: Question, backend: Decision, exchange: Decision, winner: Pair) -> list[Degradation]:
    steps = step_down(backend, question.selectors[BACKEND], winner.backend)
    requested = question.selectors[COMMUNICATION]
    if winner.communication is not None:
        steps += step_down(exchange, requested, winner.communication)
        steps += too_late_to_quantize(question.problem, winner.communication)
    elif not requested.is_auto:
        steps += step_down(exchange, requested, winner.backend)
    return steps


def _decision(question: Question, kind: CandidateKind, choice: _Choice) -> Decision:
    requested, ranking = question.selectors[kind], question.ranked[kind]
    return Decision(
        kind=kind,
        token_bucket=question.bucket,
        requested=requested.text,
        requested_by=_requested_by(question, kind),
        selected_by=choice.settled_by or _rule(requested, choice.winner, ranking),
        winner=None if choice.winner is None else choice.winner.identity,
        eligible=tuple(_row(question, kind, c, choice.partner.get(c.identity)) for c in choice.order),
        rejected=_refused(question, kind, choice.unfit),
        notes=ranking.notes,
    )


def _rule(requested: Selector, winner: MoECandidate | None, ranking: Ranking) -> SelectedBy:
    if winner is None:
        return SelectedBy.FAILED
    if not requested.is_auto:
        return SelectedBy.REQUEST if winner in requested else SelectedBy.FALLBACK
    return ranking.rule_of(winner)


def _requested_by(question: Question, kind: CandidateKind) -> RequestedBy:
    request = question.request
    by = {BACKEND: request.backend_requested_by, COMMUNICATION: request.communication_requested_by}.get(kind)
    if by is None or (by is RequestedBy.AUTO and question.selectors[kind].is_auto):
        return RequestedBy.AUTO
    # Whoever builds a request without saying who asked passed it as an argument.
    return RequestedBy.ARGUMENT if by is RequestedBy.AUTO else by


def _row(question: Question, kind: CandidateKind, candidate: MoECandidate, partner: str | None) -> RankedCandidate:
    answer = question.answers.eligibility[kind][candidate]
    return RankedCandidate(
        identity=candidate.identity,
        family=candidate.family,
        priority=candidate.priority,
        scheduler_kind=candidate.scheduler_kind,
        in_request=candidate in question.selectors[kind],
        microseconds=question.ranked[kind].measured.get(candidate.identity),
        tuning=question.answers.tuning.get(candidate.identity),
        exchange=_limits(question, candidate) if kind is COMMUNICATION else None,
        partner=partner,
        assumptions=answer.assumptions,
        adjustments=answer.adjustments,
    )


def _limits(question: Question, strategy: MoECandidate) -> ExchangeLimits:
    return ExchangeLimits(
        max_chunks=strategy.max_chunks,
        max_tokens=question.deployment.dispatch_capacity if strategy.bounded_tokens else None,
        quantize_before_dispatch=strategy.post_quant is None or question.problem.quant in strategy.post_quant,
        finalize_before_combine=strategy.finalize_before_combine,
        all_to_all=strategy.family not in (NO_EXCHANGE, GATHER),
    )


def _refused(question: Question, kind: CandidateKind, unfit: Mapping[str, Rejection]) -> tuple[RejectedCandidate, ...]:
    refused = []
    for candidate, answer in question.answers.eligibility[kind].items():
        reasons = answer.rejections
        if not reasons and candidate.identity in unfit:
            reasons = (unfit[candidate.identity],)
        if reasons:
            refused.append(
                RejectedCandidate(
                    identity=candidate.identity, family=candidate.family, priority=candidate.priority,
                    rejections=reasons,
                )
            )  # fmt: skip
    return tuple(refused)
