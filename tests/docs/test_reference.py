"""Reference pages are complete and say what the code says."""

import inspect
import os
import re
from argparse import SUPPRESS
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import get_args

import pytest

from moe_core import contract
from moe_core.cli.parser import COMMANDS, Parser
from moe_core.contract import predicate
from moe_core.contract.base import Frozen
from moe_core.contract.deployment import MoEDeployment
from moe_core.contract.environment import MoEEnvironment
from moe_core.contract.facts import DERIVED_FACTS
from moe_core.contract.gates import gates_of
from moe_core.contract.problem import MoEProblem
from moe_core.contract.reasons import MoERejectReason
from moe_core.contract.request import MoERequest, ScopedRequest
from moe_core.environment import FLAGS, PRESETS, VARIABLES
from moe_core.explain.matrix import support_matrix
from moe_core.registry import hookspecs, load_registry
from moe_core.registry.validate import HOOKS
from moe_plugins import PLUGINS

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs" / "reference"


def lines(page):
    return (REFERENCE / page).read_text().splitlines()


def section(page, heading):
    """The lines under a heading, up to the next one of its level."""
    text = lines(page)
    start = text.index(heading) + 1
    level = heading.split()[0] + " "
    return list(text[start : next((i for i, s in enumerate(text[start:], start) if s.startswith(level)), None)])


def row(*cells):
    return "| " + " | ".join(cells) + " |"


@pytest.mark.parametrize("name", HOOKS)
def test_hooks_are_complete(name):
    arguments = ", ".join(inspect.signature(getattr(hookspecs, name)).parameters)
    assert f"## {name}({arguments})" in lines("hooks.md")


@pytest.mark.parametrize("reason", MoERejectReason)
def test_reason_codes_are_complete(reason):
    assert row(f"`{reason.name}`", reason.meaning, reason.usually_fixable_by) in lines("reason-codes.md")


@pytest.mark.parametrize("name", DERIVED_FACTS)
def test_derived_facts_are_complete(name):
    assert row(f"`{name}`", DERIVED_FACTS[name]) in lines("requirements.md")


@pytest.mark.parametrize("word", get_args(get_args(predicate.Predicate)[0]), ids=lambda p: p.__name__)
def test_predicates_are_complete(word):
    arguments = ", ".join(name for name in word.model_fields if name != "word")
    starts = f"| `{word.__name__}({arguments})` |"
    assert any(line.startswith(starts) for line in lines("requirements.md")), f"no row starts {starts}"


@pytest.mark.parametrize("model", [MoEProblem, MoEDeployment, MoEEnvironment, MoERequest, ScopedRequest])
def test_fields_of_inputs_are_complete(model):
    rows = [line.split("|")[1].strip() for line in section("contract.md", f"## {model.__name__}") if line[:1] == "|"]
    assert rows[2:] == [f"`{name}`" for name in model.model_fields if name != "schema_version"]


def test_models_are_complete():
    modules = [p.stem for p in Path(contract.__file__).parent.glob("*.py")]
    classes = {c for m in modules for c in vars(import_module(f"moe_core.contract.{m}")).values() if inspect.isclass(c)}
    models = {c.__name__ for c in classes if issubclass(c, Frozen) and not c.__name__.startswith("_")}
    page = (REFERENCE / "contract.md").read_text() + (REFERENCE / "requirements.md").read_text()
    assert {name for name in models if not re.search(rf"\b{name}\b", page)} == set()


@pytest.mark.parametrize("name", [*VARIABLES, *FLAGS])
def test_variables_are_complete(name):
    assert row(f"`{name}`", {**VARIABLES, **FLAGS}[name]) in lines("environment-variables.md")


def test_no_other_variable_is_read():
    sources = [p for folder in ("moe_core", "moe_plugins") for p in (ROOT / folder).rglob("*.py")]
    named = {name for p in sources for name in re.findall(r"\bMOE_CORE_[A-Z_]*[A-Z]\b", p.read_text())}
    assert named <= set(VARIABLES)


def test_the_page_names_the_variables_that_candidates_read():
    gates = [g for entry in first_party() for g in gates_of(entry.candidate)]
    facts = {c.fact for gate in gates for c in (gate, *gate.when, *gate.unless)}
    read = sorted(f.removeprefix("flag:") for f in facts if f.startswith("flag:"))
    listed = section("environment-variables.md", "### Read by a candidate of this release")
    assert [line.split("`")[1] for line in listed if line.startswith("- `")] == read


def command(name) -> tuple[ModuleType, Parser]:
    parser = Parser(prog=f"moe {name}")
    module = import_module(f"moe_core.cli.{name}")
    module.add_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    return module, parser


def option_rows(group):
    """A row of the table per argument, as the parser declares it."""
    for action in group._group_actions:
        if action.help is SUPPRESS or action.dest == "help":
            continue
        name = action.option_strings[0] if action.option_strings else ""
        value = "" if action.nargs == 0 else action.metavar or f"{{{','.join(action.choices)}}}"
        yield row(f"`{f'{name} {value}'.strip()}`", action.help)


@pytest.mark.parametrize("name", COMMANDS)
def test_options_are_complete(name):
    _, parser = command(name)
    own = section("command-line.md", f"## moe {name}")
    for group in parser._action_groups:
        shared = group.title in ("machine", "deployment", "request")
        heading = f"## {str(group.title).capitalize()} options"
        rows = list(option_rows(group))
        table = section("command-line.md", heading) if shared and rows else own
        if shared and rows:
            assert f"(#{group.title}-options)" in "\n".join(own), f"moe {name} does not point to {heading}"
        missing = [line for line in rows if line not in table]
        assert not missing, "\n".join(missing)


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_complete(name):
    assert f"`{name}`" in "\n".join(section("command-line.md", "## Machine options"))


def test_no_option_is_made_up():
    real = {o for name in COMMANDS for a in command(name)[1]._actions for o in a.option_strings} | {"--help"}
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", (REFERENCE / "command-line.md").read_text()))
    assert named <= real


def first_party():
    return load_registry(plugins=PLUGINS, points=()).catalog


def test_support_matrix_is_fresh():
    """Set the variable UPDATE_DOCS=1 to write the page anew."""
    page = REFERENCE / "support-matrix.md"
    preface, _, shown = page.read_text().partition("<!-- generated -->\n\n")
    fresh = support_matrix(first_party())
    if os.environ.get("UPDATE_DOCS"):
        page.write_text(f"{preface}<!-- generated -->\n\n{fresh}")
        return
    assert shown == fresh, "docs/reference/support-matrix.md is stale: run this test with UPDATE_DOCS=1"
