"""Twins on networks that it was not chosen on: trained anew, compressed once, scored on test subjects only.

Every model on every task, two seeds that no choice has seen (EEGMAT: three folds). Beside Twins stand its first
version, its two merge rules everywhere, the paper's method, ToMe and random grouping.

    python -m benchmarks.fidelity.twins_networks run packs --workers 12 --out runs     # minutes on a GPU
    python -m benchmarks.fidelity.twins_networks collect runs                          # CSVs in benchmarks/results
    python -m benchmarks.fidelity.experiments_report page                              # tables of docs/notes/twins.md

`run` may start before all packs are there: workers take the jobs whose data have come, and wait for the others. What is
done is written at once, so that little is lost if the time is up. TFM-Tokenizer on the synthetic tasks, which
`benchmarks/fidelity/experiments.py` has not seen yet, is measured as there, too (folder `full` of the output).
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import os
import time
import traceback
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.fidelity.experiments import finish, splits_of, spread, train
from benchmarks.shared.packing import lay_out

from zipbrain.data.windows import Windows

SEEDS = (10, 11)
FOLDS = (0, 1, 2)
RATIOS: tuple[float | str, ...] = (0.8, "max")
REAL, MADE_UP = ("eyes", "imagery"), ("events", "sleep")
TFM_AT_ONCE = 3  # its pretraining takes up to 28 GB
TFM_STEPS = 80
LIMIT = 600  # test windows; EEGPT, with 20 times the work of the others, has a third
TRIES = 3  # of a job that finds the device full


def jobs(given: argparse.Namespace) -> list[dict[str, Any]]:
    """Everything, what matters most first."""
    found = []
    tasks, models = given.tasks.split(","), given.models.split(",")

    def add(task: str, model: str, seed: int, fold: int | None = None) -> None:
        if task in tasks and model in models:
            found.append({
                "packs": str(given.packs), "out": str(given.out), "task": task, "model": model, "seed": seed,
                "fold": fold, "name": f"{task}-{model}-{seed if fold is None else f'fold{fold}'}", "quick": given.quick,
                "settings": ({"pretrain_steps": TFM_STEPS} if model == "tfm" else {}) | json.loads(given.set),
                "full": model == "tfm" and task in MADE_UP, "limit": 20 if given.quick else LIMIT // 2, "keep": False,
                "search": RATIOS[: 1 + (seed == SEEDS[0])],
            })  # fmt: skip

    def every(task_set: tuple[str, ...], some: tuple[str, ...], seed: int) -> None:
        for task in task_set:
            for model in some:
                add(task, model, seed)

    seed, again = SEEDS
    for pair in (("biot", "labram"), ("eegpt",)):
        every((*REAL, *MADE_UP), pair, seed)
        for fold in FOLDS:
            for model in pair:
                add("eegmat", model, seed, fold)
    every((*REAL, *MADE_UP), ("biot", "labram"), again)
    every((*REAL, *MADE_UP), ("eegpt",), again)
    every((*MADE_UP, *REAL), ("tfm",), seed)
    for fold in FOLDS:
        add("eegmat", "tfm", seed, fold)
    every((*MADE_UP, *REAL), ("tfm",), again)
    return found


# -- one job -----------------------------------------------------------------------------------------------------------


def run(job: dict[str, Any]) -> str:
    """Train, compress, score; writes NAME.json and NAME-logits.npz."""
    out, name = Path(job["out"]), job["name"]
    splits = splits_of(job)
    if job["quick"]:
        splits = {key: spread(windows, 3 * job["limit"]) for key, windows in splits.items()}
    trained = train(job, splits)
    test = spread(splits["test"], 2 * job["limit"] // (3 if job["model"] == "eegpt" else 1))
    found, logits = measure(trained.model, test)
    store(out, name, trained.record | {"job": job, "experiments": found}, test, logits)
    words = f"{name}: validation {trained.outcome.best_score:.3f}, trained {trained.record['seconds']:.0f} s"
    if job["full"]:
        print(words, flush=True)
        words = f"in full: {finish(job | {'out': str(out / 'full')}, trained, splits)}"
    return words


def methods() -> dict[tuple[str, bool], Any]:
    """What is compared: label and mass (of ours, it is built in), and the method."""
    from benchmarks.fidelity.candidates import FirstTwins

    from zipbrain.pooling import ToMe, Twins, ZIPBrain, ablations

    random = ablations(ZIPBrain(), 0)["random grouping"]
    return {
        ("ZIPBrain", False): ZIPBrain(), ("ZIPBrain", True): ZIPBrain(), ("random grouping", False): random,
        ("random grouping", True): random, ("ToMe", True): ToMe(), ("Twins 1", False): FirstTwins(),
        ("Twins 2", False): Twins(), ("Twins 2, mean norm", False): Twins(linear="mean_norm"),  # type: ignore[arg-type]
        ("Twins 2, mean", False): Twins(softmax="mean"),  # type: ignore[arg-type]
    }  # fmt: skip


def measure(model: Any, test: Windows) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Rows and logits, in the form of `experiments.measure`."""
    from zipbrain.errors import OptionError
    from zipbrain.evaluation.trial import Trial, recipe_for

    trial = Trial(model, test, batch_size=200, prefix_budget=2**30)

    def facts(outcome: Any) -> dict[str, Any]:
        names = ("scores", "agreement", "logit_error", "confusion")
        return {name: getattr(outcome, name) for name in names}

    found: list[dict[str, Any]] = [{"kind": "original", "label": "original", "test": facts(trial.original)}]
    logits = {"original": trial.original.logits}
    for ratio in RATIOS:
        for (label, mass), method in methods().items():
            recipe = recipe_for(model, method, ratio=ratio, mass=mass)
            row: dict[str, Any] = {"kind": "compare", "label": label, "ratio": ratio, "mass": mass}
            row["method"] = recipe.method
            try:
                outcome = trial.run(recipe)
                row |= {"token_counts": outcome.token_counts, "test": facts(outcome)}
                logits[f"compare|{label}|{ratio}|{int(mass)}"] = outcome.logits
            except OptionError as error:  # logits that are no numbers
                row["failed"] = str(error)
            found.append(row)
    return found, logits


def store(out: Path, name: str, record: dict[str, Any], test: Windows, logits: dict[str, Any]) -> None:
    """Write NAME-logits.npz, then NAME.json: that one is there in full or not at all."""
    np.savez_compressed(
        out / f"{name}-logits.npz", labels=test.labels, subjects=test.subjects,
        **{key: value.astype(np.float16) for key, value in logits.items()},
    )  # fmt: skip
    part = out / f"{name}.part"
    part.write_text(json.dumps(record, default=str))
    part.rename(out / f"{name}.json")


# -- many jobs ---------------------------------------------------------------------------------------------------------


def work(number: int, todo: list[dict[str, Any]], slots: Any) -> None:
    """Take what is open and whose data are there until nothing is open; the first workers begin with TFM-Tokenizer."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if number < TFM_AT_ONCE:
        todo = sorted(todo, key=lambda job: job["model"] != "tfm")
    while any(not _claim(job).exists() for job in todo):
        if not any(_try(job, slots) for job in todo):
            time.sleep(1)


def _claim(job: dict[str, Any]) -> Path:
    return Path(job["out"]) / "claims" / str(job["name"])


def _try(job: dict[str, Any], slots: Any) -> bool:
    """True if the job was free, could be done now, and was done."""
    packs, task = Path(job["packs"]), job["task"]
    if _claim(job).exists():
        return False
    if task not in MADE_UP and not (packs / task).is_dir():
        return _unpack(packs, task)
    big = job["model"] == "tfm"
    if big and not slots.acquire(block=False):
        return False
    try:
        if not _take(_claim(job)):
            return False
        print(_outcome(job), flush=True)
        return True
    finally:
        if big:
            slots.release()


def _unpack(packs: Path, task: str) -> bool:
    if not (packs / f"{task}.npz").exists() or not _take(packs / f"{task}.claim"):
        return False
    start = time.perf_counter()
    lay_out(packs / f"{task}.npz", packs / task)
    print(f"{task}: unpacked in {time.perf_counter() - start:.0f} s", flush=True)
    return True


def _take(claim: Path) -> bool:
    try:
        claim.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def _outcome(job: dict[str, Any]) -> str:
    """What came of a job; one that found the device full is open again."""
    import torch

    try:
        return run(job)
    except Exception as error:
        words = f"{job['name']}: FAILED\n{traceback.format_exc()}"
        failures = Path(job["out"]) / f"{job['name']}.failed"
        with failures.open("a") as log:
            log.write(f"{words}\n=====\n")
        if isinstance(error, torch.OutOfMemoryError) and failures.read_text().count("=====") < TRIES:
            _claim(job).unlink()
        return words
    finally:
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def run_all(given: argparse.Namespace) -> None:
    """All jobs in some processes."""
    for folder in ("claims", "full"):
        (given.out / folder).mkdir(parents=True, exist_ok=True)
    import zipbrain.training  # noqa: F401 - once, before the processes part

    todo = jobs(given)
    context = multiprocessing.get_context("fork")
    slots = context.BoundedSemaphore(TFM_AT_ONCE)
    workers = [context.Process(target=work, args=(number, todo, slots)) for number in range(given.workers)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    print("all done", flush=True)


# -- what came of it ---------------------------------------------------------------------------------------------------


def collect(folder: Path) -> None:
    """Write the CSVs."""
    from benchmarks.fidelity import experiments_intervals as intervals
    from benchmarks.fidelity.experiments_report import facts, read, write

    runs = [run for run in read(folder) if run.complete("compare")]
    write("twins_networks", [row for run in runs for row in facts(run)])
    write("twins_networks_intervals", intervals.table(runs, {"twins": "Twins 2"}))


def main() -> None:
    """Parse and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    running = verbs.add_parser("run")
    running.add_argument("packs", type=Path)
    running.add_argument("--out", type=Path, default=Path("runs"))
    running.add_argument("--workers", type=int, default=1)
    running.add_argument("--tasks", default=",".join((*REAL, "eegmat", *MADE_UP)))
    running.add_argument("--models", default="biot,labram,eegpt,tfm")
    running.add_argument("--set", default="{}", help="JSON of training settings for all runs")
    running.add_argument("--quick", action="store_true", help="few windows and recipes, to see that it runs")
    verbs.add_parser("collect").add_argument("runs", type=Path)
    given = parser.parse_args()
    if given.verb == "collect":
        collect(given.runs)
    else:
        run_all(given)


if __name__ == "__main__":
    main()
