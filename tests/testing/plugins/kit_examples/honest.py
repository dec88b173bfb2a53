"""A plugin that keeps every promise, with a ``can_implement`` of its own; what the cheats differ from."""

from moe_core.contract.candidate import MoEActivationSupport, MoECandidate, MoEStaticCapability
from moe_core.contract.declare import divisible, quant_in, sm_in
from moe_core.contract.tuning import Tuning
from moe_core.contract.vocabulary import ActivationType, CandidateKind, QuantAlgo
from moe_core.registry import Declared, hookimpl
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


class Tuned(Plugin):
    """Says by `expect(problem, deployment, tokens)` what it expects of itself."""

    def __init__(self, name, expect):
        super().__init__(name)
        self.expect = expect

    @hookimpl
    def moe_tuning(self, problem, deployment, tokens):
        return self.expect(problem, deployment, tokens)


def estimate(problem, deployment, tokens):
    sizes = (problem.hidden_size, problem.intermediate_size, problem.num_experts, problem.top_k)
    environment = deployment.environment
    if None in sizes or environment.device is None or environment.device_name is None:
        return None
    return Tuning(
        source="cost_model", key=environment.device_name, microseconds=1.0 + tokens * problem.top_k, note="no table"
    )


PLUGIN = Plugin("honest")
TUNED = Tuned("tuned", estimate)
TUNED_BY_NAME = Declared(declaration("by_name"), "kit_examples.honest:estimate")
DECLARED_ONLY = Plugin("declared_only", factory=None)
