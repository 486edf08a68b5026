"""A session on a faulty stream: every window is decided as if nothing had happened, or not at all."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from zipbrain.edge import EdgeModel
from zipbrain.live.chain import JOURNAL, read_chain
from zipbrain.live.session import Session
from zipbrain.live.source import Chunk
from zipbrain.live.stamps import StampAudit
from zipbrain.live.verify import verify

from ..edge import tiny_onnx
from .made_up_source import Scripted, noise

NAMES = tiny_onnx.convention().ch_names
SFREQ, SECONDS, SIZE = 200.0, 56, 40
AT = round(30.3 * SFREQ)  # where the faults are

Places = NDArray[np.int64]
Stamps = NDArray[np.float64]
Fault = Callable[[Places, Stamps], tuple[Places, Stamps]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> EdgeModel:
    return EdgeModel(tiny_onnx.save(tmp_path_factory.mktemp("model") / "tiny.onnx"), threads=1)


@pytest.fixture(scope="module")
def recording() -> Any:
    return noise(len(NAMES), round(SECONDS * SFREQ))


@pytest.fixture(scope="module")
def unharmed(model: EdgeModel, recording: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Decisions of the stream without faults."""
    return decisions(model, [recording], tmp_path_factory.mktemp("unharmed"))


class Timed(Scripted):
    """A script whose chunks come at times of its own, which are the reader's."""

    arrived = 0.0

    def read(self, timeout_s: float) -> Chunk | None:
        if self._script and isinstance(self._script[0], tuple):
            self.arrived, self._script[0] = self._script[0]
        return super().read(timeout_s)

    def monotonic(self) -> float:
        return self.arrived


def decisions(model: EdgeModel, script: list[Any], out: Path, monkeypatch: Any = None) -> dict[float, tuple[str, Any]]:
    """Note and probabilities by the start of the window."""
    source = Timed(NAMES, SFREQ, script, is_live=False)
    session = Session(model, source, out, hop_s=1.0, has_board=False)
    if monkeypatch is not None:
        monkeypatch.setattr("zipbrain.live.acquisition.time", source)
        session.acquisition.audit = StampAudit(SFREQ)
    session.run()
    assert verify(out).verdict == "whole"
    found = {}
    for row in lines(out, "decision"):
        assert (row["decision"] < 0) == bool(row["note"])
        found[row["start_s"]] = row["note"], row["probabilities"]
    return found


def lines(folder: Path, kind: str) -> list[dict[str, Any]]:
    return [line["facts"] for line in read_chain(folder / JOURNAL).lines if line["kind"] == kind]


def set_clock(seconds: float) -> Fault:
    return lambda places, stamps: (places, stamps + seconds * (np.arange(len(stamps)) >= AT))


def drift(places: Places, stamps: Stamps) -> tuple[Places, Stamps]:
    return places, stamps * (1 + 200e-6)


def repeat(places: Places, stamps: Stamps) -> tuple[Places, Stamps]:
    again = np.concatenate((places[: AT + 45], places[AT:]))
    return again, stamps[again]


def jumble(places: Places, stamps: Stamps) -> tuple[Places, Stamps]:
    order = places.copy()
    order[AT : AT + 12] = np.random.default_rng(0).permutation(order[AT : AT + 12])
    return order, stamps[order]


def drop(places: Places, stamps: Stamps) -> tuple[Places, Stamps]:
    kept = np.delete(places, slice(AT, AT + 300))
    return kept, stamps[kept]


@pytest.mark.parametrize(
    ("fault", "kind", "finding"),
    [
        (set_clock(3600.0), "clock", "jump"),
        (set_clock(-3600.0), "clock", "jump"),
        (drift, "clock", "drift"),
        (repeat, "clock", "duplicated"),
        (jumble, "clock", "jumbled"),
        (drop, "gap", "dropped"),
    ],
    ids=["an hour on", "an hour back", "drift", "twice", "jumbled", "dropped"],
)
def test_what_stamps_show_is_on_record_and_changes_no_decision_but_across_a_gap(
    model, recording, unharmed, tmp_path, monkeypatch, fault, kind, finding
):
    places, stamps = fault(np.arange(recording.shape[1]), 1000.0 + np.arange(recording.shape[1]) / SFREQ)
    pieces = [places[start : start + SIZE] for start in range(0, len(places), SIZE)]
    times = np.array_split(stamps, range(SIZE, len(places), SIZE))
    script = [(max(piece) / SFREQ, Chunk(recording[:, piece], at)) for piece, at in zip(pieces, times, strict=True)]
    found = decisions(model, script, tmp_path, monkeypatch)
    assert finding in {row["finding"] for row in lines(tmp_path, kind)}
    hole = (AT, AT + 300) if finding == "dropped" else (0, 0)
    assert found.keys() == unharmed.keys()
    for start_s, (note, values) in found.items():
        is_hit = start_s * SFREQ < hole[1] and (start_s + 4) * SFREQ > hole[0]
        if is_hit or note == "gap":  # the resampler's reach makes a gap a little longer
            assert note == "gap"
            assert hole[0] - SFREQ < (start_s + 4) * SFREQ
            assert start_s * SFREQ < hole[1] + SFREQ
        else:
            assert (note, values) == unharmed[start_s]
    assert sum(note == "gap" for note, _ in found.values()) == (0 if hole == (0, 0) else 5)


@pytest.mark.parametrize("value", [math.nan, 0.0])
def test_while_an_electrode_is_away_there_is_no_decision_and_all_others_stay(
    model, recording, unharmed, tmp_path, value
):
    x = recording.copy()
    x[4, AT : AT + 2000] = value
    found = decisions(model, [x[:, start : start + SIZE] for start in range(0, x.shape[1], SIZE)], tmp_path)
    assert {note for note, _ in found.values()} == {"", "NaN" if math.isnan(value) else f"flat: {NAMES[4]}"}
    assert all(note for start_s, (note, _) in found.items() if 30.3 <= start_s <= 36)
    for start_s, answer in found.items():
        if start_s * SFREQ > AT + 2000 or (start_s + 4) * SFREQ < AT:
            assert answer == unharmed[start_s]
