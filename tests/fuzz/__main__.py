"""`make fuzz`: mutated files of every kind, or ``python -m tests.fuzz TARGET --cases N --seed S`` for one kind.

A failing case is written to build/fuzz/TARGET-SEED-CASE; put it into tests/fuzz/corpus/TARGET/ once it is mended.
"""

from __future__ import annotations

import argparse
import re
import sys

from benchmarks.shared.results import RESULTS, fill, read_csv, write_csv
from tests.fuzz.harness import ROOT, Summary, load, run
from tests.fuzz.targets import TARGETS

FOUND = ROOT / "build" / "fuzz"
CSV = "fuzz"  # in benchmarks/results


def main() -> int:
    """0 if there was no finding."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("targets", nargs="*", choices=[[], *TARGETS], metavar="TARGET", help=", ".join(TARGETS))
    parser.add_argument("--cases", type=int, help="cases of each target; each has its own number if not given")
    parser.add_argument("--seed", type=int, default=0, help="another seed makes other cases (0 if not given)")
    parser.add_argument("--case", type=int, help="try this one alone")
    parser.add_argument("--docs", action="store_true", help=f"keep the figures in {CSV}.csv and fill their table")
    given = parser.parse_args()
    worst = 0
    for name in given.targets or TARGETS:
        target = load(TARGETS[name])
        cases = range(target.cases if given.cases is None else given.cases) if given.case is None else [given.case]
        print(f"{name}: {len(cases):,} cases, seed {given.seed}", flush=True)
        step = max(len(cases) // 10, 1)

        def show(summary: Summary, step: int = step) -> None:
            if summary.cases % step == 0:
                print(f"  {summary.cases:,} cases, {len(summary.findings)} findings", flush=True)

        summary = run(name, TARGETS[name], cases, seed=given.seed, progress=show)
        alike: dict[str, list[int]] = {}  # findings that differ in paths and numbers only are shown as one
        for finding in summary.findings:
            number = cases[finding.case] if finding.case >= 0 else -1
            same = alike.setdefault(re.sub(r"/\S+|\d+", "#", finding.what)[:50], [])
            same.append(number)
            if number >= 0:
                FOUND.mkdir(parents=True, exist_ok=True)
                (FOUND / f"{name}-{given.seed}-{number}").write_bytes(target.build(name, given.seed, number))
            if len(same) == 1:
                print(f"  FINDING case {number}: {finding.what[:300]}")
        for numbers in alike.values():
            print(f"  FINDINGS alike, {len(numbers)} cases: {', '.join(map(str, numbers[:9]))}, in {FOUND}")
        print(summary, flush=True)
        worst = max(worst, len(summary.findings))
        if given.docs:
            keep(summary)
    return 1 if worst else 0


def keep(summary: Summary) -> None:
    """Write a target's figures into the table of all targets, and that into the documentation."""
    rows = {row["target"]: row for row in read_csv(CSV)} if (RESULTS / f"{CSV}.csv").exists() else {}
    rows[summary.target] = {
        "target": summary.target,
        "seed": str(summary.seed),
        "cases": str(summary.cases),
        "refused": str(summary.refused),
        "accepted": str(summary.accepted),
        "findings": str(len(summary.findings)),
        "longest_s": f"{summary.longest:.2f}",
        "peak_mb": f"{summary.peak / 1e6:.0f}",
    }
    write_csv(CSV, [rows[name] for name in TARGETS if name in rows])
    fill({"fuzz": table})


def table() -> str:
    """Markdown rows of the stored figures."""
    titles = ("Mutated", "Cases", "Refused", "Read", "Findings", "Longest", "Peak over the baseline")
    lines = [f"| {' | '.join(titles)} |", "|---|--:|--:|--:|--:|--:|--:|"]
    for row in read_csv(CSV):
        counts = [f"{int(row[name]):,}" for name in ("cases", "refused", "accepted", "findings")]
        cells = (f"`{row['target']}`", *counts, f"{row['longest_s']} s", f"{row['peak_mb']} MB")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
