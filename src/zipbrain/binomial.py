"""Exact bounds of shares and rates that were counted: beta, F and Poisson distributions (standard library only).

SciPy has them, but a device that runs an exported file has no SciPy.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Final

FEWEST_GROUPS: Final = 5  # people: with fewer, a bound is an estimate and no promise

_PRECISION: Final = 1e-14  # relative, of the continued fraction
_TERMS: Final = 10_000  # at most, of the continued fraction; about 5 sqrt(max(a, b)) are needed


def share_bounds(count: float, total: float, confidence: float = 0.95) -> tuple[float, float]:
    """Clopper-Pearson bounds of a share, each one-sided at this confidence; `count` and `total` may be fractions."""
    lower = 0.0 if count <= 0 else beta_quantile(1 - confidence, count, total - count + 1)
    upper = 1.0 if count >= total else beta_quantile(confidence, count + 1, total - count)
    return lower, upper


def count_bounds(count: int, confidence: float = 0.95) -> tuple[float, float]:
    """Garwood's bounds of the mean of a Poisson count, each one-sided at this confidence."""
    highest = count + 20 + 10 * math.sqrt(count + 1)
    lower = 0.0 if count == 0 else solve(lambda mean: 1 - _poisson_share(count - 1, mean), 1 - confidence, 0.0, count)
    return lower, solve(lambda mean: 1 - _poisson_share(count, mean), confidence, count, highest)


def _poisson_share(count: int, mean: float) -> float:
    """The share of a Poisson distribution at `count` or below."""
    if mean <= 0:
        return 1.0
    return math.fsum(math.exp(n * math.log(mean) - mean - math.lgamma(n + 1)) for n in range(count + 1))


def beta_quantile(p: float, a: float, b: float) -> float:
    """The x at which the beta distribution has the share p below it."""
    return solve(lambda x: beta_share(x, a, b), p, 0.0, 1.0)


@cache
def f_quantile(p: float, above: float, below: float) -> float:
    """The value at which Fisher's F distribution with these degrees of freedom has the share p below it."""
    x = beta_quantile(p, above / 2, below / 2)
    return below * x / (above * (1 - x))


def beta_share(x: float, a: float, b: float) -> float:
    """The share of the beta distribution below x: the regularised incomplete beta function."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):  # where the fraction converges slowly, take it from the other end
        return 1 - beta_share(1 - x, b, a)
    front = a * math.log(x) + b * math.log1p(-x) - math.lgamma(a) - math.lgamma(b) + math.lgamma(a + b)
    return math.exp(front) / (a * _fraction(x, a, b))


def _fraction(x: float, a: float, b: float) -> float:
    """The continued fraction 1 + d1/(1 + d2/(1 + ...)) of the incomplete beta function, by Lentz's method."""
    value = ratio = 1.0
    inverse = 0.0
    for term in range(1, _TERMS):
        half, is_odd = divmod(term, 2)
        if is_odd:
            d = -(a + half) * (a + b + half) * x / ((a + 2 * half) * (a + 2 * half + 1))
        else:
            d = half * (b - half) * x / ((a + 2 * half - 1) * (a + 2 * half))
        inverse = 1 / (1 + d * inverse)
        ratio = 1 + d / ratio
        value *= ratio * inverse
        if abs(ratio * inverse - 1) < _PRECISION:
            break
    return value


def solve(rising: Callable[[float], float], wanted: float, low: float, high: float) -> float:
    """The place where a rising function takes a value, by bisection to the last bit."""
    while (middle := (low + high) / 2) not in (low, high):
        low, high = (middle, high) if rising(middle) < wanted else (low, middle)
    return middle
