"""The command line as a whole: statuses, errors, warnings, lightness."""

import subprocess
import sys

import pytest

from moe_core.cli.parser import COMMANDS

BAD = {
    "no command": [],
    "unknown command": ["explian"],
    "unknown option": ["doctor", "--frobnicate"],
    "missing argument": ["explain"],
    "no such config": ["explain", "no/such/config"],
    "no such preset": ["explain", "{qwen}", "--hardware", "h2000"],
    "no such environment file": ["explain", "{qwen}", "--environment", "none.json"],
    "two machines": ["explain", "{qwen}", "--hardware", "h200", "--environment", "b200"],
    "assumed without a version": ["explain", "{qwen}", "--hardware", "h200", "--assume", "flashinfer"],
    "size out of range": ["explain", "{qwen}", "--hardware", "h200", "--ep", "0"],
    "unknown backend": ["explain", "{qwen}", "--hardware", "h200", "--backend", "CUTLAS"],
    "unknown scope": ["explain", "{qwen}", "--hardware", "h200", "--backend", "sometimes=CUTLASS"],
    "empty scope": ["explain", "{qwen}", "--hardware", "h200", "--backend", "draft="],
    "two backends": ["explain", "{qwen}", "--hardware", "h200", "--backend", "CUTLASS", "--backend", "TRITON"],
    "no such layer": ["explain", "{qwen}", "--hardware", "h200", "--layers", "99"],
    "malformed layers": ["explain", "{qwen}", "--hardware", "h200", "--layers", "three"],
    "malformed tokens": ["explain", "{qwen}", "--hardware", "h200", "--tokens", "many"],
    "zero tokens": ["explain", "{qwen}", "--hardware", "h200", "--tokens", "0"],
    "no such candidate": ["explain", "{qwen}", "--hardware", "h200", "--why", "nobody"],
    "no such evidence": ["explain", "{qwen}", "--hardware", "h200", "--evidence", "none.json"],
    "unwritable": ["explain", "{qwen}", "--hardware", "h200", "--save", "no/such/folder/report.json"],
    "no such report": ["diff", "none.json", "none.json"],
    "no report": ["agree", "{qwen}/config.json"],
    "counts that do not fit": ["plan", "{qwen}", "--hardware", "h200", "--ep", "4", "--dp", "4", "--tokens", "1,2"],
    "no gpu here": ["run", "{qwen}", "--device", "cuda"],
    "no such layer to run": ["run", "{qwen}", "--layer", "99"],
    "deep elsewhere": ["environment", "--deep", "--hardware", "h200"],
}


@pytest.fixture
def bad(request, qwen):
    return [argument.format(qwen=qwen) for argument in BAD[request.param]]


@pytest.mark.parametrize("bad", BAD, indirect=True)
def test_bad_input_is_one_clear_error(bad, moe):
    said = moe(*bad)
    assert said.status == 2
    assert said.out == ""
    assert said.err.startswith("moe: error: ")
    assert said.err.count("moe: error:") == 1
    assert "Traceback" not in said.err


@pytest.mark.parametrize("bad", BAD, indirect=True)
def test_bad_input_is_json_for_scripts(bad, moe):
    said = moe(*bad, "--json")
    assert said.status == 2
    assert said.json.keys() == {"error"}
    assert said.json["error"] in said.err


@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        (["explian"], "explain"),
        (["explain", "{qwen}", "--hardware", "h2000"], "did you mean h200"),
        (["explain", "{qwen}", "--hardware", "h200", "--backend", "CUTLAS"], "did you mean CUTLASS"),
        (["explain", "{qwen}", "--hardware", "h200", "--ep", "0"], "ep_size: Input should be greater than 0, found 0"),
        (["diff", "none.json", "none.json"], "report none.json: No such file"),
    ],
)
def test_errors_say_what_to_try(arguments, advice, moe, qwen):
    assert advice in moe(*(a.format(qwen=qwen) for a in arguments)).err


def test_help_names_every_command(capsys, moe):
    with pytest.raises(SystemExit) as left:
        moe("--help")
    assert left.value.code == 0
    text = capsys.readouterr().out
    assert [name for name in COMMANDS if f"    {name}" not in text] == []
    assert "exit status: 0 a winner" in text


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_and_json(command, capsys, moe):
    with pytest.raises(SystemExit) as left:
        moe(command, "--help")
    assert left.value.code == 0
    assert "--json" in capsys.readouterr().out


def test_misspelt_variables_are_warned_of(moe, monkeypatch):
    monkeypatch.setenv("MOE_CORE_BACKENDS", "CUTLASS")
    said = moe("candidates", "--json")
    assert said.status == 0
    assert "moe: warning: environment variable MOE_CORE_BACKENDS is not read" in said.err
    assert "did you mean MOE_CORE_BACKEND?" in said.err


def test_it_runs_as_a_module_and_a_closed_pipe_is_no_error(qwen):
    command = [sys.executable, "-m", "moe_core", "explain", str(qwen), "--hardware", "h200"]
    shell = subprocess.run(
        ["bash", "-c", 'set -o pipefail; "$@" | head -1', "moe", *command], capture_output=True, text=True, check=False
    )
    assert shell.stdout.startswith("winner ")
    assert shell.stderr == ""


@pytest.mark.parametrize(
    "arguments",
    [
        ["explain", "{qwen}", "--hardware", "h200"],
        ["explain", "{qwen}", "--hardware", "h200", "--why", "moe_core.torch.reference_loop.any"],
        ["explain", "{qwen}", "--hardware", "h200", "--html", "{tmp}/page.html"],
        ["plan", "{qwen}", "--hardware", "h200", "--tokens", "1,0"],
        ["candidates"],
        ["environment"],
        ["doctor"],
        ["run", "--help"],
    ],
    ids=lambda a: " ".join(a[:1] + a[-1:]),
)
def test_nothing_heavy_is_imported(arguments, qwen, tmp_path):
    arguments = [a.format(qwen=qwen, tmp=tmp_path) for a in arguments]
    program = f"""
import sys
from moe_core.cli import main
try:
    status = main({arguments!r})
except SystemExit as left:
    status = left.code
print(status, sorted({{'torch', 'triton', 'numpy', 'rich', 'transformers'}} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "0 []"
