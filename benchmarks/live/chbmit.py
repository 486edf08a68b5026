"""Seizures of children that a network has not seen: a BIOT trained here, original against tuned, on live sessions.

    python -m benchmarks.live.chbmit FOLDER WORK             # FOLDER: CHBMIT_1s_0.5OW; some 20 minutes on two cores
    python -m benchmarks.live.chbmit FOLDER WORK --epochs 1  # to see that it runs

Cases 1-15 and 21 train (21 is the child of case 1), 16-20 and 22-24 are held out; nothing is chosen on them, the epochs
are fixed before. The convention is BIOT's: no filter, windows of five seconds resampled one by one, so that no window
waits for the future. The pieces of a case (`benchmarks.data.chbmit_seconds` says what they are) become one stream with
gaps between them, which a session reads as it reads any other; a window is what its piece is. Tuned without labels on
windows of the children that trained, among the schedules of ZIPBrain; where none gains time, the one that may keep the
promise with the fewest operations is taken. Keeps model and files in WORK, writes benchmarks/results/live_chbmit.csv.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from benchmarks.data.chbmit_seconds import CHANNELS, RATE, Stretch, read_stretches
from benchmarks.shared.results import write_csv
from numpy.typing import NDArray

import zipbrain
from zipbrain.data import Windows, convention
from zipbrain.data.corpora.chbmit import CLASSES, person_of, split_of
from zipbrain.edge import EdgeModel
from zipbrain.export import export
from zipbrain.live.chain import JOURNAL, read_chain
from zipbrain.live.session import Session
from zipbrain.live.sources.replay import Replay
from zipbrain.pretrained import from_pretrained, save_pretrained
from zipbrain.recipe import Recipe
from zipbrain.signal.convention import Convention
from zipbrain.signal.recording import Annotation, Array, Recording
from zipbrain.signal.window_stream import StreamWindow, WindowStream
from zipbrain.training import finetune
from zipbrain.training.settings import scratch_settings
from zipbrain.tuning.tuned import Tuned

WINDOW_S, HOP_S = 5.0, 2.5
AGREE = 0.99  # share of the decisions that shall stay
CASES = range(1, 25)
SIZE = {"dim": 64, "heads": 4, "depth": 4}
NAMES = tuple("T7-P7" if name == "P7-T7" else name for name in CHANNELS)
SIGNS = np.array([-1.0 if name == "P7-T7" else 1.0 for name in CHANNELS])[:, np.newaxis]


class Case(Recording):
    """The pieces of a case as one recording: each begins with a window, and a second or more is missing between two."""

    def __init__(self, stretches: Sequence[Stretch]) -> None:
        self.path, self.notes, self.left_out = Path(f"chb{stretches[0].case:02d}"), [], {}
        self.ch_names, self.sfreq, self.gaps = list(NAMES), float(RATE), []
        self.places: list[tuple[int, int, int]] = []  # first sample, the one after the last, class
        parts, place, hop = list[Array](), 0, round(HOP_S * RATE)
        for stretch in stretches:
            start = hop * math.ceil((place + RATE) / hop) if place else 0
            if place:
                self.gaps.append((place, start))
                parts.append(np.full((len(NAMES), start - place), np.nan))
            place = start + stretch.x.shape[1]
            self.places.append((start, place, stretch.label))
            parts.append(SIGNS * stretch.x)
        self._x, self.n_times = np.concatenate(parts, axis=1), place

    @property
    def annotations(self) -> list[Annotation]:
        """The seizures."""
        found = [(start / RATE, (stop - start) / RATE, CLASSES[label]) for start, stop, label in self.places if label]
        return found

    def _read(self, start: int, stop: int, rows: NDArray[np.intp]) -> Array:
        return np.asarray(self._x[rows, start:stop])

    def label(self, start_s: float) -> int:
        """The class of the piece in which a window begins."""
        place = round(start_s * RATE)
        return next(label for start, stop, label in self.places if start <= place < stop)


def used_convention() -> Convention:
    """BIOT's for CHB-MIT, with shorter windows: many seizures end before ten seconds and a hop are over."""
    return replace(convention("biot", "chbmit"), window_s=WINDOW_S, hop_s=HOP_S)


def cut(case: Case, used: Convention) -> Iterator[StreamWindow]:
    """The good windows of a case, as a session cuts them."""
    stream = WindowStream(case.ch_names, case.sfreq, used)
    gaps = dict(case.gaps)
    for start, stop, _ in case.places:
        yield from (window for window in stream.push(case.read(start, stop)) if not window.flag)
        if stop in gaps:
            yield from (window for window in stream.skip(gaps[stop] - stop) if not window.flag)
    yield from (window for window in stream.finish() if not window.flag)


def training_windows(folder: Path, used: Convention) -> Windows:
    """Windows of the children that train: all with a seizure, and every second one without, which is as many."""
    x, y, who = list[Any](), list[int](), list[str]()
    for number in (number for number in CASES if split_of(number) == "train"):
        case, seen = Case(read_stretches(folder, number)), 0
        for window in cut(case, used):
            label = case.label(window.start_s)
            seen += not label
            if label or seen % 2:
                x.append(window.x)
                y.append(label)
                who.append(person_of(number))
    facts: dict[str, Any] = {"ch_names": used.ch_names, "sfreq": used.sfreq, "classes": CLASSES, "name": "chbmit"}
    return Windows.from_arrays(np.stack(x), np.array(y), subjects=who, **facts)


def choose_recipe(tuned: Tuned) -> Recipe:
    """What was chosen; where the original is fastest, what would be chosen if time followed the operations."""
    print(tuned, flush=True)
    if tuned.chosen.removes:
        return tuned.recipe
    option = next((one for one in tuned.options if one.removes and one.agree == AGREE), None)
    if option is None:
        raise SystemExit(f"nothing that removes tokens may keep {AGREE:.0%} of the decisions")
    return option.candidate.recipe(tuned.anatomy, second_look=option.margin)


def make_files(folder: Path, work: Path, epochs: int) -> dict[str, Path]:
    """The exported file of the original and of the tuned network; what is in WORK is taken from there."""
    files = {name: work / f"{name}.onnx" for name in ("original", "tuned")}
    if all(path.is_file() for path in files.values()):
        return files
    used = used_convention()
    windows = training_windows(folder, used)
    print(f"{len(windows)} windows train, {int(windows.labels.sum())} of them with a seizure", flush=True)
    if not (work / "model").is_dir():
        settings = scratch_settings("biot").override(epochs=epochs, selection="last", options=SIZE)
        done = finetune("biot", windows, settings=settings, on_epoch=lambda row: print(row, flush=True))
        save_pretrained(done.model, work / "model")
    model = from_pretrained(work / "model").eval()
    if not (work / "recipe.json").is_file():
        chosen = windows.select(np.sort(np.random.default_rng(0).permutation(len(windows))[:800]))
        choose_recipe(zipbrain.tune(model, chosen, agree=AGREE, methods=("zipbrain",), threads=1)).save(
            work / "recipe.json"
        )
    probe = windows.select(np.random.default_rng(1).permutation(len(windows))[:64])
    export(model, probe, files["original"], convention=used, classes=CLASSES)
    export(model, probe, files["tuned"], convention=used, classes=CLASSES, recipe=Recipe.load(work / "recipe.json"))
    return files


def decide(path: Path, case: Case) -> tuple[dict[float, int], dict[str, Any]]:
    """The decisions of a session by the start of their windows, and what it counted."""
    with TemporaryDirectory() as home:
        model = EdgeModel(path, threads=1, spinning=False)
        found = Session(model, Replay(case, speed=math.inf), Path(home) / "bed", has_board=False).run()
        lines = [line["facts"] for line in read_chain(Path(home) / "bed" / JOURNAL).lines if line["kind"] == "decision"]
    made = {line["start_s"]: line["decision"] for line in lines if line["decision"] >= 0}
    return made, {"reach_s": found.delay_s["filter"], "looked_twice": found.looked_twice, "p50": found.delay_s}


def score(case: Case, files: dict[str, Path], number: int) -> dict[str, Any]:
    """The row of a case: its pieces, and sensitivity and specificity of both networks over its windows."""
    sessions = {name: decide(path, case) for name, path in files.items()}
    starts = sorted(sessions["original"][0])
    if starts != sorted(sessions["tuned"][0]):
        raise SystemExit(f"chb{number:02d}: the two networks decided other windows")
    truth = np.array([case.label(start) for start in starts])
    lengths = [(stop - start) / RATE for start, stop, label in case.places if label]
    row: dict[str, Any] = {"case": f"chb{number:02d}", "background_s": 0, "seizure_s": round(sum(lengths))}
    row["background_s"] = round(sum((stop - start) / RATE for start, stop, label in case.places if not label))
    row |= {"seizures": len(lengths), "shortest_s": round(min(lengths)), "longest_s": round(max(lengths))}
    row |= {"background_windows": int((truth == 0).sum()), "seizure_windows": int((truth == 1).sum())}
    answers = {name: np.array([made[start] for start in starts]) for name, (made, _) in sessions.items()}
    for name, answer in answers.items():
        row[f"{name}_true"], row[f"{name}_false"] = (int(answer[truth == k].sum()) for k in (1, 0))
    row["same"] = int((answers["original"] == answers["tuned"]).sum())
    row["looked_twice"] = sessions["tuned"][1]["looked_twice"]
    for name, (_, facts) in sessions.items():
        row[f"{name}_ms"] = round(1000 * facts["p50"]["compute_p50"], 2)
    row["reach_s"] = sessions["tuned"][1]["reach_s"]
    row["tokens"] = " ".join(map(str, EdgeModel(files["tuned"], threads=1).description.token_counts))
    return row


def main() -> None:
    """Train, tune, replay, score, store."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--dry", action="store_true", help="store nothing")
    given = parser.parse_args()
    torch.set_num_threads(1)  # threads that wait for each other cost more than they bring where cores are shared
    given.work.mkdir(parents=True, exist_ok=True)
    files = make_files(given.folder, given.work, given.epochs)
    rows = []
    for number in (number for number in CASES if split_of(number) != "train"):
        rows.append(score(Case(read_stretches(given.folder, number)), files, number))
        print(rows[-1], flush=True)
    if not given.dry:
        print(write_csv("live_chbmit", rows))


if __name__ == "__main__":
    main()
