"""NVML: what it says is taken, what it cannot say is unknown."""

import logging
import sys
from itertools import combinations
from types import SimpleNamespace

import pytest

from moe_core.contract.vocabulary import Device, LinkKind
from moe_core.environment import nvml as source
from moe_core.environment.presets import preset


def test_an_h200_node_is_the_preset(nvml, h200):
    fake = nvml(*[h200() for _ in range(8)], bridged=set(combinations(range(8), 2)))
    found = source.read()
    same = ("device", "device_name", "sm", "num_sms", "device_memory", "shared_memory_per_block", "link")
    assert {f: found[f] for f in same} == {f: getattr(preset("h200"), f) for f in same}
    assert (found["devices_per_node"], found["driver_version"]) == (8, "580.159.04")
    assert fake.running == 0, "NVML was left running"


@pytest.mark.parametrize(
    ("bridged", "link"),
    [
        ({(0, 1), (0, 2), (1, 2)}, LinkKind.NVLINK),
        ({(0, 1)}, LinkKind.NVLINK_SPLIT),
        (set(), LinkKind.PCIE),
    ],
)
def test_the_link_is_what_joins_every_pair(nvml, h200, bridged, link):
    nvml(h200(), h200(), h200(), bridged=bridged)
    assert source.read()["link"] is link


def test_a_link_that_nvml_cannot_tell_is_unknown_and_a_single_gpu_has_none(nvml, h200):
    nvml(h200(), h200())
    assert "link" not in source.read()
    nvml(h200())
    assert source.read()["link"] is LinkKind.NONE


@pytest.mark.parametrize(
    ("unanswered", "unknown"),
    [
        ({"memory": None}, {"device_memory"}),  # GB10 shares its memory with the host, and NVML declines
        ({"cores": None}, {"num_sms"}),
        ({"capability": None}, {"sm", "num_sms", "shared_memory_per_block"}),
        ({"capability": (10, 7)}, {"num_sms", "shared_memory_per_block"}),  # in no table of ours yet
        ({"mig": [1, 1]}, {"device_memory", "num_sms"}),  # a process gets a slice
        ({"mig": None}, set()),
    ],
)
def test_what_nvml_cannot_say_is_left_out(nvml, h200, unanswered, unknown):
    nvml(h200())
    whole = set(source.read())
    nvml(h200(**unanswered))
    assert whole - set(source.read()) == unknown


def test_mixed_gpus_are_unknown_where_they_differ_and_memory_is_the_least(nvml, h200, caplog):
    nvml(h200(), h200(name="NVIDIA A100-SXM4-80GB", capability=(8, 0), memory=85_899_345_920, cores=6_912))
    found = source.read()
    assert not {"name", "sm", "num_sms", "shared_memory_per_block"} & set(found)
    assert found["device_memory"] == 85_899_345_920
    assert "differ in compute capability (80, 90)" in caplog.text


def test_bytes_from_an_old_binding_are_text(nvml, h200):
    nvml(h200(name=b"NVIDIA H200"), driver=b"470.82.01")
    found = source.read()
    assert (found["device_name"], found["driver_version"]) == ("NVIDIA H200", "470.82.01")


def test_a_binding_that_lacks_a_function_costs_one_fact(nvml, h200, monkeypatch):
    fake = nvml(h200())
    monkeypatch.delattr(type(fake), "nvmlDeviceGetNumGpuCores")
    found = source.read()
    assert "num_sms" not in found
    assert found["sm"] == 90


def test_no_binding_no_driver_and_no_gpu_say_nothing(nvml, h200, monkeypatch, caplog):
    caplog.set_level(logging.INFO)
    nvml()
    assert source.read() == {}
    fake = nvml(h200())
    monkeypatch.setattr(fake, "nvmlInit", lambda: (_ for _ in ()).throw(fake.NVMLError("Driver Not Loaded")))
    assert source.read() == {}
    assert "Driver Not Loaded" in caplog.text
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert source.read() == {}


def test_nvml_is_shut_down_when_a_question_fails(nvml, h200):
    fake = nvml(h200())
    fake.nvmlDeviceGetCudaComputeCapability = lambda handle: SimpleNamespace()
    with pytest.raises(TypeError):
        source.read()
    assert fake.running == 0


def test_a_gpu_is_a_cuda_device(nvml, h200):
    nvml(h200())
    assert source.read()["device"] is Device.CUDA
