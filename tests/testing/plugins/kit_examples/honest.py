"""A plugin that keeps every promise, with a ``can_implement`` of its own; what the cheats differ from."""

from moe_core.contract.candidate import MoEActivationSupport, MoECandidate, MoEStaticCapability
from moe_core.contract.declare import divisible, quant_in, sm_in
from moe_core.contract.vocabulary import ActivationType, CandidateKind, QuantAlgo
from moe_core.registry import hookimpl
from moe_core.resolve import can_implement


def declaration(name, **changes):
    return MoECandidate(
        **{
            "identity": f"example.plain.{name}.none",
            "kind": CandidateKind.BACKEND,
            "family": "EXAMPLE",
            "title": "an example",
            "activation": MoEActivationSupport(kinds=(ActivationType.SWIGLU, ActivationType.RELU2)),
            "requirements": (quant_in(QuantAlgo.NONE), sm_in(80, 90), divisible("hidden_size", 16)),
            "factory": "kit_examples.backends:Twin",
            "tolerance": 6e-3,
            "capabilities": MoEStaticCapability(supports_cuda_graph=False),
        }
        | changes
    )


class Plugin:
    """Answers by `answer(candidate, problem, deployment)`."""

    def __init__(self, name, answer=can_implement, **changes):
        self.candidate = declaration(name, **changes)
        self.answer = answer

    @hookimpl
    def moe_candidate(self):
        return self.candidate

    @hookimpl
    def can_implement(self, problem, deployment):
        return self.answer(self.candidate, problem, deployment)


PLUGIN = Plugin("honest")
DECLARED_ONLY = Plugin("declared_only", factory=None)
