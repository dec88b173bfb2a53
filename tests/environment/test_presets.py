"""Presets: a golden table, names that people type, the same bytes everywhere."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from moe_core.contract.facts import ABSENT
from moe_core.environment import PRESETS, preset

GOLDEN = Path(__file__).parents[1] / "data" / "environment" / "presets.txt"


def row(name):
    p = PRESETS[name]
    memory = "unknown" if p.device_memory is None else f"{p.device_memory / 2**20:.0f} MiB"
    shared = f"{p.shared_memory_per_block} B"
    return (
        f"{name:<13} {p.device:<5} sm {p.sm:<4} {p.num_sms:>3} SMs {memory:>11} {shared:>9} "
        f"{p.link:<7} x{p.devices_per_node}  {p.device_name or '-'}"
    )


def test_the_table():
    assert [row(name) for name in PRESETS] == GOLDEN.read_text().splitlines()


@pytest.mark.parametrize("name", PRESETS)
def test_software_is_torch_and_triton_and_nothing_else(name):
    p = preset(name)
    assert [(x.name, x.version) for x in p.packages] == [("torch", "2.11.0"), ("triton", "3.6.0")]
    assert (p.features, p.flags, p.facts, p.driver_version) == ((), (), (), None)
    assert (p.python_version, p.can_jit, p.name) == ("3.12", True, name)
    assert p.cuda_version == (ABSENT if name == "cpu" else "13.0")


@pytest.mark.parametrize("typed", ["RTX_PRO 6000", "rtx-pro-6000", "RTX-Pro-6000"])
def test_names_as_people_type_them(typed):
    assert preset(typed).sm == 120


def test_an_unknown_name_is_answered_with_close_ones_and_all():
    with pytest.raises(ValueError, match="'h2000'") as caught:
        preset("h2000")
    message = str(caught.value)
    assert "did you mean h200" in message
    assert all(name in message for name in PRESETS)


def test_presets_are_distinct_and_cannot_be_changed():
    assert len({p.fingerprint for p in PRESETS.values()}) == len(PRESETS) == 14
    with pytest.raises(TypeError):
        PRESETS["mine"] = preset("cpu")


def test_fingerprints_do_not_depend_on_process_or_hash_seed():
    code = "from moe_core.environment import PRESETS; print(*(p.fingerprint for p in PRESETS.values()))"
    for seed in ("0", "1"):
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        )
        assert done.stdout.split() == [p.fingerprint for p in PRESETS.values()]
