"""Algorithm 1 of the paper written as literally as possible: NumPy, float64, one window, loops. Slow on purpose."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import ceil

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
STEP = 2.0**-20


@dataclass
class Result:
    """Rows that stay, rows that go, whom they join, features, and the smallest gap of any decision."""

    kept: list[int]
    source: list[int]
    target: list[int]
    out: Array
    margin: float


def in_space(name: str, x: Array, heads: dict[str, Array]) -> Array:
    """Vectors of a space as (N, H, d): one head for x and for head-averaged spaces."""
    if name == "x":
        return x[:, None]
    values = heads[name[0]].transpose(1, 0, 2)  # (T, H, d)
    return values if name.endswith("h") else values.mean(1, keepdims=True)


def cosine(a: Array, b: Array) -> float:
    """Mean over heads of the cosines of (H, d) and (H, d); 0 with a zero vector."""
    scores = []
    for one, other in zip(a, b, strict=True):
        size = np.linalg.norm(one) * np.linalg.norm(other)
        scores.append(float(one @ other / size) if size > 0 else 0.0)
    return float(np.mean(scores))


def zipbrain(
    x: Array, heads: dict[str, Array], r: int, spaces: tuple[str, str, str], rho: str, leading: int = 0,
    trailing: int = 0,
) -> Result:  # fmt: skip
    """Pool one window: x (T, D), heads q, k, v (H, T, d)."""
    total = len(x)
    free = list(range(leading, total - trailing))
    n = len(free)
    if r == 0:
        return Result(list(range(total)), [], [], x.copy(), np.inf)
    z1, z2, z3 = (in_space(name, x, heads) for name in spaces)
    count = min(max(ceil((n - r) * Fraction(rho)), 1), n - r)
    gaps = []

    def cut(order: list[int], score: dict[int, float], chosen: int) -> None:
        if chosen < len(order):
            gaps.append(score[order[chosen - 1]] - score[order[chosen]])

    norm = {i: float(np.mean([np.linalg.norm(head) for head in z1[i]])) for i in free}
    top = max(norm.values())
    norm = {i: value / top if top > 0 else 0.0 for i, value in norm.items()}
    order = sorted(free, key=lambda i: (-round(norm[i] / STEP), i))
    cut(order, norm, count)
    pivots = order[:count]
    others = [i for i in free if i not in pivots]
    score = {i: float(np.mean([cosine(z2[i], z2[j]) for j in pivots])) for i in others}
    order = sorted(others, key=lambda i: (-round(score[i] / STEP), i))
    cut(order, score, r)
    source = sorted(order[:r])
    unique = [i for i in free if i not in source]
    target = []
    for i in source:
        similar = {j: cosine(z3[i], z3[j]) for j in unique}
        best = max(similar.values())
        target.append(next(j for j in unique if similar[j] >= best - STEP))
        if len(unique) > 1:
            gaps.append(best - sorted(similar.values())[-2])
    kept = [i for i in range(total) if i not in source]
    out = x.copy()
    for j in kept:
        group = [j] + [i for i, t in zip(source, target, strict=True) if t == j]
        if len(group) == 1:
            continue
        mean = x[group].mean(0)
        longest = max(np.linalg.norm(x[i]) for i in group)
        size = np.linalg.norm(mean) * len(group)
        if size * 2**20 < longest:
            mean = x[j]
        size = np.linalg.norm(mean)
        out[j] = mean / size * longest if size > 0 else mean
    return Result(kept, source, target, out[kept], min(gaps, default=np.inf))


def unit_rows(vectors: Array) -> Array:
    """Vectors divided by their norms; zero stays zero."""
    sizes = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.where(sizes > 0, vectors / np.where(sizes > 0, sizes, 1), 0)


def pitome(keys: Array, r: int, layer: int, depth: int) -> dict[int, int]:
    """PiToMe's sources and whom they join; keys (H, N, d), no protected tokens, layers from 1."""
    unit = unit_rows(keys.mean(0))
    n, margin = len(unit), 0.9 * (1 - (layer - 1) / depth)
    energy = []
    for i in range(n):
        total = 0.0
        for j in range(n):
            c = float(unit[i] @ unit[j])
            total += c if c >= margin else float(np.exp(c - margin)) - 1
        energy.append(total / n)
    order = sorted(range(n), key=lambda i: (-round(energy[i] / STEP), i))[: 2 * r]
    a, b = order[0::2], sorted(order[1::2])
    return {i: max(b, key=lambda j: float(unit[i] @ unit[j])) for i in a}


def ward_pairs(x: Array, mass: Array, r: int) -> dict[int, int]:
    """Sources of Ward pairs and whom they join; x (N, D) without outliers, no protected tokens."""
    rows = x - x.mean(0)
    rows = rows / np.sqrt((rows**2).sum(1).mean())
    order = sorted(range(len(x)), key=lambda i: (i * 0.6180339887498949) % 1)
    a, b = sorted(order[: len(x) // 2]), sorted(order[len(x) // 2 :])
    joined, cost = {}, {}
    for i in a:
        away = {j: mass[j] / (mass[i] + mass[j]) * float(((rows[i] - rows[j]) ** 2).sum()) for j in b}
        least = min(away.values())
        joined[i] = next(j for j in b if away[j] <= least + STEP)
        cost[i] = mass[i] * least
    top = max(cost.values())
    chosen = sorted(a, key=lambda i: (round(cost[i] / top / STEP), i))[:r]
    return {i: joined[i] for i in chosen}


def local_merging(x: Array, r: int, k: int) -> dict[int, int]:
    """Sources of local merging and whom they join; x (N, D), no protected tokens."""
    unit = unit_rows(x)
    a, b = range(0, len(x), 2), range(1, len(x), 2)
    best: dict[int, tuple[float, int]] = {}
    for i, source in enumerate(a):
        near = [(float(unit[source] @ unit[target]), -target) for j, target in enumerate(b) if abs(i - j) < k]
        if near:
            best[source] = max(near)
    chosen = sorted(best, key=lambda source: (-round(best[source][0] / STEP), source))[:r]
    return {source: -best[source][1] for source in chosen}
