"""Routing on tiles: BT tokens a program, a row of scores in the registers of a warp or a few.

Shapes: BT tokens, E experts in G groups of S, padded to powers of two where they are none; KP is K so padded.
"""

# Kernels are functions of tiles, for which Python has no types; their names are those of the formulas.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# ruff: noqa: ANN001, ANN201, ANN202

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait, libdevice


@triton.jit
def _exp(x, LIBDEVICE: tl.constexpr):
    # torch's own function, to the bit: one unit in the last place can change a choice. The interpreter lacks it.
    return libdevice.exp(x) if LIBDEVICE else tl.exp(x)


@triton.jit
def _log1p(x, LIBDEVICE: tl.constexpr):
    if LIBDEVICE:
        out = libdevice.log1p(x)
    else:
        # What rounding took from 1 + x is a factor of both logarithms.
        above = 1.0 + x
        out = tl.where(above == 1.0, x, tl.log(above) * (x / tl.where(above == 1.0, 1.0, above - 1.0)))
    return out


@triton.jit
def _score(x, SCORE: tl.constexpr, LIBDEVICE: tl.constexpr):
    """Score of float32 logits, each by itself."""
    if SCORE == "sigmoid":
        out = tl.div_rn(tl.full(x.shape, 1.0, tl.float32), 1.0 + _exp(-x, LIBDEVICE))
    else:
        tl.static_assert(SCORE == "sqrt_softplus", "a score that the kernels do not know")
        # torch's softplus is the identity above 20.
        out = tl.sqrt_rn(tl.where(x > 20.0, x, _log1p(_exp(tl.minimum(x, 20.0), LIBDEVICE), LIBDEVICE)))
    return out


@triton.jit
def _order(x, bits, MAGNITUDE: tl.constexpr):
    """Sign and magnitude as two's complement: an integer that rises with `x`, NaN above all, and one for both zeros."""
    return tl.where(x != x, MAGNITUDE, tl.where(bits < 0, -(bits & MAGNITUDE), bits))


@triton.jit
def _key(x):
    """int32 keys that rise with float32 `x`; none is `USED`."""
    return _order(x, x.to(tl.int32, bitcast=True), 0x7FFFFFFF)


@triton.jit
def _packed_key(x, i):
    """int32 keys that rise with 16-bit floats `x`, and among equals fall with the index `i`; none is `USED`."""
    order = _order(x.to(tl.float32), x.to(tl.int16, bitcast=True).to(tl.int32), 0x7FFF)
    return (order << 16) | (0xFFFF - i)


@triton.jit
def _take_best(key, i, N: tl.constexpr, NP: tl.constexpr, PACKED: tl.constexpr, USED: tl.constexpr):
    """Indices `i` of the `N` largest keys of each row, largest first and of equals the lower, with `key` less those.

    A pass a pick over 32-bit integers, which a warp reduces in one instruction: a sorting network is several times as
    long, and needs 64 bits for keys that do not hold their index.
    """
    place = tl.arange(0, NP)[None, :]
    taken = tl.zeros([key.shape[0], NP], tl.int32)
    for step in range(N):
        best = tl.max(key, 1, keep_dims=True)
        if PACKED:
            at = 0xFFFF - (best & 0xFFFF)
            key = tl.where(key == best, USED, key)
        else:
            at = tl.min(tl.where(key == best, i, 0xFFFF), 1, keep_dims=True)
            key = tl.where(i == at, USED, key)
        taken = tl.where(place == step, at, taken)
    return taken, key


@triton.jit
def _keep_best_groups(
    key, ranking, exists, G: tl.constexpr, S: tl.constexpr, KEPT: tl.constexpr, TOP2: tl.constexpr,
    BT: tl.constexpr, GP: tl.constexpr, SP: tl.constexpr, USED: tl.constexpr,
):  # fmt: skip
    """`key` ``[BT, GP * SP]`` with all but the `KEPT` best groups as if they ranked at minus infinity."""
    grouped = tl.reshape(tl.where(exists, ranking, float("-inf")), [BT, GP, SP])
    score = tl.sum(tl.topk(grouped, 2), 2) if TOP2 and S > 1 else tl.max(grouped, 2)
    g = tl.arange(0, GP)[None, :]
    _, left = _take_best(tl.where(g < G, _key(score), USED), g, KEPT, 1, False, USED)
    kept = tl.broadcast_to((left == USED)[:, :, None], [BT, GP, SP])
    return tl.where(tl.reshape(kept, [BT, GP * SP]), key, _key(tl.full(key.shape, float("-inf"), tl.float32)))


@triton.jit(do_not_specialize=["T"])
def choose_and_weigh(
    logits, bias, input_ids, table, ids, weights, T,
    E: tl.constexpr, K: tl.constexpr, G: tl.constexpr, KEPT: tl.constexpr, TOP2: tl.constexpr, SCORE: tl.constexpr,
    HAS_BIAS: tl.constexpr, HASHED: tl.constexpr, RENORMALIZE: tl.constexpr, SCALE: tl.constexpr, EPS: tl.constexpr,
    NARROW: tl.constexpr, KP: tl.constexpr, GP: tl.constexpr, SP: tl.constexpr,
    BT: tl.constexpr, PDL: tl.constexpr, LIBDEVICE: tl.constexpr,
):  # fmt: skip
    """Score, choose, weigh."""
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    S: tl.constexpr = E // G
    USED: tl.constexpr = -0x80000000
    BY_LOGIT: tl.constexpr = G == 1 and not HAS_BIAS and not HASHED
    # Shares of the chosen are shares of all, divided by their sum: the sum over all is needed for nothing else.
    SHARES_OF_ALL: tl.constexpr = SCORE == "softmax" and not (BY_LOGIT and RENORMALIZE)
    t = tl.program_id(0).to(tl.int64) * BT + tl.arange(0, BT)
    k = tl.arange(0, KP)[None, :]
    row, row_logits = (t < T)[:, None], logits + t[:, None] * E
    if SHARES_OF_ALL or not HASHED:
        i = tl.arange(0, GP * SP)[None, :]
        e, exists = i // SP * S + i % SP, (i // SP < G) & (i % SP < S)
        narrow = tl.load(row_logits + e, mask=row & exists, other=0.0)
        x = tl.where(exists, narrow.to(tl.float32), float("-inf"))
    if SHARES_OF_ALL:
        highest = tl.max(x, 1)[:, None]
        powers = _exp(x - highest, LIBDEVICE)
        total = tl.sum(powers, 1)[:, None]
    if HASHED:
        token = tl.load(input_ids + t, mask=t < T, other=0).to(tl.int64)
        chosen = tl.load(table + token[:, None] * K + k, mask=row & (k < K), other=0).to(tl.int32)
    else:
        PACKED: tl.constexpr = BY_LOGIT and NARROW
        if PACKED:
            key = _packed_key(narrow, e)
        else:
            if BY_LOGIT:
                ranking = x
            elif SCORE == "softmax":
                ranking = tl.div_rn(powers, tl.broadcast_to(total, powers.shape))
            else:
                ranking = _score(x, SCORE, LIBDEVICE)
            if HAS_BIAS:
                ranking += tl.load(bias + e, mask=exists, other=0.0)
            key = _key(ranking)
            if G > 1:
                key = _keep_best_groups(key, ranking, exists, G, S, KEPT, TOP2, BT, GP, SP, USED)
        chosen, _ = _take_best(tl.where(exists, key, USED), e, K, KP, PACKED, USED)
    own = row & (k < K)
    # In one dimension a lane loads one element; in two, Triton gives each lane a whole row.
    flat = tl.load(tl.reshape(row_logits + chosen, [BT * KP]), mask=tl.reshape(own, [BT * KP]), other=0.0)
    c = tl.reshape(flat, [BT, KP]).to(tl.float32)
    if SHARES_OF_ALL:
        w = tl.div_rn(_exp(c - highest, LIBDEVICE), tl.broadcast_to(total, c.shape))
    elif SCORE == "softmax":
        w = _exp(c - tl.max(tl.where(k < K, c, float("-inf")), 1)[:, None], LIBDEVICE)
    else:
        w = _score(c, SCORE, LIBDEVICE)
    if RENORMALIZE:
        w = tl.where(k < K, w, 0.0)
        w = tl.div_rn(w, tl.broadcast_to(tl.sum(w, 1)[:, None] + EPS, w.shape))
    out = t[:, None] * K + k
    tl.store(ids + out, chosen, mask=own)
    tl.store(weights + out, w * SCALE, mask=own)


@triton.jit(do_not_specialize=["T"])
def mix_sparsely(
    logits, ids, weights, T,
    E: tl.constexpr, K: tl.constexpr, SCALE: tl.constexpr, REACH: tl.constexpr, KP: tl.constexpr, EP: tl.constexpr,
    BT: tl.constexpr, PDL: tl.constexpr, LIBDEVICE: tl.constexpr,
):  # fmt: skip
    """Pick the best, weigh it among the rivals within `REACH`, remove it, repeat."""
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    t = tl.program_id(0).to(tl.int64) * BT + tl.arange(0, BT)
    e, k = tl.arange(0, EP)[None, :], tl.arange(0, KP)[None, :]
    row = (t < T)[:, None]
    x = tl.load(logits + t[:, None] * E + e, mask=row & (e < E), other=0.0).to(tl.float32)
    left = tl.where(e < E, x, float("-inf"))
    chosen, w = tl.zeros([BT, KP], tl.int32), tl.zeros([BT, KP], tl.float32)
    for step in range(K):
        best, at = tl.max(left, 1, return_indices=True, return_indices_tie_break_left=True, keep_dims=True)
        # The best rivals itself, and who is not there nobody: without 0 / 0 and infinity / infinity.
        size = tl.where((left < best) & (left > float("-inf")), tl.maximum(tl.abs(x), best), 1.0)
        distance = tl.div_rn(best - left, size)
        rivals = tl.sum(tl.where(distance > REACH, 0.0, _exp(left - best, LIBDEVICE)), 1, keep_dims=True)
        chosen = tl.where(k == step, at, chosen)
        w = tl.where(k == step, SCALE / rivals, w)
        left = tl.where(e == at, float("-inf"), left)
    out = t[:, None] * K + k
    tl.store(ids + out, chosen, mask=row & (k < K))
    tl.store(weights + out, w, mask=row & (k < K))
