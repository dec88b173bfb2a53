"""A candidate's answer: eligible, or every reason why not; and what it assumed or adapts on the way."""

from __future__ import annotations

from typing import Self

from pydantic import model_validator

from moe_core.contract.base import Frozen
from moe_core.contract.reasons import MoERejectReason
from moe_core.contract.requirement import Requirement
from moe_core.contract.vocabulary import FixableBy

Found = bool | int | float | str | tuple[str, ...] | None


class Rejection(Frozen):
    """One reason: what was looked at, what was found, what is needed, what to try and who could do it."""

    reason: MoERejectReason
    fact: str = ""
    found: Found = None
    needed: str = ""
    hint: str = ""
    fixable_by: FixableBy
    requirement: Requirement | None = None
    """The declared limit that failed, so that a saved report can be explained anywhere."""

    @classmethod
    def of(
        cls,
        reason: MoERejectReason,
        *,
        fact: str = "",
        found: Found = None,
        needed: str = "",
        hint: str = "",
        fixable_by: FixableBy | None = None,
    ) -> Self:
        """A rejection that comes from no declared requirement."""
        return cls(
            reason=reason,
            fact=fact,
            found=found,
            needed=needed,
            hint=hint,
            fixable_by=fixable_by or reason.usually_fixable_by,
        )


class Assumption(Frozen):
    """A requirement that abstained: the answer holds if the unknown fact turns out as needed."""

    fact: str
    needed: str
    reason: MoERejectReason


class Adjustment(Frozen):
    """A declared adaptation to sizes that the kernel's tiles do not divide: ``pad`` or ``sub_block``."""

    kind: str
    fact: str
    found: int
    becomes: int


class MoEEligibility(Frozen):
    """Answer of ``can_implement``. Truthy when eligible. Eligible exactly when there is no rejection."""

    eligible: bool
    rejections: tuple[Rejection, ...] = ()
    assumptions: tuple[Assumption, ...] = ()
    adjustments: tuple[Adjustment, ...] = ()

    @model_validator(mode="after")
    def _reason_exactly_when_refused(self) -> Self:
        if self.eligible and self.rejections:
            raise ValueError("an eligible candidate can have no rejections")
        if not self.eligible and not self.rejections:
            raise ValueError("a refusal needs at least one rejection")
        return self

    def __bool__(self) -> bool:
        return self.eligible

    @classmethod
    def ok(cls, *, assumptions: tuple[Assumption, ...] = (), adjustments: tuple[Adjustment, ...] = ()) -> Self:
        """Eligible."""
        return cls(eligible=True, assumptions=assumptions, adjustments=adjustments)

    @classmethod
    def no(cls, *rejections: Rejection) -> Self:
        """Refused, with every reason."""
        return cls(eligible=False, rejections=rejections)

    @property
    def reject_reason(self) -> MoERejectReason | None:
        """The first reason, in the order of the candidate's gates."""
        return self.rejections[0].reason if self.rejections else None
