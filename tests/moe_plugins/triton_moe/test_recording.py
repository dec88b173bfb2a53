"""Recorded launches find their tensors again, wherever the next call has them; kernels are played by C's memmove."""

import ctypes
from types import SimpleNamespace

import pytest
import torch

from moe_core.testing.numerics import assert_bitwise_equal
from moe_plugins.triton_moe import recording
from moe_plugins.triton_moe.launch import observer
from moe_plugins.triton_moe.recording import MOST, Recorder

ELEMENT = 4


@pytest.fixture(autouse=True)
def no_driver(monkeypatch):
    monkeypatch.setattr(recording, "driver", SimpleNamespace(active=SimpleNamespace(get_current_stream=lambda _: 0)))


def copy_kernel(grid, stream, values):
    target, source, count = values
    ctypes.memmove(target, source, count * ELEMENT)


def launch_copy(target, source, count):
    copy_kernel(None, 0, (target.data_ptr(), source.data_ptr(), count))
    if observer.get() is not None:
        observer.get().launched(copy_kernel, (1, 1, 1), (target, source, count))


class Layer:
    """Its output is x, a kept tensor, and the second element of y, by way of temporary memory."""

    def __init__(self):
        self.calls = 0
        self.kept = torch.full((2,), 7.0)

    def __call__(self, x, y):
        self.calls += 1
        memory = x.new_empty(64).split([4, 60])[1]
        out = x.new_empty(len(x) + 3)
        launch_copy(memory, x, len(x))
        launch_copy(memory[len(x) :], self.kept, 2)
        launch_copy(out, memory, len(x) + 2)
        launch_copy(out[len(x) + 2 :], y[1:], 1)
        return (out,)


def expected(layer, x, y):
    return torch.cat([x, layer.kept, y[1:2]])


def test_a_second_call_is_repeated_with_its_own_tensors():
    layer = Layer()
    recorder = Recorder(layer, [layer.kept])
    outputs = []
    for value in (1.0, 2.0, 3.0):
        x, y = torch.full((3,), value), torch.tensor([0.0, -value])
        (out,) = recorder(3, x, y)
        assert_bitwise_equal(out, expected(layer, x, y))
        outputs.append(out)
    assert layer.calls == 1
    assert len({out.data_ptr() for out in outputs}) == 3
    layer.kept.fill_(8.0)
    assert recorder(3, x, y)[0][3] == 8.0, "a kept tensor is read where it is"


def test_each_key_has_its_own_recording():
    layer = Layer()
    recorder = Recorder(layer, [layer.kept])
    for count in (3, 4, 3, 4):
        x, y = torch.ones(count), torch.ones(2)
        assert_bitwise_equal(recorder(count, x, y)[0], expected(layer, x, y))
    assert layer.calls == 2


def test_alignment_is_part_of_the_key():
    layer = Layer()
    recorder = Recorder(layer, [layer.kept])
    y = torch.ones(2)
    for x in (torch.ones(3), torch.arange(4.0)[1:], torch.zeros(3), torch.arange(8.0)[5:]):
        assert_bitwise_equal(recorder(3, x, y)[0], expected(layer, x, y))
    assert layer.calls == 2


def test_what_does_more_than_launch_is_called_each_time():
    layer = Layer()

    def scaled(x, y):
        return layer(x * 2, y)

    recorder = Recorder(scaled, [layer.kept])
    for value in (1.0, 2.0):
        x, y = torch.full((3,), value), torch.ones(2)
        assert_bitwise_equal(recorder(3, x, y)[0], expected(layer, x * 2, y))
    assert layer.calls == 2


ALLOCATIONS = {
    "like": torch.empty_like,
    "new": lambda x: x.new_empty(x.shape),
    "empty": lambda x: torch.empty(x.shape),
    "strided": lambda x: torch.empty_strided(x.shape, x.stride()),
    "unbound": lambda x: torch.empty(2, len(x)).unbind()[1],
    "split": lambda x: torch.empty(len(x) + 1).split([1, len(x)])[1].view(-1)[:],
}


@pytest.mark.parametrize("allocate", ALLOCATIONS.values(), ids=ALLOCATIONS)
def test_every_way_to_allocate_is_recorded(allocate):
    calls = []

    def function(x):
        calls.append(x)
        memory, out = allocate(x), torch.empty_like(x)
        launch_copy(memory, x, len(x))
        launch_copy(out, memory, len(x))
        return (out,)

    recorder = Recorder(function)
    for value in (1.0, 2.0):
        assert recorder(3, torch.full((3,), value))[0].tolist() == [value] * 3
    assert len(calls) == 1


@pytest.mark.parametrize("odd", ["a descriptor", "no runner"])
def test_what_cannot_be_repeated_is_called_each_time(odd):
    calls = []

    def function(x):
        calls.append(x)
        out = torch.empty(1)
        launch_copy(out, x, 1)
        if observer.get() is not None:
            described = SimpleNamespace(block_shape=[1])
            observer.get().launched(*((copy_kernel, (1,), (described,)) if odd == "a descriptor" else (None, (1,), ())))
        return (out,)

    recorder = Recorder(function)
    assert [recorder(1, torch.tensor([v]))[0].item() for v in (1.0, 2.0)] == [1.0, 2.0]
    assert len(calls) == 2


def test_a_failed_call_leaves_nobody_watching():
    def broken(x):
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        Recorder(broken)(1, torch.ones(1))
    assert observer.get() is None


def test_recordings_do_not_pile_up():
    layer = Layer()
    recorder = Recorder(layer, [layer.kept])
    for key in range(MOST + 5):
        recorder(key, torch.ones(2), torch.ones(2))
    assert len(recorder._recordings) == MOST


class Descriptor:
    """Of a matrix, as Triton has them."""

    block_shape, padding = (1, 1), "zero"

    def __init__(self, base):
        self.base, self.shape, self.strides = base, list(base.shape), list(base.stride())


def copy_described(grid, stream, values):
    target, source = values
    count = source.shape[0] * source.shape[1]
    assert (source.strides, source.padding) == ([source.shape[1], 1], "zero")
    ctypes.memmove(target.base.data_ptr(), source.base.data_ptr(), count * ELEMENT)


@pytest.mark.parametrize("taken", [True, False])
def test_descriptors_are_moved_where_the_launcher_takes_stand_ins(monkeypatch, taken):
    monkeypatch.setattr(recording, "takes_stand_ins", lambda: taken)
    kept, calls = torch.full((2, 2), 7.0), []

    def function(x):
        calls.append(x)
        memory, out = torch.empty_like(x), x.new_empty(2 * len(x), 2)
        for target, source in ((memory, x), (out[: len(x)], memory), (out[len(x) :], kept)):
            pair = Descriptor(target), Descriptor(source)
            copy_described(None, 0, pair)
            if observer.get() is not None:
                observer.get().launched(copy_described, (1, 1, 1), pair)
        return (out,)

    recorder = Recorder(function, [kept])
    for value in (1.0, 2.0, 3.0):
        x = torch.full((2, 2), value)
        assert_bitwise_equal(recorder(2, x)[0], torch.cat([x, kept]))
    assert len(calls) == (1 if taken else 3)
