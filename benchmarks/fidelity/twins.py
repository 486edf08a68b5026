"""Twins beside the paper's method and its rivals at 80 % removed: what changes in scores, decisions and logits.

    python -m benchmarks.fidelity.twins MODEL_FOLDER PACK.npz --name imagery-biot-0  # a pack of shared/packing.py
    python -m benchmarks.fidelity.twins src/zipbrain/demo_model synthetic-events
    python -m benchmarks.fidelity.twins table  # the stored rows as Markdown

Appends rows to benchmarks/results/twins.csv; a name that is there already is replaced. Differences to the uncompressed
model have 95 % intervals from resampled test subjects.
"""

from __future__ import annotations

import argparse
import csv
import statistics
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.shared.results import RESULTS

RESULT = RESULTS / "twins.csv"
RESAMPLES = 1000
SEEDS = 5


def measure(given: argparse.Namespace) -> list[dict[str, Any]]:
    """One row for each method."""
    import torch
    from benchmarks.fidelity.candidates import FirstTwins

    from zipbrain import DART, EViT, ToFu, ToMe, Twins, ZIPBrain, ablations, from_pretrained
    from zipbrain.evaluation.trial import Trial, recipe_for
    from zipbrain.metrics import main_metric
    from zipbrain.models import model_name

    torch.set_num_threads(given.threads)
    model = from_pretrained(given.model)
    windows = _windows(given, model_name(model))
    if given.limit and len(windows) > given.limit:
        windows = windows.select(np.linspace(0, len(windows) - 1, given.limit).astype(np.int64))
    trial = Trial(model, windows, batch_size=64, split=given.split)
    metric = main_metric(len(windows.classes))
    random = {
        f"random grouping #{seed}": (ablations(ZIPBrain(), seed)["random grouping"], False) for seed in range(SEEDS)
    }
    methods: dict[str, tuple[Any, bool]] = {
        "ZIPBrain": (ZIPBrain(), False), "ZIPBrain + mass": (ZIPBrain(), True), "ToMe": (ToMe(), False),
        "ToMe + mass": (ToMe(), True), "ToFu": (ToFu(), False), "EViT": (EViT(), False), "DART": (DART(), False),
        "Twins, first version": (FirstTwins(), False), "Twins": (Twins(), False), **random,
    }  # fmt: skip
    before = trial.original
    draws = [draw for draw in _draws(windows.subjects) if len(set(windows.labels[draw])) == len(windows.classes)]
    olds = [_score(windows.labels[draw], before.logits[draw]) for draw in draws]
    rows = []
    for label, (method, mass) in methods.items():
        outcome = trial.run(recipe_for(model, method, ratio=given.ratio, mass=mass))
        same = _decisions(outcome.logits) == _decisions(before.logits)
        change, agreement = [], []
        for draw, old in zip(draws, olds, strict=True):
            change.append(_score(windows.labels[draw], outcome.logits[draw]) - old)
            agreement.append(same[draw].mean())
        row = {
            "name": given.name, "model": model_name(model), "split": given.split, "windows": len(windows),
            "subjects": len(set(windows.subjects.tolist())), "ratio": given.ratio, "method": label, "metric": metric,
            "original": before.scores[metric], "change": outcome.scores[metric] - before.scores[metric],
            "change_low": np.quantile(change, 0.025), "change_high": np.quantile(change, 0.975),
            "agreement": outcome.agreement, "agreement_low": np.quantile(agreement, 0.025),
            "agreement_high": np.quantile(agreement, 0.975), "logit_error": outcome.logit_error,
            "tokens_left": outcome.token_counts[-1],
        }  # fmt: skip
        rows.append({key: f"{value:.4f}" if isinstance(value, float) else value for key, value in row.items()})
        print(f"{given.name} {label:20s} change {row['change']:+.4f} agreement {row['agreement']:.3f} "
              f"logit error {row['logit_error']:.4f} tokens {row['tokens_left']}", flush=True)  # fmt: skip
    return rows


def _windows(given: argparse.Namespace, model: str) -> Any:
    if given.data.startswith("synthetic-"):
        from zipbrain.training.window_sources import WindowSource

        return WindowSource(given.data, model).split(given.split)
    from benchmarks.shared.packing import for_model, unpack

    return for_model(unpack(Path(given.data))[given.split], model)


def _score(labels: Any, logits: Any) -> float:
    from sklearn.metrics import cohen_kappa_score, roc_auc_score

    if logits.shape[1] == 1:
        return float(roc_auc_score(labels, logits[:, 0]))
    return float(cohen_kappa_score(labels, logits.argmax(1)))


def _decisions(logits: Any) -> Any:
    return logits.argmax(1) if logits.shape[1] > 1 else logits[:, 0] >= 0


def _draws(subjects: Any) -> list[Any]:
    rng = np.random.default_rng(0)
    places = {subject: np.flatnonzero(subjects == subject) for subject in sorted(set(subjects.tolist()))}
    names = list(places)
    return [
        np.concatenate([places[names[i]] for i in rng.integers(len(names), size=len(names))]) for _ in range(RESAMPLES)
    ]


def table() -> str:
    """The stored rows as Markdown: one table, a line for each method, a group of columns for each model and task."""
    with RESULT.open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    names = list(dict.fromkeys(row["name"] for row in rows))
    methods = list(dict.fromkeys(row["method"].split(" #")[0] for row in rows))
    out = [f"| 80 % removed | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    for method in methods:
        cells = []
        for name in names:
            chosen = [row for row in rows if row["name"] == name and row["method"].split(" #")[0] == method]
            if not chosen:
                cells.append("")
                continue
            change, agreement, error = (
                statistics.mean(float(row[key]) for row in chosen) for key in ("change", "agreement", "logit_error")
            )
            cells.append(f"{change:+.3f} / {agreement:.3f} / {error:.4f}")
        out.append(f"| {method} | {' | '.join(cells)} |")
    return "\n".join(out)


def main() -> None:
    """Measure and store, or print what is stored."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="folder of a saved model, or the word table")
    parser.add_argument("data", nargs="?", default="", help="a pack, synthetic-events or synthetic-sleep")
    parser.add_argument("--name", help="of the rows")
    parser.add_argument("--split", default="test")
    parser.add_argument("--ratio", type=float, default=0.8)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    if given.model == "table":
        print(table())
        return
    given.name = given.name or f"{Path(given.model).name} on {given.data}"
    rows = measure(given)
    if RESULT.exists():
        with RESULT.open(newline="") as lines:
            rows = [row for row in csv.DictReader(lines) if row["name"] != given.name] + rows
    with RESULT.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
