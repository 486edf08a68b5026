"""How often the certificate's bound holds: simulated flips in groups, counted as `zipbrain tune` counts them.

`python -m benchmarks.fidelity.certificate` writes benchmarks/results/certificate.csv and prints the lowest coverage.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
from benchmarks.shared.results import write_csv

from zipbrain.binomial import beta_share
from zipbrain.tuning.certificate import CONFIDENCE, weigh

GROUPS = (5, 10, 20, 50)
WINDOWS = (300, 1000, 3000, 10_000)
ALIKE = (0.0, 0.02, 0.1, 0.3)  # intraclass correlation of flips without a second look
FLIPS = (0.03, 0.10)  # share of windows that flip without a second look
SEEN = (0.5, 0.9)  # share of those flips that a second look takes back


def coverage(groups: int, windows: int, alike: float, flips: float, seen: float, runs: int) -> dict[str, Any]:
    """Share of the runs in which the true share of flips is within the bound, and the mean bound."""
    rng = np.random.default_rng([groups, windows, int(alike * 100), int(flips * 100), int(seen * 10)])
    whose = np.arange(windows) * groups // windows
    true, held, bounds = flips * (1 - seen), 0, []
    for run in range(runs):
        scale = 1 / alike - 1 if alike else 0.0
        rate = rng.beta(flips * scale, (1 - flips) * scale, groups) if alike else np.full(groups, flips)
        doubtful = rng.random(windows) < rate[whose]
        flipped = doubtful & (rng.random(windows) >= seen)
        found = weigh(flipped, whose, doubtful)
        count = found.flips / found.windows * found.effective
        # The upper bound lies above the true share if no more than `CONFIDENCE` of the distribution lies below it.
        held += beta_share(true, count + 1, found.effective - count) <= CONFIDENCE
        if run < 20:
            bounds.append(found.bound())
    return {
        "groups": groups,
        "windows": windows,
        "icc": alike,
        "flips": flips,
        "taken_back": seen,
        "runs": runs,
        "agreement": round(1 - true, 4),
        "mean_bound": round(float(np.mean(bounds)), 4),
        "coverage": round(held / runs, 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=2000)
    runs = parser.parse_args().runs
    rows = [
        coverage(groups, windows, alike, flips, seen, runs)
        for groups in GROUPS
        for windows in WINDOWS
        for alike in ALIKE
        for flips in FLIPS
        for seen in SEEN
    ]
    write_csv("certificate", rows)
    lowest = sorted(rows, key=lambda row: row["coverage"])
    print(f"{len(rows)} settings, {sum(row['coverage'] >= CONFIDENCE for row in rows)} of them covered at {CONFIDENCE}")
    for row in lowest[:12]:
        print(row)


if __name__ == "__main__":
    main()
