"""Every example runs as its docstring says, prints something, and warns about nothing."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda p: p.stem)
def test_example(example, pytestconfig):
    with_pytest = ["-m", "pytest", "-q"] if example.stem.endswith("_test") else ["-W", "error"]
    done = subprocess.run(
        [sys.executable, *with_pytest, str(example)], capture_output=True, text=True, check=False,
        cwd=pytestconfig.rootpath,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout
    assert not done.stderr


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda p: p.stem)
def test_examples_stay_short(example):
    text = example.read_text()
    assert text.startswith('"""')
    assert len(text.splitlines()) < 60


def test_there_are_examples():
    assert len(EXAMPLES) >= 5
