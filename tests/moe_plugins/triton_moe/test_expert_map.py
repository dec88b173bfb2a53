"""The map puts every pair of a local expert into a row of its own, in order, and lists all tiles."""

import pytest
import torch

from moe_core.testing.numerics import assert_bitwise_equal
from moe_plugins.triton_moe import expert_map
from moe_plugins.triton_moe.expert_map import map_bounds, map_experts

DEVICES = [
    "cpu" if not torch.cuda.is_available() else "cuda",
]
FORMS = {
    "alone": {"ALONE_PAIRS": 1 << 30},
    "compared": {"ALONE_PAIRS": 0},
    "sorted": {"ALONE_PAIRS": 0, "SMALL_PAIRS": 0},
    "sorted in small blocks": {"ALONE_PAIRS": 0, "SMALL_PAIRS": 0, "LARGE_BLOCK": 16},
}


def assert_maps(ids, slot_start, num_local, tile, align):
    found = map_experts(ids, slot_start, num_local, tile=tile, align=align)
    assert (found.max_rows, found.max_tiles) == map_bounds(ids.numel(), num_local, tile, align)
    slots = torch.where(ids.flatten() < 0, -1, ids.flatten() - slot_start).cpu()
    next_row, tiles = 0, []
    row_of_pair = torch.full_like(slots, -1)
    for expert in range(num_local):
        pairs = (slots == expert).nonzero().flatten()
        count, aligned = len(pairs), -(-len(pairs) // align) * align
        assert (int(found.counts[expert]), int(found.offsets[expert])) == (count, next_row)
        rows = torch.arange(next_row, next_row + count)
        assert_bitwise_equal(found.pair_of_row[rows].cpu().long(), pairs)
        assert (found.pair_of_row[next_row + count : next_row + aligned] == -1).all()
        row_of_pair[pairs] = rows.int()
        height = tile
        if align > 1 and tile % align == 0 and count:  # shared evenly among as few as can be
            height = -(-aligned // align // -(-count // tile)) * align
        tiles += [(expert, next_row + i, min(count - i, height)) for i in range(0, count, height)]
        next_row += aligned
    assert_bitwise_equal(found.row_of_pair.cpu(), row_of_pair)
    assert int(found.num_tiles) == len(tiles) <= found.max_tiles
    assert found.turns.tolist() == [0, 0]
    listed = torch.stack([found.tile_expert, found.tile_row, found.tile_rows], dim=1)[: len(tiles)]
    assert [tuple(entry) for entry in listed.tolist()] == tiles


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("tile", "align"), [(16, 1), (128, 64), (64, 64), (48, 16), (40, 16)])
@pytest.mark.parametrize(
    ("num_tokens", "top_k", "num_experts", "slot_start", "num_local"),
    [(1, 1, 3, 0, 3), (5, 3, 9, 2, 4), (64, 2, 40, 0, 40), (70, 6, 7, 6, 1)],
)
def test_pairs_rows_and_tiles(
    monkeypatch, device, form, tile, align, num_tokens, top_k, num_experts, slot_start, num_local
):
    for name, value in FORMS[form].items():
        monkeypatch.setattr(expert_map, name, value)
    generator = torch.Generator().manual_seed(num_tokens)
    ids = torch.randint(-1, num_experts, (num_tokens, top_k), generator=generator).int().to(device)
    assert_maps(ids, slot_start, num_local, tile, align)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("expert", [-1, 2, 7])
def test_all_pairs_alike(monkeypatch, device, form, expert):
    for name, value in FORMS[form].items():
        monkeypatch.setattr(expert_map, name, value)
    assert_maps(torch.full((33, 4), expert, dtype=torch.int32, device=device), 0, 5, 16, 64)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("num_experts", [8, 128, 512])
@pytest.mark.parametrize("num_tokens", [1, 64, 65, 513, 1024, 5000])
def test_real_sizes(num_tokens, num_experts):
    ids = torch.rand(num_tokens, num_experts, device="cuda").argsort(1)[:, :8].int().contiguous()
    assert_maps(ids, 0, num_experts, 128, 64)
