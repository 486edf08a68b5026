"""Recordings replayed live against `predict` of the same files: window starts, notes, decisions, inputs, probabilities.

    python -m benchmarks.live.replays FOLDER           # of EDF files with EEGMAT's channels
    python -m benchmarks.live.replays FOLDER --dry     # stores nothing

Every file under EEGMAT's convention and with 0.1 to 75 Hz and a notch: replayed in blocks of random sizes as fast as
it goes, at fifty times its pace, and over a connection that breaks again and again and loses nothing. The network is a
LaBraM with random weights; it runs at batch 1, and what it is given is compared bit by bit. Writes
benchmarks/results/live_replays.csv, a row per file, filter and way.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from benchmarks.shared.results import write_csv

from zipbrain.data import convention
from zipbrain.edge import EdgeModel, open_edf, predict
from zipbrain.live.chain import JOURNAL, read_chain
from zipbrain.live.session import Session
from zipbrain.live.source import Chunk, SourceEnded, SourceLost
from zipbrain.live.sources.replay import Replay
from zipbrain.signal.convention import Convention
from zipbrain.signal.recording import Recording

SPEED = 50.0
WAYS = ("random blocks", f"{SPEED:g} times its pace", "reconnecting")
FILTERS: dict[str, dict[str, Any]] = {"none": {}, "0.1-75 Hz, notch": {"band": (0.1, 75.0), "notch": 50.0}}


class Breaking:
    """A recording with stamps over a connection that is lost again and again, without losing a sample."""

    is_live, name = False, "breaking"

    def __init__(self, recording: Recording, rng: np.random.Generator) -> None:
        self._recording, self._rng, self._place, self._was_lost = recording, rng, 0, False
        self.ch_names, self.sfreq = tuple(recording.ch_names), recording.sfreq
        self.limits = getattr(recording, "limits", None)

    def read(self, timeout_s: float) -> Chunk:
        """The next samples, however many."""
        if self._place >= self._recording.n_times:
            raise SourceEnded("the recording is at its end")
        self._was_lost = not self._was_lost and self._rng.random() < 0.1
        if self._was_lost:
            raise SourceLost("unplugged")
        places = np.arange(self._place, min(self._place + int(self._rng.integers(1, 1500)), self._recording.n_times))
        self._place += places.size
        return Chunk(self._recording.read(int(places[0]), self._place), 5e5 + places / self.sfreq)

    def close(self) -> None:
        """Nothing is held."""


class Kept:
    """The inputs that a model was given, as bytes, window by window."""

    def __init__(self, model: EdgeModel) -> None:
        self._look, self.inputs = model.look, list[bytes]()
        model.look = self  # type: ignore[method-assign, assignment]

    def __call__(self, x: Any, *arguments: Any, **options: Any) -> Any:
        """Look, and keep what was given."""
        self.inputs += [np.asarray(window, np.float32).tobytes() for window in x]
        return self._look(x, *arguments, **options)

    def take(self) -> list[bytes]:
        """What was kept since the last call."""
        kept, self.inputs = self.inputs, []
        return kept


def make_model(path: Path, used: Convention) -> Path:
    """Export a LaBraM with random weights for a convention."""
    import torch

    from zipbrain.data import Windows
    from zipbrain.export import export
    from zipbrain.models import create

    torch.manual_seed(0)
    model = create("labram", n_outputs=2, n_times=used.n_times, ch_names=list(used.ch_names)).eval()
    x = 20 * np.random.default_rng(0).standard_normal((8, len(used.ch_names), used.n_times)).astype(np.float32)
    facts: dict[str, Any] = {"ch_names": used.ch_names, "sfreq": used.sfreq, "classes": ("rest", "arithmetic")}
    windows = Windows.from_arrays(x, np.arange(8) % 2, subjects=[f"s{i}" for i in range(8)], name="eegmat", **facts)
    export(model, windows, path, convention=used, classes=("rest", "arithmetic"))
    return path


def sizes(rng: np.random.Generator) -> Iterator[int]:
    """Sizes of blocks from one sample to half a minute."""
    while True:
        yield int(rng.choice([1, 2, rng.integers(3, 400), rng.integers(400, 15_000)]))


def open_source(way: str, path: Path, rng: np.random.Generator) -> Any:
    """The recording as a source."""
    if way == WAYS[2]:
        return Breaking(open_edf(path), rng)
    return (
        Replay(open_edf(path), speed=math.inf, sizes=sizes(rng))
        if way == WAYS[0]
        else Replay(open_edf(path), speed=SPEED)
    )


def compare(path: Path, model: EdgeModel, kept: Kept, rng: np.random.Generator) -> Iterator[dict[str, Any]]:
    """A row for every way: how many windows there are, and in how many each part of the answer is the same."""
    expected, inputs = predict(path, model, batch=1), kept.take()
    many = predict(path, model)
    kept.take()
    for way in WAYS:
        with TemporaryDirectory() as home:
            source = open_source(way, path, rng)
            found = Session(model, source, home, has_board=False).run()
            rows = [line["facts"] for line in read_chain(Path(home) / JOURNAL).lines if line["kind"] == "decision"]
        probabilities = np.array(
            [[math.nan if p is None else p for p in row["probabilities"]] for row in rows], dtype=np.float32
        )
        same = {
            "starts": [row["start_s"] for row in rows] == list(expected.starts),
            "notes": [row["note"] for row in rows] == list(expected.flags),
            "decisions": [row["decision"] for row in rows] == list(expected.decisions),
            "inputs": kept.take() == inputs,
            "probabilities": np.array_equal(probabilities, expected.probabilities, equal_nan=True),
        }
        far = float(np.nanmax(np.abs(probabilities - many.probabilities), initial=0.0))
        row: dict[str, Any] = {"way": way, "windows": len(rows), "decided": found.decided, "skipped": found.skipped}
        yield row | {f"same_{name}": is_same for name, is_same in same.items()} | {"from_batches": f"{far:.2g}"}


def main() -> None:
    """Replay, compare, store."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--dry", action="store_true", help="store nothing")
    given = parser.parse_args()
    rng, rows = np.random.default_rng(0), list[dict[str, Any]]()
    with TemporaryDirectory() as home:
        for number, (name, changes) in enumerate(FILTERS.items()):
            used = replace(convention("labram", "eegmat"), **changes)
            model = EdgeModel(make_model(Path(home) / f"{number}.onnx", used), threads=1)
            kept = Kept(model)
            for path in sorted(given.folder.glob("*.edf")):
                rows += [{"file": path.stem, "filter": name, **row} for row in compare(path, model, kept, rng)]
                print(rows[-1], flush=True)
    if not given.dry:
        print(write_csv("live_replays", rows))


if __name__ == "__main__":
    main()
