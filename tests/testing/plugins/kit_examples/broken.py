"""Plugins that break the contract itself."""

from kit_examples.honest import Plugin

from moe_core.registry import hookimpl


class Prober(Plugin):
    @hookimpl
    def moe_facts(self):
        return {"somebody_else.ready": True}


NO_ELIGIBILITY = Plugin("no_eligibility", lambda candidate, problem, deployment: True)
RAISES = Plugin("raises", lambda candidate, problem, deployment: len(problem.hidden_size))
FOREIGN_FACTS = Prober("foreign_facts")
NO_CANDIDATE = object()
