"""All four models, from scratch, on real EEG: EEGMMIDB (eyes open or closed, four-class imagery) and EEGMAT.

No pretrained weights are used. Splits are by subject. For every model a learning rate is chosen on validation windows
(`--tune`, one seed), then each model is trained with several seeds and tested once. Beside them stand two classical
rows: logistic regression on log band power, and on the slow waves of the electrodes next to the eyes.

    zipbrain data prepare eegmmidb-eyes --root RAW --out prepared/eyes --model labram      # and imagery, eegmat
    python -m benchmarks.shared.packing prepared/eyes packs/eyes.npz
    python -m benchmarks.training.real_data run packs --tasks eyes --out runs                       # minutes on a GPU
    python -m benchmarks.training.real_data report runs                                             # CSV and page
"""

from __future__ import annotations

import argparse
import csv
import json
import multiprocessing
import os
import time
import traceback
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.shared.packing import SPLITS, for_model
from benchmarks.shared.results import RESULTS, write_csv
from benchmarks.shared.tasks import FOLDS, MODELS, fold, load
from numpy.typing import NDArray

from zipbrain.data.windows import Windows

CLASSICAL = ("classical", "slow")
SEEDS = (0, 1, 2)
FRONTAL = ("FP1", "FP2", "F7", "F8")  # where the eyes are seen best
BANDS = ((0.5, 4), (4, 8), (8, 10), (10, 13), (13, 20), (20, 30), (30, 45))

# --- one run ----------------------------------------------------------------------------------------------------------


def run(job: dict[str, Any]) -> str:
    """Train and test one model; writes NAME.json and NAME.npz."""
    out, name = Path(job["out"]), job["name"]
    if (out / f"{name}.json").exists():
        return f"{name}: there already"
    try:
        splits = load(Path(job["packs"]), job["task"])
        if job.get("fold") is not None:
            splits = fold(splits, job["fold"])
        start = time.perf_counter()
        record, probabilities, val = (classical if job["model"] in CLASSICAL else network)(job, splits)
        test = splits["test"]
        record |= {"seconds": time.perf_counter() - start, "job": {k: v for k, v in job.items() if k != "packs"}}
        np.savez_compressed(
            out / f"{name}.npz", probabilities=probabilities, labels=test.labels, subjects=test.subjects
        )
        (out / f"{name}.json").write_text(json.dumps(record, indent=1, default=str))
        return f"{name}: validation {val:.3f}, {record['seconds']:.0f} s"
    except Exception:
        return f"{name}: FAILED\n{traceback.format_exc()}"


def network(job: dict[str, Any], splits: dict[str, Windows]) -> tuple[dict[str, Any], NDArray[np.float64], float]:
    """One of the four models, from scratch."""
    import torch

    from zipbrain.metrics import probabilities
    from zipbrain.training import finetune, predict, scratch_settings

    torch.set_num_threads(2)
    model = job["model"]
    parts = {name: for_model(splits[name], model) for name in SPLITS}
    settings = scratch_settings(model).override(seed=job["seed"], **job["settings"])
    trained = finetune(model, parts["train"], parts["val"], settings=settings)
    logits = predict(trained.model, parts["test"], batch_size=256)
    record = trained.record | {"history": trained.outcome.history}
    return record, probabilities(logits), float(trained.outcome.best_score or 0.0)


def classical(job: dict[str, Any], splits: dict[str, Windows]) -> tuple[dict[str, Any], NDArray[np.float64], float]:
    """Band power or slow waves, and logistic regression, its strength chosen on validation windows."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import cohen_kappa_score, roc_auc_score
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    features = slow_waves if job["model"] == "slow" else band_power
    x = {name: features(part) for name, part in splits.items()}
    y = {name: part.labels for name, part in splits.items()}
    binary = len(splits["train"].classes) == 2
    best: tuple[float, Any] = (-np.inf, None)
    for strength in (1e-4, 1e-3, 1e-2, 1e-1, 1.0):
        fitted = make_pipeline(StandardScaler(), LogisticRegression(C=strength, max_iter=5000)).fit(
            x["train"], y["train"]
        )
        if binary:
            score = roc_auc_score(y["val"], fitted.predict_proba(x["val"])[:, 1])
        else:
            score = cohen_kappa_score(y["val"], fitted.predict(x["val"]))
        if score > best[0]:
            best = (float(score), fitted)
    found = best[1].predict_proba(x["test"])
    record = {"settings": "classical", "validation_score": best[0], "C": best[1][-1].C}
    return record, found[:, 1] if binary else found, best[0]


def band_power(windows: Windows) -> NDArray[np.float64]:
    """(n, 16 x 7): log power in seven bands."""
    x = windows.take(np.arange(len(windows))).astype(np.float64)
    x -= x.mean(2, keepdims=True)
    power = np.abs(np.fft.rfft(x * np.hanning(x.shape[2]), axis=2)) ** 2
    hertz = np.fft.rfftfreq(x.shape[2], 1 / windows.sfreq)
    bands = [power[:, :, (hertz >= low) & (hertz < high)].mean(2) for low, high in BANDS]
    return np.log(np.stack(bands, axis=2) + 1e-6).reshape(len(x), -1)


def slow_waves(windows: Windows) -> NDArray[np.float64]:
    """(n, 4 x 16): the signed, slow course of the four electrodes next to the eyes, in quarters of a second."""
    rows = [[name.upper() for name in windows.ch_names].index(name) for name in FRONTAL]
    x = windows.take(np.arange(len(windows)))[:, rows].astype(np.float64)
    step = round(windows.sfreq / 4)
    x = x[:, :, : x.shape[2] // step * step].reshape(*x.shape[:2], -1, step).mean(3)
    x /= np.median(np.abs(x), axis=(1, 2), keepdims=True) + 1e-9
    return np.clip(x, -5, 5).reshape(len(x), -1)


# --- many runs --------------------------------------------------------------------------------------------------------

TRIED: dict[str, list[dict[str, Any]]] = {
    "labram": [{"lr": 2e-4}, {"lr": 5e-4}],
    "eegpt": [{"lr": 5e-5}, {"lr": 2e-4}],
    "biot": [{"lr": 2e-4}, {"lr": 5e-4}],
    "tfm": [{"lr": 5e-4}, {"lr": 1e-3}],
}


def jobs(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Everything that was asked for, the longest first."""
    extra = json.loads(arguments.set)
    found: list[dict[str, Any]] = []

    def add(name: str, seed: int, settings: dict[str, Any], fold: int | None = None) -> None:
        job = {"packs": str(arguments.packs), "out": str(arguments.out), "task": task, "model": model}
        found.append(job | {"name": name, "seed": seed, "settings": settings, "fold": fold})

    for task in arguments.tasks.split(","):
        for model in arguments.models.split(","):
            if arguments.tune:
                for number, settings in enumerate(TRIED[model]):
                    add(f"tune-{task}-{model}-{number}", 100, settings | extra)
                continue
            settings = {} if model in CLASSICAL else chosen(arguments.out, model) | extra
            for seed in SEEDS if model not in CLASSICAL else SEEDS[:1]:
                add(f"{task}-{model}-{seed}", seed, settings)
            for number in range(FOLDS if task == "eegmat" else 0):
                add(f"{task}-{model}-fold{number}", 0, settings, number)
    weight = {"tfm": 3, "eegpt": 2, "labram": 1, "biot": 0, "classical": -1, "slow": -1}
    return sorted(found, key=lambda job: -weight[job["model"]])


def chosen(out: Path, model: str) -> dict[str, Any]:
    """The tried settings with the best validation score, mean over the tasks that were tuned; none if none were."""
    scores: dict[int, list[float]] = {}
    for file in out.glob(f"tune-*-{model}-*.json"):
        scores.setdefault(int(file.stem.rsplit("-", 1)[1]), []).append(json.loads(file.read_text())["validation_score"])
    if not scores:
        return {}
    return TRIED[model][max(sorted(scores), key=lambda number: np.mean(scores[number]))]


def main() -> None:
    """Parse and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    running = verbs.add_parser("run")
    running.add_argument("packs", type=Path)
    running.add_argument("--tasks", default="eyes,imagery,eegmat")
    running.add_argument("--models", default=",".join((*CLASSICAL, *MODELS)))
    running.add_argument("--out", type=Path, default=Path("runs"))
    running.add_argument("--workers", type=int, default=1)
    running.add_argument("--tune", action="store_true", help="choose settings on validation windows")
    running.add_argument("--set", default="{}", help="JSON of settings for all runs, such as '{\"epochs\": 2}'")
    reporting = verbs.add_parser("report")
    reporting.add_argument("runs", type=Path)
    arguments = parser.parse_args()
    if arguments.verb == "report":
        report(arguments.runs)
        return
    arguments.out.mkdir(parents=True, exist_ok=True)
    todo = jobs(arguments)
    if arguments.workers == 1:
        for job in todo:
            print(run(job), flush=True)
        return
    os.environ.setdefault("OMP_NUM_THREADS", "2")
    with multiprocessing.get_context("spawn").Pool(arguments.workers) as pool:
        for line in pool.imap_unordered(run, todo):
            print(line, flush=True)


# --- report -----------------------------------------------------------------------------------------------------------


def report(runs: Path) -> None:
    """Metrics with confidence intervals over subjects, one row per run, cross-validation as one row per model."""
    rows = []
    for file in sorted(runs.glob("*.json")):
        if file.stem.startswith("tune-") or "fold" in file.stem:
            continue
        rows.append(row(file.stem, [file]))
    for model in (*CLASSICAL, *MODELS):
        files = sorted(runs.glob(f"eegmat-{model}-fold*.json"))
        if files:
            rows.append(row(f"eegmat-{model}-6fold", files))
    with (RESULTS / "real_data.csv").open("w", newline="") as out:
        writer = csv.DictWriter(out, fieldnames=list(dict.fromkeys(key for line in rows for key in line)))
        writer.writeheader()
        writer.writerows(rows)
    tuned = [json.loads(file.read_text()) for file in sorted(runs.glob("tune-*.json"))]
    if tuned:
        write_csv(
            "real_data_tuning",
            [
                {name: line["job"][name] for name in ("task", "model", "seed")}
                | {"lr": line["job"]["settings"]["lr"], "validation_auroc": f"{line['validation_score']:.3f}"}
                for line in tuned
            ],
        )
    print(f"{len(rows)} rows in {RESULTS / 'real_data.csv'}\n")
    print(markdown(RESULTS / "real_data.csv"))  # docs/benchmarks/real_eeg.md holds these tables


def row(name: str, files: list[Path]) -> dict[str, Any]:
    """One line of the CSV: a run, or the pooled predictions of all folds."""
    from zipbrain.evaluation.bootstrap import intervals
    from zipbrain.metrics import main_metric, scores

    records = [json.loads(file.read_text()) for file in files]
    stored = [np.load(file.with_suffix(".npz")) for file in files]
    labels = np.concatenate([each["labels"] for each in stored])
    found = np.concatenate([each["probabilities"] for each in stored])
    subjects = np.concatenate([each["subjects"] for each in stored])
    job, classes = records[0]["job"], 2 if found.ndim == 1 else found.shape[1]
    metric = main_metric(classes)
    values, between = scores(labels, found), intervals(labels, found, subjects)
    line: dict[str, Any] = {
        "task": job["task"], "model": job["model"], "split": "6-fold" if len(files) > 1 else "fixed",
        "seed": job["seed"], "settings": records[0]["settings"], "changed": json.dumps(job["settings"]),
        "test_windows": len(labels), "test_subjects": len(set(subjects.tolist())), "metric": metric,
    }  # fmt: skip
    for key, value in values.items():
        low, high = between[key]
        line |= {key: f"{value:.4f}", f"{key}_low": f"{low:.4f}", f"{key}_high": f"{high:.4f}"}
    if len(files) > 1:
        each = [scores(np.asarray(one["labels"]), np.asarray(one["probabilities"]))[metric] for one in stored]
        line["fold_mean"] = f"{np.mean(each):.4f}"
        line["folds"] = " ".join(f"{value:.3f}" for value in each)
    line |= {
        "validation": f"{np.mean([record['validation_score'] for record in records]):.4f}",
        "epochs": records[0].get("epochs_run", ""), "kept_epoch": records[0].get("kept_epoch", ""),
        "seconds": f"{sum(record['seconds'] for record in records):.1f}",
        "device": records[0].get("device", "cpu"), "torch": records[0].get("versions", {}).get("torch", ""),
        "weights_sha256": " ".join(record.get("weights_sha256", "")[:16] for record in records),
    }  # fmt: skip
    return line


# Of the uncompressed models, fine-tuned from pretrained weights: the paper's main table, AUROC.
PAPER = {"labram": 0.6230, "eegpt": 0.6517, "biot": 0.7721, "tfm": 0.6299}
_TITLES = {
    "eyes": "Eyes open or closed (EEGMMIDB)", "imagery": "Imagined movement (EEGMMIDB)",
    "eegmat": "Rest or mental arithmetic (EEGMAT)",
}  # fmt: skip
_SHOWN = dict(
    zip((*CLASSICAL, *MODELS), ("band power", "slow waves", "LaBraM", "EEGPT", "BIOT", "TFM-Tokenizer"), strict=True)
)
_METRICS = {"auroc": "AUROC", "kappa": "kappa"}


def markdown(file: Path) -> str:
    """The stored rows as tables: one for each task and split, a line for each model."""
    with file.open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    found: dict[tuple[str, str], list[dict[str, str]]] = {}
    for task in _TITLES:
        for split in ("fixed", "6-fold"):
            chosen = [line for line in rows if (line["task"], line["split"]) == (task, split)]
            if chosen:
                found[task, split] = chosen
    return "\n\n".join(_table(*key, chosen) for key, chosen in found.items()) + "\n"


def _table(task: str, split: str, rows: list[dict[str, str]]) -> str:
    """Mean over seeds [lowest to highest]; the interval over subjects belongs to seed 0."""
    metric = rows[0]["metric"]
    paper = task == "eegmat" and split == "fixed"
    columns = ["from scratch", _METRICS[metric], "95 % interval", "balanced accuracy"]
    columns += ["paper, pretrained"] if paper else []
    title = _TITLES[task] + {"fixed": ", fixed split", "6-fold": ", 6-fold cross-validation"}[split]
    count = len({line["seed"] for line in rows})
    tested = f"Tested on {int(rows[0]['test_windows']):,} windows of {rows[0]['test_subjects']} subjects"
    tested += f"; {count} seed{'s' * (count > 1)}."
    lines = [f"### {title}", "", tested, "", f"| {' | '.join(columns)} |", "|---" + "|--:" * (len(columns) - 1) + "|"]
    for model, shown in _SHOWN.items():
        seeds = sorted((line for line in rows if line["model"] == model), key=lambda line: int(line["seed"]))
        if seeds:
            between = f"{float(seeds[0][f'{metric}_low']):.3f} to {float(seeds[0][f'{metric}_high']):.3f}"
            cells = [shown, _mean(seeds, metric), between, _mean(seeds, "balanced_accuracy")]
            cells += [f"{PAPER[model]:.3f}" if model in PAPER else ""] if paper else []
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _mean(rows: list[dict[str, str]], metric: str) -> str:
    values = [float(line[metric]) for line in rows]
    spread = f" [{min(values):.3f} to {max(values):.3f}]" if len(values) > 1 else ""
    return f"{np.mean(values):.3f}{spread}"


if __name__ == "__main__":
    main()
