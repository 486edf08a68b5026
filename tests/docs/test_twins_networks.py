"""Twins on new and on kept networks: what is run, how jobs are shared out, and how figures become tables."""

from __future__ import annotations

import argparse
import csv
import json
import multiprocessing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from benchmarks.fidelity import experiments_report, experiments_values, twins_kept, twins_networks, twins_tables
from benchmarks.shared import packing

from zipbrain.data.windows import Windows

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """The scripts, with a results folder of their own."""

    for module in (experiments_report, experiments_values):
        monkeypatch.setattr(module, "RESULTS", tmp_path)
    caches = experiments_values.stored, experiments_values.intervals
    for cached in caches:
        cached.cache_clear()
    yield SimpleNamespace(networks=twins_networks, kept=twins_kept, tables=twins_tables, packing=packing)
    for cached in caches:
        cached.cache_clear()


def given(folder: Path, **more: Any) -> argparse.Namespace:
    options = {"tasks": "eyes,imagery,eegmat,events,sleep", "models": "biot,labram,eegpt,tfm", "set": "{}"}
    return argparse.Namespace(**options | {"packs": folder, "out": folder, "quick": False} | more)


def test_every_pair_is_trained_with_seeds_that_no_choice_has_seen(scripts: Any, tmp_path: Path) -> None:
    jobs = scripts.networks.jobs(given(tmp_path))
    assert len(jobs) == len({job["name"] for job in jobs}) == 4 * (4 * 2 + 3)
    assert {job["seed"] for job in jobs} == {10, 11}
    assert {job["model"] for job in jobs[:8]} == {"biot", "labram"}
    assert [job["model"] for job in jobs[-11:]] == ["tfm"] * 11
    full = {(job["task"], job["model"]) for job in jobs if job["full"]}
    assert full == {("events", "tfm"), ("sleep", "tfm")}


def test_jobs_wait_for_their_data_and_are_done_once(
    scripts: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = []
    monkeypatch.setattr(scripts.networks, "run", lambda job: done.append(job["name"]) or job["name"])
    monkeypatch.setattr(scripts.networks, "lay_out", lambda file, folder: folder.mkdir())
    (tmp_path / "claims").mkdir()
    eyes, events = (
        scripts.networks.jobs(given(tmp_path, tasks=task, models="tfm", out=tmp_path)) for task in ("eyes", "events")
    )
    slots = multiprocessing.get_context("fork").BoundedSemaphore(1)

    def attempt(job: dict[str, Any]) -> bool:
        found: bool = scripts.networks._try(job, slots)
        return found

    assert not attempt(eyes[0])
    (tmp_path / "eyes.npz").touch()
    assert attempt(eyes[0])  # unpacks
    assert done == []
    slots.acquire()
    assert not attempt(events[0])  # too many of TFM-Tokenizer
    slots.release()
    assert attempt(eyes[0])
    assert attempt(events[0])
    assert not attempt(events[0])
    assert done == ["eyes-tfm-10", "events-tfm-10"]


@pytest.mark.parametrize(("error", "again"), [(torch.OutOfMemoryError("full"), True), (ValueError("wrong"), False)])
def test_a_job_is_open_again_if_the_device_was_full_but_not_for_ever(
    scripts: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, again: bool
) -> None:
    def run(job: dict[str, Any]) -> str:
        raise error

    monkeypatch.setattr(scripts.networks, "run", run)
    (tmp_path / "claims").mkdir()
    job = scripts.networks.jobs(given(tmp_path, tasks="events", models="biot"))[0]
    tries = 0
    while scripts.networks._try(job, None):
        tries += 1
    assert tries == (scripts.networks.TRIES if again else 1)
    assert (tmp_path / "events-biot-10.failed").read_text().count("Traceback") == tries


def test_unpacked_windows_can_be_mapped(scripts: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.random.default_rng(0).normal(size=(5, 2, 8)).astype(np.float32)
    windows = Windows.from_arrays(x, [0, 1, 0, 1, 1], ch_names=["C3", "C4"], sfreq=200, classes=["a", "b"], name="eyes")
    monkeypatch.setattr(scripts.packing, "unpack", lambda file: dict.fromkeys(scripts.packing.SPLITS, windows))
    scripts.packing.lay_out(tmp_path / "eyes.npz", tmp_path / "eyes")
    found = scripts.packing.laid_out(tmp_path / "eyes")["test"]
    np.testing.assert_array_equal(found.take(np.arange(5)), x)
    assert (found.labels.tolist(), found.classes, found.name) == ([0, 1, 0, 1, 1], ("a", "b"), "eyes")


def stored_run(scripts: Any, folder: Path, model: str, seed: int, shift: float) -> None:
    """A run of which only the errors of Twins matter: `shift` of the spread, squared."""
    rng = np.random.default_rng(seed)
    labels, subjects = np.tile([0, 1], 20), np.repeat(["a", "b", "c", "d"], 10)
    before = (rng.normal(size=(40, 1)) + labels[:, None]).astype(np.float16).astype(np.float64)

    def facts(logits: Any) -> dict[str, Any]:
        from sklearn.metrics import roc_auc_score

        same = (logits >= 0) == (before >= 0)
        error = ((logits - before) ** 2).mean() / before.var()
        scores = {"auroc": roc_auc_score(labels, logits[:, 0])}
        return {"scores": scores, "agreement": same.mean(), "logit_error": error, "confusion": [[20, 0], [20, 0]]}

    rows: list[dict[str, Any]] = [{"kind": "original", "label": "original", "test": facts(before)}]
    logits = {"original": before}
    for ratio in ("0.8", "max"):
        for label, mass in scripts.tables.METHODS.values():
            new = before + before.std() * (shift if label == "Twins 2" else 2 * shift)
            rows.append({"kind": "compare", "label": label, "ratio": ratio, "mass": bool(mass), "test": facts(new)})
            logits[f"compare|{label}|{ratio}|{mass}"] = new
    name = f"eyes-{model}-{seed}"
    job = {"task": "eyes", "model": model, "seed": seed, "fold": None}
    (folder / f"{name}.json").write_text(json.dumps({"job": job, "experiments": rows}))
    np.savez(folder / f"{name}-logits.npz", labels=labels, subjects=subjects, **logits)


def test_tables_are_means_over_runs_and_then_over_pairs(scripts: Any, tmp_path: Path) -> None:
    for model, seed, shift in (("labram", 10, 0.1), ("labram", 11, 0.2), ("biot", 10, 0.4)):
        stored_run(scripts, tmp_path, model, seed, shift)
    scripts.networks.collect(tmp_path)
    wanted = ((0.1**2 + 0.2**2) / 2 + 0.4**2) / 2
    last = scripts.tables.overall("0.8").splitlines()[-1]
    assert last.startswith("| Twins | +0.0000 [+0.0000 to +0.0000] |")
    assert last.split("|")[-2].split()[0] == f"{wanted:.4f}"
    ratio = scripts.tables.against("0.8").splitlines()[2].split("|")[-2]
    assert "4.00" in ratio
    eyes = scripts.tables.pairs("0.8").splitlines()[2].split("|")
    assert eyes[2].endswith(f"{(0.1**2 + 0.2**2) / 2:.4f} (2) ")
    assert eyes[4].endswith(f"{0.4**2:.2f} (1) ")


def kept_run(scripts: Any, folder: Path, name: str, shift: float) -> None:
    """A kept network of which only the errors of Twins matter."""
    model = name.split("-")[1]
    stored_run(scripts, folder, model, 10, shift)
    for end in (".json", "-logits.npz"):
        (folder / f"eyes-{model}-10{end}").rename(folder / f"{name}{end}")
    record = json.loads((folder / f"{name}.json").read_text())
    for row in record["experiments"]:  # the synthetic tasks are judged by kappa
        row["test"]["scores"]["kappa"] = row["test"]["scores"]["auroc"]
    (folder / f"{name}.json").write_text(json.dumps(record))


def test_kept_networks_count_alike_and_show_their_windows(scripts: Any, tmp_path: Path) -> None:
    errors = {}
    for place, name in enumerate(scripts.kept.NETWORKS):
        shift = 0.1 * (place + 1)
        errors[name] = shift**2
        kept_run(scripts, tmp_path, name, shift)
    scripts.kept.collect(tmp_path)
    lines = scripts.tables.kept("0.8").splitlines()
    assert lines[2].count("(40 / 4)") == len(scripts.kept.NETWORKS) == 6
    assert lines[-1].startswith("| Twins |")
    shown = [float(cell.split("/")[-1]) for cell in lines[-1].split("|")[2:-1]]
    assert shown == pytest.approx([errors["-".join(cell)] for cell in scripts.tables.KEPT], rel=0.05)
    overall = scripts.tables.found("overall", "all", "Twins", "0.8", "twins_kept")
    assert float(overall["logit_error"]) == pytest.approx(np.mean(list(errors.values())), rel=1e-3)
    assert overall["runs"] == "6"


def test_kept_networks_are_tested_on_test_subjects(
    scripts: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from zipbrain.data.synthetic import Synthetic

    demo = scripts.kept.windows("demo", "labram", None)
    assert set(demo.subjects.tolist()) == set(Synthetic("events").split("test").subjects.tolist())
    asked = []
    splits = {"train": "train", "val": "val", "test": "test"}
    monkeypatch.setattr(scripts.kept, "splits_of", lambda job: asked.append((job["task"], job["model"])) or splits)
    assert scripts.kept.windows("eyes", "biot", tmp_path) == "test"
    assert asked == [("eyes", "biot")]


def test_the_kept_networks_are_those_of_the_experiments() -> None:
    """Uncompressed scores are those measured after training; the weights were rounded to half precision since."""

    def rows(name: str) -> list[dict[str, str]]:
        with (ROOT / "benchmarks" / "results" / f"{name}.csv").open(newline="") as lines:
            return list(csv.DictReader(lines))

    known = {
        (row["task"], row["model"]): float(row["original"])
        for row in rows("experiments")
        if (row["kind"], row["seed"], row["fold"]) == ("original", "0", "")
    }
    single = {row["name"]: float(row["original"]) for row in rows("twins")}
    known |= {("demo", "labram"): single["synthetic events, LaBraM"], ("eegmat", "labram"): single["EEGMAT, LaBraM"]}
    found = {
        (row["task"], row["model"]): float(row["score"]) for row in rows("twins_kept") if row["kind"] == "original"
    }
    assert len(found) == 6
    for cell, score in found.items():
        assert score == pytest.approx(known[cell], abs=0.004), cell
