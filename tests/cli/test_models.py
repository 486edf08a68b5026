"""`zipbrain models`: real runs of the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import zipbrain
from zipbrain.cli import main
from zipbrain.edge.convention_file import read_convention
from zipbrain.models import BIOT


def test_list_shows_the_papers_counts(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "list", "--json"]) == 0
    rows = {row["model"]: row for row in json.loads(capsys.readouterr().out)}
    found = {name: (row["tokens"], row["protected"]) for name, row in rows.items()}
    papers = {"labram": (230, 1), "eegpt": (20, 4), "biot": (304, 0), "tfm": (304, 1)}
    assert found == {**papers, "cbramod": (16, 0)}
    assert main(["models", "list"]) == 0
    assert "labram" in capsys.readouterr().out


def test_convert_reports_and_describe_reads_it_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint = tmp_path / "biot.ckpt"
    torch.save({"biot.channel_tokens.weight": torch.randn(18, 256)}, checkpoint)
    out = tmp_path / "out"
    assert main(["models", "convert", "biot", str(checkpoint), str(out), "--n-chans", "6", "--n-outputs", "5"]) == 0
    said = capsys.readouterr().out
    assert "resized channel_tokens.weight" in said
    assert "tensors of blocks" in said
    model = zipbrain.from_pretrained(out)
    assert isinstance(model, BIOT)
    zipbrain.save_pretrained(zipbrain.compress(model, "tome", ratio=0.5), out)
    assert main(["models", "describe", str(out)]) == 0
    said = capsys.readouterr().out
    assert "BIOT" in said
    assert "tome" in said


def test_json_of_convert_and_describe_is_all_they_print(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint, out = tmp_path / "biot.ckpt", tmp_path / "out"
    torch.save({"biot.channel_tokens.weight": torch.randn(18, 256)}, checkpoint)
    options = ["--n-chans", "6", "--n-outputs", "5", "--json"]
    assert main(["models", "convert", "biot", str(checkpoint), str(out), *options]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said.keys() == {"model", "out", "report"}
    assert said["report"].keys() == {"loaded", "resized", "skipped", "initial"}
    assert said["report"]["resized"].keys() == {"channel_tokens.weight"}
    assert main(["models", "describe", said["out"], "--json"]) == 0
    plain = json.loads(capsys.readouterr().out)
    assert plain.keys() == {"model", "parameters", "tokens", "options", "compression"}
    assert (plain["model"], plain["options"]["n_outputs"], plain["compression"]) == ("BIOT", 5, None)
    model = zipbrain.from_pretrained(out)
    zipbrain.save_pretrained(zipbrain.compress(model, "tome", ratio=0.5), out)
    assert main(["models", "describe", str(out), "--json"]) == 0
    pooled = json.loads(capsys.readouterr().out)["compression"]
    assert pooled["method"]["name"] == "tome"
    assert pooled["token_counts"][0] > pooled["token_counts"][-1]


def test_json_of_convention_is_a_convention_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = []
    for name, options in (("mine.toml", []), ("mine.json", ["--json"])):
        assert main(["models", "convention", *options]) == 0
        path = tmp_path / name
        path.write_text(capsys.readouterr().out)
        found.append(read_convention(path))
    assert found[0] == found[1]


def test_json_of_push_says_where_the_model_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def push(model: BIOT, repository: str, private: bool) -> str:
        return f"https://hub/{repository}/commit/1?private={private}"

    monkeypatch.setattr("zipbrain.pretrained.push_to_hub", push)  # tests/zoo pushes to a real one
    zipbrain.save_pretrained(BIOT(2, 4, 600, dim=32, depth=1), tmp_path)
    assert main(["models", "push", str(tmp_path), "people/mine", "--private", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said == {"repository": "people/mine", "address": "https://hub/people/mine/commit/1?private=True"}


def test_convert_makes_an_eegpt_with_its_probe(tmp_path: Path) -> None:
    checkpoint, out = tmp_path / "eegpt.ckpt", tmp_path / "out"
    torch.save({"state_dict": {"target_encoder.norm.weight": torch.randn(512)}}, checkpoint)
    options = ["--ch-names", "C3,C4", "--n-times", "800", "--n-outputs", "2", "--head", "probe"]
    assert main(["models", "convert", "eegpt", str(checkpoint), str(out), *options]) == 0
    assert zipbrain.from_pretrained(out).config["head"] == "probe"


def test_mistakes_are_one_line_and_code_two(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, words in (
        (["models", "convert", "labram", "x.pth", str(tmp_path / "o")], "--ch-names"),
        (["models", "convert", "biot", str(tmp_path / "none.pth"), str(tmp_path / "o")], "there is no such file"),
        (["models", "convert", "biot", "x.pth", str(tmp_path / "o"), "--head", "probe"], "only EEGPT has a choice"),
        (["models", "convert", "neurogpt", "x.pth", str(tmp_path / "o")], "known models are labram"),
        (["models", "describe", str(tmp_path / "nothing")], "no such folder"),
    ):
        assert main(arguments) == 2
        error = capsys.readouterr().err
        assert words in error
        assert len(error.strip().splitlines()) == 1
    assert not (tmp_path / "o").exists()
