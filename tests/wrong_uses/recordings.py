"""Recordings and label tables that promise what they can't hold."""

from __future__ import annotations

from pathlib import Path

from tests.fuzz.targets.edf import write
from tests.wrong_uses import Answer, command, wrong_use

from zipbrain.data import prepare
from zipbrain.edge import open_edf


def _edf(path: Path, *, place: int = 0, text: bytes = b"", marks: bytes | None = None, reserved: str = "EDF+C") -> Path:
    """Write a small EDF+ file, with `text` at a place of its header, or these annotations in every record."""
    content = write("edf", reserved, marks=marks)
    path.write_bytes(content[:place] + text + content[place + len(text) :] if text else content)
    return path


def _table(folder: Path, *rows: str) -> Path:
    """Write a good recording and a table of labels."""
    _edf(folder / "a.edf")
    (folder / "labels.csv").write_text("\n".join(("file,label", *rows, "")))
    return folder


@wrong_use("an EDF header in which a record lasts 0.1 ms")
def short_record(folder: Path) -> None:
    open_edf(_edf(folder / "night.edf", place=244, text=b"1e-4    "))


@wrong_use("an EDF header in which a record lasts a day")
def long_record(folder: Path) -> None:
    open_edf(_edf(folder / "night.edf", place=244, text=b"86400   "))


@wrong_use("an EDF+D file whose records lie a year apart")
def years_apart(folder: Path) -> None:
    content = write("edf", "EDF+D")
    (folder / "night.edf").write_bytes(content.replace(b"+11\x14\x14\0+11.25", b"+31000000\x14\x14\0+"))
    open_edf(folder / "night.edf")


@wrong_use("an EDF+C file whose first time stamp is +9999999999999")
def late_stamp(folder: Path) -> str:
    return open_edf(_edf(folder / "night.edf", marks=b"+9999999999999\x14\x14\0")).notes[0]


@wrong_use("prepare with a band that starts at 0.001 Hz")
def slow_band(folder: Path) -> Answer:
    _table(folder, "a.edf,rest")
    (folder / "a.edf").write_bytes((folder / "a.edf").read_bytes().replace(b"12      1   ", b"12      0.1 ", 1))
    arguments = ("--root", folder, "--out", folder / "windows", "--band", "0.001-1", "--window", "1")
    return command("data", "prepare", "folder", *arguments)


@wrong_use("a table of labels that names a file outside its folder")
def outside(folder: Path) -> None:
    (folder / "root").mkdir()
    _edf(folder / "outside.edf")
    prepare("folder", _table(folder / "root", "../outside.edf,rest"), folder / "windows")


@wrong_use("a label that only a recording has which can't be used")
def lonely_label(folder: Path) -> str:
    report = prepare("folder", _table(folder, "a.edf,rest", "gone.edf,seizure"), folder / "windows")
    return next(warning for warning in report.warnings if "seizure" in warning)


@wrong_use("a table of labels in UTF-16")
def wide_table(folder: Path) -> None:
    _table(folder, "a.edf,rest")
    (folder / "labels.csv").write_bytes("file,label\na.edf,rest\n".encode("utf-16"))
    prepare("folder", folder, folder / "windows")


@wrong_use("a table with measured values instead of labels")
def measured_labels(folder: Path) -> None:
    prepare("folder", _table(folder, *(f"a.edf,{n / 7:.6f}" for n in range(2000))), folder / "windows")
