"""Files of a prediction, read back by those who use such files: MNE, the csv module, BIDS' and YASA's rules."""

from __future__ import annotations

import csv
import io
import json
import warnings
from datetime import datetime
from pathlib import Path
from typing import Any

import mne
import numpy as np
import pytest

from edge import tiny_onnx
from zipbrain.edge import writers
from zipbrain.edge.formats.edf import annotations_file
from zipbrain.edge.formats.figure import _spans, _stretches, draw
from zipbrain.edge.prediction import Prediction
from zipbrain.edge.sleep_stages import sleep_stages
from zipbrain.edge.writers import check_writable, choose_formats, file_names, write
from zipbrain.errors import DataError, MissingExtra, OptionError


def prediction(
    classes: tuple[str, ...] = ("rest", "arithmetic"),
    count: int = 7,
    flagged: dict[int, str] | None = None,
    **more: Any,
) -> Prediction:
    sleep = sleep_stages(classes) is not None
    times = {"window_s": 30.0, "hop_s": 30.0} if sleep else {}
    about = tiny_onnx.description(classes=classes, convention=tiny_onnx.convention(**times))
    shares = np.random.default_rng(3).dirichlet(np.ones(len(classes)), count).astype(np.float32)
    flags = [""] * count
    for row, flag in (flagged or {}).items():
        shares[row], flags[row] = np.nan, flag
    hop = about.convention.hop_s
    values: dict[str, Any] = {
        "path": Path("somewhere/night 1.edf"), "description": about, "model_sha256": "cd" * 32, "runtime": "none",
        "starts": hop * np.arange(count), "probabilities": shares, "flags": tuple(flags), "hop_s": hop,
        "duration": hop * (count - 1) + about.convention.window_s, "seconds": 0.5,
        "start": datetime(2021, 3, 4, 22, 30, 15),
    }  # fmt: skip
    return Prediction(**(values | more))


def test_decisions_labels_and_summary() -> None:
    found = prediction(count=10, flagged={2: "flat: F3, C4", 3: "flat: O1; saturated: F3", 9: "gap"})
    assert found.decisions.tolist()[2:4] == [-1, -1]
    assert found.labels[9] == ""
    good = [row for row in range(10) if row not in (2, 3, 9)]
    assert found.decisions[good].tolist() == found.probabilities[good].argmax(1).tolist()
    summary = found.summary()
    assert summary["no_decision"] == 3
    assert summary["no_decision_because"] == {"flat": 1, "flat and saturated": 1, "gap": 1}
    assert sum(entry["windows"] for entry in summary["classes"].values()) == 7
    assert sum(entry["share"] for entry in summary["classes"].values()) == pytest.approx(1)
    assert sum(entry["minutes"] for entry in summary["classes"].values()) == pytest.approx(7 * 2 / 60, rel=1e-4)
    assert summary["times_real_time"] == pytest.approx(22 / 0.5)
    json.dumps(summary, allow_nan=False)


def test_nothing_decided_has_no_shares() -> None:
    summary = prediction(count=2, flagged={0: "gap", 1: "NaN"}).summary()
    assert [entry["share"] for entry in summary["classes"].values()] == [None, None]
    json.dumps(summary, allow_nan=False)


def test_csv_has_a_row_per_window_and_no_probabilities_where_nothing_is_decided(tmp_path: Path) -> None:
    found = prediction(("rest, eyes open", 'say "a"'), flagged={3: "saturated: O1"})
    files = write(found, tmp_path, ("csv",))
    rows = list(csv.DictReader(io.StringIO(files["csv"].read_text(encoding="utf-8"))))
    assert list(rows[0]) == [
        "start_s", "stop_s", "probability_rest, eyes open", "probability_say \"a\"", "decision", "note",
    ]  # fmt: skip
    assert [float(row["start_s"]) for row in rows] == found.starts.tolist()
    assert [float(row["stop_s"]) for row in rows] == (found.starts + 4).tolist()
    assert list(rows[3].values())[2:] == ["", "", "no decision", "saturated: O1"]
    assert [row["decision"] for row in rows if not row["note"]] == [label for label in found.labels if label]
    shares = [[float(value) for value in list(row.values())[2:4]] for row in rows if not row["note"]]
    np.testing.assert_allclose(shares, found.probabilities[[0, 1, 2, 4, 5, 6]], atol=1e-6)


@pytest.mark.parametrize("count", [1, 7, 3000])
def test_mne_reads_the_annotations_back(count: int, tmp_path: Path) -> None:
    found = prediction(("ruhig", "erschöpft"), count=count, flagged={0: "flat: F3, C4"})
    path = write(found, tmp_path, ("edf",))["edf"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read = mne.read_annotations(path)
    assert len(read) == count
    np.testing.assert_allclose(read.onset, found.starts, atol=1e-6)
    np.testing.assert_allclose(read.duration, 4.0)
    assert read.description[0] == "no decision: flat: F3, C4"
    assert read.description[1:].tolist() == found.labels[1:]


def test_the_annotations_file_is_edf_plus_to_the_letter(tmp_path: Path) -> None:
    path = write(prediction(count=3000), tmp_path, ("edf",))["edf"]
    content = path.read_bytes()
    header = content[:512].decode("ascii")
    assert (header[:8], header[8:88], header[168:184]) == ("0       ", "X X X X".ljust(80), "04.03.2122.30.15")
    assert header[88:168].rstrip() == "Startdate 04-MAR-2021 X zipbrain X"
    assert (header[184:192], header[192:236].rstrip(), header[244:252], header[252:256]) == (
        "512     ", "EDF+C", "0       ", "1   ",
    )  # fmt: skip
    records, samples = int(header[236:244]), int(header[256 + 216 : 256 + 224])
    assert len(content) == 512 + records * samples * 2
    for record in range(records):
        start = 512 + record * samples * 2
        assert content[start : start + 5] == b"+0\x14\x14\x00"
        assert content[start : start + samples * 2].rstrip(b"\0").endswith(b"\x14")


def test_edfio_reads_the_annotations_back(tmp_path: Path) -> None:
    edfio = pytest.importorskip("edfio")
    path = tmp_path / "a.edf"
    path.write_bytes(annotations_file([(0.0, 30.0, "Sleep stage W"), (30.0, 30.0, "Sleep stage N1")]))
    found = edfio.read_edf(path)
    assert [(a.onset, a.duration, a.text) for a in found.annotations] == [
        (0.0, 30.0, "Sleep stage W"), (30.0, 30.0, "Sleep stage N1"),
    ]  # fmt: skip


def test_odd_texts_and_unknown_dates_make_no_broken_annotations(tmp_path: Path) -> None:
    path = tmp_path / "a.edf"
    given = [(0.0, 1.0, "a\x14b\x15c\x00d\ne"), (0.123456, 0.5, "ü" * 3000), (1e5, 4.0, "late")]
    for start in (None, datetime(1950, 1, 1)):
        path.write_bytes(annotations_file(given, start))
        read = mne.read_annotations(path)
        assert read.description[0] == "a b c d e"
        assert set(read.description[1]) == {"ü"}
        np.testing.assert_allclose(read.onset, [0.0, 0.123456, 1e5])
        assert path.read_bytes()[88:168].rstrip() == b"Startdate X X zipbrain X"


def test_sleep_stages_have_the_texts_of_edf_plus(tmp_path: Path) -> None:
    found = prediction(tiny_onnx.STAGES, count=40, flagged={4: "gap"})
    read = mne.read_annotations(write(found, tmp_path, ("edf",))["edf"])
    texts = {"W": "Sleep stage W", "N1": "Sleep stage N1", "N2": "Sleep stage N2", "N3": "Sleep stage N3"}
    texts |= {"REM": "Sleep stage R", "": "Sleep stage ?"}
    assert read.description.tolist() == [texts[label] for label in found.labels]


def test_bids_events_keep_the_rules_of_bids(tmp_path: Path) -> None:
    found = prediction(("open\teyes", "closed"), flagged={1: "NaN"}, path=Path("sub-01_task-rest_eeg.edf"))
    files = write(found, tmp_path, ("bids",))
    assert files["bids"].name == "sub-01_task-rest_desc-zipbrain_events.tsv"
    assert files["bids_sidecar"].name == "sub-01_task-rest_desc-zipbrain_events.json"
    lines = [line.split("\t") for line in files["bids"].read_text(encoding="utf-8").splitlines()]
    assert lines[0][:3] == ["onset", "duration", "trial_type"]
    assert {len(line) for line in lines} == {5}
    assert all(cell for line in lines for cell in line)
    assert lines[2] == ["2", "4", "n/a", "n/a", "NaN"]
    assert {line[2] for line in lines[1:]} <= {"open eyes", "closed", "n/a"}
    onsets = [float(line[0]) for line in lines[1:]]
    assert onsets == sorted(onsets)
    sidecar = json.loads(files["bids_sidecar"].read_text(encoding="utf-8"))
    assert set(sidecar) == set(lines[0])
    assert set(sidecar["trial_type"]["Levels"]) == {"open eyes", "closed"}
    assert sidecar["onset"]["Units"] == "s"


def test_hypnogram_is_yasas_table(tmp_path: Path) -> None:
    found = prediction((*tiny_onnx.STAGES, "Artefact"), count=60, flagged={2: "gap"})
    text = write(found, tmp_path, ("yasa",))["yasa"].read_text(encoding="utf-8")
    rows = list(csv.DictReader(io.StringIO(text)))
    names = {"W": "WAKE", "Artefact": "ART", "": "UNS"}
    assert [row["Stage"] for row in rows] == [names.get(label, label) for label in found.labels]
    assert [row["Epoch"] for row in rows] == [str(epoch) for epoch in range(60)]


def test_yasa_reads_the_hypnogram_and_writes_the_same_table(tmp_path: Path) -> None:
    yasa = pytest.importorskip("yasa", reason="yasa is not installed: it needs more packages than all of zipbrain")
    pandas = pytest.importorskip("pandas")
    found = prediction((*tiny_onnx.STAGES, "Artefact"), count=60, flagged={2: "gap"})
    path = write(found, tmp_path, ("yasa",))["yasa"]
    hypnogram = yasa.Hypnogram(pandas.read_csv(path)["Stage"].tolist(), freq="30s")
    assert hypnogram.hypno.to_csv(lineterminator="\n") == path.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("classes", "stages"),
    [
        (("W", "N1", "N2", "N3", "REM"), ("W", "N1", "N2", "N3", "REM")),
        (("wake", "n2", "r"), ("W", "N2", "REM")),
        (("W", "REM", "N1", "N2", "N3", "Artefact"), ("W", "REM", "N1", "N2", "N3", "ARTEFACT")),
        (("rest", "arithmetic"), None),
        (("W", "wake", "N2"), None),
        (("W", "REM"), None),
    ],
)
def test_sleep_stages_are_told_by_their_names(classes: tuple[str, ...], stages: tuple[str, ...] | None) -> None:
    assert sleep_stages(classes) == stages


def test_formats_are_those_that_suit_or_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = tiny_onnx.description()
    sleep = tiny_onnx.description(classes=tiny_onnx.STAGES, convention=tiny_onnx.convention(window_s=30.0))
    assert choose_formats(None, plain, 2.0) == (("csv", "edf", "bids", "figure"), "")
    assert choose_formats(None, sleep, 30.0)[0] == ("csv", "edf", "bids", "yasa", "figure")
    assert "yasa" not in choose_formats(None, sleep, 10.0)[0]
    assert choose_formats(["edf", "csv"], plain, 2.0) == (("csv", "edf"), "")
    for asked, about, hop, words in (
        (["pdf"], plain, 2.0, "known are csv"),
        (["yasa"], plain, 2.0, "no sleep stages"),
        (["yasa"], sleep, 10.0, "every 10 s"),
    ):
        with pytest.raises(OptionError, match=words):
            choose_formats(asked, about, hop)
    monkeypatch.setattr("zipbrain.edge.formats.base.find_spec", lambda name: None)
    formats, note = choose_formats(None, plain, 2.0)
    assert formats == ("csv", "edf", "bids")
    assert "matplotlib is not installed" in note
    with pytest.raises(MissingExtra, match="matplotlib"):
        choose_formats(["figure"], plain, 2.0)


def content_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_failure_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = write(prediction(), tmp_path, ("csv", "bids"))
    assert list(before)[-1] == "summary"
    assert json.loads(before["summary"].read_text())["files"]["csv"] == before["csv"].name
    old = content_of(tmp_path)

    def failing(error: BaseException) -> Any:
        def fail(*_: Any) -> bytes:
            raise error

        return fail

    other = prediction(count=9, model_sha256="ee" * 32)
    for place, error in (("formats.bids", OSError(28, "No space left on device")), ("writers", KeyboardInterrupt())):
        with monkeypatch.context() as patched:
            patched.setattr(f"zipbrain.edge.{place}.json_bytes", failing(error))
            with pytest.raises((DataError, KeyboardInterrupt), match=r"No space left on device|^$"):
                write(other, tmp_path, ("csv", "bids"))
        assert content_of(tmp_path) == old
    files = write(other, tmp_path, ("csv", "bids"))
    assert set(content_of(tmp_path)) == {path.name for path in files.values()} == set(old)
    assert content_of(tmp_path) != old


def test_results_of_two_models_never_stand_side_by_side(tmp_path: Path) -> None:
    mine = tmp_path / "night 1_zipbrain.txt"
    mine.write_text("a note of my own")
    first = write(prediction(), tmp_path, ("csv", "figure"), more={"key": {"stands for": 1}})
    more = write(prediction(), tmp_path, ("bids",), more={"key": {"stands for": 1}})  # one more kind of the same result
    assert set(more) == {"csv", "figure", "figure_svg", "bids", "bids_sidecar", "summary"}
    assert json.loads(more["summary"].read_text())["files"] == {kind: path.name for kind, path in more.items()}
    assert all(path.is_file() for path in more.values())
    for other in ({"model_sha256": "ee" * 32}, {"hop_s": 1.0}):
        write(prediction(), tmp_path, ("csv", "figure"), more={"key": {"stands for": 1}})
        files = write(prediction(**other), tmp_path, ("csv",), more={"key": {"stands for": 1}})
        assert set(files) == {"csv", "summary"}
        assert not first["figure"].exists()
        assert not more["bids"].exists()
    assert set(write(prediction(**other), tmp_path, ("edf",), more={"key": {"stands for": 2}})) == {"edf", "summary"}
    assert mine.read_text() == "a note of my own"


def test_an_earlier_summary_can_name_no_file_of_others(tmp_path: Path) -> None:
    mine = tmp_path / "mine.csv"
    mine.write_text("mine")
    summary = write(prediction(), tmp_path, ("csv",))["summary"]
    said = json.loads(summary.read_text())
    said["files"] |= {"edf": "../mine.csv", "bids": "mine.csv", "figure": str(mine)}
    summary.write_text(json.dumps(said))
    write(prediction(model_sha256="ee" * 32), tmp_path, ("csv",))
    assert mine.read_text() == "mine"


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="can't be written to"):
        check_writable(tmp_path / "file" / "out")
    (tmp_path / "x.csv").mkdir()
    with pytest.raises(DataError, match="is a folder where a file"):
        check_writable(tmp_path, ["x.csv"])
    check_writable(tmp_path / "new" / "deep")
    assert (tmp_path / "new" / "deep").is_dir()
    assert not list((tmp_path / "new" / "deep").iterdir())


def test_every_name_carries_the_mark() -> None:
    names = file_names("night", writers.FORMATS)
    assert all("zipbrain" in name for name in names.values())
    assert len(set(names.values())) == len(names)


@pytest.mark.parametrize("classes", [("rest", "arithmetic"), ("a $x$ b", "b" * 90, "c"), tiny_onnx.STAGES])
@pytest.mark.parametrize("count", [1, 5, 900])
def test_figures_are_pictures_and_the_same_every_time(classes: tuple[str, ...], count: int) -> None:
    flagged = {0: "gap"} if count > 1 else {}
    found = prediction(classes, count=count, flagged=flagged)
    assert draw(found, "png")[:8] == b"\x89PNG\r\n\x1a\n"
    first = draw(found, "svg")
    assert first == draw(found, "svg")
    assert (b"no decision: 1 of" in first) == (count > 1)


def test_a_figure_of_nothing_decided_can_be_drawn() -> None:
    for classes in (("rest", "arithmetic"), tiny_onnx.STAGES):
        assert draw(prediction(classes, count=3, flagged=dict.fromkeys(range(3), "gap")), "svg")


def test_a_figure_colours_no_time_that_no_window_saw() -> None:
    sparse = prediction(count=4, flagged={1: "gap"}, hop_s=20.0, starts=20.0 * np.arange(4))
    edges, decisions, shares = _stretches(sparse)
    assert edges.tolist() == [0, 4, 20, 24, 40, 44, 60, 64]
    assert decisions[1::2].tolist() == [-2, -2, -2]
    assert decisions[::2].tolist() == sparse.decisions.tolist()
    assert np.isnan(shares[1::2]).all()
    np.testing.assert_array_equal(shares[::2], sparse.probabilities)
    spans = _spans(decisions, edges)
    assert spans[-1] == [(20, 4)]
    assert sum(length for key, where in spans.items() if key >= 0 for _, length in where) == 12
    dense = prediction(count=4)  # 4 s every 2 s
    edges, decisions, _ = _stretches(dense)
    assert edges.tolist() == [0, 2, 4, 6, 8]
    assert decisions.tolist() == dense.decisions.tolist()
    three = prediction(("a", "b", "c"), count=4, hop_s=20.0, starts=20.0 * np.arange(4))
    assert all(draw(found, "svg") for found in (sparse, three))


def test_a_figure_in_a_script_that_the_font_lacks_warns_nobody() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert draw(prediction(("夜", "昼")))
