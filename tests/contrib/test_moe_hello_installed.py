"""moe-hello in a real environment: installed it shows up, wins and can be banned; uninstalled it is gone."""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
IDENTITY = "hello.torch_bmm.dense_experts.none"
TINY_MODEL = {
    "model_type": "mixtral", "architectures": ["MixtralForCausalLM"], "torch_dtype": "bfloat16", "hidden_act": "silu",
    "hidden_size": 64, "intermediate_size": 96, "num_local_experts": 8, "num_experts_per_tok": 2,
    "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 100,
}  # fmt: skip

pytestmark = pytest.mark.slow


class Installation:
    """An environment that sees the packages of this one, so that nothing is downloaded."""

    def __init__(self, folder):
        self.folder = folder
        self.python = folder / "venv" / "bin" / "python"
        self.config = folder / "config.json"
        self.config.write_text(json.dumps(TINY_MODEL))
        self._run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"])
        [packages] = (folder / "venv" / "lib").glob("python*/site-packages")
        ours = sysconfig.get_path("purelib")
        packages.joinpath("ours.pth").write_text(f"import site; site.addsitedir({ours!r})\n")
        # A copy: building leaves files in the source tree.
        shutil.copytree(ROOT / "contrib" / "moe-hello", folder / "moe-hello")

    def _run(self, command, **environment):
        environment = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
        done = subprocess.run(command, env=environment, cwd=self.folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def pip(self, *arguments):
        self._run([sys.executable, "-m", "pip", "--python", self.python, "--quiet", *arguments])

    def install(self):
        self.pip("install", "--no-index", "--no-deps", "--no-build-isolation", "./moe-hello")

    def moe(self, *arguments, **environment):
        return self._run([self.python, "-m", "moe_core", *arguments], **environment)

    def report(self, *arguments, **environment):
        out = self.moe(
            "explain", self.config, "--hardware", "cpu", "--tokens", "16", "--json", *arguments, **environment
        )
        return json.loads(out)["layers"][0]["report"]

    def suite(self):
        return self._run([self.python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "moe-hello"])


@pytest.fixture(scope="module")
def hello(tmp_path_factory):
    installation = Installation(tmp_path_factory.mktemp("hello"))
    installation.install()
    return installation


def backend_decision(report):
    return next(d for d in report["decisions"] if d["kind"] == "backend")


def rejections_of(report, identity):
    return next(c["rejections"] for c in backend_decision(report)["rejected"] if c["identity"] == identity)


def test_it_shows_up_with_its_distribution(hello):
    rows = json.loads(hello.moe("candidates", "--json"))["candidates"]
    assert [r["distribution"] for r in rows if r["candidate"]["identity"] == IDENTITY] == ["moe-hello"]


def test_it_wins_where_it_can(hello):
    assert backend_decision(hello.report())["winner"] == IDENTITY


def test_it_loses_where_it_cannot_and_says_why(hello):
    [rejection] = rejections_of(hello.report("--tokens", "65"), IDENTITY)
    assert (rejection["reason"], rejection["fact"], rejection["found"]) == (
        "tokens_over_capacity",
        "max_num_tokens",
        65,
    )


@pytest.mark.parametrize("ban", [IDENTITY, "hello", "HELLO"])
def test_a_ban_of_identity_or_family_is_a_reason(hello, ban):
    report = hello.report(MOE_CORE_BAN=ban)
    assert backend_decision(report)["winner"] != IDENTITY
    assert [r["reason"] for r in rejections_of(report, IDENTITY)] == ["banned"]


def test_a_banned_distribution_is_not_imported(hello):
    report = hello.report(MOE_CORE_BAN="moe_hello")
    assert IDENTITY not in json.dumps(report["decisions"])
    [error] = report["plugin_errors"]
    assert (error["distribution"], error["reason"], error["error"]) == ("moe-hello", "banned", "banned; not imported")


def test_it_runs(hello):
    assert IDENTITY in hello.moe("run", hello.config, "--tokens", "16")


def test_it_conforms(hello):
    assert re.search(r"^\d+ passed in ", hello.suite(), re.MULTILINE), "some tests were skipped"


def test_uninstalled_it_is_gone(tmp_path):
    installation = Installation(tmp_path)
    installation.install()
    assert IDENTITY in installation.moe("candidates", "--json")
    installation.pip("uninstall", "--yes", "moe-hello")
    assert IDENTITY not in installation.moe("candidates", "--json")
    assert backend_decision(installation.report())["winner"] == "moe_core.torch.grouped_mm.none"
