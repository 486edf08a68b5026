"""What `benchmarks/fidelity/experiments.py run` found, as CSVs, as tables of the documentation and as a figure.

    python -m benchmarks.fidelity.experiments_report collect runs   # CSVs in benchmarks/results; some minutes
    python -m benchmarks.fidelity.experiments_report page           # the documentation's tables
    python -m benchmarks.fidelity.experiments_report figure         # benchmarks/results/experiments.png, from the CSVs

A run in which anything of a kind failed (compare, ablate, layers, candidate) is left out of all that is said of that
kind, so that every method is judged on the same runs.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.fidelity import experiments_intervals as intervals
from benchmarks.fidelity.experiments_intervals import FIXED, number, row_key
from benchmarks.fidelity.experiments_tables import TABLES
from benchmarks.fidelity.experiments_values import RATIOS, RESULTS, sweep_values
from benchmarks.fidelity.twins_tables import NEW_TWINS
from benchmarks.shared.results import fill, write_csv

ALL_TABLES = TABLES | NEW_TWINS
KINDS = ("compare", "ablate", "layers", "candidate")
DEFAULT = "x, q, x, 0.5"  # ZIPBrain's setting if none is searched
_TASKS = ("eyes", "imagery", "eegmat", FIXED, "events", "sleep")
_MODELS = ("labram", "eegpt", "biot", "tfm")
_CHANNELS = "FP1 FP2 F3 F4 F7 F8 T7 T8 C3 C4 P7 P8 P3 P4 O1 O2"


@dataclass(frozen=True)
class Run:
    """One trained network and all that was measured with it.

    Attributes
    ----------
    rows : list of dict
        As `experiments.measure` returns them; none where the run broke off.
    logits : Path
        Test logits.
    """

    task: str
    model: str
    seed: int
    fold: int | None
    rows: list[dict[str, Any]]
    logits: Path

    @property
    def metric(self) -> str:
        """The paper's main one."""
        return "auroc" if self.task in ("eyes", "eegmat", FIXED) else "kappa"

    @property
    def draw(self) -> int:
        """Seed of the resampled subjects: one for every set of test subjects."""
        return 100 * _TASKS.index(self.task) + (self.fold or 0)

    def complete(self, kind: str) -> bool:
        """Whether there is something of a kind, and nothing of it failed."""
        own = [row for row in self.rows if row["kind"] == kind]
        return bool(own) and not any("failed" in row for row in own)


def read(folder: Path) -> list[Run]:
    """All runs of a folder, in the order of the tables."""
    runs = []
    for file in folder.glob("*.json"):
        record = json.loads(file.read_text())
        job = record["job"]
        task = FIXED if (job["task"], job["fold"]) == ("eegmat", None) else job["task"]
        logits = file.with_name(f"{file.stem}-logits.npz")
        runs.append(Run(task, job["model"], job["seed"], job["fold"], record.get("experiments", []), logits))
    return sorted(runs, key=lambda run: (_TASKS.index(run.task), _MODELS.index(run.model), run.seed, run.fold or 0))


def collect(folder: Path) -> None:
    """Write all CSVs."""
    runs = read(folder)
    write("experiments", [row for run in runs for row in facts(run)])
    write("experiments_runs", [
        {"task": run.task, "model": run.model, "seed": run.seed, "fold": _fold(run), "broke_off": not run.rows}
        | {kind: run.complete(kind) for kind in KINDS}
        for run in runs
    ])  # fmt: skip
    write("experiments_search", [row for run in runs for row in searches(run)])
    write("experiments_search_points", points(runs))
    write("experiments_flops", flops())
    write("experiments_intervals", intervals.table(run for run in runs if run.complete("compare")))


def facts(run: Run) -> list[dict[str, Any]]:
    """One row for every kind, label, ratio and mass of a run; what has several random seeds is one row."""
    grouped: dict[Any, list[dict[str, Any]]] = defaultdict(list)
    before = next((row for row in run.rows if row["kind"] == "original"), None)
    for row in run.rows:
        if row["kind"] == "original" or (row["kind"] in KINDS and run.complete(row["kind"])):
            kind, label, ratio, mass = row_key(row)
            grouped[kind, label.split(" #")[0], ratio, mass].append(row)
    found = []
    for label in ("ZIPBrain", "ToMe"):  # on validation windows too, beside the relatives of Twins
        rows = [row for row in grouped.get(("compare", label, "0.8", True), []) if "val" in row]
        grouped["candidate", f"{label} + mass", "0.8", True] = rows
    for (kind, label, ratio, mass), rows in grouped.items():
        if not rows:
            continue
        split = "val" if kind == "candidate" else "test"
        assert before is not None
        old = before[split]["scores"][run.metric]
        measured = {
            "change": [row[split]["scores"][run.metric] - old for row in rows],
            "agreement": [row[split]["agreement"] for row in rows],
            "logit_error": [row[split]["logit_error"] for row in rows],
        }
        confusion = np.array(rows[0][split]["confusion"])
        with np.load(run.logits) as stored:
            people = len(set(stored["subjects"].tolist())) if split == "test" else ""
        found.append({
            "task": run.task, "model": run.model, "seed": run.seed, "fold": _fold(run), "kind": kind, "label": label,
            "ratio": ratio, "mass": int(mass), "split": split, "windows": confusion.sum(), "subjects": people,
            "metric": run.metric, "original": f"{old:.4f}",
            **{name: number(float(np.mean(values))) for name, values in measured.items()},
            **{f"{name}_sd": number(float(np.std(values, ddof=1))) if len(rows) > 1 else ""
               for name, values in measured.items()},
            "commonest": f"{confusion.sum(0).max() / confusion.sum():.3f}" if kind == "original" else "",
            "tokens": "" if kind == "candidate" else " ".join(map(str, rows[0].get("token_counts", []))),
        })  # fmt: skip
    return found


def searches(run: Run) -> list[dict[str, Any]]:
    """One row for every ratio that was searched: scores on validation and on test subjects."""
    done = {row_key(row): row for row in run.rows if "failed" not in row}
    found = []
    for row in run.rows:
        ratio = str(row.get("ratio"))
        if row["kind"] != "search":
            continue
        # At 80 % the ablation has both networks; at the maximum only the comparison has.
        pair = (("ablate", "default: full"), ("ablate", "searched: full"))
        if ratio == "max":
            pair = (("compare", "ZIPBrain"), ("compare", "ZIPBrain (searched)"))
        default, winner = (done.get((*name, ratio, False)) for name in pair)
        if default is None or winner is None:
            continue
        original = done["original", "original", "", False]
        test = {name: each["test"]["scores"][run.metric] for name, each in
                (("original", original), ("default", default), ("winner", winner))}  # fmt: skip
        setting = " ".join(str(row["winner"][part]) for part in ("z1", "z2", "z3", "rho"))
        found.append({
            "task": run.task, "model": run.model, "seed": run.seed, "fold": _fold(run), "ratio": ratio,
            "metric": run.metric, "winner": setting, "settings": len(row["results"]), "networks": row["evaluated"],
            "val_original": f"{original['val']['scores'][run.metric]:.4f}",
            "val_default": f"{row['results'][DEFAULT]:.4f}", "val_winner": f"{row['score']:.4f}",
            **{f"test_{name}": f"{value:.4f}" for name, value in test.items()},
        })  # fmt: skip
    return found


def points(runs: Iterable[Run]) -> list[dict[str, Any]]:
    """First stage of the search: one row for every setting, one column for every task, model and ratio.

    Values are validation scores less the original's, mean over runs; empty where a network gave no numbers.
    """
    gains: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        for row in run.rows:
            if row["kind"] == "search":
                original = next(each for each in run.rows if each["kind"] == "original")["val"]["scores"][run.metric]
                column = f"{run.task} {run.model} {row['ratio']}"
                for setting, score in row["results"].items():
                    if setting.split(", ")[2] == "x":  # the others are of the second stage, and no run has them all
                        gains[setting.replace(",", "")][column].append(score - original)
    return [
        {"setting": setting}
        | {name: f"{np.mean(values):.4f}" if np.isfinite(values).all() else "" for name, values in columns.items()}
        for setting, columns in gains.items()
    ]


def flops() -> list[dict[str, Any]]:
    """Share of the multiply-adds saved, by hand, for 4 s of 16 channels: which blocks reduce, and how much."""
    from benchmarks.fidelity.experiments import halves

    from zipbrain import compress, summary
    from zipbrain.models import create
    from zipbrain.profiling import hand_flops

    names = _CHANNELS.split()
    options: dict[str, dict[str, Any]] = {
        "labram": {"ch_names": names, "n_times": 800}, "eegpt": {"ch_names": names, "n_times": 1024},
        "biot": {"n_chans": 16, "n_times": 800}, "tfm": {"n_chans": 16, "n_times": 800},
    }  # fmt: skip
    found = []
    for name in _MODELS:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # random weights
            model = create(name, n_outputs=1, **options[name])
        plans: list[tuple[str, str, list[int] | None]] = [("all blocks", ratio, None) for ratio in RATIOS]
        plans += [(which, "0.8", layers) for which, layers in halves(model).items()]
        for which, ratio, layers in plans:
            compress(model, "zipbrain", ratio=ratio if ratio == "max" else float(ratio), layers=layers)
            found.append({
                "model": name, "blocks": which, "ratio": ratio, "layers": " ".join(map(str, layers or [])),
                "tokens": " ".join(map(str, summary(model).token_counts or [])),
                "saved": f"{hand_flops(model).saved - (summary(model).tail or 0):.4f}",  # of pooling alone
            })  # fmt: skip
    return found


def figure() -> None:
    """Change of score, agreement and logit error against the share removed; softmax and linear attention apart."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    looks = {  # Okabe and Ito's colours; broken lines carry mass
        ("Twins", 0): ("#000000", "o", "-"), ("ZIPBrain", 0): ("#0072B2", "s", "-"),
        ("ZIPBrain", 1): ("#0072B2", "s", "--"), ("ToMe", 0): ("#D55E00", "^", "-"),
        ("ToMe", 1): ("#D55E00", "^", "--"),
        ("ToFu", 0): ("#E69F00", "v", "-"), ("ToFu", 1): ("#E69F00", "v", "--"), ("EViT", 0): ("#009E73", "D", "-"),
        ("DART", 0): ("#CC79A7", "P", "-"),
    }  # fmt: skip
    titles = {
        "change": "change of AUROC or kappa",
        "agreement": "same decisions",
        "logit_error": "logit error",
    }
    families = {"softmax": "softmax attention: LaBraM, EEGPT", "linear": "linear attention: BIOT, TFM-Tokenizer"}
    values = sweep_values()
    drawn, axes = plt.subplots(3, 2, figsize=(9, 9.5), sharex=True, sharey="row", layout="constrained")
    for column, (family, title) in enumerate(families.items()):
        axes[0, column].set_title(title)
        for row, (measure, name) in enumerate(titles.items()):
            axis = axes[row, column]
            for (label, mass), (colour, marker, line) in looks.items():
                heights = [values[family, label, mass, ratio][measure] for ratio in RATIOS]
                axis.plot(range(len(heights)), heights, line, color=colour, marker=marker, markersize=4, linewidth=1.5,
                          label=f"{label}{' + mass' * mass}", zorder=3 if label == "Twins" else 2)  # fmt: skip
            axis.grid(alpha=0.3)
            if measure == "logit_error":
                axis.set_yscale("log")
            if column == 0:
                axis.set_ylabel(name)
        axes[2, column].set_xticks(range(len(RATIOS)), ["20 %", "40 %", "60 %", "80 %", "max."])
        axes[2, column].set_xlabel("tokens removed")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    drawn.legend(handles, labels, loc="outside lower center", ncols=5, frameon=False)
    drawn.savefig(RESULTS / "experiments.png", dpi=110)


def _fold(run: Run) -> Any:
    return "" if run.fold is None else run.fold


def write(name: str, rows: Sequence[dict[str, Any]]) -> None:
    write_csv(name, rows, RESULTS)
    print(f"{len(rows)} rows in {name}.csv")


def main() -> None:
    """Parse and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("collect").add_argument("runs", type=Path)
    verbs.add_parser("page")
    verbs.add_parser("figure")
    given = parser.parse_args()
    if given.verb == "collect":
        collect(given.runs)
    elif given.verb == "figure":
        figure()
    else:
        fill(ALL_TABLES)


if __name__ == "__main__":
    main()
