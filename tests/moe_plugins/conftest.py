"""Settings by name: one flat dictionary says what differs from a base, whichever model the field is in."""

import pytest

from moe_core.contract.deployment import MoEDeployment
from moe_core.contract.environment import Feature, Flag, MoEEnvironment, Package
from moe_core.contract.problem import ActivationConstant, MoEProblem

BASE = {
    "quant": "NONE",
    "hidden_size": 7168,
    "intermediate_size": 2048,
    "num_experts": 256,
    "top_k": 8,
    "bias": False,
    "routing": "Renormalize",
    "constants": (),
    "can_jit": True,
    "packages": {},
    "features": {},
    "flags": {},
}
"""A shape that every kernel's tiles divide, on a machine without optional packages."""


def environment_of(values):
    sm = values.pop("sm")
    known = {name: values.pop(name) for name in MoEEnvironment.model_fields.keys() & values.keys()}
    return MoEEnvironment(
        **{
            **known,
            "device": "cuda" if sm else "cpu",
            "sm": sm,
            "packages": tuple(Package(name=n, version=v) for n, v in known["packages"].items()),
            "features": tuple(Feature(name=n, present=p) for n, p in known["features"].items()),
            "flags": tuple(Flag(name=n, value=v) for n, v in known["flags"].items()),
        }
    )


def make_setting(changes):
    """The problem and the deployment that `changes` make of the base; an unknown name is an error."""
    values = {**BASE, **changes}
    constants = tuple(ActivationConstant(name=name, value=1.0) for name in values.pop("constants"))
    environment = environment_of(values)
    problem = {name: values.pop(name) for name in MoEProblem.model_fields.keys() & values.keys()}
    return (
        MoEProblem(activation_constants=constants, **problem),
        MoEDeployment(environment=environment, **values),
    )


@pytest.fixture(scope="session")
def setting():
    return make_setting


@pytest.fixture(scope="session")
def catalog():
    from moe_core.contract.catalog import Catalog, CatalogEntry
    from moe_core.registry import load_registry
    from moe_plugins import PLUGINS

    registry = load_registry(points=(), plugins=PLUGINS)
    assert not registry.catalog.plugin_errors
    return Catalog(CatalogEntry(e.candidate, "moe-core", e.can_implement) for e in registry.catalog)


@pytest.fixture(scope="session")
def answer(catalog):
    """The answer of one candidate to a setting."""
    from moe_core.contract.facts import facts_of
    from moe_core.resolve.evaluate import evaluate

    def ask(identity, changes):
        problem, deployment = make_setting(changes)
        entry = next(e for e in catalog if e.candidate.identity == identity)
        if entry.can_implement is not None:
            return entry.can_implement(problem, deployment)
        return evaluate(entry.candidate, facts_of(problem, deployment))

    return ask
