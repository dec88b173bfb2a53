"""Their declarations."""

from moe_core.contract.candidate import MoEActivationSupport, MoECandidate
from moe_core.contract.vocabulary import ActivationType, CandidateKind


def candidate(name, **fields):
    """The candidate whose backend is the class of this name."""
    return MoECandidate(
        identity=f"tests.example.{name.lower()}.none",
        kind=CandidateKind.BACKEND,
        family="EXAMPLE",
        title=name,
        priority=1,
        factory=f"measured_examples.backends:{name}",
        activation=MoEActivationSupport(kinds=tuple(ActivationType)),
        tolerance=8e-3,
        **fields,
    )
