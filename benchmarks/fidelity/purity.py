"""Does pooling keep what matters? Fates of event-carrying tokens on synthetic EEG, per method and ratio.

    python -m benchmarks.fidelity.purity run [MODEL_FOLDER...]  # trained on synthetic events; the demo's if none
    python -m benchmarks.fidelity.purity table  # the stored rows as Markdown

Writes benchmarks/results/purity.csv; a model of the same name is replaced.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path
from typing import Any

from benchmarks.shared.results import DEMO, RESULTS

RESULT = RESULTS / "purity.csv"
RATIOS = (0.2, 0.4, 0.6, 0.8)
SHOWN = (0.4, 0.8)


def measure(folder: Path, limit: int) -> list[dict[str, Any]]:
    """One row for every method and ratio."""
    from zipbrain import DART, EViT, ToFu, ToMe, Twins, ZIPBrain, ablations, from_pretrained, restore
    from zipbrain.data import Synthetic
    from zipbrain.evaluation import recipe_for
    from zipbrain.evaluation.purity import purity
    from zipbrain.models import model_name
    from zipbrain.paper import MODELS, known_name

    model = restore(from_pretrained(folder))
    name = known_name(model_name(model), MODELS)
    bipolar = name in ("BIOT", "TFM-Tokenizer")
    corpus = Synthetic("events", montage="bipolar" if bipolar else "referential")
    methods = {
        "ZIPBrain": ZIPBrain(), "Twins": Twins(), "ToMe": ToMe(), "ToFu": ToFu(), "EViT": EViT(), "DART": DART(),
        "random grouping": ablations(ZIPBrain(), 0)["random grouping"],
    }  # fmt: skip
    rows = []
    for ratio in RATIOS:
        for label, method in methods.items():
            found = purity(model, corpus, recipe_for(model, method, ratio=ratio), limit=limit, label=label)
            row = {"model": name, "ratio": ratio, **found.row()}
            rows.append({key: f"{value:.4f}" if isinstance(value, float) else value for key, value in row.items()})
            print(f"{name} {ratio} {label:16s} mixed {found.shares['mixed']:.3f} dropped {found.shares['dropped']:.3f} "
                  f"by chance {found.random['mixed']:.3f} company {found.company:.3f}", flush=True)  # fmt: skip
    return rows


def table() -> str:
    """For each model and method: kept apart from background / mixed with it / dropped, beside chance."""
    with RESULT.open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    out = []
    for model in dict.fromkeys(row["model"] for row in rows):
        titles = " | ".join(f"{ratio:.0%} removed" for ratio in SHOWN)
        out += [f"| {model} | {titles} |", "|---" * (len(SHOWN) + 1) + "|"]
        for method in dict.fromkeys(row["method"] for row in rows):
            cells = []
            for ratio in SHOWN:
                row = next(r for r in rows if (r["model"], r["method"], float(r["ratio"])) == (model, method, ratio))
                kept = float(row["alone"]) + float(row["pure"])
                chance = float(row["random alone"]) + float(row["random pure"])
                numbers = kept, float(row["mixed"]), float(row["dropped"]), chance
                cells.append("{:.2f} / {:.2f} / {:.2f} ({:.2f})".format(*numbers))
            out.append(f"| {method} | {' | '.join(cells)} |")
        out.append("")
    return "\n".join(out).rstrip()


def main() -> None:
    """Measure and store, or print what is stored."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    running = verbs.add_parser("run")
    running.add_argument("models", type=Path, nargs="*", default=[DEMO])
    running.add_argument("--limit", type=int, default=120, help="windows")
    verbs.add_parser("table")
    given = parser.parse_args()
    if given.verb == "table":
        print(table())
        return
    for folder in given.models:
        rows = measure(folder, given.limit)
        if RESULT.exists():
            with RESULT.open(newline="") as lines:
                rows = [row for row in csv.DictReader(lines) if row["model"] != rows[0]["model"]] + rows
        with RESULT.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    main()
