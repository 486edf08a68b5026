"""Channels at every door: mutated names, orders, cases, references and units are refused, said, or change nothing."""

from __future__ import annotations

import logging
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import edfio
import numpy as np
import pytest
import torch

from edge import tiny_onnx
from live.made_up_source import Scripted
from zipbrain.channels import SYNONYMS, electrode, find_channels, match_channels
from zipbrain.data.windows import Windows
from zipbrain.edge import EdgeModel
from zipbrain.edge import predict as edge_predict
from zipbrain.errors import DataError, OptionError
from zipbrain.evaluation.trial import check_fit
from zipbrain.export.checks import check_model
from zipbrain.live.chain import JOURNAL, read_chain
from zipbrain.live.session import Session
from zipbrain.models import LaBraM, Task, create, eegpt, labram, remember
from zipbrain.signal.montage import derive
from zipbrain.training import EEGClassifier, finetune, predict
from zipbrain.training.settings import scratch_settings
from zipbrain.tuning.grouped_windows import read_grouped_windows

NAMES = ("EEG FP1-REF", "T3", "C4", "O2", "P7")
CLASSES = ("rest", "task")
X = np.random.default_rng(0).normal(0, 20, (8, len(NAMES), 200)).astype(np.float32)
Y = np.arange(8) % 2


def mutations() -> Iterator[tuple[str, tuple[str, ...]]]:
    """A word for what was done, and the names afterwards."""
    for place, name in enumerate(NAMES):

        def changed(new: str, place: int = place) -> tuple[str, ...]:
            return (*NAMES[:place], new, *NAMES[place + 1 :])

        bare = electrode(name)
        yield "case", changed(name.lower())
        yield "decoration", changed(f"EEG {bare.title()}")
        yield "reference", changed(f"EEG {bare}-LE")
        yield "reference", changed(f"{bare}-AVG")
        if bare in SYNONYMS:
            yield "old or new", changed(SYNONYMS[bare])
        yield "another place", changed("F4")
        yield "no place", changed("EKG")
        yield "against an ear", changed(f"{bare}-A2")
        yield "polarity", changed(f"CZ-{bare}")
        yield "twice", changed(NAMES[place - 1])
        yield "missing", (*NAMES[:place], *NAMES[place + 1 :])
    yield "more", (*NAMES, "FZ")
    for first in range(len(NAMES)):
        for second in range(first):
            order = list(range(len(NAMES)))
            order[first], order[second] = second, first
            yield "order", tuple(NAMES[i] for i in order)
    yield "order", NAMES[::-1]
    yield "order", (*NAMES[1:], NAMES[0])


def windows(names: tuple[str, ...]) -> Windows:
    count = len(names)
    x = np.resize(X, (8, count, 200)).astype(np.float32)
    return Windows.from_arrays(x, Y, ch_names=names, sfreq=200.0, classes=CLASSES, name="toy")


@pytest.fixture(scope="module")
def plain() -> LaBraM:
    """A model that knows its channels from its options alone."""
    torch.manual_seed(0)
    made = LaBraM(1, NAMES, 200).eval()
    made.blocks = made.blocks[:1]
    return made


@pytest.fixture(scope="module")
def trained() -> Any:
    """A model whose channels only its task tells."""
    made = create("biot", n_outputs=1, n_chans=len(NAMES), n_times=200, dim=16, heads=2, depth=1).eval()
    remember(made, Task(CLASSES, "toy", NAMES, 200.0, "q95"))
    return made


@pytest.fixture(scope="module")
def fitted() -> EEGClassifier:
    small = {"options": {"dim": 16, "heads": 2, "depth": 1}}
    return EEGClassifier("biot", ch_names=NAMES, epochs=1, overrides=small, device="cpu").fit(X, Y)


TINY = scratch_settings("biot").override(epochs=1, batch_size=8, options={"dim": 16, "heads": 2, "depth": 1})


def doors(plain: LaBraM, trained: Any, fitted: EEGClassifier) -> dict[str, Callable[[tuple[str, ...]], object]]:
    """What meets channels, each as a function of their names."""

    def classify(names: tuple[str, ...]) -> object:
        fitted.ch_names = names
        try:
            return fitted.predict_proba(windows(names).take(slice(None)))
        finally:
            fitted.ch_names = NAMES

    return {
        "evaluate, with a task": lambda names: check_fit(trained, windows(names)),
        "evaluate, without": lambda names: check_fit(plain, windows(names)),
        "training.predict, with a task": lambda names: predict(trained, windows(names), device="cpu"),
        "training.predict, without": lambda names: predict(plain, windows(names), device="cpu"),
        "export, with a task": lambda names: check_model(trained, windows(names), CLASSES),
        "export, without": lambda names: check_model(plain, windows(names), CLASSES),
        "tune, with a task": lambda names: read_grouped_windows(trained, windows(names), list("ab" * 4), None),
        "tune, without": lambda names: read_grouped_windows(plain, windows(names), list("ab" * 4), None),
        "finetune, validation": lambda names: finetune("biot", windows(NAMES), windows(names), settings=TINY),
        "estimator": classify,
    }


HARMLESS = {"case", "decoration"}  # the same electrode in other letters
SAME = {"old or new"}  # the same electrode under its other name, which is said at level INFO


WORDS = {  # the same at every door
    "order": "the same channels in another order",
    "missing": "(missing: ",
    "more": "(not wanted: FZ)",
    "another place": "not wanted: F4)",
    "no place": "not wanted: EKG)",
    "old or new": " stands for ",
}


def outcome(run: Callable[[], object], caplog: pytest.LogCaptureFixture) -> str:
    caplog.clear()
    with warnings.catch_warnings(record=True) as remarks, caplog.at_level(logging.INFO, "zipbrain"):
        warnings.simplefilter("always")
        try:
            run()
        except (OptionError, DataError) as error:
            return f"refused: {error}"
    said = [str(remark.message) for remark in remarks] + [record.message for record in caplog.records]
    return "said: " + "; ".join(said) if said else "silent"


def test_no_mutation_is_silent_at_any_door(plain, trained, fitted, caplog) -> None:
    silent, count = [], 0
    for door, run in doors(plain, trained, fitted).items():
        assert outcome(lambda run=run: run(NAMES), caplog) == "silent", door
        for kind, names in mutations():
            count += 1
            found = outcome(lambda run=run, names=names: run(names), caplog)
            if kind in HARMLESS and found == "silent":
                continue
            against = kind == "reference" and names[0] == NAMES[0] and found == "silent"
            if against and match_channels(names, NAMES).fits and not match_channels(names, NAMES).references:
                continue  # the model names no reference there: nothing to compare
            wrong = found == "silent" or (kind == "order" and "order" not in found)
            ear = kind == "against an ear" and door.endswith("without")  # whose electrode such a model was made for
            if wrong and not ear:
                silent.append((door, kind, names))
            if kind not in HARMLESS | SAME | {"reference", "against an ear"}:
                assert found.startswith("refused"), (door, kind, names, found)
            assert WORDS.get(kind, "") in found, (door, kind, names, found)
    assert silent == []
    assert count > 400


def test_a_recording_is_read_by_name_in_any_order_and_what_stands_for_what_is_noted() -> None:
    wanted = ("FP1", "T3-REF", ("C4", "A1"), "O2")
    recorded = ["FP1", "T3-REF", "C4", "A1", "O2"]
    rows = np.arange(5.0)[:, None] * np.ones((1, 3)) + 1

    def read(names: list[str]) -> Any:
        """Values of every channel, where each electrode has a value of its own, and the notes."""
        own = {electrode(name): row for name, row in zip(recorded, rows, strict=True)}
        own |= {SYNONYMS[name]: row for name, row in own.items() if name in SYNONYMS}
        found = derive(wanted, names)
        given = np.stack([own.get(electrode(name), np.full(3, 99.0)) for name in names])
        return found.apply(given[list(found.picks)]), found.notes

    right, notes = read(recorded)
    assert notes == ()
    for order in (recorded[::-1], recorded[2:] + recorded[:2], ["EKG", *recorded]):
        assert np.array_equal(read(order)[0], right)
    values, notes = read(["EEG Fp1", "T7", "C4", "M1", "O2"])
    assert np.array_equal(values, right)
    assert notes == ("T7 stands for T3-REF", "M1 stands for A1")
    assert read(["FP1", "T3-LE", "C4", "A1", "O2"])[1] == ("T3-LE has another reference than T3-REF",)
    for lost in range(5):
        with pytest.raises(DataError, match="has no"):
            read([*recorded[:lost], *recorded[lost + 1 :]])


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> EdgeModel:
    """A file that reads the five channels by name."""
    own = {"montage": NAMES, "ch_names": NAMES, "window_s": 1.0, "hop_s": 1.0}
    about = tiny_onnx.description(convention=tiny_onnx.convention(**own))
    return EdgeModel(tiny_onnx.save(tmp_path_factory.mktemp("exported") / "m.onnx", about), threads=1)


SIGNAL = 20 * np.random.default_rng(1).normal(size=(len(NAMES) + 1, 800))
Answers = tuple[Any, list[str]]  # probabilities, notes


def predicted(model: EdgeModel, folder: Path, names: Sequence[str], x: Any, unit: str = "uV") -> Answers:
    path = folder / "a.edf"
    signals = [
        edfio.EdfSignal(row, 200, label=name, physical_dimension=unit, physical_range=(row.min(), row.max()))
        for name, row in zip(names, x, strict=True)
    ]
    edfio.Edf(signals).write(path)
    found = edge_predict(path, model)
    return found.probabilities, found.notes


def streamed(model: EdgeModel, folder: Path, names: Sequence[str], x: Any) -> Answers:
    out = Path(tempfile.mkdtemp(dir=folder))
    source = Scripted(tuple(names), 200.0, np.array_split(x, 4, axis=1), is_live=False)
    Session(model, source, out, has_board=False).run()
    lines = read_chain(out / JOURNAL).lines
    shares = [line["facts"]["probabilities"] for line in lines if line["kind"] == "decision"]
    return np.array(shares, dtype=np.float32), lines[0]["facts"]["notes"]


@pytest.mark.parametrize("door", [predicted, streamed])
def test_no_mutation_of_a_recording_is_silent(door: Callable[..., Answers], exported: EdgeModel, tmp_path) -> None:
    right, notes = door(exported, tmp_path, NAMES, SIGNAL[:5])
    assert len(right) == 4
    assert not [note for note in notes if "stands for" in note or "reference" in note]
    silent = []
    for kind, names in mutations():
        rows = [NAMES.index(name) if kind in ("order", "missing") else place for place, name in enumerate(names)]
        if kind not in HARMLESS | SAME | {"reference", "order", "more"}:
            with pytest.raises(DataError, match="has no "):
                door(exported, tmp_path, names, SIGNAL[rows])
            continue
        found, notes = door(exported, tmp_path, names, SIGNAL[rows])
        said = "; ".join(notes)
        is_said = "stands for" in said or "another reference" in said
        named = kind == "reference" and names[0] != NAMES[0]  # the one channel whose reference the model names
        expected = kind in SAME or named
        if not np.allclose(found, right, atol=2e-3) or is_said != expected:
            silent.append((kind, names, said))
    assert silent == []


@pytest.mark.parametrize(("unit", "factor"), [("mV", 1e-3), ("nV", 1e3), ("V", 1e-6)])
def test_units_of_a_recording_are_read_and_wrong_ones_refused(
    unit: str, factor: float, exported: EdgeModel, tmp_path: Path
) -> None:
    right, _ = predicted(exported, tmp_path, NAMES, SIGNAL[:5])
    found, _ = predicted(exported, tmp_path, NAMES, factor * SIGNAL[:5], unit)
    np.testing.assert_allclose(found, right, atol=5e-3)
    with pytest.raises(DataError, match="units"):
        predicted(exported, tmp_path, NAMES, SIGNAL[:5], unit)
    with pytest.raises(DataError, match="units"):
        streamed(exported, tmp_path, NAMES, factor * np.tile(SIGNAL[:5], 3))  # ten seconds are looked at


@pytest.mark.parametrize("table", [labram.CHANNELS, eegpt.CHANNELS], ids=["labram", "eegpt"])
def test_a_model_is_created_with_places_it_knows_each_once(table: Sequence[str], caplog) -> None:
    def rows(names: Sequence[str]) -> list[int]:
        return find_channels(names, table, "it")  # what `create` makes of ch_names

    right = rows(NAMES)
    for kind, names in mutations():
        if kind in {"no place", "against an ear", "polarity", "twice"}:
            with pytest.raises(OptionError, match="ch_names: got"):
                rows(names)
        elif kind in HARMLESS | {"reference"}:
            assert rows(names) == right, names
        elif kind == "old or new":  # where a table has but one of both, that is said; else they are two places
            changed = next(name for name, old in zip(names, NAMES, strict=True) if name != old)
            caplog.clear()
            with caplog.at_level(logging.INFO, "zipbrain"):
                assert (rows(names) == right) == (changed not in table or SYNONYMS[changed] not in table)
            assert (f"reads {changed} as" in caplog.text) == (changed not in table)
        else:  # every channel has the row of its own name, wherever it stands
            assert rows(names) == [rows([name])[0] for name in names]


@pytest.mark.parametrize(("given", "units"), [(1e-6, "uV"), (1e-3, "uV"), (1e3, "uV"), (1.0, "V"), (1.0, "nV")])
def test_amplitudes_in_other_units_are_refused_or_warned_of(given: float, units: str, caplog) -> None:
    about: dict[str, Any] = {"ch_names": NAMES, "sfreq": 200.0, "classes": CLASSES, "units": units}
    found = outcome(lambda: Windows.from_arrays(given * X, Y, **about), caplog)
    assert "say what they are with units=" in found


def test_a_match_is_said_in_the_same_words_everywhere() -> None:
    assert str(match_channels(["C3", "C4"], ["c3", "EEG C4-REF"])) == "the same channels"
    assert str(match_channels(["T7", "C4"], ["T3", "C4"])) == "T7 stands for T3"
    assert str(match_channels(["C4", "C3"], ["C3", "C4"])) == "the same channels in another order"
    assert str(match_channels(["C4", "F3"], ["C3", "C4"])) == "missing: C3; not wanted: F3"
    # LaBraM's table has T3 and T7 as different places: where both are there, they are told apart.
    assert match_channels(["T7", "T3"], ["T3", "T7"]).is_moved
