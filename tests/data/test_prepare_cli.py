"""`zipbrain data`: real runs of the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from data import tiny_corpora
from zipbrain.cli import main
from zipbrain.data import open_prepared


def test_list_shows_every_corpus(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "list", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    names = "tuab tuev isruc eareeg eegmat eegmmidb-eyes eegmmidb-imagery chbmit sleepedf folder bids"
    assert set(names.split()) == set(rows)
    assert rows["isruc"]["options"] == {"expert": 1, "missing": "skip", "multiple": 1}
    assert main(["data", "list"]) == 0
    assert "eegmmidb-imagery" in capsys.readouterr().out


def test_prepare_show_and_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    raw = tiny_corpora.eegmat(tmp_path / "raw")
    arguments = ["data", "prepare", "eegmat", "--root", str(raw), "--out", str(tmp_path / "out"), "--model", "BIOT"]
    assert main([*arguments, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)  # nothing else on stdout
    assert report["windows"]["train"] == {"rest": 29, "arithmetic": 29}
    assert report["refused"]["Subject26_1.edf"] == "is 50 s long, but 62 s are needed"
    assert report == json.loads((tmp_path / "out" / "report.json").read_text(encoding="utf-8"))
    assert main(arguments) == 0
    said = capsys.readouterr().out
    assert "0 read now, 5 there before" in said
    assert "is 50 s long" in said
    assert main(["data", "show", str(tmp_path / "out")]) == 0
    assert "FP1-F7" in capsys.readouterr().out
    assert main(["data", "show", str(tmp_path / "out"), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["windows"] == report["windows"]
    assert shown["convention"]["scaling"] == "q95"


def test_prepare_takes_other_filters_channels_and_windows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    raw = tiny_corpora.folder(tmp_path / "raw")
    arguments = ["data", "prepare", "folder", "--root", str(raw), "--out", str(tmp_path / "out")]
    more = ["--band", "0.5-40", "--notch", "none", "--channels", "c4,C3-C4", "--window", "2", "--hop", "1"]
    assert main([*arguments, *more, "--option", "seed=3", "--jobs", "2"]) == 0
    prepared = open_prepared(tmp_path / "out")
    assert prepared.ch_names == ("C4", "C3-C4")
    assert prepared.info["convention"]["band"] == [0.5, 40.0]
    assert prepared.info["convention"]["notch"] is None
    assert prepared.info["corpus_options"]["seed"] == 3
    whole = next(prepared.split(split) for split in prepared.splits if "s2" in prepared.split(split).subjects)
    assert (whole.subjects == "s2").sum() == 29
    assert whole.n_times == 400
    assert "left" in capsys.readouterr().out


def test_mistakes_are_one_line_with_the_right_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "raw").mkdir()
    place = ["--root", str(tmp_path / "raw"), "--out", str(tmp_path / "out")]
    for arguments, code, words in (
        (["prepare", "nothing", *place], 2, "known corpora are tuab"),
        (["prepare", "eegmat", *place, "--model", "gpt"], 2, "LaBraM"),
        (["prepare", "eegmat", *place, "--band", "wide"], 2, "0.5-40"),
        (["prepare", "eegmat", *place, "--notch", "50-60"], 2, "a number of Hz"),
        (["prepare", "eegmat", *place, "--option", "rest"], 2, "KEY=VALUE"),
        (["prepare", "eegmat", *place, "--option", "x=1"], 2, "eegmat has rest"),
        (["prepare", "folder", *place, "--channels", "C3-"], 2, "electrode"),
        (["prepare", "folder", *place, "--channels", "C3-C3"], 2, "'C3-C3', but a difference of an electrode and its"),
        (["prepare", "folder", *place, "--channels", "T3,Cz,T7"], 2, "'T7', but it is the same channel as 'T3'"),
        (["prepare", "folder", *place, "--channels", "C3,c3"], 2, "the same channel as 'C3'"),
        (["prepare", "folder", *place, "--window", "inf"], 2, "window: got inf"),
        (["prepare", "folder", *place, "--hop", "inf"], 2, "hop: got inf"),
        (["prepare", "folder", *place, "--hop", "nan"], 2, "hop"),
        (["prepare", "folder", *place, "--band", "40-0.5"], 2, "band: got (40.0, 0.5), but its low edge must lie"),
        (["prepare", "folder", *place, "--band", "nan-40"], 2, "band"),
        (["prepare", "folder", *place, "--notch", "0"], 2, "notch"),
        (["prepare", "isruc", *place, "--window", "10"], 2, "30 s"),
        (["prepare", "isruc", *place, "--hop", "15"], 2, "hop: got 15.0, but the labels of isruc say where every"),
        (["prepare", "tuev", *place, "--hop", "1"], 2, "labels of tuev"),
        (["prepare", "eareeg", *place, "--hop", "1"], 2, "labels of eareeg"),
        (["prepare", "eegmmidb-imagery", *place, "--hop", "1"], 2, "labels of eegmmidb-imagery"),
        (["prepare", "eegmat", *place, "--units", "tesla"], 2, "nV, uV, mV, V"),
        (["prepare", "eegmat", *place, "--jobs", "0"], 2, "at least 1"),
        (["prepare", "eegmat", *place], 1, "SubjectNN_1.edf"),
        (["prepare", "eegmat", "--root", str(tmp_path / "none"), "--out", str(tmp_path / "out")], 1, "no such folder"),
        (["show", str(tmp_path)], 1, "zipbrain data prepare"),
    ):
        assert main(["data", *arguments]) == code
        error = capsys.readouterr().err
        assert words in error
        assert len(error.strip().splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_nothing_but_refusals_is_an_error_that_counts_the_reasons_and_leaves_a_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for subject in (0, 1):
        tiny_corpora.write_edf(tmp_path / "raw" / f"Subject0{subject}_1.edf", tiny_corpora.EEGMAT_NAMES, 500, 10)
    (tmp_path / "raw" / "Subject02_1.edf").touch()
    place = ["--root", str(tmp_path / "raw"), "--out", str(tmp_path / "out")]
    assert main(["data", "prepare", "eegmat", *place]) == 1
    said = capsys.readouterr().err
    assert "all 3 files were refused: 2 x is 10 s long, but 62 s are needed (Subject00_1.edf); 1 x is empty" in said
    report = json.loads((tmp_path / "out" / "report.json").read_text(encoding="utf-8"))
    assert sorted(report["refused"]) == ["Subject00_1.edf", "Subject01_1.edf", "Subject02_1.edf"]
    assert (report["files"], report["windows"]) == (0, {})
    assert main(["data", "show", str(tmp_path / "out")]) == 1
    for subject in (0, 1):  # once they are repaired, the same command goes on
        tiny_corpora.write_edf(tmp_path / "raw" / f"Subject0{subject}_1.edf", tiny_corpora.EEGMAT_NAMES, 500, 62)
    assert main(["data", "prepare", "eegmat", *place]) == 0


def test_files_with_a_wrong_unit_can_be_prepared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = ["C3", "C4"]
    x = tiny_corpora.noise(2, 12 * 200, 0)
    tiny_corpora.write_brainvision(tmp_path / "raw" / "a.vhdr", x, 200, names, unit="V")
    (tmp_path / "raw" / "labels.csv").write_text("file,label\na.vhdr,rest\n")
    arguments = ["data", "prepare", "folder", "--root", str(tmp_path / "raw"), "--notch", "none", "--out"]
    assert main([*arguments, str(tmp_path / "no")]) == 1
    assert "or check=False (--no-check)" in capsys.readouterr().err
    found = {}
    for name, more in (("units", ["--units", "uV"]), ("unchecked", ["--no-check"])):
        assert main([*arguments, str(tmp_path / name), *more]) == 0
        found[name] = open_prepared(tmp_path / name).split("train").take(slice(None))
    assert len(found["units"]) == 3
    assert abs(found["unchecked"] / found["units"] / 1e6 - 1).max() < 1e-3
    assert 1 < abs(found["units"]).mean() < 100
    assert main([*arguments, str(tmp_path / "units"), "--units", "uV", "--no-check"]) == 1
    assert "prepared with other options (check was null, now false)" in capsys.readouterr().err


def test_a_file_with_one_channel_in_another_unit_is_refused_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ["C3", "C4", "O1"]
    for name, factor in (("good", 1.0), ("mixed", 1e-3)):
        x = tiny_corpora.noise(3, 12 * 200, 0)
        x[1] *= factor
        tiny_corpora.write_brainvision(tmp_path / "raw" / f"{name}.vhdr", x, 200, names)
    (tmp_path / "raw" / "labels.csv").write_text("file,label\ngood.vhdr,rest\nmixed.vhdr,rest\n")
    arguments = ["data", "prepare", "folder", "--root", str(tmp_path / "raw"), "--notch", "none", "--out"]
    assert main([*arguments, str(tmp_path / "out")]) == 0
    report = json.loads((tmp_path / "out" / "report.json").read_text(encoding="utf-8"))
    assert list(report["refused"]) == ["mixed.vhdr"]
    assert "channel C4: a typical deviation of 0.0" in report["refused"]["mixed.vhdr"]
    assert "--no-check" in report["refused"]["mixed.vhdr"]
    assert main([*arguments, str(tmp_path / "unchecked"), "--no-check"]) == 0
    assert not json.loads((tmp_path / "unchecked" / "report.json").read_text(encoding="utf-8"))["refused"]


def test_a_folder_without_windows_may_be_used_with_other_options(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    raw = tiny_corpora.folder(tmp_path / "raw")
    arguments = ["data", "prepare", "folder", "--root", str(raw), "--out", str(tmp_path / "out")]
    assert main([*arguments, "--window", "4000"]) == 1
    assert main([*arguments, "--window", "2"]) == 0
    assert open_prepared(tmp_path / "out").convention.window_s == 2
    assert main([*arguments, "--window", "4"]) == 1
    assert "other options" in capsys.readouterr().err
