"""A corpus from outside: one class and one registration, then every command knows it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest

from data import tiny_corpora
from zipbrain.cli import main
from zipbrain.data import convention, open_prepared
from zipbrain.data.corpora import CORPORA, Corpus, Expected, Found, Source, corpus, register
from zipbrain.data.corpora.base import ModelInput
from zipbrain.data.file_trees import OnRequest
from zipbrain.data.labelling import Plan


@dataclass(frozen=True)
class Halves(Corpus):
    """Every file is a window of class 0 or 1."""

    name = "halves"
    title = "Halves"
    layout = "*.edf"
    window_s, hop_s = 2.0, 2.0
    inputs: ClassVar = {"labram": ModelInput(("C3", "C4"), "hundred", band=None, notch=None)}
    published = OnRequest("halves", "https://example.org/halves", "Write to its authors.", "DIR/*.edf")
    expected = (Expected("train", "all", 2),)

    skip: int = 0

    def find(self, root: Path) -> Found:
        paths = sorted(root.glob("*.edf"))[self.skip :]
        return Found([Source(p.name, p, p.stem, "train", given=i % 2) for i, p in enumerate(paths)], ("a", "b"))

    def plan(self, source: Source, recording: Any, convention: Any) -> Plan:
        return Plan([0.0], [source.given])


def test_a_new_corpus_is_listed_prepared_and_said_where_to_get(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(CORPORA, Halves.name, CORPORA["folder"])  # taken back after the test
    register(Halves)
    for name in "ab":
        tiny_corpora.write_edf(tmp_path / "raw" / f"{name}.edf", ["C3", "C4"], 128, 5)
    assert main(["data", "list", "--json"]) == 0
    listed = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert (listed["halves"]["window_s"], listed["halves"]["options"]) == (2.0, {"skip": 0})
    command = ["data", "prepare", "halves", "--root", str(tmp_path / "raw"), "--out", str(tmp_path / "out"), "--json"]
    assert main(command) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["windows"] == {"train": {"a": 1, "b": 1}}
    assert [(check["expected"], check["found"]) for check in report["checks"]] == [(2, 2)]
    prepared = open_prepared(tmp_path / "out")
    assert (prepared.name, prepared.convention.scaling) == ("halves", convention("labram", "halves").scaling)
    assert corpus("halves", skip="1").skip == 1
    assert main(["data", "download", "Halves"]) == 2
    assert "Write to its authors" in capsys.readouterr().err
