"""The kit catches every kind of cheat, each by the test that is meant to, and lets the honest pass."""

import os
import re
import subprocess
import sys

import pytest

from moe_core.testing import PluginConformance
from moe_core.testing.subject import load_subjects

LAWS = (
    "test_can_implement_is_pure",
    "test_abstains_on_the_unknown",
    "test_rejects_with_reasons",
    "test_honours_its_declared_limits",
    "test_is_resolved",
)
PURE, UNKNOWN, REASONS, LIMITS, _ = LAWS
IMPURE = {
    "environ": "touched environment variables: os.environ, 'CHEAT'",
    "getenv": "touched environment variables",
    "early_environ": "touched environment variables: os.environ, 'CHEAT'",
    "early_clock": r"touched clock: time.perf_counter\(\)",
    "calendar": r"touched clock: .*now\(\)",
    "dice": r"touched randomness: Random.random\(\)",
    "entropy": r"touched randomness: posix.urandom\(\)",
    "unique_id": r"touched randomness: uuid.uuid4\(\)",
    "file_exists": r"touched files and system: posix.stat\(\)",
    "file_read": "touched files and system: open",
    "imports": "touched imports: .*kernels_that_nobody_has",
    "finds_spec": r"touched imports: importlib.util.find_spec\(\)",
    "finds_version": r"touched imports: importlib.metadata.version\(\)",
    "driver": "touched device: ctypes",
    "nvidia_smi": "touched processes and network",
    "counts": "the second answer to a question differs from the first",
    "hashes": "two processes get different answers",
}
UNLAWFUL = {
    "refuses_unknown": (UNKNOWN, "refuses what is unknown: SHAPE_UNALIGNED what I need"),
    "refuses_unknown_machine": (UNKNOWN, "refuses what is unknown"),
    "too_generous": (LIMITS, "accepts what its declaration refuses"),
    "no_fact": (REASONS, "lacks fact"),
    "no_found": (REASONS, "of hidden_size lacks found"),
    "no_needed": (REASONS, "lacks needed"),
    "untrue": (REASONS, "says that hidden_size is 2049, and it is 2048"),
    "usurper": (REASONS, "BANNED is moe_core's own"),
    "first_reason_only": (REASONS, "leaves out"),
    "contradiction": (LIMITS, "do its requirements contradict each other"),
}


TUNING_LAWS = ("test_tuning_is_pure", "test_tuning_abstains_on_the_unknown")
TUNING_PURE, TUNING_UNKNOWN = TUNING_LAWS
UNLAWFUL_TUNINGS = {
    "reads_tables": (TUNING_PURE, "moe_tuning touched files and system: open"),
    "looks_at_flags": (TUNING_PURE, "moe_tuning touched environment variables: os.environ, 'CHEAT'"),
    "changes": (TUNING_PURE, "the second answer to a question differs from the first"),
    "eager": (TUNING_UNKNOWN, r"although problem.top_k is unknown; return None then"),
    "afraid": (TUNING_UNKNOWN, r"moe_tuning raised KeyError: 'no tile for 96'; return None"),
    "wordless": (TUNING_UNKNOWN, "moe_tuning raised TypeError: moe_tuning returned float, not Tuning or None"),
}


class Honest(PluginConformance):
    plugin = "kit_examples.honest:PLUGIN"


class HonestTuning(PluginConformance):
    plugin = "kit_examples.honest:TUNED"


class TuningByName(PluginConformance):
    plugin = "kit_examples.honest:TUNED_BY_NAME"


class CheatingTunings(PluginConformance):
    plugin = "kit_examples.cheats:CHEATING_TUNINGS"


class Cheats(PluginConformance):
    plugin = "kit_examples.cheats:PLUGINS"


def cheat_called(name):
    return next(s for s in load_subjects(Cheats.plugin) if str(s) == f"example.plain.{name}.none")


def test_every_cheat_has_a_row():
    assert {str(s).split(".")[2] for s in load_subjects(Cheats.plugin)} == IMPURE.keys() | UNLAWFUL.keys()


def test_the_honest_pass():
    [subject] = load_subjects(Honest.plugin)
    Honest().test_keeps_the_contract()
    Honest().test_declaration_is_light()
    for law in LAWS:
        getattr(Honest(), law)(subject)


@pytest.mark.parametrize("suite", [HonestTuning, TuningByName])
def test_honest_tunings_pass(suite):
    [subject] = load_subjects(suite.plugin)
    assert subject.is_tuned
    suite().test_declaration_is_light()
    for law in (*LAWS, *TUNING_LAWS):
        getattr(suite(), law)(subject)


@pytest.mark.parametrize(
    ("cheat", "caught_by", "message"), [(n, *row) for n, row in UNLAWFUL_TUNINGS.items()], ids=UNLAWFUL_TUNINGS
)
def test_each_breach_of_a_tuning_is_caught_by_its_own_test_alone(cheat, caught_by, message):
    [subject] = [s for s in load_subjects(CheatingTunings.plugin) if str(s) == f"example.plain.{cheat}.none"]
    with pytest.raises(AssertionError, match=message):
        getattr(CheatingTunings(), caught_by)(subject)
    for law in (*LAWS, *TUNING_LAWS):
        if law != caught_by:
            getattr(CheatingTunings(), law)(subject)


@pytest.mark.parametrize(("cheat", "message"), IMPURE.items(), ids=IMPURE)
def test_whatever_an_answer_touches_is_named(cheat, message):
    with pytest.raises(AssertionError, match=message):
        Cheats().test_can_implement_is_pure(cheat_called(cheat))


@pytest.mark.parametrize(("cheat", "caught_by", "message"), [(n, *row) for n, row in UNLAWFUL.items()], ids=UNLAWFUL)
def test_each_breach_is_caught_by_its_own_test_alone(cheat, caught_by, message):
    subject = cheat_called(cheat)
    with pytest.raises(AssertionError, match=message):
        getattr(Cheats(), caught_by)(subject)
    for law in LAWS:
        if law != caught_by:
            getattr(Cheats(), law)(subject)


def test_cheats_with_light_declarations_are_light():
    Cheats().test_declaration_is_light()


class TestDeclaration:
    @pytest.fixture
    def suite(self):
        class Heavy(PluginConformance):
            plugin = "kit_examples.heavy:PLUGIN"

        return Heavy

    def test_packages_are_named(self, suite):
        with pytest.raises(AssertionError, match="the declaration or its tuning imports numpy; move"):
            suite().test_declaration_is_light()

    def test_what_tunings_import_is_named_too(self, suite):
        suite.plugin = "kit_examples.cheats:HEAVY_TUNING"
        with pytest.raises(AssertionError, match="the declaration or its tuning imports numpy; move"):
            suite().test_declaration_is_light()

    def test_packages_can_be_allowed_and_libraries_cannot(self, suite):
        suite.light_imports = ("numpy",)
        with pytest.raises(AssertionError, match=r"the declaration or its tuning does ctypes.dlopen\('libc.so.6'\)"):
            suite().test_declaration_is_light()


@pytest.mark.parametrize(
    ("plugin", "error", "message"),
    [
        ("NO_ELIGIBILITY", TypeError, "can_implement returned bool, not MoEEligibility"),
        ("RAISES", TypeError, "has no len"),
        ("FOREIGN_FACTS", AssertionError, r"a plugin's facts are named example\.<fact>"),
        ("NO_CANDIDATE", Exception, "no hook moe_candidate"),
        ("NO_SUCH_NAME", AttributeError, "NO_SUCH_NAME"),
    ],
)
def test_a_broken_contract_is_caught(plugin, error, message):
    class Broken(PluginConformance):
        pass

    Broken.plugin = f"kit_examples.broken:{plugin}"
    with pytest.raises(error, match=message):
        Broken().test_keeps_the_contract()


SUITES = """
from moe_core.testing import PluginConformance

class TestAbsent(PluginConformance):
    plugin = "kit_examples.broken:NO_CANDIDATE"

class TestDeclaredOnly(PluginConformance):
    plugin = "kit_examples.honest:DECLARED_ONLY"
"""


@pytest.mark.slow
def test_what_pytest_makes_of_it(tmp_path):
    tmp_path.joinpath("test_suites.py").write_text(SUITES)
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", str(tmp_path)]
    paths = os.pathsep.join(sys.path)
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True,
        check=False, cwd=tmp_path,
    )  # fmt: skip
    assert "PluginContractError: object: PluginContractError: no hook moe_candidate" in done.stdout
    assert "example.plain.declared_only.none has no factory: it is declared only" in done.stdout
    # Skipped: all that needs a plugin where none loads, and the seven checks of a backend where there is none.
    assert re.search(r"^2 failed, 9 passed, 21 skipped in ", done.stdout, re.MULTILINE), done.stdout
