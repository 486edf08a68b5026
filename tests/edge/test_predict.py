"""`predict` and `predict_many` on real and made-up EDF files: the answers, what is not decided, and going on."""

from __future__ import annotations

import csv
import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import edfio
import numpy as np
import pytest
from numpy.typing import NDArray

from conftest import SHARED
from data.edf_files import UNIT, patch
from edge import tiny_onnx
from zipbrain.edge import predict_batch
from zipbrain.edge.model import EdgeModel, as_probabilities
from zipbrain.edge.predict_batch import predict_many, write_table
from zipbrain.edge.predict_one import predict
from zipbrain.edge.prediction import NO_ANSWER
from zipbrain.edge.recording_tree import find_recordings
from zipbrain.errors import DataError, ModelFileError, OptionError
from zipbrain.signal.cutting import windows
from zipbrain.signal.edf import open_edf

NAMES = tiny_onnx.convention().ch_names


def signal(seconds: int = 20, rate: int = 200) -> NDArray[np.float64]:
    return 30 * np.random.default_rng(5).normal(size=(len(NAMES), seconds * rate))


def save_edf(path: Path, x: NDArray[np.float64], names: tuple[str, ...] = NAMES, rate: int = 200) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    signals = [
        edfio.EdfSignal(row, rate, label=f"EEG {name}", physical_dimension="uV", physical_range=(-500, 500))
        for name, row in zip(names, np.clip(x, -500, 500), strict=True)
    ]
    edfio.Edf(signals).write(path)
    return path


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return tiny_onnx.save(tmp_path / "m.onnx")


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    return save_edf(tmp_path / "raw" / "a.edf", signal())


def test_every_window_has_the_answer_of_its_samples(model: Path, recording: Path) -> None:
    found = predict(recording, model)
    x = open_edf(recording).read(0, 4000)
    pieces = np.stack([x[:, start : start + 800] for start in range(0, 3201, 400)])
    assert found.starts.tolist() == [2.0 * i for i in range(9)]
    np.testing.assert_allclose(found.probabilities, EdgeModel(model).probabilities(pieces), atol=1e-6)
    assert set(found.flags) == {""}
    assert found.duration == 20
    assert found.seconds > 0
    assert found.path == recording


def test_hop_can_be_chosen(model: Path, recording: Path) -> None:
    assert predict(recording, model, hop_s=4.0).starts.tolist() == [0.0, 4.0, 8.0, 12.0, 16.0]
    for hop in (0, -1.0, float("nan"), float("inf")):
        with pytest.raises(OptionError, match="hop_s"):
            predict(recording, model, hop_s=hop)


def test_windows_per_call_can_be_chosen(model: Path, recording: Path) -> None:
    class Counting(EdgeModel):
        def _count(self, x: Any) -> Any:
            sizes.append(len(x))
            return run(x)

    sizes: list[int] = []
    opened = Counting(model)
    run, opened._runtime.run = opened._runtime.run, opened._count  # type: ignore[method-assign]
    usual = predict(recording, opened)
    assert sizes == [9]
    sizes.clear()
    alone = predict(recording, opened, batch=1)
    assert sizes == [1] * 9
    np.testing.assert_allclose(alone.probabilities, usual.probabilities, atol=1e-6)
    one_by_one = windows(open_edf(recording), opened.description.convention, batch=1)
    for window, wanted in zip(one_by_one, alone.probabilities, strict=True):
        np.testing.assert_array_equal(as_probabilities(opened.look(window.x)[0])[0], wanted)
    for wrong in (0, -1, 1.5, True):
        with pytest.raises(OptionError, match="batch"):
            predict(recording, opened, batch=wrong)  # type: ignore[arg-type]


def test_a_fixed_batch_is_filled_up_and_not_exceeded(tmp_path: Path, recording: Path) -> None:
    fixed = tiny_onnx.save(tmp_path / "fixed.onnx", tiny_onnx.description(batch=4))
    np.testing.assert_allclose(
        predict(recording, fixed, batch=1).probabilities, predict(recording, fixed).probabilities, atol=1e-6
    )
    with pytest.raises(OptionError, match="the file takes 4 windows at a time"):
        predict(recording, fixed, batch=5)


def test_windows_per_call_are_part_of_what_makes_a_recording_finished(
    tmp_path: Path, model: Path, recording: Path
) -> None:
    assert predict_many([recording], model, tmp_path / "out", batch=1)[0].status == "done"
    assert predict_many([recording], model, tmp_path / "out", batch=1)[0].status == "skipped"
    assert "other options" in predict_many([recording], model, tmp_path / "out")[0].error


@pytest.mark.parametrize("wrong", [None, ["night.edf"], np.zeros((2, 400)), 3], ids=str)
def test_what_is_no_recording_is_refused(wrong: Any, model: Path) -> None:
    with pytest.raises(OptionError, match=f"recording: got '{type(wrong).__name__}'"):
        predict(wrong, model)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"channels": "C3"}, "channels: got 'C3'"),
        ({"channels": ["C3"]}, "channels: got "),
        ({"channels": {"C3": 1}}, "channels: got "),
        ({"hop_s": "2"}, "hop_s: got '2'"),
        ({"hop_s": True}, "hop_s: got True"),
    ],
)
def test_options_of_another_kind_are_refused(
    options: dict[str, Any], said: str, model: Path, recording: Path, tmp_path: Path
) -> None:
    with pytest.raises(OptionError, match=said):
        predict(recording, model, **options)
    with pytest.raises(OptionError, match=said):
        predict_many([recording], model, tmp_path / "out", **options)


def test_what_is_no_model_or_no_list_is_refused(model: Path, recording: Path, tmp_path: Path) -> None:
    for wrong in (None, 3, ["m.onnx"]):
        with pytest.raises(OptionError, match=f"model: got '{type(wrong).__name__}'"):
            EdgeModel(wrong)  # type: ignore[arg-type]
    for several in (None, str(recording), recording):
        with pytest.raises(OptionError, match=r"recordings: got .*a list of paths"):
            predict_many(several, model, tmp_path / "out")  # type: ignore[arg-type]


def test_an_open_recording_and_an_open_model_do_too(model: Path, recording: Path) -> None:
    one, two = predict(recording, model), predict(open_edf(recording), EdgeModel(model))
    np.testing.assert_array_equal(one.probabilities, two.probabilities)


def test_bad_windows_get_no_decision_and_change_no_other(model: Path, tmp_path: Path) -> None:
    x = signal()
    clean = predict(save_edf(tmp_path / "clean.edf", x), model)
    x[2, 1600:2400] = 7.0  # F3 is flat from 8 s to 12 s
    x[14, 3600:] = 1e4  # O1 hits the limit from 18 s on
    found = predict(save_edf(tmp_path / "bad.edf", x), model, tmp_path / "out", formats=["csv"])
    assert [i for i, flag in enumerate(found.flags) if flag] == [3, 4, 5, 8]
    assert found.flags[4] == "flat: F3"
    assert found.flags[8] == "saturated: O1"
    assert found.decisions[[3, 4, 5, 8]].tolist() == [-1] * 4
    assert np.isnan(found.probabilities[[3, 4, 5, 8]]).all()
    good = [0, 1, 2, 6, 7]
    np.testing.assert_allclose(found.probabilities[good], clean.probabilities[good], atol=1e-6)
    rows = list(csv.DictReader((tmp_path / "out" / "bad_zipbrain.csv").open()))
    assert [row["note"] for row in rows] == list(found.flags)
    assert {row["decision"] for row in rows if row["note"]} == {"no decision"}


def test_an_answer_that_is_no_number_is_no_decision(
    model: Path, recording: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def blank(self: EdgeModel, x: NDArray[Any], **_: Any) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        return np.full((len(x), 2), np.nan, dtype=np.float32), np.zeros(len(x), dtype=bool)

    monkeypatch.setattr(EdgeModel, "look", blank)
    assert set(predict(recording, model).flags) == {NO_ANSWER}


def test_another_rate_is_resampled_and_said(model: Path, tmp_path: Path) -> None:
    found = predict(save_edf(tmp_path / "fast.edf", signal(rate=500), rate=500), model)
    assert any("resampled from 500 to 200 Hz" in note for note in found.notes)


def test_nothing_is_decided_on_channels_in_another_unit_or_on_a_rate_below_the_models_band(
    model: Path, tmp_path: Path
) -> None:
    x = signal()
    x[2:11] *= 1e-3
    signals = [
        edfio.EdfSignal(row, 200, label=f"EEG {name}", physical_dimension="uV")
        for name, row in zip(NAMES, x, strict=True)
    ]
    edfio.Edf(signals).write(tmp_path / "mixed.edf")
    with pytest.raises(DataError, match=r"EEG F3, EEG F4, .* and 1 more: typical deviations of 0\.0\d+ to 0\.0"):
        predict(tmp_path / "mixed.edf", model, tmp_path / "out")
    assert not [*(tmp_path / "out").glob("*")]
    renamed = {"F3": "EEG F3"}  # a name of the user's own changes nothing
    with pytest.raises(DataError, match="unit seems wrong"):
        predict(tmp_path / "mixed.edf", model, channels=renamed)
    assert len(predict(tmp_path / "mixed.edf", model, check=False).starts) == 9
    slow = save_edf(tmp_path / "slow.edf", 30 * np.random.default_rng(5).normal(size=(len(NAMES), 600)), rate=1)
    with pytest.raises(DataError, match=r"slow\.edf: its 1 Hz hold frequencies up to 0\.5 Hz"):
        predict(slow, model)


@pytest.mark.skipif(not (SHARED / "data" / "eegmat").is_dir(), reason="needs the real recordings in ../shared/data")
@pytest.mark.parametrize("unit", ["V", "mV", "nV"])
@pytest.mark.parametrize("count", [1, 9, 12])
def test_a_real_recording_with_channels_in_another_unit_is_not_decided(
    model: Path, tmp_path: Path, unit: str, count: int
) -> None:
    path = tmp_path / "real.edf"
    path.write_bytes((SHARED / "data" / "eegmat" / "Subject33_1.edf").read_bytes())
    assert set(predict(path, model).flags) == {""}
    for row in range(count):
        patch(path, UNIT, unit, row)
    with pytest.raises(
        DataError, match=r"channels? EEG Fp1.*typical deviation.*where the other channels have [5-9]\.\d+ uV"
    ):
        predict(path, model)


def test_missing_electrodes_and_short_recordings_are_refused(model: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="O2"):
        predict(save_edf(tmp_path / "fewer.edf", signal()[:15], NAMES[:15]), model)
    with pytest.raises(DataError, match="a window 4 s"):
        predict(save_edf(tmp_path / "short.edf", signal(3)), model)


def test_channels_are_renamed(model: Path, tmp_path: Path) -> None:
    x = signal()
    right = predict(save_edf(tmp_path / "right.edf", x), model)
    other = save_edf(tmp_path / "other.edf", x, ("E1", "E2", *NAMES[2:]))
    found = predict(other, model, channels={"FP1": "EEG E1", "Fp2": "E2"})
    np.testing.assert_array_equal(found.probabilities, right.probabilities)
    for channels, words in (
        ({"FP1": "E7"}, "E7, which FP1 is to be taken from, is not there"),
        ({"F3": "E1"}, "two channels would be called F3"),
    ):
        with pytest.raises(DataError, match=words):
            predict(other, model, channels=channels)
    swapped = predict(tmp_path / "right.edf", model, channels={"FP1": "FP2", "FP2": "FP1"})
    crossed = predict(save_edf(tmp_path / "crossed.edf", x[[1, 0, *range(2, 16)]]), model)
    np.testing.assert_array_equal(swapped.probabilities, crossed.probabilities)


def test_other_formats_need_an_opener(model: Path, recording: Path, tmp_path: Path) -> None:
    other = shutil.copy(recording, tmp_path / "a.vhdr")
    with pytest.raises(DataError, match="only EDF and BDF are read without MNE"):
        predict(other, model)
    asked: list[Any] = []

    def opener(path: Path, **options: Any) -> Any:
        asked.append((path, options))
        return open_edf(path, **options)

    found = predict(other, model, opener=opener, units="uV", check=False)
    assert asked == [(Path(other), {"units": "uV", "check": False})]
    np.testing.assert_array_equal(found.probabilities, predict(recording, model).probabilities)


def test_nothing_is_computed_where_nothing_can_be_written(
    model: Path, recording: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("mine")
    monkeypatch.setattr(EdgeModel, "look", lambda *_, **__: pytest.fail("it computed"))
    with pytest.raises(DataError, match="can't be written to"):
        predict(recording, model, tmp_path / "file")
    with pytest.raises(DataError, match="can't be written to"):
        predict_many([recording], model, tmp_path / "file")
    assert (tmp_path / "file").read_text() == "mine"


def test_progress_goes_from_nothing_to_all(model: Path, recording: Path) -> None:
    seen: list[float] = []
    predict(recording, model, hop_s=0.1, progress=seen.append)
    assert len(seen) > 1
    assert seen == sorted(seen)
    assert seen[-1] == 1.0


def folder_of(tmp_path: Path) -> Path:
    root = tmp_path / "corpus"
    for place in ("s1/a.edf", "s1/b.edf", "s2/a.edf"):
        save_edf(root / place, signal(8))
    (root / "s2" / "broken.edf").write_bytes(b"this is no EDF file")
    return root


@pytest.mark.parametrize("backend", ["sequential", "threading", "loky"])
def test_a_bad_file_does_not_stop_the_others(backend: str, model: Path, tmp_path: Path) -> None:
    root, out = folder_of(tmp_path), tmp_path / "out"
    steps: list[tuple[str, float, int]] = []
    found = predict_many(
        [root], model, out, formats=["csv"], backend=backend, workers=2, progress=lambda *step: steps.append(step)
    )
    assert [outcome.status for outcome in found] == ["done", "done", "done", "failed"]
    assert "no EDF or BDF file" in found[3].error
    assert found[2].files["csv"] == out / "s2" / "a_zipbrain.csv"
    assert all(path.is_file() for outcome in found for path in outcome.files.values())
    assert steps[-1][1:] == (4, 4)
    rows = list(csv.DictReader(write_table(found, out).open()))
    assert [row["status"] for row in rows] == ["done", "done", "done", "failed"]
    assert float(rows[0]["share_rest"]) + float(rows[0]["share_arithmetic"]) == pytest.approx(1)
    assert rows[3]["windows"] == ""
    assert "broken.edf" in rows[3]["error"]


def test_what_a_killed_run_left_is_removed_even_if_nothing_is_left_to_compute(model: Path, tmp_path: Path) -> None:
    root, out = folder_of(tmp_path), tmp_path / "out"
    options: dict[str, Any] = {"formats": ["csv"], "backend": "sequential"}
    write_table(predict_many([root], model, out, **options), out)
    whole = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    left = out / "s1" / ".a_zipbrain.0123abcd.part"  # killed after the summary was moved out of it
    left.mkdir()
    (left / "a_zipbrain.csv").write_text("half")
    (out / "s1" / ".notes").write_text("mine")
    write_table(predict_many([root], model, out, **options), out)
    assert not left.exists()
    (out / "s1" / ".notes").unlink()
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == whole  # the table too


def test_finished_recordings_are_not_computed_again(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, out = folder_of(tmp_path), tmp_path / "out"
    (root / "s2" / "broken.edf").unlink()
    options: dict[str, Any] = {"formats": ["csv"], "backend": "sequential"}
    first = predict_many([root], model, out, **options)
    before = first[0].files["csv"].stat().st_mtime_ns
    with monkeypatch.context() as patched:
        patched.setattr(predict_batch, "predict", lambda *_, **__: pytest.fail("it computed"))
        again = predict_many([root], model, out, **options)
    assert {outcome.status for outcome in again} == {"skipped"}
    assert again[0].summary == first[0].summary

    first[1].files["csv"].unlink()  # lost: made again
    assert [o.status for o in predict_many([root], model, out, **options)] == ["skipped", "done", "skipped"]
    more = predict_many([root], model, out, formats=["csv", "bids"], backend="sequential")  # one more kind of file
    assert {outcome.status for outcome in more} == {"done"}
    time.sleep(0.01)
    assert {o.status for o in predict_many([root], model, out, overwrite=True, **options)} == {"done"}
    assert first[0].files["csv"].stat().st_mtime_ns > before


def test_results_of_something_else_are_kept_unless_told(model: Path, recording: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    options: dict[str, Any] = {"formats": ["csv"], "backend": "sequential"}
    first = predict_many([recording], model, out, **options)[0]
    content = first.files["csv"].read_bytes()
    other = tiny_onnx.save(tmp_path / "other.onnx", tiny_onnx.description(classes=("x", "y")))
    for changed, more in ((other, {}), (model, {"hop_s": 1.0}), (model, {"units": "mV", "check": False})):
        found = predict_many([recording], changed, out, **options, **more)[0]
        assert found.status == "failed"
        assert "--overwrite" in found.error
        assert first.files["csv"].read_bytes() == content
    os.utime(recording, ns=(1, 1))
    assert predict_many([recording], model, out, **options)[0].status == "failed"
    assert predict_many([recording], model, out, overwrite=True, **options)[0].status == "done"
    first.files["summary"].write_text("{")
    assert predict_many([recording], model, out, **options)[0].status == "failed"


def test_results_of_another_runtime_are_not_taken_for_finished(model: Path, recording: Path, tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    options: dict[str, Any] = {"formats": ["csv"], "backend": "sequential"}
    for own, other in (("onnxruntime", "openvino"), ("openvino", "onnxruntime")):
        out = tmp_path / own
        first = predict_many([recording], model, out, runtime=own, **options)[0]
        assert "another runtime" in predict_many([recording], model, out, runtime=other, **options)[0].error
        summary = json.loads(first.files["summary"].read_text())
        assert summary["key"].pop("runtime") == own
        first.files["summary"].write_text(json.dumps(summary))  # as earlier versions wrote it
        assert predict_many([recording], model, out, runtime=own, **options)[0].status == "skipped"
        assert predict_many([recording], model, out, runtime=other, **options)[0].status == "failed"


def test_a_run_that_was_stopped_between_files_goes_on(model: Path, recording: Path, tmp_path: Path) -> None:
    done = predict_many([recording], model, tmp_path / "out", formats=["csv"], backend="sequential")[0]
    done.files["summary"].unlink()
    done.files["csv"].write_text("half")
    again = predict_many([recording], model, tmp_path / "out", formats=["csv"], backend="sequential")[0]
    assert again.status == "done"
    assert again.files["csv"].read_text().startswith("start_s,stop_s")


def test_an_unexpected_failure_is_listed_too(
    model: Path, recording: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError("never\nthought of")

    monkeypatch.setattr(predict_batch, "predict", fail)
    found = predict_many([recording], model, tmp_path / "out", backend="sequential")[0]
    assert found.error == f"{recording}: unexpected ZeroDivisionError: never thought of; please report it"


def test_a_bad_model_stops_everything_before_a_recording_is_read(recording: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.onnx").write_bytes(b"no")
    with pytest.raises(ModelFileError, match="is no ONNX file"):
        predict_many([recording], tmp_path / "bad.onnx", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_recordings_are_found_and_named_apart(tmp_path: Path, model: Path) -> None:
    root = folder_of(tmp_path)
    (root / "s1" / "a_zipbrain.edf").write_bytes(b"ours")
    (root / "s1" / "c.vhdr").write_text("")
    names = [(path.name, inside.as_posix()) for path, inside in find_recordings([root])[0]]
    assert names == [("a.edf", "s1"), ("b.edf", "s1"), ("a.edf", "s2"), ("broken.edf", "s2")]
    assert len(find_recordings([root], others=True)[0]) == 5
    assert len(find_recordings([root, root / "s1" / "a.edf", root / "s1"])[0]) == 4
    (root / "s2" / "loop.edf").symlink_to("loop.edf")
    assert len(find_recordings([root, root / "s2" / "loop.edf"])[0]) == 5
    (root / "s2" / "loop.edf").unlink()
    (tmp_path / "empty").mkdir()
    with pytest.raises(OptionError, match=r"no file in it ends in .edf"):
        find_recordings([tmp_path / "empty"])
    with pytest.raises(OptionError, match="give the folder above both"):
        predict_many([root / "s1" / "a.edf", root / "s2" / "a.edf"], model, tmp_path / "out")
    for name in ("sub-1.edf", "sub-1_eeg.edf"):  # whose events would have one name
        shutil.copy(root / "s1" / "a.edf", tmp_path / name)
    with pytest.raises(OptionError, match="would be called like those of"):
        predict_many([tmp_path / "sub-1.edf", tmp_path / "sub-1_eeg.edf"], model, tmp_path / "out")
    shutil.copy(root / "s1" / "a.edf", root / "s1" / "a.rec")
    found = predict_many([root / "s1" / "a.edf", root / "s1" / "a.rec"], model, tmp_path / "out", formats=["csv"])
    assert [outcome.files["csv"].name for outcome in found] == ["a-edf_zipbrain.csv", "a-rec_zipbrain.csv"]


def test_a_real_recording_is_predicted(model: Path, tmp_path: Path) -> None:
    path = SHARED / "data" / "eegmat" / "Subject31_1.edf"
    if not path.is_file():
        pytest.skip(f"no recording at {path}: set ZIPBRAIN_SHARED to the folder that holds data/eegmat")
    found = predict(path, model, tmp_path)
    assert len(found.starts) == int((found.duration - 4) / 2) + 1
    assert set(found.flags) == {""}
    summary = json.loads((tmp_path / "Subject31_1_zipbrain.json").read_text())
    assert summary["windows"] == len(found.starts)
    assert all((tmp_path / name).is_file() for name in summary["files"].values())
