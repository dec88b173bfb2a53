"""Kernels compile for Hopper, on any machine: what the interpreter runs, the compiler may refuse."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from moe_core.measure.shapes import FORMATS

SCRIPT = Path(__file__).parent / "compile_for_hopper.py"


@pytest.mark.parametrize("name", ["none", *FORMATS])
def test_every_path_compiles_for_hopper(name, tmp_path):
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, SCRIPT, name], capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    found = dict(line.split() for line in done.stdout.splitlines())
    # `up` and `down`; with a map also the map, a sum, and what quantizes tokens.
    assert found.pop("no_sort") == "2"
    assert found
    assert all(int(kernels) >= 4 for kernels in found.values())
    # Codes come in whole words: byte by byte, the answers would be as right.
    narrow = re.compile(r"ld\.global[\w.:]*\.[bsuf](?:8|16)\b.*")
    for assembly in [*tmp_path.glob("*/_up.ptx"), *tmp_path.glob("*/_down.ptx")] if name != "none" else []:
        assert narrow.findall(assembly.read_text()) == [], assembly.name
