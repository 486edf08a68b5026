"""How often the certificate's bound holds, and what it takes: simulated flips in groups, counted as by `zipbrain tune`.

`python -m benchmarks.fidelity.certificate` writes benchmarks/results/certificate.csv (coverage) and
certificate_people.csv (share of certificates that reach 0.99), fills the documentation's tables and prints the
lowest coverage; `--fill` fills them from the stored files. Columns in `_icc` are those of the textbook bound: Clopper
and Pearson's with the estimated intraclass correlation and Korn and Graubard's correction for few groups. Rates of
people have a beta distribution. `person` says what a second look does: it takes flips back everywhere alike, or more of
one person's than of another's (intraclass correlation 0.1).
"""

from __future__ import annotations

import argparse
import time
from itertools import product
from typing import Any

import numpy as np
from benchmarks.shared.results import fill, read_csv, write_csv
from numpy.typing import NDArray
from scipy import special, stats

from zipbrain.tuning.evidence import CONFIDENCE, correlation_at, dispersion, dispersion_limit, effective_windows

SEED = 23
GROUPS = (5, 7, 10, 20, 50)
WINDOWS = (300, 1000, 3000, 10_000)
ALIKE = (0.0, 0.02, 0.05, 0.1, 0.3)  # intraclass correlation of flips without a second look
FLIPS = (0.02, 0.05, 0.10)  # share of windows that flip without a second look
TAKEN_BACK = ((0.0, "alike"), *product((0.5, 0.9, 0.98), ("alike", "by person")))  # by a second look
SIZES = ("equal", "unequal")
PERSON = 0.1  # intraclass correlation of what a second look takes back, where people differ in it
PEOPLE = (5, 10, 15, 20, 30, 40, 80)  # in the certifying half
ENOUGH = 0.945  # coverage that 4,000 runs tell from 0.95

Array = NDArray[np.float64]


def simulate(
    rng: np.random.Generator, sizes: Array, alike: float, flips: float, taken: tuple[float, str]
) -> tuple[Array, Array]:
    """Flips behind and without a second look of groups (runs, K)."""
    doubtful = rng.binomial(sizes.astype(np.int64), _rates(rng, flips, alike, sizes.shape))
    spread = PERSON if taken[1] == "by person" else 0.0
    remaining = rng.binomial(doubtful, _rates(rng, 1 - taken[0], spread, sizes.shape))
    return remaining.astype(np.float64), doubtful.astype(np.float64)


def _rates(rng: np.random.Generator, mean: float, alike: float, shape: tuple[int, ...]) -> Array:
    if alike == 0 or mean in (0, 1):
        return np.full(shape, mean)
    scale = 1 / alike - 1
    return rng.beta(mean * scale, (1 - mean) * scale, shape)


def group_sizes(rng: np.random.Generator, groups: int, windows: int, kind: str, runs: int) -> Array:
    """Windows of every group, (runs, K); unequal ones differ about as people in a clinic's archive do."""
    if kind == "equal":
        return np.broadcast_to(np.diff(np.arange(groups + 1) * windows // groups), (runs, groups)).astype(np.float64)
    shares = rng.dirichlet(np.full(groups, 2.0), runs)
    return 2.0 + rng.multinomial(windows - 2 * groups, shares)


def confidence_below(share: Any, remaining: Array, sizes: Array, spread: Array) -> Array:
    """`Evidence.refutes` for many runs at once."""
    windows, size = sizes.sum(-1), (sizes**2).sum(-1) / sizes.sum(-1)
    count = effective_windows(windows, size, correlation_at(share, spread))
    flips = remaining.sum(-1) / windows * count
    return np.where(flips < count, special.betainc(flips + 1, np.maximum(count - flips, 1e-9), share), 0.0)


def bounds(remaining: Array, sizes: Array, spread: Array) -> Array:
    """`Evidence.bound` for many runs at once."""
    low, high = np.zeros(len(sizes)), np.ones(len(sizes))
    for _ in range(30):
        middle = (low + high) / 2
        is_below = confidence_below(middle, remaining, sizes, spread) < CONFIDENCE
        low, high = np.where(is_below, middle, low), np.where(is_below, high, middle)
    return 1 - high


def effective_by_icc(doubtful: Array, sizes: Array) -> Array:
    """Effective windows of the textbook: the estimate of ICC (at least 0.01), and the t-correction for few groups."""
    windows, groups = sizes.sum(-1), sizes.shape[-1]
    share = np.maximum(doubtful.sum(-1), 1) / windows
    spread = np.where(doubtful.sum(-1) > 0, dispersion_limit(doubtful, sizes, None), 0.0)
    few = stats.t.ppf(CONFIDENCE, windows - 1) / stats.t.ppf(CONFIDENCE, groups - 1)
    return effective_windows(windows, windows / groups, correlation_at(share, spread)) * few**2


def coverage(setting: tuple[Any, ...], runs: int) -> dict[str, Any]:
    """Share of the runs in which the true share of flips is within the bound, and the mean bound of 200 of them."""
    number, (groups, windows, alike, flips, taken, kind) = setting
    rng = np.random.default_rng([SEED, number])
    sizes = group_sizes(rng, groups, windows, kind, runs)
    remaining, doubtful = simulate(rng, sizes, alike, flips, taken)
    true = flips * (1 - taken[0])
    spread = dispersion(remaining, doubtful, sizes)
    held = confidence_below(true, remaining, sizes, spread) <= CONFIDENCE
    count = effective_by_icc(doubtful, sizes)
    found = remaining.sum(-1) / sizes.sum(-1) * count
    held_by_icc = special.betainc(found + 1, np.maximum(count - found, 1e-9), true) <= CONFIDENCE
    return {
        "groups": groups,
        "windows": windows,
        "sizes": kind,
        "icc": alike,
        "flips": flips,
        "taken_back": taken[0],
        "person": taken[1],
        "runs": runs,
        "agreement": round(1 - true, 4),
        "mean_bound": round(float(bounds(remaining[:200], sizes[:200], spread[:200]).mean()), 4),
        "coverage": round(float(held.mean()), 4),
        "coverage_icc": round(float(held_by_icc.mean()), 4),
    }


def people(runs: int) -> list[dict[str, Any]]:
    """How often 0.99 is certified, by people and windows each, where 5 % flip and a second look takes most back."""
    rows = []
    for number, (alike, taken, each) in enumerate(product((0.02, 0.05), (0.98, 0.95, 0.9), (20, 60, 200))):
        row: dict[str, Any] = {"icc": alike, "agreement": round(1 - 0.05 * (1 - taken), 4), "windows_each": each}
        textbook = {}
        for groups in PEOPLE:
            rng = np.random.default_rng([SEED, number, groups])
            sizes = group_sizes(rng, groups, groups * each, "equal", runs)
            remaining, doubtful = simulate(rng, sizes, alike, 0.05, (taken, "alike"))
            found = bounds(remaining, sizes, dispersion(remaining, doubtful, sizes))
            row[str(groups)] = round(float((found >= 0.99).mean()), 2)
            count = effective_by_icc(doubtful, sizes)
            flips = remaining.sum(-1) / sizes.sum(-1) * count
            textbook[f"{groups}_icc"] = round(
                float((special.betainc(flips + 1, count - flips, 0.01) >= 0.95).mean()), 2
            )
        rows.append(row | textbook)
    return rows


def coverage_table() -> str:
    """Lowest and mean coverage by number of groups, beside the textbook's."""
    rows = read_csv("certificate")
    lines = [
        "| people | settings | lowest coverage | mean | lowest by ICC | settings below 0.945 by ICC |",
        "|---|---|---|---|---|---|",
    ]
    for groups in GROUPS:
        ours = [row for row in rows if int(row["groups"]) == groups]
        values, others = ([float(row[name]) for row in ours] for name in ("coverage", "coverage_icc"))
        below = sum(value < ENOUGH for value in others)
        lines.append(
            f"| {groups} | {len(ours)} | {min(values):.3f} | {np.mean(values):.3f} | {min(others):.3f} | {below} |"
        )
    return "\n".join(lines)


def people_table() -> str:
    """Share of certificates that reach 0.99, by number of people; the textbook's in brackets."""
    lines = [
        f"| ICC | true agreement | windows each | {' | '.join(map(str, PEOPLE))} |",
        f"|---|---|---|{'---|' * len(PEOPLE)}",
    ]
    for row in read_csv("certificate_people"):
        shares = " | ".join(f"{float(row[str(count)]):.2f} ({float(row[f'{count}_icc']):.2f})" for count in PEOPLE)
        lines.append(f"| {row['icc']} | {row['agreement']} | {row['windows_each']} | {shares} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=4000)
    parser.add_argument("--fill", action="store_true", help="fill the tables from stored files")
    given = parser.parse_args()
    if not given.fill:
        run(given.runs)
    fill({"coverage": coverage_table, "people": people_table})


def run(runs: int) -> None:
    """Simulate, store and print what is lowest."""
    began = time.perf_counter()
    settings = enumerate(product(GROUPS, WINDOWS, ALIKE, FLIPS, TAKEN_BACK, SIZES))
    rows = [coverage(setting, runs) for setting in settings]
    write_csv("certificate", rows)
    write_csv("certificate_people", people(min(runs, 1000)))
    print(f"{len(rows)} settings of {runs} runs in {time.perf_counter() - began:.0f} s;", end=" ")
    print(f"coverage at least {ENOUGH} in {sum(row['coverage'] >= ENOUGH for row in rows)} of them; the lowest:")
    for row in sorted(rows, key=lambda row: row["coverage"])[:8]:
        print(row)


if __name__ == "__main__":
    main()
