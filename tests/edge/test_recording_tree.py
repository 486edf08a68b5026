"""Which files of a tree are recordings: hidden folders, links as DataLad sets them, folders that can't be read."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from edge import tiny_onnx
from edge.test_predict import save_edf, signal
from zipbrain.edge.predict_batch import predict_many
from zipbrain.edge.recording_tree import find_recordings, walk_recordings

SUBJECTS = ("sub-01_eeg.edf", "sub-02_eeg.edf")


def unexpected(folder: Path, line: str) -> None:
    pytest.fail(line)


@pytest.fixture
def annex(tmp_path: Path) -> Path:
    """A dataset as git-annex keeps it: two subjects whose files are the same, and so one object under its hash."""
    root = tmp_path / "dataset"
    stored = save_edf(root / ".git" / "annex" / "objects" / "f8" / "MD5E-s1--0123abcd.edf", signal(8))
    for name in SUBJECTS:
        link = root / name[:6] / "eeg" / name
        link.parent.mkdir(parents=True)
        link.symlink_to(os.path.relpath(stored, link.parent))
    return root


def test_results_of_an_annexed_dataset_are_named_after_the_links_that_a_person_sees(annex: Path) -> None:
    found, _ = find_recordings([annex])
    assert [(path.name, inside.as_posix()) for path, inside in found] == [
        (SUBJECTS[0], "sub-01/eeg"),
        (SUBJECTS[1], "sub-02/eeg"),
    ]
    model, out = tiny_onnx.save(annex.parent / "m.onnx"), annex.parent / "out"
    results = predict_many([annex], model, out, formats=["csv"], backend="sequential")
    assert [result.status for result in results] == ["done", "done"]
    assert sorted(path.name for path in out.rglob("*.csv")) == [
        "sub-01_eeg_zipbrain.csv",
        "sub-02_eeg_zipbrain.csv",
    ]


def test_an_archive_enters_no_hidden_folder_but_one_that_is_given(annex: Path) -> None:
    assert [path.name for path in walk_recordings([annex], unexpected)] == [*SUBJECTS]
    assert [path.name for path in walk_recordings([annex / ".git"], unexpected)] == ["MD5E-s1--0123abcd.edf"]


def test_one_file_that_is_named_twice_is_taken_once(annex: Path) -> None:
    (annex.parent / "other").symlink_to(annex)
    path = annex / "sub-01" / "eeg" / SUBJECTS[0]
    assert len(find_recordings([annex, path, annex.parent / "other" / "sub-01"])[0]) == 2


def test_links_that_lead_nowhere_or_to_themselves_are_found(annex: Path) -> None:
    shutil.rmtree(annex / ".git")  # as after `datalad drop`
    (annex / "loop.edf").symlink_to("loop.edf")
    names = ["loop.edf", *SUBJECTS]
    assert [path.name for path in walk_recordings([annex], unexpected)] == names
    assert [path.name for path, _ in find_recordings([annex])[0]] == names


def test_a_folder_that_cant_be_read_is_listed_and_stops_no_other(annex: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scan = os.scandir

    def refuse(folder: Any) -> Any:
        if str(folder).endswith("sub-02"):
            raise PermissionError(13, "Permission denied")
        return scan(folder)

    monkeypatch.setattr(os, "scandir", refuse)
    model = tiny_onnx.save(annex.parent / "m.onnx")
    results = predict_many([annex], model, annex.parent / "out", formats=["csv"], backend="sequential")
    assert [(result.recording.name, result.status) for result in results] == [
        (SUBJECTS[0], "done"),
        ("sub-02", "failed"),
    ]
    assert "sub-02: can't be read (Permission denied)" in results[1].error
