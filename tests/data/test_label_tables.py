"""Label tables that lead astray, and recordings that can't be used: refused one by one, and the rest is prepared."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import pytest

from data.edf_files import RECORD_SECONDS, eeg, patch, write_edf
from zipbrain.data import Report, open_prepared, prepare
from zipbrain.data.corpora import Source, tables
from zipbrain.errors import DataError
from zipbrain.signal import label_tables
from zipbrain.signal.recording import Recording


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder with two good recordings, inside another one."""
    folder = tmp_path / "outer" / "root"
    folder.mkdir(parents=True)
    for seed, name in enumerate(("a.edf", "b.edf", "../outside.edf", "../../outside.edf")):
        write_edf(folder / name, eeg(seed=seed))
    return folder


def prepared(root: Path, *rows: str) -> Report:
    (root / "labels.csv").write_text("\n".join(("file,label", "a.edf,rest", "b.edf,task", *rows, "")))
    return prepare("folder", root, root.parent.parent / "windows")


def test_a_table_names_no_file_outside_its_folder(root: Path) -> None:
    outside = ("../outside.edf", "../../outside.edf", str(root.parent / "outside.edf"), "deep/../../outside.edf")
    report = prepared(root, *(f"{name},rest" for name in outside))
    assert set(report.refused) == set(outside)
    assert all("lies outside the folder" in reason for reason in report.refused.values())
    assert report.files == 2


def test_a_link_that_the_user_made_is_followed(root: Path) -> None:
    (root / "linked.edf").symlink_to(root.parent / "outside.edf")
    assert prepared(root, "linked.edf,rest").files == 3


def test_a_label_of_refused_files_alone_is_no_class(root: Path) -> None:
    patch(write_edf(root / "bad.edf", eeg()), RECORD_SECONDS, "1e-4")
    report = prepared(root, "bad.edf,a lonely one", "none.edf,gone")
    assert report.classes == ["rest", "task"]
    assert list(report.refused) == ["bad.edf", "none.edf"]
    assert "is sampled at 1e+06 Hz" in report.refused["bad.edf"]
    assert any("no window has the label a lonely one, gone" in warning for warning in report.warnings)
    found = open_prepared(report.folder)
    assert found.classes == ("rest", "task")
    labels = [found.classes[label] for split in found.splits for label in found.split(split).labels]
    assert {name: labels.count(name) for name in found.classes} == {"rest": 7, "task": 7}


def test_a_file_that_takes_all_memory_is_refused_and_the_rest_goes_on(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Source.open

    def short(source: Source) -> Recording:
        if source.key == "b.edf":
            raise MemoryError
        return real(source)

    monkeypatch.setattr(Source, "open", short)
    report = prepared(root)
    assert "not enough memory" in report.refused["b.edf"]
    assert report.files == 1


def test_a_name_that_no_file_can_have_is_refused_like_a_missing_one(root: Path) -> None:
    with pytest.raises(DataError, match="no such folder"):
        prepare("folder", root / ("x" * 300), root.parent / "windows")
    name = "x" * 300 + ".edf"
    assert prepared(root, f"{name},rest").refused == {name: "is in the table, but there is no such file"}


@pytest.mark.parametrize("row", ["a.edf,\x1b[31mred", f"a.edf,{'x' * 101}", "a\x07.edf,rest"])
def test_rows_that_would_move_a_cursor_or_fill_a_screen_are_left_out(root: Path, row: str) -> None:
    report = prepared(root, row)
    assert report.classes == ["rest", "task"]
    assert any("control characters" in words for words in report.problems)


def test_labels_that_only_look_like_numbers_are_sorted_as_text(root: Path) -> None:
    assert prepared(root, "a.edf,--1", f"a.edf,{'9' * 30}").classes == ["--1", "9" * 30, "rest", "task"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("file,label\na.edf,rest\n".encode("utf-16"), "is no text in UTF-8"),
        (
            "file,label\na.edf,caf\u00e9\nb.edf,caf\u00e8\n".encode("latin-1"),
            r"labels.csv: is no text in UTF-8 \(line 2\)",
        ),
        (gzip.compress(b"file,label\na.edf,rest\n", mtime=0), "unpack it"),
        (b"file,label,Label\na.edf,rest,task\n", "has 2 columns label; keep the one"),
        (b"file,label,onset,duration\na.edf,rest,0,inf\n", "no row can be used: 1 x onset or duration is no finite"),
        (b"file,label,onset,duration\na.edf,rest,0,-5\n", "no row can be used: 1 x .*duration not above 0"),
        (b'file,label\na.edf,"' + b"x" * 140_000, "correct its quotation marks"),
        (b"\x07ile,label\na.edf,rest\n", r"has no column file; its columns are \?ile, label"),
    ],
)
def test_a_table_that_is_none_is_refused_in_one_line(root: Path, content: bytes, words: str) -> None:
    (root / "labels.csv").write_bytes(content)
    with pytest.raises(DataError, match=words) as caught:
        prepare("folder", root, root.parent.parent / "windows")
    assert str(caught.value).isprintable()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_is_no_table(root: Path) -> None:
    os.mkfifo(root / "labels.csv")
    with pytest.raises(DataError, match="is no file"):
        prepare("folder", root, root.parent.parent / "windows")


def test_links_in_a_circle_and_packed_files_are_refused_by_name(root: Path) -> None:
    for name in ("loop.edf", "unnamed.edf"):
        (root / name).symlink_to(name)
    (root / "packed.edf").write_bytes(gzip.compress((root / "a.edf").read_bytes()))
    report = prepared(root, "loop.edf,rest", "packed.edf,rest")
    assert set(report.refused) == {"loop.edf", "packed.edf"}
    assert "unpack it" in report.refused["packed.edf"]
    assert report.files == 2


def test_one_class_alone_is_warned_of(root: Path) -> None:
    assert not any("one class" in words for words in prepared(root).warnings)
    (root / "labels.csv").write_text("file,label\na.edf,rest\n")
    report = prepare("folder", root, root.parent / "one")
    assert any("all windows are of one class, rest" in words for words in report.warnings)


def test_a_table_is_read_within_bounds(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "_MOST_CLASSES", 2)
    assert prepared(root).files == 2
    with pytest.raises(DataError, match="name 3 different classes, where at most 2"):
        prepared(root, "a.edf,another")
    monkeypatch.setattr(label_tables, "_MOST_ROWS", 3)
    assert prepared(root).files == 2
    with pytest.raises(DataError, match="has more than 3 rows"):
        prepared(root, "a.edf,rest")
    monkeypatch.setattr(label_tables, "_LARGEST_TEXT", 10)
    with pytest.raises(DataError, match="has more than 0 MB"):
        prepared(root)


def test_rows_that_overlap_without_end_are_refused(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "_MOST_WINDOWS", 13)
    (root / "labels.csv").write_text("file,label,onset,duration\na.edf,rest,0,30\na.edf,task,1,28\nb.edf,rest,,\n")
    report = prepare("folder", root, root.parent.parent / "windows")
    assert "over 13 windows" in report.refused["a.edf"]
    assert report.files == 1
