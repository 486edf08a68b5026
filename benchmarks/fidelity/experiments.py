"""The paper's experiments on real EEG: train, compare, ablate, search, and look for a method that loses nothing.

Each run trains one model from scratch on one task (seed or fold), then scores compressed versions of it on validation
and test subjects. Whatever is chosen (a search's winner, a new method) is chosen on validation subjects. Twins is here
in its first version; `benchmarks/fidelity/twins_networks.py` has the second.

    python -m benchmarks.fidelity.experiments run packs --workers 8 --out runs        # tens of minutes on a GPU
    python -m benchmarks.fidelity.experiments_report collect runs                     # CSVs in benchmarks/results
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import time
import traceback
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.shared.packing import SPLITS, for_model
from benchmarks.shared.tasks import FOLDS, MODELS, fold, load

from zipbrain.data.windows import Windows

RATIOS: tuple[float | str, ...] = (0.2, 0.4, 0.6, 0.8, "max")
SEARCHED: tuple[float | str, ...] = (0.8, "max")
RANDOM_SEEDS = 10
PEOPLE = 60  # made-up ones, of the synthetic tasks


def splits_of(job: dict[str, Any]) -> dict[str, Windows]:
    """Train, validation and test windows as the job's model reads them."""
    task, model = job["task"], job["model"]
    if task in ("events", "sleep"):
        from zipbrain.data.synthetic import Synthetic

        montage = "bipolar" if task == "events" and model in ("biot", "tfm") else "referential"
        corpus = Synthetic(task, n_subjects=PEOPLE, windows_per_subject=60 if task == "events" else 30, montage=montage)
        return {name: corpus.split(name) for name in SPLITS}
    splits = load(Path(job["packs"]), task)
    if job["fold"] is not None:
        splits = fold(splits, job["fold"])
    return {name: for_model(splits[name], model) for name in SPLITS}


def run(job: dict[str, Any]) -> str:
    """Train and measure; writes NAME.json and NAME.npz."""
    if (Path(job["out"]) / f"{job['name']}.json").exists():
        return f"{job['name']}: there already"
    try:
        splits = splits_of(job)
        return finish(job, train(job, splits), splits)
    except Exception:
        return f"{job['name']}: FAILED\n{traceback.format_exc()}"


def train(job: dict[str, Any], splits: dict[str, Windows]) -> Any:
    """The job's model, from scratch."""
    import torch

    from zipbrain.training import finetune, scratch_settings

    torch.set_num_threads(1)
    # TF32 for training only; it would bury the weak bins of the spectra that TFM learns its tokens from
    torch.set_float32_matmul_precision("highest" if job["model"] == "tfm" else "high")
    start = time.perf_counter()
    settings = scratch_settings(job["model"]).override(seed=job["seed"], **job["settings"])
    trained = finetune(job["model"], splits["train"], splits["val"], settings=settings)
    trained.record.update(history=trained.outcome.history, seconds=time.perf_counter() - start)
    torch.set_float32_matmul_precision("highest")
    return trained


def finish(job: dict[str, Any], trained: Any, splits: dict[str, Windows]) -> str:
    """Measure what was trained, and write it down."""
    from zipbrain.metrics import probabilities
    from zipbrain.training import predict

    out, name, test, start = Path(job["out"]), job["name"], splits["test"], time.perf_counter()
    full = predict(trained.model, test, batch_size=256)
    np.savez_compressed(
        out / f"{name}.npz", probabilities=probabilities(full), labels=test.labels, subjects=test.subjects
    )
    record = trained.record | {"job": job}
    (out / f"{name}.json").write_text(json.dumps(record, indent=1, default=str))
    # EEGPT has 20 times the work of the others
    share = 3 if job["model"] == "eegpt" else 1
    limits = {"val": job["limit"], "test": job["limit"] and 2 * job["limit"]}
    some = {key: spread(splits[key], limit and limit // share) for key, limit in limits.items()}
    found, logits = measure(trained.model, some["val"], some["test"], job["quick"], tuple(job["search"]))
    np.savez_compressed(
        out / f"{name}-logits.npz", labels=some["test"].labels, subjects=some["test"].subjects,
        **{key: value.astype(np.float16) for key, value in logits.items()},
    )  # fmt: skip
    if job["keep"]:
        from zipbrain.pretrained import save_pretrained

        save_pretrained(trained.model.half(), out / "models" / name)
    record |= {"experiments": found, "all_seconds": record["seconds"] + time.perf_counter() - start}
    (out / f"{name}.json").write_text(json.dumps(record, indent=1, default=str))
    kept = trained.outcome.best_score
    return f"{name}: validation {kept:.3f}, trained {record['seconds']:.0f} s, all {record['all_seconds']:.0f} s"


def spread(windows: Windows, limit: int | None) -> Windows:
    """At most `limit` windows, spread evenly over the split."""
    if limit is None or len(windows) <= limit:
        return windows
    return windows.select(np.linspace(0, len(windows) - 1, limit).astype(np.int64))


def measure(
    model: Any, val: Windows, test: Windows, quick: bool, searched: tuple[float | str, ...]
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Score everything on validation and test windows."""
    from benchmarks.fidelity.candidates import FirstTwins, relatives

    from zipbrain.errors import OptionError
    from zipbrain.evaluation import Result, Trial, recipe_for
    from zipbrain.metrics import main_metric
    from zipbrain.pooling import DART, EViT, ToFu, ToMe, ZIPBrain, ablations
    from zipbrain.search.space import LEADERS, Point, stage_1, stage_2

    options: dict[str, Any] = {"batch_size": 1024, "prefix_budget": 2 * 2**30}
    trials = {"val": Trial(model, val, **options), "test": Trial(model, test, **options)}
    metric = main_metric(len(val.classes))
    found: list[dict[str, Any]] = []
    logits: dict[str, Any] = {"original": trials["test"].original.logits}

    def facts(outcome: Result) -> dict[str, Any]:
        return {
            "scores": outcome.scores, "agreement": outcome.agreement, "logit_error": outcome.logit_error,
            "confusion": outcome.confusion,
        }  # fmt: skip

    def add(
        kind: str, label: str, method: Any, ratio: float | str, mass: bool, keep: bool = False,
        splits: Sequence[str] = ("val", "test"), layers: list[int] | None = None,
    ) -> None:  # fmt: skip
        row: dict[str, Any] = {"kind": kind, "label": label, "ratio": ratio, "mass": mass}
        try:
            recipe = recipe_for(model, method, ratio=ratio, mass=mass, layers=layers)
            for name in splits:
                outcome = trials[name].run(recipe)
                row |= {name: facts(outcome), "token_counts": outcome.token_counts, "method": recipe.method}
            if keep:
                logits[f"{kind}|{label}|{ratio}|{int(mass)}"] = outcome.logits
        except Exception as error:
            row["failed"] = repr(error)
        found.append(row)

    found.append({"kind": "original", "label": "original", **{n: facts(t.original) for n, t in trials.items()}})
    methods: dict[str, Any] = {"ZIPBrain": ZIPBrain(), "Twins": FirstTwins()}
    methods |= {"ToMe": ToMe(), "ToFu": ToFu(), "EViT": EViT(), "DART": DART()}
    if val.name.lower() == "eegmat":
        methods["ZIPBrain (paper)"] = ZIPBrain.from_paper(trials["val"].task["model"], "EEGMAT")
    if quick:
        methods = {"ZIPBrain": ZIPBrain()}
    for ratio in RATIOS:
        for label, method in methods.items():
            for mass in (False, True) if label.startswith(("ZIPBrain", "ToMe", "ToFu")) else (False,):
                add("compare", label, method, ratio, mass, keep=ratio in SEARCHED)
    best: dict[float | str, Any] = {}
    for ratio in searched:
        if ratio == "max" and trials["val"].task["model"] == "EEGPT":
            continue  # its maximum is its 80 %
        for mass in (False,):
            tried: dict[str, tuple[float, Point]] = {}
            memory: dict[str, float] = {}

            def score(point: Point, ratio: float | str = ratio, mass: bool = mass, memory: Any = memory) -> float:
                recipe = recipe_for(model, point.method, ratio=ratio, mass=mass)
                key = recipe.key()
                if key not in memory:
                    try:
                        memory[key] = trials["val"].run(recipe).scores[metric]
                    except OptionError:  # logits that are no numbers
                        memory[key] = -np.inf
                return memory[key]

            points = stage_1()[:: 40 if quick else 1]
            for point in points:
                tried[str(point)] = (score(point), point)
            leaders = sorted(tried.values(), key=lambda pair: -pair[0])[:LEADERS]
            for point in stage_2([point for _, point in leaders])[:: 6 if quick else 1]:
                tried[str(point)] = (score(point), point)
            value, winner = max(tried.values(), key=lambda pair: pair[0])
            best[ratio] = winner.method
            found.append({
                "kind": "search", "label": "ZIPBrain (searched)", "ratio": ratio, "mass": mass, "metric": metric,
                "winner": winner.method, "score": value, "results": {name: pair[0] for name, pair in tried.items()},
                "evaluated": len(memory),
            })  # fmt: skip
            for with_mass in (False, True):
                add("compare", "ZIPBrain (searched)", winner.method, ratio, with_mass, keep=True)
    for ratio in SEARCHED[:1]:
        settings = {"default": ZIPBrain()}
        if ratio in best:
            settings["searched"] = ZIPBrain(**_options(best[ratio]))
        for setting, full in settings.items():
            for seed in range(1 if quick else RANDOM_SEEDS):
                for label, method in ablations(full, seed).items():
                    if seed == 0 or label.startswith("random"):
                        add("ablate", f"{setting}: {label}{f' #{seed}' * label.startswith('random')}", method, ratio,
                            False, keep=seed == 0)  # fmt: skip
    for name, layers in halves(model).items():
        for label, method in (("ZIPBrain", ZIPBrain()), ("Twins", FirstTwins())):
            add("layers", f"{label}, {name}", method, 0.8, False, layers=layers)
    for label, method in list(relatives().items())[:: 12 if quick else 1]:
        add("candidate", label, method, 0.8, True, splits=("val",))  # what is chosen from is not tested
    return found, logits


def halves(model: Any) -> dict[str, list[int]]:
    """Which of the blocks that may reduce do: the first half, the second half, every second one."""
    blocks = list(getattr(model, "reduce_at", range(1, len(model.get_submodule(model.encoder_path)) + 1)))
    middle = len(blocks) // 2
    return {"first half": blocks[:middle], "second half": blocks[middle:], "every second": blocks[1::2]}


def _options(method: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in method.items() if key != "name"}


def jobs(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Everything that was asked for, what matters most first."""
    found: list[dict[str, Any]] = []
    weight = {"tfm": 0, "labram": 1, "eegpt": 2, "biot": 3}

    def add(task: str, model: str, seed: int, number: int | None = None) -> None:
        tail = seed if number is None else f"fold{number}"
        found.append({
            "packs": str(arguments.packs), "out": str(arguments.out), "task": task, "model": model, "seed": seed,
            "fold": number, "name": f"{task}-{model}-{tail}", "settings": json.loads(arguments.set),
            "quick": arguments.quick, "limit": arguments.limit,
            "search": SEARCHED[: 1 + (seed == 0 and number is None)] if arguments.search else (),
            "keep": number is None and seed == 0 and model in arguments.keep.split(","),
        })  # fmt: skip

    tasks, models = arguments.tasks.split(","), sorted(arguments.models.split(","), key=lambda name: weight[name])
    real = [task for task in tasks if task in ("imagery", "eyes")]
    made_up = [task for task in tasks if task in ("events", "sleep")]
    for seed in range(arguments.seeds):
        for model in models:
            for task in real:
                add(task, model, seed)
        if seed == 0 and "eegmat" in tasks:
            for model in models:
                for number in range(FOLDS):
                    add("eegmat", model, 0, number)
    for seed in range(arguments.seeds):
        for model in models:
            if seed == 0:
                for task in made_up:
                    add(task, model, seed)
            if "eegmat" in tasks:
                add("eegmat", model, seed)
    for seed in range(1, arguments.seeds):
        for model in models:
            for task in made_up:
                add(task, model, seed)
    return found


def main() -> None:
    """Parse and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    running = verbs.add_parser("run")
    running.add_argument("packs", type=Path)
    running.add_argument("--tasks", default="imagery,eyes,eegmat,events,sleep")
    running.add_argument("--models", default=",".join(MODELS))
    running.add_argument("--out", type=Path, default=Path("runs"))
    running.add_argument("--workers", type=int, default=1)
    running.add_argument("--seeds", type=int, default=3)
    running.add_argument("--keep", default="", help="models whose weights are kept (seed 0, half precision)")
    running.add_argument("--set", default="{}", help="JSON of training settings for all runs")
    running.add_argument("--limit", type=int, help="windows of each split that compressed models are scored on")
    running.add_argument("--search", action="store_true", help="the two-stage search too: 642 recipes more")
    running.add_argument("--quick", action="store_true", help="a few recipes, to see that it runs")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    todo = jobs(arguments)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if arguments.workers == 1:
        for job in todo:
            print(run(job), flush=True)
        return
    tasks = {job["task"] for job in todo} - {"events", "sleep"}
    with ThreadPoolExecutor() as readers:  # once, before the processes part
        list(readers.map(lambda task: load(arguments.packs, task), sorted(tasks)))
    with multiprocessing.get_context("fork").Pool(arguments.workers) as pool:
        for line in pool.imap_unordered(run, todo):
            print(line, flush=True)


if __name__ == "__main__":
    main()
