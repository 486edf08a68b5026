"""Twins on new networks: what is run, how jobs are shared out, and how figures become tables."""

from __future__ import annotations

import argparse
import json
import multiprocessing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from benchmarks.fidelity import experiments_report, experiments_values, twins_networks, twins_tables
from benchmarks.shared import packing

from zipbrain.data.windows import Windows


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """The scripts, with a results folder of their own."""

    for module in (experiments_report, experiments_values):
        monkeypatch.setattr(module, "RESULTS", tmp_path)
    caches = experiments_values.stored, experiments_values.intervals
    for cached in caches:
        cached.cache_clear()
    yield SimpleNamespace(networks=twins_networks, tables=twins_tables, packing=packing)
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
