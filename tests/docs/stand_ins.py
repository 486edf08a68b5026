"""Small inputs for the commands of the pages: recordings, windows, a model, its exported file, a session."""

from __future__ import annotations

import importlib.util
import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

import zipbrain
from cli.test_any_model import CODE
from data import tiny_corpora
from edge import tiny_onnx
from zipbrain.data import open_prepared, scale
from zipbrain.data.corpora import convention
from zipbrain.data.windows import FORMAT
from zipbrain.edge import EdgeModel
from zipbrain.edge.convention_file import TEMPLATE, read_convention
from zipbrain.live.alarm_rules import example_rules
from zipbrain.live.session import Session
from zipbrain.live.sources import open_source
from zipbrain.models import LaBraM, labram
from zipbrain.models.task import Task
from zipbrain.signal.convention import Convention

from .page_process import TINY

ELECTRODES = ("C3", "C4", "O1", "O2")
CLASSES = ("background", "seizure")
PEOPLE, EACH = 10, 6  # in a split, windows of each
RAW = {"train": (0, 1), "val": (26, 27, 28, 29), "test": (31,)}  # people of EEGMAT

_found = importlib.util.spec_from_file_location("example_data", Path(__file__).parents[2] / "docs" / "example_data.py")
assert _found is not None
assert _found.loader is not None
example_data = importlib.util.module_from_spec(_found)
_found.loader.exec_module(example_data)


def make_recording(path: Path, seed: int = 0, alpha: float = 20.0) -> Path:
    """An EDF file of 19 electrodes and a minute, in which alpha waxes and wanes over the back of the head."""
    path.parent.mkdir(parents=True, exist_ok=True)
    example_data.write_edf(path, example_data.make_signal(np.random.default_rng(seed), alpha))
    return path


def make_recordings(folder: Path) -> None:
    """Five recordings with a table of labels."""
    rows = ["file,label"]
    for seed in range(5):
        make_recording(folder / f"{seed}.edf", seed)
        rows.append(f"{seed}.edf,{CLASSES[seed % 2]}")
    (folder / "labels.csv").write_text("\n".join(rows) + "\n")


def make_eegmat(folder: Path) -> None:
    """Files of EEGMAT under their names."""
    for person in (person for people in RAW.values() for person in people):
        for task in (1, 2):
            make_recording(folder / f"Subject{person:02d}_{task}.edf", 2 * person + task, 30.0 / task)


def make_windows(folder: Path, seen: Convention, classes: Sequence[str] = CLASSES) -> None:
    """Windows as `zipbrain data prepare` writes them: noise, with a faster rhythm for the second class."""
    (folder / "shards").mkdir(parents=True)
    time, labels = np.arange(seen.n_times) / seen.sfreq, np.arange(EACH) % 2
    splits: dict[str, list[dict[str, object]]] = {}
    for number, split in enumerate(("train", "val", "test")):
        splits[split] = []
        for person in range(PEOPLE):
            random = np.random.default_rng([number, person])
            rhythm = np.sin(2 * np.pi * (6 + 5 * labels)[:, None, None] * time)
            x = random.normal(0, 20, (EACH, len(seen.ch_names), len(time))) + 20 * rhythm
            np.save(folder / "shards" / f"{split}-{person}.npy", x.astype(np.float32))
            who = {"shard": f"shards/{split}-{person}.npy", "subject": f"{split}{person}"}
            splits[split].append({**who, "labels": labels.tolist()})
    index = {
        "version": FORMAT, "name": seen.corpus, "model": "LaBraM", "classes": list(classes), "splits": splits,
        "ch_names": list(seen.ch_names), "sfreq": seen.sfreq, "n_times": seen.n_times, "convention": seen.as_dict(),
    }  # fmt: skip
    (folder / "index.json").write_text(json.dumps(index))


def of_labram(corpus: str) -> Convention:
    """Four seconds of four electrodes."""
    electrodes = {"montage": ELECTRODES, "ch_names": ELECTRODES}
    return replace(convention("labram", "folder"), corpus=corpus, window_s=4.0, hop_s=4.0, **electrodes)


@contextmanager
def tiny_labram() -> Iterator[None]:
    """Inside, LaBraM has a size "tiny"."""
    labram.SIZES["tiny"] = TINY
    yield
    del labram.SIZES["tiny"]


def make_model(folder: Path, windows: Path) -> None:
    """A LaBraM of two blocks with random weights, which answers both classes."""
    prepared = open_prepared(windows)
    part = prepared.split("test")
    with tiny_labram(), torch.random.fork_rng():
        torch.manual_seed(0)
        model = LaBraM(1, ELECTRODES, part.n_times, size="tiny").eval()
        torch.nn.init.normal_(model.head.weight)
        with torch.no_grad():
            model.head.bias -= model(torch.from_numpy(scale(part.take(slice(None)), "hundred"))).median()
        model.trained_for = Task(CLASSES, prepared.name, ELECTRODES, part.sfreq, "hundred")
        zipbrain.save_pretrained(model, folder / "model")


def build(folder: Path) -> None:
    """Every stand-in under its name."""
    make_recording(folder / "recording.edf")
    make_recordings(folder / "recordings")
    make_windows(folder / "windows", of_labram("eegmat"))
    make_windows(folder / "windows of tuab", of_labram("tuab"))
    make_model(folder / "run", folder / "windows of tuab")
    recipe = zipbrain.Recipe({"name": "tome"}, {"name": "ratio", "ratio": 0.5})
    (folder / "recipe.json").write_text(json.dumps(recipe.to_dict()))
    model = EdgeModel(tiny_onnx.looking_twice(folder / "model.onnx", 0.1, classes=CLASSES), threads=1)
    (folder / "alarms.toml").write_text(example_rules(CLASSES))
    (folder / "truth.csv").write_text(f"onset,duration,label\n1,2,{CLASSES[1]}\n")
    source = open_source(f"replay:{folder / 'recording.edf'}?speed=max")
    Session(model, source, folder / "session", has_board=False).run(20.0)
    (folder / "my_model.py").write_text(CODE)
    (folder / "convention.toml").write_text(TEMPLATE)
    own = read_convention(folder / "convention.toml")
    make_windows(folder / "windows of my own", own.convention, own.classes)
    tiny_corpora.bids(folder / "bids")
    tiny_corpora.eegmmidb(folder / "eegmmidb")
    make_eegmat(folder / "eegmat")


def put(stand_in: Path, place: Path) -> None:
    """A copy of a stand-in where a command looks for it."""
    place.parent.mkdir(parents=True, exist_ok=True)
    shutil.copytree(stand_in, place) if stand_in.is_dir() else shutil.copy(stand_in, place)
