"""torch as a source of device facts, with a torch of our own making."""

import sys
from types import SimpleNamespace

import pytest

from moe_core.environment import torch_device

GB10 = SimpleNamespace(
    name="NVIDIA GB10",
    major=12,
    minor=1,
    multi_processor_count=48,
    total_memory=130_663_000_000,
    shared_memory_per_block_optin=101_376,
)


def a_torch(cuda="13.0", available=True):
    return SimpleNamespace(
        version=SimpleNamespace(cuda=cuda),
        cuda=SimpleNamespace(
            is_available=lambda: available, current_device=lambda: 0, get_device_properties=lambda index: GB10
        ),
    )


def test_the_gpu_of_this_process_but_nothing_of_its_node(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", a_torch())
    assert dict(torch_device.read()) == {
        "name": "NVIDIA GB10",
        "device": "cuda",
        "device_name": "NVIDIA GB10",
        "sm": 121,
        "num_sms": 48,
        "device_memory": 130_663_000_000,
        "shared_memory_per_block": 101_376,
    }


@pytest.mark.parametrize("torch", [None, a_torch(available=False), a_torch(cuda=None)])
def test_no_torch_no_gpu_and_another_makers_gpu_say_nothing(monkeypatch, torch):
    monkeypatch.setitem(sys.modules, "torch", torch)
    assert torch_device.read() == {}
