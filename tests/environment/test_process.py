"""This process's environment: looked at once, replaced inside a block."""

import asyncio
import threading
from types import SimpleNamespace

import pytest

from moe_core.contract.candidate import MoECandidate
from moe_core.contract.declare import package
from moe_core.contract.vocabulary import CandidateKind
from moe_core.environment import current, override, preset, process, reset
from moe_core.registry import Declared, hookimpl, load_registry


@pytest.fixture
def looks(bare, monkeypatch):
    """Counts probes."""
    seen = []

    def probe(**asked):
        seen.append(asked)
        return preset("cpu").evolve(name=f"look {len(seen)}")

    monkeypatch.setattr(process, "probe", probe)
    return seen


def test_the_machine_is_looked_at_once(looks):
    assert current() is current()
    assert len(looks) == 1


def test_force_and_reset_look_again(looks):
    assert [current().name, current(force=True).name, current().name] == ["look 1", "look 2", "look 2"]
    reset()
    assert current().name == "look 3"


def test_overrides_nest_and_end_also_by_an_exception(looks):
    with override(preset("h200")) as outer:
        assert current() is outer
        assert current(force=True) is outer
        with override(preset("b200")) as inner:
            assert current() is inner
        assert current() is outer
        with pytest.raises(ZeroDivisionError), override(preset("b200")):
            raise ZeroDivisionError
        assert current() is outer
    assert current().name == "look 1"


def test_an_override_is_of_its_thread_and_task(looks):
    names = []
    with override(preset("h200")):
        thread = threading.Thread(target=lambda: names.append(current().name))
        thread.start()
        thread.join()

        async def inner():
            with override(preset("b200")):
                await asyncio.sleep(0)
                return current().name

        async def both():
            return await asyncio.gather(inner(), inner()), current().name

        assert asyncio.run(both()) == (["b200", "b200"], "h200")
    assert names == ["look 1"]


def test_a_registry_adds_its_plugins_facts_and_the_packages_of_its_candidates(bare, distribution):
    distribution("their-kernels", "3.1")
    candidate = MoECandidate(
        identity="hello.a.b.any",
        kind=CandidateKind.ROUTING,
        family="HELLO",
        title="Hello",
        requirements=(package("their_kernels"),),
    )

    class Plugin(Declared):
        @hookimpl
        def moe_facts(self):
            return {"hello.ready": True}

    registry = load_registry(plugins=[Plugin(candidate)], points=[])
    found = current(registry)
    assert found.package_version("their_kernels") == "3.1"
    assert [f.name for f in found.facts] == ["hello.ready"]
    assert current(registry) is found
    assert current().package_version("their_kernels") is None, "without the registry nobody asks for it"


def test_an_override_beats_a_registry(looks):
    with override(preset("h200")) as there:
        assert current(SimpleNamespace(catalog=None)) is there
