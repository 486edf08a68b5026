# mypy: ignore-errors
"""Triton kernels for what carrying mass costs beside the pooling itself, and for heads of odd width.

Kernel language, see `triton_language`.
"""

from __future__ import annotations

import triton
import triton.language as tl

NOWHERE = tl.constexpr(2**31 - 1)  # no token has this number


# Numbers that change from layer to layer are no part of what is compiled, see `triton_select`.
@triton.jit(do_not_specialize=["places_window", "places_step", "count", "r"])
def follow_kernel(
    places, places_window, places_step, source, target, out, count, r, BLOCK_T: tl.constexpr, BLOCK_S: tl.constexpr
):  # fmt: skip
    """Where original tokens `BLOCK_T i` to `BLOCK_T (i + 1)` of one window stand after another pooling; -1 stays -1."""
    window = tl.program_id(0).to(tl.int64)
    source += window * r
    target += window * r
    token = tl.program_id(1) * BLOCK_T + tl.arange(0, BLOCK_T)
    inside = token < count
    at = window * places_window + token.to(tl.int64) * places_step
    place = tl.load(places + at, mask=inside, other=-1).to(tl.int32)
    some = tl.arange(0, BLOCK_S)
    way = tl.zeros((BLOCK_T,), tl.int32)
    for start in range(0, r, BLOCK_S):
        real = start + some < r
        left = tl.load(source + start + some, mask=real, other=NOWHERE).to(tl.int32)
        joined = tl.load(target + start + some, mask=real, other=0).to(tl.int32)
        way += tl.sum(tl.where(place[:, None] == left[None, :], (joined - left)[None, :], 0), axis=1)
    place += way
    below = tl.zeros((BLOCK_T,), tl.int32)
    for start in range(0, r, BLOCK_S):
        left = tl.load(source + start + some, mask=start + some < r, other=NOWHERE).to(tl.int32)
        below += tl.sum((left[None, :] < place[:, None]).to(tl.int32), axis=1)
    tl.store(out + window * count + token, (place - below).to(tl.int64), mask=inside)


@triton.jit
def head_of(
    values, window, head, window_distance, head_distance, token, column, real, STEP: tl.constexpr, ALIGN: tl.constexpr,
    OTHER: tl.constexpr,
):  # fmt: skip
    """Some features of some tokens of one head, OTHER where they are not real."""
    base = values + (window * window_distance + head.to(tl.int64) * head_distance) * ALIGN
    return tl.load(base + token * STEP + column, mask=real, other=OTHER)


_DISTANCES = ["q_window", "q_head", "k_window", "k_head", "v_window", "v_head"]


@triton.jit(do_not_specialize=[*_DISTANCES, "tokens"])
def widen_kernel(
    q, q_window, q_head, k, k_window, k_head, v, v_window, v_head, bias, q_out, k_out, v_out, scale, tokens,
    Q_STEP: tl.constexpr, Q_ALIGN: tl.constexpr, K_STEP: tl.constexpr, K_ALIGN: tl.constexpr, V_STEP: tl.constexpr,
    V_ALIGN: tl.constexpr, HEADS: tl.constexpr, WIDTH: tl.constexpr, WIDER: tl.constexpr, BLOCK: tl.constexpr,
    BIASED: tl.constexpr,
):  # fmt: skip
    """[q, 1, 1, ...], [k, bias / scale, 0, ...] and [v, 0, 0, ...]: BLOCK elements of each, of one head.

    Not BIASED: all three with zeros.
    """
    window = tl.program_id(0).to(tl.int64)
    size = tokens * WIDER
    blocks = tl.cdiv(size, BLOCK)
    head = tl.program_id(1) // blocks
    at = tl.program_id(1) % blocks * BLOCK + tl.arange(0, BLOCK)
    token = at // WIDER
    column = at % WIDER
    inside = at < size
    real = inside & (column < WIDTH)
    there = (window * HEADS + head) * size + at
    values = head_of(q, window, head, q_window, q_head, token, column, real, Q_STEP, Q_ALIGN, 1.0 if BIASED else 0.0)
    tl.store(q_out + there, values, mask=inside)
    values = head_of(v, window, head, v_window, v_head, token, column, real, V_STEP, V_ALIGN, 0.0)
    tl.store(v_out + there, values, mask=inside)
    values = head_of(k, window, head, k_window, k_head, token, column, real, K_STEP, K_ALIGN, 0.0)
    if BIASED:
        here = column == WIDTH
        more = tl.load(bias + window * tokens + token, mask=inside & here, other=0.0)
        more = tl.div_rn(more, tl.full((BLOCK,), 1.0, tl.float32) * scale).to(k_out.dtype.element_ty)
        values = tl.where(here, more, values)
    tl.store(k_out + there, values, mask=inside)
