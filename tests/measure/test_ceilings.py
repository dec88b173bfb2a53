"""Ceilings: on record for known devices, measured elsewhere."""

import torch

from moe_core.environment import preset
from moe_core.measure.ceilings import known_ceilings, measured_ceilings


def test_an_h200_is_on_record():
    found = known_ceilings(preset("h200"))
    assert (found.read_gb_s, found.bf16_tflop_s, found.fp8_tflop_s) == (4430, 790, 1368)
    assert known_ceilings(preset("h100")) is None
    assert known_ceilings(preset("cpu")) is None


def test_measured_ones_are_of_a_possible_machine():
    found = measured_ceilings(torch.device("cpu"))
    assert 0.1 < found.copy_gb_s <= found.read_gb_s < 10_000
    assert 1e-4 < found.bf16_tflop_s < 1000
    assert found.fp8_tflop_s is None
