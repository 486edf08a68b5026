"""Tune the demo's LaBraM, and measure the recipe once on test windows of other made-up people.

`python -m benchmarks.fidelity.tuned` writes the recipe (tuned.json of the demo model), benchmarks/results/tuned.csv
and the table of docs/guides/tune.md; `--measure` takes the recipe that is there, `--fill` the stored figures.
"""

from __future__ import annotations

import argparse
import copy
import resource
import shutil
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmarks.shared.results import DEMO, fill, read_csv, write_csv

import zipbrain
from zipbrain.binomial import share_bounds
from zipbrain.cores import free_cores
from zipbrain.data.synthetic import Synthetic
from zipbrain.edge.runtimes import find_runtime
from zipbrain.evaluation.trial import Trial
from zipbrain.export.shipped_graph import graphs
from zipbrain.metrics import decisions
from zipbrain.pretrained import from_pretrained
from zipbrain.profiling import interleaved
from zipbrain.signal.scaling import scale
from zipbrain.training.loader import scaling_of
from zipbrain.training.window_sources import new_people

PEOPLE, AGREE, BATCH = 120, 0.99, 32
RECIPE = DEMO / "tuned.json"


def tune(out: Path) -> dict[str, Any]:
    """The recipe, and what finding it took."""
    began = time.perf_counter()
    windows = new_people("synthetic-events", "LaBraM", PEOPLE)
    tuned = zipbrain.tune(from_pretrained(DEMO), windows, agree=AGREE, runtime="ort", batch=BATCH, out=out)
    print(tuned)
    files = tuned.save(out)
    shutil.copy(files[0], RECIPE)
    kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    peak = max(resource.getrusage(kind).ru_maxrss for kind in kinds) / 1024
    return {"tune_seconds": round(time.perf_counter() - began), "tune_peak_mb": round(peak)}


def measure() -> dict[str, Any]:
    """Decisions, operations and times of the recipe on the demo's test windows."""
    model, recipe = from_pretrained(DEMO), zipbrain.Recipe.load(RECIPE)
    windows = Synthetic("events").split("test")
    found = Trial(model, windows, device="cpu").run(recipe)
    x = np.asarray(scale(windows.take(slice(None)), scaling_of("LaBraM", windows)), dtype=np.float32)
    network = zipbrain.compress(copy.deepcopy(model), recipe)
    kind, threads = find_runtime("onnxruntime"), free_cores()
    files = {
        name: kind(graphs(one, x.shape[1:])[0].SerializeToString(), name, threads=threads).run
        for name, one in (("original", model), ("tuned", network))
    }
    logits = {name: np.concatenate([run(part) for part in _batches(x)]) for name, run in files.items()}
    with torch.inference_mode():
        ours = np.concatenate([network(torch.from_numpy(part)).numpy() for part in _batches(x)])
    timed = interleaved({name: partial(_all, run, x) for name, run in files.items()}, rounds=15)
    flips = int((decisions(logits["tuned"]) != decisions(logits["original"])).sum())
    promise = recipe.promise or {}
    return {
        "windows": len(x),
        "people": len(np.unique(windows.subjects)),
        "promised": promise.get("agree"),
        "flips": flips,
        "agreement": round(1 - flips / len(x), 4),
        "agreement_upper": round(1 - share_bounds(flips, len(x))[0], 4),
        "looked_twice": round(found.looked, 4),
        "operations": round(found.operations, 4),
        "ort_time": round(timed["tuned"].ratio(timed["original"]), 4),
        "same_decisions_as_torch": int((decisions(ours) == decisions(logits["tuned"])).sum()),
        "kappa_before": round(Trial(model, windows, device="cpu").original.scores["kappa"], 4),
        "kappa_after": round(found.scores["kappa"], 4),
        "tokens": " ".join(map(str, found.token_counts)),
    }


def _batches(x: np.ndarray) -> list[np.ndarray]:
    return [x[start : start + BATCH] for start in range(0, len(x), BATCH)]


def _all(run: Any, x: np.ndarray) -> None:
    for part in _batches(x):
        run(part)


def table() -> str:
    """What was promised and what was measured, one line each."""
    row = read_csv("tuned")[0]
    share = {name: f"{float(row[name]):.1%}" for name in ("promised", "agreement", "agreement_upper", "looked_twice")}
    kept = int(row["windows"]) - int(row["flips"])
    lines = [
        ("promised, 95 % confidence", f"{share['promised']} of the decisions unchanged"),
        ("measured on test", f"{kept} of {row['windows']} windows of {row['people']} people unchanged"),
        ("agreement", f"{share['agreement']} (one-sided 95 % interval up to {share['agreement_upper']})"),
        ("time in ONNX Runtime, batch 32", f"{float(row['ort_time']):.2f} of the original's"),
        ("operations, second looks included", f"{float(row['operations']):.2f} of the original's"),
        ("windows that looked twice", share["looked_twice"]),
        ("tokens behind every block", row["tokens"]),
        ("kappa before and after", f"{row['kappa_before']} and {row['kappa_after']}"),
        ("decisions in ONNX Runtime as in torch", f"{row['same_decisions_as_torch']} of {row['windows']}"),
        ("tuning took", f"{row['tune_seconds']} s and {row['tune_peak_mb']} MB in its largest process"),
    ]
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in lines)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="folder of the tuning; a temporary one if not given")
    parser.add_argument("--measure", action="store_true", help="take the recipe that is there")
    parser.add_argument("--fill", action="store_true", help="take the stored figures")
    given = parser.parse_args()
    if not given.fill:
        if given.measure:
            known = read_csv("tuned")[0]
            took = {name: known[name] for name in ("tune_seconds", "tune_peak_mb")}
        else:
            took = tune(given.out or Path(tempfile.mkdtemp()))
        row = {**measure(), **took}
        print(row)
        write_csv("tuned", [row])
    fill({"tuned": table})


if __name__ == "__main__":
    main()
