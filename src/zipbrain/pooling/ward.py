"""Ward's rule: what it costs to merge two tokens, by their masses and their distance. `Twins` decides by it."""

from __future__ import annotations

import torch
from torch import Tensor

from zipbrain.pooling.steps import best_column, float32_product, row_chunks


def cheapest_partner(
    rows: Tensor, mass: Tensor, weight: Tensor, least: float = 0.0, most: Tensor | None = None
) -> Tensor:
    """Cost, by Ward's rule, of merging every token into the best of those with a larger weight: (B, N).

    The cost is m_i m_j / (m_i + m_j) times the squared distance of `rows` (B, N, F), which is at least `least`; it
    is at most `most` (B, 1). `mass` (B, N) counts original tokens, `weight` (B, N) holds distinct numbers. The token of
    the largest weight costs twice the most expensive of the others.
    """
    chunks = row_chunks(rows.shape[1], rows)
    if len(chunks) == 1:
        cost = _least_cost(rows, mass, weight, rows, mass, weight, least)
    else:
        cost = torch.empty_like(mass)
        for some in chunks:
            cost[:, some] = _least_cost(rows[:, some], mass[:, some], weight[:, some], rows, mass, weight, least)
    alone = torch.isposinf(cost)
    if most is not None:
        cost = torch.minimum(cost, most)
    highest = cost.masked_fill(alone, 0).amax(1, keepdim=True)
    return torch.where(alone, (2 * highest).clamp_min(torch.finfo(cost.dtype).tiny), cost)


def _least_cost(some: Tensor, m: Tensor, w: Tensor, rows: Tensor, mass: Tensor, weight: Tensor, least: float) -> Tensor:
    cost = squared_distances(some, rows).clamp_min_(least)
    cost.div_(m.reciprocal().unsqueeze(2) + mass.reciprocal().unsqueeze(1))
    return cost.masked_fill_(weight.unsqueeze(1) <= w.unsqueeze(2), torch.inf).amin(2)


def cheapest_target(some: Tensor, m: Tensor, rows: Tensor, mass: Tensor, closed: Tensor, least: float) -> Tensor:
    """The open token into which it costs least, by Ward's rule, to merge each of some others: (B, R).

    `some` (B, R, F) of masses `m` (B, R) look for a partner among `rows` (B, N, F) of masses `mass` (B, N); tokens
    marked by `closed` (bool (B, N)) can't be chosen. It is the lowest one whose cost, divided by m, is within 2**-20 of
    the best.
    """
    chunks = row_chunks(some.shape[1], rows)
    if len(chunks) == 1:
        return best_column(_closeness(some, m, rows, mass, least), closed, -torch.inf)[0]
    column = torch.empty(some.shape[:2], dtype=torch.int64, device=some.device)
    for part in chunks:
        column[:, part] = best_column(_closeness(some[:, part], m[:, part], rows, mass, least), closed, -torch.inf)[0]
    return column


def cheapest_pair(some: Tensor, m: Tensor, rows: Tensor, mass: Tensor, least: float) -> tuple[Tensor, Tensor]:
    """For every row of one set the row of another into which it costs least to merge it, and that cost: (B, R) each.

    `some` (B, R, F) of masses `m` (B, R), `rows` (B, M, F) of masses `mass` (B, M); ties as in `cheapest_target`.
    """
    chunks = row_chunks(some.shape[1], rows)
    found = [best_column(_closeness(some[:, part], m[:, part], rows, mass, least), None) for part in chunks]
    column, closeness = (torch.cat(parts, dim=1) if len(chunks) > 1 else parts[0] for parts in zip(*found, strict=True))
    return column, -closeness * m


def _closeness(some: Tensor, m: Tensor, rows: Tensor, mass: Tensor, least: float) -> Tensor:
    """Minus the cost over the row's mass: m_j / (m_i + m_j) times the squared distance. (B, R, N)"""
    columns = mass.unsqueeze(1)
    return squared_distances(some, rows).clamp_min_(least).mul_(columns / (m.unsqueeze(2) + columns)).neg_()


def squared_distances(some: Tensor, rows: Tensor) -> Tensor:
    """Squared distances (B, R, N) of vectors (B, R, F) and (B, N, F), as good as float32 can be for centred ones."""
    square, others = some.square().sum(2).unsqueeze(2), rows.square().sum(2).unsqueeze(1)
    return float32_product(some, rows.transpose(1, 2)).mul_(-2).add_(square).add_(others)
