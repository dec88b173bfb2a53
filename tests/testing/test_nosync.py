"""The trap catches what makes the host wait, and lets pass what the device does by itself."""

import numpy as np
import pytest
import torch
from torch.nn.functional import grouped_mm, one_hot

from moe_core.testing.nosync import HostSyncError, no_host_sync

x, ids = torch.randn(6, 4), torch.arange(6)
mask, elsewhere = x > 0, torch.empty(6, 4, device="meta")
some = x[mask]

WAITS = {
    "aten._local_scalar_dense": [
        x[0, 0].item,
        lambda: bool(mask[0, 0]),
        lambda: int(ids[0]),
        lambda: float(x[0, 0]),
        lambda: range(ids[1]),
        lambda: x[: ids[2]],
        lambda: torch.arange(ids[3]),
        lambda: "yes" if mask.any() else "no",
    ],
    "aten.nonzero": [mask.nonzero, lambda: torch.where(mask)],
    "aten.index": [lambda: x[mask]],
    "aten.index_put_": [lambda: torch.empty(6, 4).__setitem__(mask, some)],
    "aten.masked_select": [lambda: x.masked_select(mask)],
    "aten._unique2": [lambda: torch.unique(ids)],
    "aten.bincount": [lambda: torch.bincount(ids)],
    "aten.repeat_interleave": [lambda: x.repeat_interleave(ids, dim=0)],
    "aten.equal": [lambda: x.equal(x)],
    "aten._to_copy": [lambda: elsewhere.to("cpu"), lambda: elsewhere.to(device="cpu", dtype=torch.float64)],
    "aten.copy_": [lambda: torch.empty(6, 4).copy_(elsewhere)],
    "Tensor.tolist": [ids.tolist],
    "Tensor.cpu": [x.cpu],
    "Tensor.numpy": [x.numpy],
    "Tensor.__array__": [lambda: np.asarray(x)],
}
PASSES = {
    "index by ids": lambda: x[ids],
    "index by a slice": lambda: x[2:4],
    "put by ids": lambda: torch.empty(6, 4).__setitem__(ids, x),
    "fill by a mask": lambda: x.clone().__setitem__(mask, 0.0),
    "sort": lambda: torch.sort(x, dim=-1, stable=True),
    "search": lambda: torch.searchsorted(ids, ids),
    "where": lambda: torch.where(mask, x, 0.0),
    "cast": lambda: x.to(torch.bfloat16),
    "copy": lambda: torch.empty(6, 4).copy_(x),
    "copy up": lambda: elsewhere.copy_(x),
    "grouped_mm": lambda: grouped_mm(torch.ones(8, 8), torch.ones(2, 8, 8), offs=torch.tensor([3, 8]).int()),
}


@pytest.mark.parametrize("name", WAITS)
def test_what_makes_the_host_wait_is_named(name):
    for call in WAITS[name]:
        with pytest.raises(HostSyncError, match=rf"the host waits for the device: {name}\b"), no_host_sync():
            call()


@pytest.mark.parametrize("name", PASSES)
def test_what_the_device_does_by_itself_passes(name):
    with no_host_sync():
        PASSES[name]()


def test_outside_of_the_block_nothing_is_trapped():
    with pytest.raises(HostSyncError), no_host_sync():
        one_hot(ids)
    assert x[0, 0].item() == x[0, 0]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_what_an_operator_does_inside_is_seen_on_cuda():
    rows = torch.ones(8, 8, device="cuda")
    with no_host_sync():
        rows + rows
    with pytest.raises(RuntimeError, match="synchronizing CUDA operation"), no_host_sync():
        x.to("cuda")
    assert rows.sum().item() == 64
