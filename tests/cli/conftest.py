"""Commands are called as a shell would call them: arguments in; status, output and errors out."""

import json
from pathlib import Path
from typing import NamedTuple

import pytest

from moe_core.cli import main

CONFIGS = Path(__file__).parents[1] / "data" / "configs"


class Said(NamedTuple):
    """What a command left behind."""

    status: int
    out: str
    err: str

    @property
    def json(self):
        return json.loads(self.out)


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch):
    """The variables and the terminal of whoever runs the tests do not matter."""
    for name in ("MOE_CORE_BACKEND", "MOE_CORE_COMMUNICATION", "MOE_CORE_BAN", "FORCE_COLOR", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "80")


@pytest.fixture
def moe(capsys):
    def call(*arguments):
        status = main([str(a) for a in arguments])
        return Said(status, *capsys.readouterr())

    return call


@pytest.fixture(scope="session")
def qwen():
    """An unquantized model that every machine here can run."""
    return CONFIGS / "Qwen__Qwen3-30B-A3B"


@pytest.fixture(scope="session")
def deepseek():
    """FP8 blocks, dense layers first, a draft layer last."""
    return CONFIGS / "deepseek-ai__DeepSeek-V3"
