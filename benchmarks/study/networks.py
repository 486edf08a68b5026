"""Train the networks of the study: four models on five tasks and CHB-MIT, with seeds that no choice has seen.

    python -m benchmarks.study.networks PACKS --out STUDY --workers 8 --seconds 540

writes STUDY/networks/NAME.pt (the module) and NAME.json. What is there is not trained again; with `--seconds` no new
network is begun after that time, so the same command, repeated, gets through any limit. It needs torch, numpy and
scikit-learn. PACKS holds what `benchmarks.shared.packing` and `benchmarks.data.chbmit_seconds windows` wrote.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmarks.fidelity.experiments import PEOPLE, splits_of, spread, train
from benchmarks.shared.packing import SPLITS
from benchmarks.shared.tasks import MODELS, load

from zipbrain.data import convention
from zipbrain.data.synthetic import Synthetic
from zipbrain.data.windows import Windows
from zipbrain.errors import OptionError

TASKS = ("eyes", "imagery", "eegmat", "events", "sleep", "chbmit")
MADE_UP = ("events", "sleep")
SEEDS = (20, 21)  # not those of benchmarks/fidelity: 0 to 2, 10 and 11; EEGMAT's folds 4 and 5 are tested with them
FIRST_FOLD = 4
OF_EACH = {"events": 60, "sleep": 30}  # windows of a made-up person
NEW_PEOPLE = 60  # made-up ones whom recipes are chosen and certified on
TUNED, TESTED, DEAR = 1200, 600, 3  # windows at most, and the share of them (a third) that EEGPT gets
TFM_STEPS = 80  # of its pretraining

Job = dict[str, Any]


def jobs(given: argparse.Namespace) -> list[Job]:
    """One entry for each network: the first seed of all of them comes first."""
    tasks, models = given.tasks.split(","), given.models.split(",")
    wrong = sorted({*tasks} - {*TASKS} | {*models} - {*MODELS})
    if wrong:
        raise SystemExit(f"{', '.join(wrong)}: tasks are {', '.join(TASKS)}; models are {', '.join(MODELS)}")
    found = []
    for number, seed in enumerate(int(one) for one in given.seeds.split(",")):
        for task in tasks:
            for model in models:
                settings = ({"pretrain_steps": TFM_STEPS} if model == "tfm" else {}) | json.loads(given.set)
                found.append(
                    {
                        "packs": str(given.packs),
                        "out": str(given.out),
                        "task": task,
                        "model": model,
                        "seed": seed,
                        "fold": FIRST_FOLD + number if task == "eegmat" else None,
                        "name": f"{task}-{model}-{seed}",
                        "settings": settings,
                        "limit": given.limit,
                    }
                )
    return found


def windows_of(job: Job) -> dict[str, Windows]:
    """Training and validation windows, those to tune on, and those of test subjects, as the job's model reads them.

    Recipes are tuned on windows of validation subjects that do not overlap; on made-up people of their own where there
    are such.
    """
    splits = _made_up(job) if job["task"] in MADE_UP else splits_of(job)
    if job["task"] not in MADE_UP:
        splits["tune"], how = splits["val"], convention(job["model"], splits["val"].name)
        if how.hop_s < how.window_s:
            splits["tune"] = splits["val"].select(np.arange(0, len(splits["val"]), round(how.window_s / how.hop_s)))
    share, limit = DEAR if job["model"] == "eegpt" else 1, job["limit"]
    splits |= {"tune": spread(splits["tune"], TUNED // share), "test": spread(splits["test"], TESTED // share)}
    return {name: spread(windows, limit) for name, windows in splits.items()}


def _made_up(job: Job) -> dict[str, Windows]:
    """Splits of a synthetic task, and windows of other made-up people to tune on; few of all with a limit."""
    montage = "bipolar" if job["task"] == "events" and job["model"] in ("biot", "tfm") else "referential"
    few = job["limit"] is not None
    people = partial(Synthetic, job["task"], montage=montage)
    corpus = people(n_subjects=10 if few else PEOPLE, windows_per_subject=12 if few else OF_EACH[job["task"]])
    others = people(n_subjects=20 if few else NEW_PEOPLE * 5 // 3, windows_per_subject=20, seed=job["seed"])
    return {name: corpus.split(name) for name in SPLITS} | {"tune": others.split("train")}


def make(job: Job) -> str:
    """Train one network and write it down."""
    folder = Path(job["out"]) / "networks"
    began, splits = time.perf_counter(), windows_of(job)
    trained = train(job, splits)
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / f"{job['name']}.part"
    torch.save(trained.model.cpu().eval(), part)
    part.rename(folder / f"{job['name']}.pt")
    record = {**trained.record, "job": job, "best_score": trained.outcome.best_score}
    part.write_text(json.dumps(record, default=str))
    part.rename(folder / f"{job['name']}.json")
    return f"validation {trained.outcome.best_score:.3f}, {time.perf_counter() - began:.0f} s"


def open_network(job: Job) -> Any:
    """The trained module; None where it is not there yet."""
    path = Path(job["out"]) / "networks" / f"{job['name']}.pt"
    return torch.load(path, weights_only=False, map_location="cpu") if path.with_suffix(".json").exists() else None


def add_options(parser: argparse.ArgumentParser) -> None:
    """What both commands of the study take."""
    parser.add_argument("packs", type=Path, help="folder of packed windows")
    parser.add_argument("--out", type=Path, default=Path("study"))
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--seeds", default=",".join(map(str, SEEDS)))
    parser.add_argument("--workers", type=int, default=1, help="networks at the same time")
    parser.add_argument("--seconds", type=float, help="begin nothing new after this time")
    parser.add_argument("--limit", type=int, help="windows of each split at most, to see that it runs")
    parser.add_argument("--set", default="{}", help="JSON of training settings for all networks")


def run_jobs(todo: Sequence[Job], work: Callable[[Job], str], workers: int, seconds: float | None) -> int:
    """Do jobs, some at a time, until the time is up; the number of those that failed."""
    end = None if seconds is None else time.time() + seconds
    tasks = [(work, job, end) for job in todo]
    failed = 0
    for name, words in _outcomes(tasks, workers):
        failed += words.startswith("FAILED")
        print(f"{name}: {words}", flush=True)
    return failed


def _outcomes(tasks: Sequence[Any], workers: int) -> Iterator[tuple[str, str]]:
    if workers == 1:
        yield from map(_outcome, tasks)
        return
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    for task in sorted({job["task"] for _, job, _ in tasks} - {*MADE_UP}):
        load(Path(tasks[0][1]["packs"]), task)  # once, before the processes part
    with multiprocessing.get_context("fork").Pool(workers, maxtasksperchild=1) as pool:
        yield from pool.imap_unordered(_outcome, tasks, chunksize=1)


def _outcome(task: tuple[Callable[[Job], str], Job, float | None]) -> tuple[str, str]:
    work, job, end = task
    if end is not None and time.time() > end:
        return job["name"], "not begun: the time is up"
    try:
        return job["name"], work(job)
    except OptionError as error:
        return job["name"], f"FAILED: {error}"
    except Exception:
        return job["name"], f"FAILED\n{traceback.format_exc()}"


def main() -> None:
    """Parse and train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    given = parser.parse_args()
    todo = [job for job in jobs(given) if open_network(job) is None]
    raise SystemExit(run_jobs(todo, make, given.workers, given.seconds) > 0)


if __name__ == "__main__":
    main()
