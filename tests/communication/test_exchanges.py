"""Every pair is served once by the rank that holds its slot, whatever the routes; in one process, a thread per rank."""

import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from moe_core.communication import Dispatched, ExpertExchange, RankExchange, Wire
from moe_core.contract.deployment import MoEDeployment
from moe_core.execution import Binding, ParallelGroups
from moe_core.testing.numerics import assert_bitwise_equal
from moe_core.testing.problems import small_problem

WIDTH = 4
FORMS = pytest.mark.parametrize("fixed", [False, True])
EXCHANGES = pytest.mark.parametrize("exchange", [RankExchange, ExpertExchange])


class Mail:
    """What threads hand to each other."""

    def __init__(self, num_ranks):
        self.num_ranks, self.barrier = num_ranks, threading.Barrier(num_ranks, timeout=10)
        self.boxes = [None] * num_ranks

    def exchange(self, rank, parts):
        self.boxes[rank] = parts
        self.barrier.wait()
        received = [self.boxes[source][rank] for source in range(self.num_ranks)]
        self.barrier.wait()
        return received


class ThreadWire(Wire):
    """A wire between threads of one process."""

    def __init__(self, mail, rank):
        super().__init__(None)
        self.mail, self.rank = mail, rank

    @property
    def num_ranks(self):
        return self.mail.num_ranks

    def _counts(self, splits, device):
        return self.mail.exchange(self.rank, splits)

    def _exchange(self, rows, sent, received):
        sent = sent or [len(rows) // self.num_ranks] * self.num_ranks
        parts = self.mail.exchange(self.rank, torch.split(rows, sent))
        assert received is None or [len(part) for part in parts] == received
        return torch.cat(parts)


def binding_of(rank, num_ranks, num_slots):
    return Binding(
        SimpleNamespace(),
        small_problem(num_experts=num_slots, top_k=1, hidden_size=WIDTH),
        MoEDeployment(ep_size=num_ranks, dp_size=num_ranks),
        torch.device("cpu"),
        torch.float32,
        ParallelGroups(rank=rank, ep_rank=rank),
    )


def experts(rows, binding):
    """Slot s multiplies by s + 1. Rows of other slots are left out as a backend leaves them out, NaN and all."""
    slots, scales = rows.token_selected_slots, rows.token_final_scales
    is_own = (slots >= binding.slot_start) & (slots < binding.slot_end)
    factor = torch.where(is_own, scales * (slots + 1), 0.0).sum(dim=1, keepdim=True)
    return torch.where(is_own.any(dim=1, keepdim=True), rows.x * factor, 0.0)


def expected(rows, num_slots):
    slots = rows.token_selected_slots
    is_valid = (slots >= 0) & (slots < num_slots)
    factor = torch.where(is_valid, rows.token_final_scales * (slots + 1), 0.0).sum(dim=1, keepdim=True)
    return torch.where(is_valid.any(dim=1, keepdim=True), rows.x * factor, 0.0)


def answers(exchange, batches, num_slots, *, fixed, poison=False):
    """What each rank gets for its batch."""
    num_ranks = len(batches)
    mail, most = Mail(num_ranks), max(len(rows.x) for rows in batches)

    def on_a_rank(rank):
        binding = binding_of(rank, num_ranks, num_slots)
        made = exchange(ThreadWire(mail, rank), binding, fixed=fixed)
        received = made.dispatch(batches[rank], most)
        assert received.x.shape[0] <= made.max_rows(most)
        if poison:
            slots = received.token_selected_slots
            nobody = ((slots < binding.slot_start) | (slots >= binding.slot_end)).all(dim=1)
            received.x[nobody] = torch.nan
        y = experts(received, binding)
        if poison:
            y[nobody] = torch.nan
        return made.combine(y)

    with ThreadPoolExecutor(num_ranks) as pool:
        return list(pool.map(on_a_rank, range(num_ranks)))


def batch(slots, seed=0):
    """Whole numbers, so that sums in any order are exact."""
    slots = torch.as_tensor(slots, dtype=torch.int32)
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(-8, 8, (len(slots), WIDTH), generator=generator).float()
    scales = torch.randint(1, 5, slots.shape, generator=generator).float()
    return Dispatched(x, None, slots, scales)


@st.composite
def workloads(draw):
    num_ranks = draw(st.integers(1, 4))
    num_slots = draw(st.integers(num_ranks, 9))
    top_k = draw(st.integers(1, 4))
    ids = st.integers(-1, num_slots + 1)
    counts = draw(st.lists(st.integers(0, 5), min_size=num_ranks, max_size=num_ranks))
    return num_slots, [
        batch(
            torch.tensor(draw(st.lists(ids, min_size=count * top_k, max_size=count * top_k)), dtype=torch.int32).view(
                count, top_k
            ),
            seed=rank,
        )
        for rank, count in enumerate(counts)
    ]


@FORMS
@EXCHANGES
@settings(max_examples=60, deadline=None)
@given(workload=workloads())
def test_every_pair_is_served_once(exchange, fixed, workload):
    num_slots, batches = workload
    for rows, y in zip(batches, answers(exchange, batches, num_slots, fixed=fixed, poison=True), strict=True):
        assert_bitwise_equal(y, expected(rows, num_slots))


SKEWS = {
    "all tokens to one rank": [[[0, 1]] * 4, [[1, 0]] * 3],
    "every expert of a token on one rank": [[[0, 1], [4, 5]], [[2, 3]]],
    "a slot named twice": [[[3, 3], [0, 0]], [[5, 5]]],
    "nobody has rows but one": [[], [[0, 5]]],
    "ids that name nobody": [[[-1, -1], [6, 100]], [[-1, 2]]],
}


@FORMS
@EXCHANGES
@pytest.mark.parametrize("skew", SKEWS)
def test_skewed_routes(exchange, fixed, skew):
    batches = [
        batch(torch.tensor(slots, dtype=torch.int32).view(-1, 2), seed) for seed, slots in enumerate(SKEWS[skew])
    ]
    for rows, y in zip(batches, answers(exchange, batches, 6, fixed=fixed, poison=True), strict=True):
        assert_bitwise_equal(y, expected(rows, 6))


@FORMS
@EXCHANGES
def test_rows_and_scales_of_pairs_that_name_nobody_may_be_nan(exchange, fixed):
    rows = batch([[0, -1], [9, -1]])
    rows.token_final_scales[0, 1] = torch.nan
    rows.x[1], rows.token_final_scales[1] = torch.nan, torch.nan
    [y] = answers(exchange, [rows], 2, fixed=fixed)
    assert_bitwise_equal(y[0], rows.x[0] * rows.token_final_scales[0, 0])
    assert y[1].tolist() == [0.0] * WIDTH


@EXCHANGES
def test_weights_are_applied_once(exchange):
    rows = batch([[0, 1]])._replace(x=torch.ones(1, WIDTH), token_final_scales=torch.tensor([[2.0, 3.0]]))
    [y] = answers(exchange, [rows], 2, fixed=False)
    assert y.tolist() == [[2.0 * 1 + 3.0 * 2] * WIDTH]


@FORMS
def test_rows_by_expert_are_grouped_by_slot_with_scales_of_one(fixed):
    rows = batch([[0, 1], [1, 0], [1, 7]])
    made = ExpertExchange(Wire(None), binding_of(0, 1, 2), fixed=fixed)
    received = made.dispatch(rows, 4)
    assert received.token_selected_slots.tolist() == [[0]] * 2 + [[2]] * 2 + [[1]] * 3 + [[2]]
    assert_bitwise_equal(
        received.x, torch.stack([*rows.x[[0, 1]], *torch.zeros(2, WIDTH), *rows.x, torch.zeros(WIDTH)])
    )
    assert received.token_final_scales.tolist() == [[1.0]] * 8


@FORMS
@EXCHANGES
@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.uint8])
def test_quantized_rows_and_their_scales_travel_as_bytes(exchange, fixed, dtype):
    x, x_sf = torch.arange(3 * 6).view(3, 6).to(dtype), torch.tensor([[2], [4], [8]], dtype=torch.uint8)
    rows = Dispatched(x, x_sf, torch.tensor([[0], [-1], [1]], dtype=torch.int32), torch.ones(3, 1))
    received = exchange(Wire(None), binding_of(0, 1, 2), fixed=fixed).dispatch(rows, 3)
    slots = received.token_selected_slots.flatten()
    for slot, token in ((0, 0), (1, 2)):
        [at] = (slots == slot).nonzero()
        assert_bitwise_equal(received.x[at], x[[token]])
        assert_bitwise_equal(received.x_sf[at], x_sf[[token]])


def test_float32_sums_in_the_order_of_choice():
    # bfloat16 would lose the small ones one by one; another order of float32 would lose them together.
    rows = Dispatched(torch.ones(1, WIDTH), None, torch.tensor([[0, 1, 2]], dtype=torch.int32), torch.ones(1, 3))
    made = ExpertExchange(Wire(None), binding_of(0, 1, 3), fixed=False)
    made.dispatch(rows, 1)
    y = made.combine(torch.tensor([1.0, 2.0**-7, 2.0**-7]).bfloat16().unsqueeze(1).expand(3, WIDTH).contiguous())
    assert y[0, 0].item() == 1.0 + 2.0**-6
