"""What every method keeps of a network's decisions at equal time, and what a certificate promised of it.

    python -m benchmarks.study.recipes PACKS --out STUDY --seconds 540     # after benchmarks.study.networks
    python -m benchmarks.study.report STUDY                                 # CSVs, tables and the figure

Recipes are tuned on validation subjects, for promises of 0.95 and 0.99 and for a few times, with the same windows,
schedules and second looks for all methods; then each recipe meets the test subjects once. STUDY/runs/NAME keeps every
step as soon as it is done, so the same command, repeated, goes on where it was stopped. It needs torch, numpy and
scikit-learn, and ONNX Runtime for `--runtime ort`.
"""

from __future__ import annotations

import argparse
import copy
import hashlib
import json
import time
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmarks.study.networks import Job, add_options, jobs, open_network, run_jobs, windows_of
from numpy.typing import NDArray

import zipbrain
from zipbrain import metrics
from zipbrain.binomial import share_bounds
from zipbrain.cores import available_cores
from zipbrain.data.windows import Windows
from zipbrain.defaults import TUNED_METHODS
from zipbrain.errors import OptionError
from zipbrain.evaluation.trial import Trial
from zipbrain.files import write_whole
from zipbrain.pooling import DART, EViT, LocalMerging, PiToMe, ToFu, ToMe, Twins, ZIPBrain, ablations
from zipbrain.progress import silent
from zipbrain.recipe import Recipe
from zipbrain.search.space import stage_1
from zipbrain.tuning import Option
from zipbrain.tuning.evidence import weigh
from zipbrain.tuning.grouped_windows import read_grouped_windows
from zipbrain.tuning.steps import Tuning
from zipbrain.tuning.tune import build_tuning
from zipbrain.weights import fingerprint

PROMISES = (0.99, 0.95)
TIMES = (0.45, 0.6, 0.75)  # of the original's
SETTINGS = 24  # of ZIPBrain's first stage, spread evenly over its 297, and the default
TIMED = 4.0  # seconds of one comparison of times
OURS = "zipbrain tune"


def kinds() -> dict[str, Iterable[Any]]:
    """What is tuned, by title; mass is on wherever a method can use it."""
    points = stage_1()
    searched = [points[place].method for place in np.linspace(0, len(points) - 1, SETTINGS).astype(int)]
    return {
        OURS: TUNED_METHODS,
        "Twins": [Twins()],
        "ZIPBrain": [ZIPBrain()],
        "ZIPBrain, searched": [ZIPBrain(), *searched],
        "ToMe": [ToMe()],
        "ToFu": [ToFu()],
        "EViT": [EViT()],
        "DART": [DART()],
        "PiToMe": [PiToMe()],
        "local merging": [LocalMerging(), LocalMerging(4)],
        "random grouping": [ablations(ZIPBrain(), 0)["random grouping"]],
    }


def study(job: Job) -> str:
    """All steps for one network that are not done yet."""
    model = open_network(job)
    if model is None:
        return "not trained yet"
    folder = Path(job["out"]) / "runs" / job["name"]
    titles = list(kinds()) if job["rivals"] is None else job["rivals"]
    names = [*(f"promise {agree}" for agree in PROMISES), *(f"curve {title}" for title in titles)]
    missing = [name for name in [*names, "tested"] if not (folder / f"{name}.json").exists()]
    if not missing:
        return "done before"
    folder.mkdir(parents=True, exist_ok=True)
    began, splits = time.perf_counter(), windows_of(job)
    opened: list[Tuning] = []
    steps = {f"promise {agree}": partial(promise, model, splits["tune"], folder, job, agree) for agree in PROMISES}
    steps |= {f"curve {title}": partial(curve, opened, model, splits["tune"], folder, job, title) for title in titles}
    for name in missing:
        if name == "tested":
            continue
        try:
            found = steps[name]()
        except OptionError as error:  # a model at one class, a method that can't work here
            found = {"refused": str(error)}
        write_whole(folder / f"{name}.json", json.dumps(found, indent=1).encode())
    rows = [json.loads((folder / f"{name}.json").read_text()) for name in names]
    tested(job, model, splits["test"], rows, folder)
    return f"{len(missing)} steps, {time.perf_counter() - began:.0f} s"


def promise(model: torch.nn.Module, windows: Windows, folder: Path, job: Job, agree: float) -> dict[str, Any]:
    """What `zipbrain.tune` promises, and with which recipe."""
    tuned = zipbrain.tune(
        model, windows, agree=agree, runtime=job["runtime"], batch=job["batch"], out=folder, **job["jobs"]
    )
    return {
        "recipes": [
            {
                "recipe": tuned.recipe.to_dict(),
                "agree": agree,
                "promised": tuned.certificate.agree,
                "is_promise": tuned.certificate.is_promise,
                "is_kept": tuned.is_kept,
                "time": tuned.time,
                "operations": tuned.operations,
                "tokens": tuned.anatomy.tokens,
                "method": tuned.chosen.candidate.method["name"],
                "schedule": tuned.chosen.candidate.title,
            }
        ]
    }


def curve(
    opened: list[Tuning], model: torch.nn.Module, windows: Windows, folder: Path, job: Job, title: str
) -> dict[str, Any]:
    """The most faithful recipe of one method at every time."""
    if not opened:  # the original's answers and times are the same for all methods
        network = copy.deepcopy(model).to("cpu", torch.float32).eval()
        timing = {"runtime": job["runtime"], "batch": job["batch"], "threads": available_cores(), "seconds": TIMED}
        where = folder / "work"
        where.mkdir(exist_ok=True)
        spread_over = {"address": None, "workers": None, **job["jobs"]}
        opened.append(
            build_tuning(
                network, read_grouped_windows(network, windows, None, None), where, spread_over, silent, 0, timing
            )
        )
    tuning = opened[0]
    tried, times = tuning.search(kinds()[title], PROMISES[0])
    options = [tuning.choose(tried, times, PROMISES[0], time=target) for target in TIMES]
    return {"recipes": [_row(tuning, one, target) for one, target in zip(options, TIMES, strict=True)]}


def _row(tuning: Tuning, one: Option, target: float) -> dict[str, Any]:
    recipe = one.candidate.recipe(tuning.anatomy, second_look=one.margin if one.removes else None)
    return {
        "recipe": recipe.to_dict(),
        "target": target,
        "time": one.time,
        "operations": one.operations,
        "share": one.second_look_share,
        "tokens": tuning.anatomy.tokens,
        "method": one.candidate.method["name"],
        "schedule": one.candidate.title,
    }


def tested(job: Job, model: torch.nn.Module, windows: Windows, rows: list[dict[str, Any]], folder: Path) -> None:
    """Run every recipe on test windows, once; writes logits.npz, then tested.json with the hash of each logits."""
    trial = Trial(model, windows, device="cpu", batch_size=job["batch"])
    before = trial.original.logits
    assert before is not None
    right, usual = int((metrics.decisions(before) == windows.labels).sum()), np.bincount(windows.labels).max()
    logits, found = {"original": before}, {}
    for row in (one for given in rows for one in given.get("recipes", ())):
        recipe = Recipe.from_dict(row["recipe"])
        key = recipe.key()
        if key in found:
            continue
        try:
            result = trial.run(recipe)
        except OptionError as error:  # logits that are not finite
            found[key] = {"refused": str(error)}
            continue
        assert result.logits is not None
        logits[key] = result.logits
        flipped = metrics.decisions(result.logits) != metrics.decisions(before)
        seen = weigh(flipped, windows.subjects)
        effective = seen.effective_at(max(1 - seen.agreement, 1e-3))
        fewest = share_bounds(seen.flips / seen.windows * effective, effective)[0]
        found[key] = {
            "agreement": result.agreement,
            "upper": 1 - fewest,
            "scores": result.scores,
            "error": result.logit_error,
            "operations": result.operations,
            "looked": result.looked,
            "sha256": sha256(result.logits),
        }
    np.savez_compressed(
        folder / "logits.npz", labels=windows.labels, subjects=windows.subjects, allow_pickle=False, **logits
    )
    facts = {
        "runtime": job["runtime"],
        "batch": job["batch"],
        "windows": len(windows),
        "subjects": len(np.unique(windows.subjects)),
        "scores": trial.original.scores,
        "right": right,
        "usual": int(usual),
        "answers": np.bincount(metrics.decisions(before)).tolist(),
        "weights": fingerprint(model.state_dict()),
        "results": found,
    }
    write_whole(folder / "tested.json", json.dumps(facts, indent=1).encode())


def sha256(logits: NDArray[np.float32]) -> str:
    """Hash of the bytes of logits."""
    return hashlib.sha256(np.ascontiguousarray(logits).tobytes()).hexdigest()


def main() -> None:
    """Parse and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.add_argument("--runtime", default="torch", choices=("torch", "ort", "openvino"))
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rivals", help="titles of what is compared at equal time, separated by ';'; all if not given")
    given = parser.parse_args()
    rivals = None if given.rivals is None else [one for one in given.rivals.split(";") if one]
    if rivals and {*rivals} - {*kinds()}:
        raise SystemExit(f"{', '.join({*rivals} - {*kinds()})}: rivals are {', '.join(kinds())}")
    todo = jobs(given)
    for job in todo:
        job |= {"runtime": given.runtime, "batch": given.batch, "rivals": rivals}
        job["jobs"] = {"backend": "loky" if given.workers == 1 else "sequential"}
    raise SystemExit(run_jobs(todo, study, given.workers, given.seconds) > 0)


if __name__ == "__main__":
    main()
