"""The layers that CONTRIBUTING and AGENTS show are those that the guard of imports holds."""

import re
import runpy
from pathlib import Path

ROOT = Path(__file__).parents[2]
GUARD = runpy.run_path(str(ROOT / "tests" / "guards" / "test_imports.py"))
LAYERS = [piece for piece in GUARD["ORDER"] if piece in GUARD["PIECES"]]


def test_contributing_shows_the_layers():
    block = re.search(r"^```text\n(contract .*?)^```", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE | re.DOTALL)
    assert [line.split()[0] for line in block[1].splitlines()] == LAYERS


def test_agents_shows_the_layers():
    text = (ROOT / "AGENTS.md").read_text()
    shown = re.search(r"contract <- .*?(?=\n\n)", text, re.DOTALL)[0]
    assert [piece.strip() for piece in shown.split("<-")] == LAYERS
    assert len(text.splitlines()) < 40
