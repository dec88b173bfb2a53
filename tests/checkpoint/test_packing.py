"""Words and bytes of known checkpoints, by hand: hexadecimal digits are codes, the lowest first on the right."""

import torch

from moe_core.checkpoint import packing
from moe_core.quantization import unpack


def word(digits):
    value = int(digits, 16)
    return value - 2**32 if value >= 2**31 else value


def ints(*digits):
    return torch.tensor([[word(d)] for d in digits], dtype=torch.int32)


def test_words_along_columns():
    assert unpack(packing.as_bytes(ints("fedcba98"))).tolist() == [[8, 9, 10, 11, 12, 13, 14, 15]]


def test_words_along_rows():
    assert packing.words_along_rows(ints("fedcba98", "76543210")).flatten().tolist() == [*range(8, 16), *range(8)]


def test_awq_has_even_elements_in_the_low_half():
    assert packing.awq_zeros(ints("75316420")).flatten().tolist() == list(range(8))


def test_gptq_holds_one_less_than_the_zero_point():
    assert packing.gptq_zeros(ints("f7777777")).flatten().tolist() == [8, 8, 8, 8, 8, 8, 8, 0]


def test_signed_pairs_are_shifted_by_eight():
    pairs = torch.tensor([[0x7F, 0x80]], dtype=torch.uint8)
    assert unpack(packing.signed_pairs(pairs)).tolist() == [[7, 15, 8, 0]]
    assert unpack(packing.signed_pairs_along_rows(pairs)).tolist() == [[7, 8], [15, 0]]


def test_transposed_words_of_one_column_are_bytes_too():
    transposed = ints("fedcba98", "76543210").T.contiguous().T
    assert packing.as_bytes(transposed).shape == (2, 4)


def test_scales_become_multipliers():
    assert packing.reciprocal(torch.tensor([4.0])).item() == 0.25
    assert packing.as_float(torch.tensor([130], dtype=torch.uint8).view(torch.float8_e8m0fnu)).tolist() == [8.0]
    assert packing.as_powers(torch.tensor([126], dtype=torch.uint8)).float().item() == 0.5
