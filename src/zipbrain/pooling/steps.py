"""The paper's four steps as pure functions: pivots, redundancy, matching (merging is in `merges`).

All of them work on the N unprotected tokens of each window, in float32 or better, without gradient. Scores are rounded
to multiples of 2**-20 before they are compared and equal scores go to the lower index, so that identical tokens (flat
or dead channels) are treated alike on every device, in every export, alone or in a batch.

These functions are the reference for the kernels in `backends`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Final

import torch
from torch import Tensor

from zipbrain.errors import OptionError
from zipbrain.numerals import exact_fraction

RESOLUTION: Final = 2.0**-20  # scores closer than this are equal
_MATCH_ELEMENTS: Final = 2**21  # similarities held at a time: bounds the memory of matching, whatever N is
_ROW_ELEMENTS: Final = 2**18  # products held at a time in the redundancy score: small enough to stay in cache
_LOWEST: Final = -(2**62)
GOLDEN: Final = 0.6180339887498949  # its multiples, modulo 1, fill [0, 1) evenly


@dataclass
class Gaps:
    """Margins of decisions: by how much a score that was chosen beat the next one."""

    # Of every choice of the highest scores: the last one chosen minus the first one that was not. Where their order
    # decides too, the smallest difference of two in a row.
    chosen: list[Tensor] = field(default_factory=list)
    # Of every search for the most similar column: the best cosine minus the second-best.
    matched: list[Tensor] = field(default_factory=list)


_gaps: Gaps | None = None


@contextmanager
def noted_gaps() -> Iterator[Gaps]:
    """Note the gaps of all decisions inside the ``with`` block; not for graphs, nor for several threads at once."""
    global _gaps
    before, _gaps = _gaps, Gaps()
    try:
        yield _gaps
    finally:
        _gaps = before


def gap_after(score: Tensor, count: int) -> Tensor:
    """The count-th highest score minus the next one: (..., N) -> (...); infinite where there is no next one."""
    if count >= score.shape[-1]:
        return torch.full(score.shape[:-1], torch.inf, dtype=score.dtype, device=score.device)
    best = score.topk(count + 1, dim=-1).values
    return best[..., count - 1] - best[..., count]


def pivot_count(n: int, r: int, rho: Fraction) -> int:
    """Algorithm 1, line 1: min(max(ceil((N - r) rho), 1), N - r), in exact arithmetic."""
    scaled = (n - r) * rho.numerator
    return min(max(-(-scaled // rho.denominator), 1), n - r)


def exact_share(name: str, value: object) -> Fraction:
    """A number of [0, 1] as the fraction that it stands for (0.1 is 1/10): see `zipbrain.numerals.exact_fraction`."""
    try:
        fraction = exact_fraction(name, value)
    except OptionError as error:
        raise OptionError(name, error.given, "it must be a number from 0 to 1") from None
    if not 0 <= fraction <= 1:
        raise OptionError(name, value, "it must be a number from 0 to 1")
    return fraction


def rank(score: Tensor, scale: float | Tensor, broken: int) -> Tensor:
    """Distinct integers in the order of the scores: ``round(score scale 2**20) N - index``. (B, N)

    What is not a finite number takes the rank `broken` (+1 above, -1 below all others).
    """
    n, end = score.shape[1], broken * 2.0**22
    steps = torch.nan_to_num(torch.round(score * (scale / RESOLUTION)), end, end, end).to(torch.int64)
    return torch.add(-torch.arange(n, device=score.device), steps, alpha=n)


def highest(
    score: Tensor, count: int, scale: float | Tensor = 1.0, closed: Tensor | None = None, broken: int = -1
) -> Tensor:
    """Mark the `count` highest scores of each row (B, N): bool (B, N), exactly `count` per row.

    Scores times `scale`, within [-1, 1], are rounded to multiples of 2**-20; equal ones go to the lower index. Tokens
    that are `closed` (bool (B, N)) can't be chosen. Tokens with NaN or infinite scores are chosen first (`broken` = 1)
    or last (-1), so that they always stay.
    """
    key = rank(score, scale, broken)
    if closed is not None:
        key = key.masked_fill(closed, _LOWEST)
    if _gaps is not None:
        scaled = score * scale
        _gaps.chosen.append(gap_after(scaled if closed is None else scaled.masked_fill(closed, -torch.inf), count))
    return key >= key.topk(count, dim=1).values[:, -1:]


def falling(score: Tensor, count: int) -> Tensor:
    """Indices (B, count) of the highest scores of each row (B, N), in falling order; rounded and tied as by `highest`.

    Scores are within [-1, 1]; what is not a finite number comes last.
    """
    if _gaps is not None:  # who comes before whom matters too
        best = score.topk(min(count + 1, score.shape[1]), dim=1).values
        _gaps.chosen.append((best[:, :-1] - best[:, 1:]).amin(1))
    return rank(score, 1.0, broken=-1).topk(count, dim=1).indices


def highest_relative(score: Tensor, count: int) -> Tensor:
    """`highest` for non-negative scores of any size: divided by the window's largest one first."""
    return highest(score, count, 1 / largest(score), broken=1)


def largest(score: Tensor) -> Tensor:
    """The largest finite score of each window, (B, 1); tiny where all are zero."""
    return torch.nan_to_num(score, 0.0, 0.0, 0.0).amax(1, keepdim=True).clamp_min(torch.finfo(score.dtype).tiny)


def select_pivots(length: Tensor, count: int) -> Tensor:
    """Step 1: mark the `count` tokens with the largest norms (B, N) in z1 as pivots: bool (B, N)."""
    return highest_relative(length, count)


def score_redundancy(unit: Tensor, pivots: Tensor) -> Tensor:
    """Step 2, first half: sum of the cosines of every token to all pivots, linear in N: (B, N).

    `unit` holds unit vectors (B, N, F) in z2, `pivots` (bool (B, N)) marks equally many tokens per row.
    """
    prototype = float32_product(pivots.to(unit.dtype).unsqueeze(1), unit)  # (B, 1, F): one vector, never N x N_pivot
    return row_products(unit, prototype)


def select_redundant(score: Tensor, count: int, pivots: Tensor | None, r: int) -> Tensor:
    """Step 2, second half: mark the r highest mean cosines to `count` pivots: bool (B, N).

    Tokens marked by `pivots` can't be redundant; with None, every token can.
    """
    return highest(score, r, 1 / count, pivots)


def partition(redundant: Tensor, r: int, leading: int = 0, trailing: int = 0) -> tuple[Tensor, Tensor]:
    """Indices of the tokens that stay (B, T - r) and of those that go (B, r), both ascending.

    `redundant` (bool (B, N)) marks exactly r tokens per row; `leading` and `trailing` protected tokens around them
    stay.
    """
    batch, n = redundant.shape
    total = leading + n + trailing
    index = torch.arange(leading, leading + n, device=redundant.device)
    kept = torch.where(redundant, total, index).topk(n - r, dim=1, largest=False).values
    source = torch.where(redundant, index, total).topk(r, dim=1, largest=False).values
    if leading or trailing:
        every = torch.arange(total, device=redundant.device).expand(batch, total)
        kept = torch.cat((every[:, :leading], kept, every[:, leading + n :]), dim=1)
    return kept, source


def match_tokens(rows: Tensor, unit: Tensor, closed: Tensor | None) -> tuple[Tensor, Tensor]:
    """Step 3: the most similar open column of every row, exactly, in chunks: column and cosine, (B, R) each.

    `rows` (B, R, F) and `unit` (B, M, F) are unit vectors in z3; columns marked by `closed` (bool (B, M)) can't be
    chosen. The column is the lowest one whose cosine is within 2**-20 of the best.
    """
    columns, chunks = unit.transpose(1, 2), row_chunks(rows.shape[1], unit)
    if len(chunks) == 1:
        return best_column(float32_product(rows, columns), closed)
    # Results have their place from the start: small tensors kept among large freed ones would fragment the heap.
    column = torch.empty(rows.shape[:2], dtype=torch.int64, device=rows.device)
    best = torch.empty(rows.shape[:2], dtype=rows.dtype, device=rows.device)
    for some in chunks:
        column[:, some], best[:, some] = best_column(float32_product(rows[:, some], columns), closed)
    return column, best


def row_chunks(count: int, columns: Tensor) -> list[slice]:
    """Slices of `count` rows, each small enough to be compared with all columns (B, M, F) at once.

    One slice in an exported graph, whose batch may be of any size.
    """
    if torch.compiler.is_exporting():
        return [slice(None)]
    step = max(1, _MATCH_ELEMENTS // max(1, columns.shape[0] * columns.shape[1]))
    if step >= count:
        return [slice(None)]
    return [slice(start, start + step) for start in range(0, count, step)]


def best_column(cosine: Tensor, closed: Tensor | None, lowest: float = -4.0) -> tuple[Tensor, Tensor]:
    """The first open column within 2**-20 of every row's best, and that best: (B, R, M) -> (B, R) each.

    Closed columns count as `lowest`, which must be below all others.
    """
    width = cosine.shape[2]
    index = torch.arange(width, device=cosine.device)
    if closed is not None:
        cosine = cosine.masked_fill(closed.unsqueeze(1), lowest)
        index = torch.where(closed, width, index).unsqueeze(1)
    if _gaps is not None:
        _gaps.matched.append(gap_after(cosine, 1))  # closed columns are far below all others
    best = cosine.amax(2, keepdim=True)
    # `<` is false for NaN, so a row with NaN takes its first open column instead of none.
    return torch.where(cosine < best - RESOLUTION, width, index).amin(2), best.squeeze(2)


def evenly_spread(n: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Distinct numbers (N,) in [0, 0.5): an order in which any few tokens in a row lie far apart."""
    order = (torch.arange(n, device=device, dtype=torch.float64) * GOLDEN) % 1.0
    return 0.5 * order.to(dtype)


def row_products(rows: Tensor, vector: Tensor) -> Tensor:
    """Dot product of every row (B, N, F) with its window's vector (B, 1, F), bit-equal for bit-equal rows.

    A matrix product may add up identical rows in different orders; this may not, or ties would break at random.
    """
    _, n, width = rows.shape
    if torch.compiler.is_exporting() or rows.numel() <= _ROW_ELEMENTS:
        return (rows * vector).sum(2)
    step = max(1, _ROW_ELEMENTS // (n * width))
    starts = range(0, rows.shape[0], step)
    return torch.cat([(rows[i : i + step] * vector[i : i + step]).sum(2) for i in starts])


def float32_product(a: Tensor, b: Tensor) -> Tensor:
    """Batched matrix product that is never less exact than float32 (TF32 is)."""
    # A captured graph can't ask for the setting, and may run under another one than it was captured with.
    coarse = a.is_cuda if torch.compiler.is_compiling() else torch.get_float32_matmul_precision() != "highest"
    if coarse and a.dtype == torch.float32:
        return torch.bmm(a.double(), b.double()).float()
    return torch.bmm(a, b)
