"""The loader: plugins enter by entry points, alone, in any order; a broken one is a row, never a crash."""

import sys
from importlib.metadata import EntryPoint
from types import ModuleType, SimpleNamespace

import pytest

from moe_core.contract.candidate import MoEActivationSupport, MoECandidate
from moe_core.contract.deployment import MoEDeployment
from moe_core.contract.eligibility import MoEEligibility
from moe_core.contract.problem import MoEProblem
from moe_core.contract.reasons import MoERejectReason as Reason
from moe_core.contract.tuning import Tuning
from moe_core.registry import Declared, hookimpl, load_registry, notes_on, plugin_facts
from moe_core.resolve import resolve_moe_impl


def candidate(identity="acme.some.kernel.any", **fields):
    return MoECandidate(
        kind="backend", identity=identity, family="ACME", title="a kernel",
        activation=MoEActivationSupport(kinds=("Swiglu",)), **{"factory": "a.b:c", **fields},
    )  # fmt: skip


class Full:
    """A plugin with every hook."""

    @hookimpl
    def moe_candidate(self):
        return candidate()

    @hookimpl
    def can_implement(self, problem):  # a hook may leave out arguments that it does not need
        return MoEEligibility.ok()

    @hookimpl
    def moe_tuning(self, deployment, tokens):
        return Tuning(source="table", key=f"{tokens} tokens on {deployment.ep_size}")

    @hookimpl
    def moe_facts(self):
        return {"acme.ready": True}

    @hookimpl
    def moe_notes(self, report):
        return f"asked for {report.request.backend}"


def point(name, value="test_plugins_fake:PLUGIN", distribution=None):
    found = EntryPoint(name=name, value=value, group="moe_core")
    if distribution is not None:
        vars(found)["dist"] = SimpleNamespace(name=distribution)
    return found


@pytest.fixture
def fake(monkeypatch):
    """An importable module whose attributes entry points can name."""
    module = ModuleType("test_plugins_fake")
    monkeypatch.setitem(sys.modules, "test_plugins_fake", module)
    return module


def test_an_entry_point_names_a_plugin_or_several(fake):
    fake.PLUGIN = Full()
    fake.MANY = (Declared(candidate("acme.one.kernel.any")), Declared(candidate("acme.two.kernel.any")))
    registry = load_registry(points=[point("single"), point("several", "test_plugins_fake:MANY")])
    assert [c.identity for c in registry.catalog.candidates] == [
        "acme.one.kernel.any",
        "acme.some.kernel.any",
        "acme.two.kernel.any",
    ]
    assert registry.catalog.plugin_errors == ()


def test_a_module_can_be_a_plugin(fake):
    fake.moe_candidate = hookimpl(lambda: candidate())
    registry = load_registry(points=[point("module", "test_plugins_fake")])
    assert "acme.some.kernel.any" in registry.catalog


class Misspelt(Full):
    @hookimpl
    def moe_candidates(self):
        return None


class Silent:
    pass


class Wrapper:
    @hookimpl(wrapper=True)
    def moe_candidate(self):
        return (yield)


class First(Full):
    @hookimpl(tryfirst=True)
    def moe_candidate(self):
        return candidate()


class StrangeArgument(Full):
    @hookimpl
    def can_implement(self, problem, device):
        return None


class Nothing(Full):
    @hookimpl
    def moe_candidate(self):
        return None


class OldContract(Full):
    @hookimpl
    def moe_candidate(self):
        return candidate(contract_version=2)


class Raises(Full):
    @hookimpl
    def moe_candidate(self):
        raise OSError("no file /opt/acme/kernels/table.json at 0x7f001234")


class Exits(Full):
    @hookimpl
    def moe_candidate(self):
        raise SystemExit(3)


BROKEN = {
    "misspelt hook": (Misspelt(), "unknown hook moe_candidates; did you mean moe_candidate?"),
    "no hook": (Silent(), "no hook moe_candidate"),
    "wrapper": (Wrapper(), "may not be a wrapper, tryfirst or trylast"),
    "tryfirst": (First(), "may not be a wrapper, tryfirst or trylast"),
    "strange argument": (StrangeArgument(), "can_implement takes device, and the hook has problem, deployment"),
    "class": (Full, "Full is a class; register an instance of it"),
    "no candidate": (Nothing(), "moe_candidate returned NoneType, not MoECandidate"),
    "other contract": (OldContract(), "contract_version is 2, and this moe_core speaks 1; install a newer moe_core"),
    "raises": (Raises(), "OSError: no file <path> at 0x…"),
    "exits": (Exits(), "SystemExit: 3"),
}


@pytest.mark.parametrize(("plugin", "message"), BROKEN.values(), ids=BROKEN)
def test_a_broken_plugin_is_a_row_and_the_others_load(plugin, message):
    registry = load_registry(plugins=[plugin, Declared(candidate("acme.good.kernel.any"))], points=[])
    assert [c.identity for c in registry.catalog.candidates] == ["acme.good.kernel.any"]
    [error] = registry.catalog.plugin_errors
    assert error.reason is Reason.PLUGIN_ERROR
    assert message in error.error


@pytest.mark.parametrize("value", ["no_such_module_here:PLUGIN", "test_plugins_fake:NOT_THERE"])
def test_what_cannot_be_imported_is_a_row(fake, value):
    registry = load_registry(points=[point("gone", value, "acme-kernels")])
    [error] = registry.catalog.plugin_errors
    assert (error.plugin, error.distribution) == ("gone", "acme-kernels")


def test_import_failures_of_any_kind_are_isolated(tmp_path, monkeypatch):
    (tmp_path / "test_plugin_exits.py").write_text("raise SystemExit('not today')\n")
    monkeypatch.syspath_prepend(tmp_path)
    registry = load_registry(points=[point("exits", "test_plugin_exits:PLUGIN")])
    assert registry.catalog.plugin_errors[0].error == "SystemExit: not today"


def test_a_banned_distribution_is_not_imported(tmp_path, monkeypatch):
    (tmp_path / "test_plugin_banned.py").write_text("raise AssertionError('imported')\n")
    monkeypatch.syspath_prepend(tmp_path)
    registry = load_registry(["Acme_Kernels"], points=[point("acme", "test_plugin_banned:PLUGIN", "acme-kernels")])
    [error] = registry.catalog.plugin_errors
    assert (error.reason, error.error) == (Reason.BANNED, "banned; not imported")
    assert "test_plugin_banned" not in sys.modules


def test_of_two_strangers_with_one_identity_neither_stays(fake):
    fake.PLUGIN = Declared(candidate())
    registry = load_registry(points=[point("a", distribution="acme"), point("b", distribution="other")])
    assert len(registry.catalog) == 0
    errors = registry.catalog.plugin_errors
    assert [e.distribution for e in errors] == ["acme", "other"]
    assert all("acme.some.kernel.any is claimed by several plugins: acme:a, other:b" in e.error for e in errors)


def test_ours_stays_when_a_stranger_claims_its_identity(fake):
    fake.PLUGIN = Declared(candidate())
    registry = load_registry(points=[point("theirs", distribution="acme"), point("ours", distribution="moe-core")])
    assert registry.catalog.entries[0].distribution == "moe-core"
    assert [e.distribution for e in registry.catalog.plugin_errors] == ["acme"]


def test_order_of_discovery_never_matters(fake):
    fake.ONE, fake.TWO = Declared(candidate("acme.one.kernel.any")), Full()
    points = [point("one", "test_plugins_fake:ONE"), point("two", "test_plugins_fake:TWO"), point("gone", "nowhere:x")]
    forward, backward = load_registry(points=points).catalog, load_registry(points=points[::-1]).catalog
    assert forward.fingerprint == backward.fingerprint
    assert [e.candidate for e in forward] == [e.candidate for e in backward]


def test_hooks_with_fewer_arguments_are_asked_and_a_none_is_an_error():
    class Shrugs(Full):
        @hookimpl
        def can_implement(self, deployment):
            return None

    for plugin, eligible in ((Full(), True), (Shrugs(), False)):
        catalog = load_registry(plugins=[plugin], points=[]).catalog
        report = resolve_moe_impl(MoEProblem(), MoEDeployment(), candidates=catalog)
        rejected = report.backend.rejections_of("acme.some.kernel.any")
        assert [r.reason for r in rejected] == [Reason.FORMAT_INCOMPATIBLE if eligible else Reason.PLUGIN_ERROR]


def test_facts_and_notes_are_collected_and_failures_are_kept():
    class BadLook(Full):
        @hookimpl
        def moe_candidate(self):
            return candidate("worse.some.kernel.any")

        @hookimpl
        def moe_facts(self):
            raise OSError("no device")

        @hookimpl
        def moe_notes(self, report):
            raise KeyError("x")

    registry = load_registry(plugins=[BadLook(), Full(), Declared(candidate("plain.some.kernel.any"))], points=[])
    facts = dict(plugin_facts(registry))
    assert facts["acme"] == {"acme.ready": True}
    assert isinstance(facts["worse"], OSError)
    report = resolve_moe_impl(MoEProblem(), MoEDeployment(), candidates=registry.catalog)
    before = report.fingerprint
    assert notes_on(report, registry) == (
        "acme.some.kernel.any: asked for auto",
        "worse.some.kernel.any: moe_notes raised KeyError",
    )
    assert report.fingerprint == before


def test_first_party_plugins_come_in_through_the_same_group():
    registry = load_registry()
    assert {p.entry.distribution for p in registry.plugins if p.name.startswith("moe_plugins")} == {"moe-core"}
    assert registry.catalog.plugin_errors == ()


def test_a_plugins_own_tuning_hook_is_asked():
    [entry] = load_registry(plugins=[Full()], points=[]).catalog.entries
    assert entry.moe_tuning(MoEProblem(), MoEDeployment(ep_size=2), 8) == Tuning(source="table", key="8 tokens on 2")


def test_a_declarations_tuning_is_loaded_when_it_is_asked(tmp_path, monkeypatch):
    (tmp_path / "test_tuning_late.py").write_text("def tuning(problem, deployment, tokens):\n    return tokens\n")
    monkeypatch.syspath_prepend(tmp_path)
    [entry] = load_registry(plugins=[Declared(candidate(), "test_tuning_late:tuning")], points=[]).catalog.entries
    assert "test_tuning_late" not in sys.modules
    assert entry.moe_tuning(MoEProblem(), MoEDeployment(), 8) == 8


def test_a_declaration_without_tuning_is_not_asked():
    [entry] = load_registry(plugins=[Declared(candidate())], points=[]).catalog.entries
    assert entry.moe_tuning is None


def test_a_declaration_that_names_no_function_is_refused_at_once():
    with pytest.raises(ValueError, match=r"found 'acme\.choice', needed 'package.module:function'"):
        Declared(candidate(), "acme.choice")


def test_a_tuning_that_cannot_be_loaded_refuses_its_candidate():
    plugin = Declared(candidate(), "no_such_module_here:tuning")
    catalog = load_registry(plugins=[plugin], points=[]).catalog
    report = resolve_moe_impl(MoEProblem(activation="Swiglu"), MoEDeployment(max_num_tokens=8), candidates=catalog)
    [rejection] = report.backend.rejections_of("acme.some.kernel.any")
    assert rejection.reason is Reason.PLUGIN_ERROR
    assert rejection.found == "moe_tuning raised ModuleNotFoundError: No module named 'no_such_module_here'"
