"""Everything shown runs: Python blocks, `moe` commands with their exit statuses, and the output under a prompt.

A page is followed from its top: its blocks share a folder and, in Python, their names. Commands stand in a ``bash``
block whose first word is ``moe``, or after ``$`` in a ``console`` block, where ``…`` stands for lines, or a part of a
line, that are not shown.
"""

import io
import os
import re
import shlex
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest

from moe_core.cli import main

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SETTING = re.compile(r"[A-Z_]+=")
STATUS = re.compile(r"# exit status (\d)")
CUT = "…"


@dataclass(frozen=True)
class Block:
    page: Path
    line: int
    language: str
    text: str

    def __str__(self):
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def runs(self):
        first = next((w for w in self.text.split() if not SETTING.match(w)), "")
        return self.language == "python" or first == {"bash": "moe", "console": "$"}.get(self.language)


@dataclass
class Visit:
    """Someone who follows one page."""

    folder: Path
    names: dict = field(default_factory=lambda: {"__name__": "__main__"})
    done: int = 0


@cache
def blocks_of(page):
    text = page.read_text()
    found = [Block(page, text.count("\n", 0, m.start()) + 1, *m.groups()) for m in FENCE.finditer(text)]
    return [block for block in found if block.runs]


BLOCKS = [block for page in PAGES for block in blocks_of(page)]
VISITS = {}


def visit(page, number, tmp_path_factory):
    """The visit of a page that has not read past its block `number` yet."""
    if page not in VISITS or VISITS[page].done > number:
        VISITS[page] = Visit(tmp_path_factory.mktemp(page.stem))
        for folder in ("tests", "examples", "contrib"):
            (VISITS[page].folder / folder).symlink_to(ROOT / folder)
    return VISITS[page]


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_block(block, tmp_path_factory, monkeypatch):
    blocks = blocks_of(block.page)
    reader = visit(block.page, blocks.index(block), tmp_path_factory)
    monkeypatch.chdir(reader.folder)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    for name in [n for n in os.environ if n.startswith("MOE_CORE")]:
        monkeypatch.delenv(name)
    while reader.done <= blocks.index(block):
        current = blocks[reader.done]
        reader.done += 1
        if current.language == "python":
            run_python(current, reader.names)
        else:
            run_commands(current, monkeypatch)


def run_python(block, names):
    with redirect_stdout(io.StringIO()):
        exec(compile("\n" * block.line + block.text, str(block.page), "exec"), names)


def run_commands(block, monkeypatch):
    steps = re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:] if block.language == "console" else [block.text]
    for step in steps:
        lines = step.replace("\\\n", " ").splitlines()
        commands, shown = (lines[:1], lines[1:]) if block.language == "console" else (lines, None)
        printed = [line for command in commands for line in run_command(command, block, monkeypatch)]
        if shown is not None:
            assert_shows(printed, shown, block)


def run_command(command, block, monkeypatch):
    words = shlex.split(command, comments=True)
    wanted = STATUS.search(command)
    output = io.StringIO()
    with monkeypatch.context() as settings, redirect_stdout(output), redirect_stderr(output):
        while words and SETTING.match(words[0]):
            settings.setenv(*words.pop(0).split("=", 1))
        assert words, f"{block}: a block that starts with a command holds commands only, found {command!r}"
        assert words[0] == "moe", f"{block}: {words[0]} stands among commands that run"
        try:
            status = main(words[1:])
        except SystemExit as stop:
            status = stop.code
    assert status == int(wanted[1] if wanted else 0), f"{block}: {command}: exit status {status}\n{output.getvalue()}"
    return output.getvalue().splitlines()


def assert_shows(printed, shown, block):
    """Every line shown was printed, in this order; without a cut between them, one right after the other."""
    place, cut = 0, False
    for line in shown:
        if line == CUT:
            cut = True
            continue
        pattern = re.compile(".*".join(map(re.escape, line.split(CUT))))
        rest = printed[place:] if cut else printed[place : place + 1]
        skipped = next((i for i, text in enumerate(rest) if pattern.fullmatch(text)), None)
        assert skipped is not None, f"{block}: shows {line!r}, printed was\n" + "\n".join(printed)
        place, cut = place + skipped + 1, False
    assert cut or place == len(printed), f"{block}: more was printed\n" + "\n".join(printed[place:])


def test_pages_have_blocks():
    assert len(BLOCKS) > 20


@pytest.mark.parametrize("marker", ["run", "test"])
def test_readme_has_the_command(marker):
    found = re.findall(rf"<!-- command: {marker} -->\n```bash\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert len(found) == 1
    assert ".venv/bin/pip install -q -c constraints/cpu.txt" in found[0]
