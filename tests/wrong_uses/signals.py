"""Signals in other units, at other rates, of other shapes, and scores that say nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import edfio
import mne
import numpy as np
import torch
from tests.wrong_uses import Answer, command, wrong_use

from zipbrain.data import Windows
from zipbrain.evaluation import Trial, compare
from zipbrain.models import Task, create, remember
from zipbrain.training import EEGClassifier, finetune
from zipbrain.tuning.certificate import ComparedLogits, certify

NAMES = ["C3", "C4", "O1"]


def eeg(n: int = 12, seconds: int = 2, rate: int = 200) -> Any:
    return 20 * np.random.default_rng(0).normal(size=(n, 3, seconds * rate))


def windows(classes: tuple[str, ...] = ("rest", "task"), **options: Any) -> Windows:
    x = options.pop("x", eeg())
    return Windows.from_arrays(x, np.arange(len(x)) % 2, ch_names=NAMES, sfreq=200, classes=classes, **options)


def network() -> Any:
    torch.manual_seed(0)
    return create("biot", n_outputs=1, n_chans=3, n_times=400, dim=16, heads=2, depth=1).eval()


def classifier(**options: Any) -> Any:
    small = {"options": {"dim": 16, "heads": 2, "depth": 1}}
    return EEGClassifier("biot", epochs=1, ch_names=NAMES, overrides=small, device="cpu", **options)


def prepare(folder: Path, x: Any, rate: int = 200) -> Answer:
    signals = [
        edfio.EdfSignal(row, rate, label=name, physical_dimension="uV") for name, row in zip(NAMES, x, strict=True)
    ]
    edfio.Edf(signals).write(folder / "a.edf")
    (folder / "labels.csv").write_text("file,label\na.edf,rest\n")
    return command("data", "prepare", "folder", "--root", folder, "--out", folder / "out", "--notch", "none")


@wrong_use("fit a classifier on volts as if they were microvolts")
def fit_on_volts(folder: Path) -> None:
    classifier().fit(eeg() * 1e-6, [0, 1] * 6)


@wrong_use("microvolts that are called volts")
def microvolts_as_volts(folder: Path) -> None:
    windows(units="V")


@wrong_use("windows with one channel in millivolts")
def one_channel_in_millivolts(folder: Path) -> None:
    windows(x=eeg() * [[1], [1e-3], [1]])


@wrong_use("windows scaled to a hundredth without saying so")
def scaled_windows(folder: Path) -> None:
    windows(x=eeg() / 2000)


@wrong_use("mne.Epochs that hold microvolts instead of volts")
def epochs_in_microvolts(folder: Path) -> None:
    Windows.from_epochs(mne.EpochsArray(eeg(), mne.create_info(NAMES, 200.0, "eeg"), verbose="error"))


@wrong_use("prepare a recording with one channel in volts")
def recording_with_a_channel_in_volts(folder: Path) -> Answer:
    return prepare(folder, eeg(1, 20)[0] * [[1], [1], [1e-6]])


@wrong_use("prepare a recording of 1 Hz for a model that reads 0.1 to 75 Hz")
def recording_of_one_hertz(folder: Path) -> Answer:
    return prepare(folder, eeg(1, 100, 1)[0], rate=1)


@wrong_use("fit a classifier on a table of features")
def fit_on_a_table(folder: Path) -> None:
    classifier().fit(eeg()[:, :, 0], [0, 1] * 6)


@wrong_use("fit a classifier on windows of one class")
def fit_on_one_class(folder: Path) -> None:
    classifier().fit(eeg(), ["rest"] * 12)


@wrong_use("fit a classifier on labels of which one is missing")
def fit_on_a_missing_label(folder: Path) -> None:
    classifier().fit(eeg(), [*["rest", "task"] * 5, "rest", None])


@wrong_use("set a hundredth of a dozen windows aside to choose an epoch")
def fit_with_no_validation(folder: Path) -> None:
    classifier(validation_fraction=0.01).fit(eeg(), ["rest", "task"] * 6)


@wrong_use("certify windows of one person")
def certify_one_person(folder: Path) -> None:
    logits = np.eye(2)[np.arange(12) % 2]
    certify(ComparedLogits(logits, logits, logits), ["p1"] * 12)


@wrong_use("certify a model that answers one class only")
def certify_one_answer(folder: Path) -> None:
    logits = np.tile([2.0, 0.0], (12, 1))
    certify(ComparedLogits(logits, logits, logits), np.arange(12))


@wrong_use("fine-tune at a sampling rate that the model does not read")
def train_at_another_rate(folder: Path) -> None:
    given = windows()
    given.sfreq = 128.0
    finetune("eegpt", given, device="cpu")


@wrong_use("score a model on the classes of another task")
def score_on_another_task(folder: Path) -> None:
    model = network()
    remember(model, Task(("rest", "task")))
    Trial(model, windows(("open", "closed")), device="cpu")


@wrong_use("compare methods on a model that calls all windows one class")
def compare_a_useless_model(folder: Path) -> str:
    model = network()
    with torch.no_grad():
        model.head.weight.zero_()
        model.head.bias.fill_(5.0)
    found = compare(model, windows(), methods=["tome"], ratios=[0.4], latency=False, intervals=False, device="cpu")
    return next(note for note in found.notes if note.startswith("All windows"))


@wrong_use("compare methods on a dozen windows")
def compare_on_few_windows(folder: Path) -> str:
    found = compare(network(), windows(), methods=["tome"], ratios=[0.4], latency=False, intervals=False, device="cpu")
    return next(note for note in found.notes if note.startswith("Few windows"))
