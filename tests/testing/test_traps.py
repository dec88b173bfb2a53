"""The traps spring on what an answer may not touch, and on nothing else. In processes of their own: they stay set."""

import subprocess
import sys
import textwrap

import pytest

SET = """
import sys, types
from moe_core.testing.traps import ImpureError, armed, install
torch_cuda = types.ModuleType("torch.cuda")
exec("def is_available(): return False", vars(torch_cuda))
install()
"""


def run(code):
    code = SET + textwrap.dedent(code)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def touch(code):
    return run(f"import os, io, pathlib, random, time\nwith armed():\n    {code}\nprint('untouched')")


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("torch_cuda.is_available()", "touched device: torch.cuda.is_available()"),
        ("list(os.environ)", "touched environment variables"),
        ("sorted([1, 2], key=lambda _: time.time())", "touched clock: time.time()"),
        ("random.Random()", "touched randomness"),
        ("pathlib.Path.home().exists()", "touched environment variables: os.environ, 'HOME'"),
        ("pathlib.Path('/').exists()", "touched files and system: posix.stat()"),
        ("os.getpid()", "touched files and system: posix.getpid()"),
        ("import decimal", "touched imports: import('decimal')"),
    ],
)
def test_what_springs_them(code, message):
    out = touch(code)
    assert f"ImpureError: {message}" in out
    assert "untouched" not in out


@pytest.mark.parametrize(
    "code",
    [
        "import os.path",
        "pathlib.PurePath('a', 'b').suffix",
        "io.StringIO('x').read()",
        "(hash('x'), id(1), sorted('ab'))",
        "f'{1.5:g}'.split('.')",
    ],
)
def test_what_does_not(code):
    assert touch(code) == "untouched\n"


def test_they_sleep_before_and_after():
    assert run("import time\ntime.time()\nwith armed(): pass\ntime.time(); open('/dev/null').close()") == ""


def test_a_swallowed_error_is_raised_again():
    out = run("""
        import time
        try:
            with armed():
                try:
                    time.time()
                except ImpureError:
                    pass
        except ImpureError as error:
            print(error.kind)
    """)
    assert out == "clock\n"


def test_arming_traps_that_are_not_set_is_an_error():
    code = "from moe_core.testing.traps import armed\nwith armed(): pass"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "RuntimeError: the traps are not set; call moe_core.testing.traps.install()" in done.stderr


def test_a_profiler_is_put_back():
    out = run("""
        profiler = lambda *_: None
        sys.setprofile(profiler)
        with armed():
            pass
        print(sys.getprofile() is profiler)
        sys.setprofile(None)
    """)
    assert out == "True\n"
