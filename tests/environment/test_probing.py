"""The probe: light, never failing, and unknown where nobody can say."""

import subprocess
import sys
from types import SimpleNamespace

import pytest

from moe_core.contract.vocabulary import Device, LinkKind
from moe_core.environment import features, probe, torch_device


def run_python(code):
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_a_light_probe_imports_no_package():
    code = """
import sys
from moe_core.environment import preset, probe
probe(), preset("h200")
print({"torch", "triton", "numpy", "transformers"} & set(sys.modules))
"""
    assert run_python(code) == "set()"


def test_a_bare_machine_is_a_cpu(bare):
    found = probe()
    assert found.device is Device.CPU
    assert (found.name, found.sm, found.num_sms, found.devices_per_node) == ("cpu", 0, 0, 0)
    assert (found.shared_memory_per_block, found.link) == (0, LinkKind.NONE)
    assert (found.device_memory, found.driver_version) == (None, None)
    assert found.can_jit is False, "there is no compiler on this path"
    assert found.python_version == f"{sys.version_info.major}.{sys.version_info.minor}"
    assert found.package_version("torch") is not None
    assert found.features == ()


def test_two_probes_are_equal_to_the_byte(bare):
    assert probe().canonical_json() == probe().canonical_json()


def test_nvml_is_asked_first_and_nvidia_smi_when_it_has_no_answer(nvml, h200, command):
    command("nvidia-smi", "printf 'NVIDIA L40S, 8.9, 46068, 570.1, Disabled\\n'")
    assert probe().sm == 89
    nvml(h200())
    assert probe().sm == 90


def test_a_source_that_fails_is_logged_and_the_next_one_asked(nvml, h200, command, monkeypatch, caplog):
    fake = nvml(h200())
    monkeypatch.setattr(fake, "nvmlInit", lambda: (_ for _ in ()).throw(OSError("libnvidia-ml.so.1: wrong ELF class")))
    command("nvidia-smi", "printf 'NVIDIA L40S, 8.9, 46068, 570.1, Disabled\\n'")
    assert probe().sm == 89
    assert "OSError: libnvidia-ml.so.1: wrong ELF class" in caplog.text
    command("nvidia-smi", "exit 9")
    assert probe().device is Device.CPU
    assert "GPUs through nvidia-smi failed" in caplog.text


@pytest.mark.parametrize(("visible", "device"), [("", "cpu"), ("-1", "cpu"), (" -1,0", "cpu"), ("0", "cuda")])
def test_hidden_gpus_are_not_there(nvml, h200, monkeypatch, visible, device):
    nvml(h200())
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert probe().device == device


def test_a_gpu_that_nobody_describes_is_a_gpu_of_unknown_kind(bare, caplog):
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "null"):
        (bare / "dev" / name).touch()
    found = probe()
    assert (found.device, found.devices_per_node, found.sm, found.link) == (Device.CUDA, 2, None, None)
    assert "probe deep" in caplog.text


def test_a_deep_probe_fills_from_torch_what_nvml_leaves_open(nvml, h200, monkeypatch):
    nvml(h200(memory=None, cores=None))
    of_torch = {"device": Device.CUDA, "sm": 120, "num_sms": 132, "device_memory": 10, "shared_memory_per_block": 11}
    monkeypatch.setattr(torch_device, "read", lambda: of_torch)
    found = probe(deep=True)
    assert (found.sm, found.shared_memory_per_block) == (90, 232_448), "NVML's word goes first"
    assert (found.num_sms, found.device_memory) == (132, 10)


def test_a_deep_probe_looks_for_features_and_survives_a_failing_one(bare, monkeypatch, caplog):
    looks = {"torch.good": lambda: True, "torch.bad": lambda: 1 / 0, "absent_package.x": lambda: True}
    monkeypatch.setattr(features, "FEATURES", looks)
    assert [(f.name, f.present) for f in probe(deep=True).features] == [("torch.bad", False), ("torch.good", True)]
    assert "ZeroDivisionError" in caplog.text


def test_flags_plugin_facts_and_mentioned_names_are_frozen(bare, distribution, monkeypatch, caplog):
    distribution("their-kernels", "3.1")
    monkeypatch.setenv("TRTLLM_CAN_USE_DEEP_EP", "0")
    monkeypatch.setenv("THEIR_SWITCH", "on")
    found = probe(
        plugin_facts=[("hello", {"hello.ready": True, "bad": 1})],
        mentioned=["package:their_kernels", "flag:THEIR_SWITCH", "feature:torch.grouped_mm", "package:missing"],
    )
    assert found.package_version("their-kernels") == "3.1"
    assert found.package_version("missing") is None
    assert [(f.name, f.value) for f in found.flags] == [("THEIR_SWITCH", "on"), ("TRTLLM_CAN_USE_DEEP_EP", "0")]
    assert [(f.name, f.value) for f in found.facts] == [("hello.ready", True)]
    assert "moe_facts of hello: 'bad'" in caplog.text


def test_a_feature_that_is_mentioned_names_a_package_to_look_at(bare, distribution):
    distribution("their-kernels", "3.1")
    assert probe(mentioned=["feature:their_kernels.fast"]).package_version("their_kernels") == "3.1"


@pytest.mark.gpu
def test_this_gpu_as_torch_sees_it():
    import torch

    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    found, seen = probe(deep=True), torch.cuda.get_device_properties(0)
    assert found.sm == seen.major * 10 + seen.minor
    assert found.num_sms == seen.multi_processor_count
    assert found.shared_memory_per_block == seen.shared_memory_per_block_optin
    assert found.cuda_version == torch.version.cuda


def test_python_version_has_no_patch_level(bare, monkeypatch):
    monkeypatch.setattr(sys, "version_info", SimpleNamespace(major=3, minor=12, micro=4))
    assert probe().python_version == "3.12"
