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
    assert {"tuab", "tuev", "isruc", "eareeg", "eegmat", "eegmmidb-eyes", "eegmmidb-imagery", "folder", "bids"} == set(
        rows
    )
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
        (["prepare", "isruc", *place, "--window", "10"], 2, "30 s"),
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


def test_nothing_but_refusals_is_an_error_that_gives_the_first_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny_corpora.write_edf(tmp_path / "raw" / "Subject00_1.edf", tiny_corpora.EEGMAT_NAMES, 500, 10)
    place = ["--root", str(tmp_path / "raw"), "--out", str(tmp_path / "out")]
    assert main(["data", "prepare", "eegmat", *place]) == 1
    assert "all 1 files were refused, Subject00_1.edf: is 10 s long" in capsys.readouterr().err
