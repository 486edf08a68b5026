"""Commands on a model of someone else's: made by a function in a file, with its weights and its convention."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from edfio import Edf, EdfSignal
from safetensors.torch import save_file

import zipbrain
from search import small
from zipbrain.cli import main
from zipbrain.cli.any_model import model_words
from zipbrain.edge.convention_file import TEMPLATE, read_convention
from zipbrain.errors import OptionError
from zipbrain.models import Build

CODE = '''
import torch
from torch import nn


class Mine(nn.Module):
    """Half seconds of every channel, a torch encoder, a mean and a head."""

    def __init__(self, width=16):
        super().__init__()
        self.embed = nn.Linear(100, width)
        layer = nn.TransformerEncoderLayer(width, 4, 32, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, 1)

    def forward(self, x):
        patches = x.reshape(x.shape[0], x.shape[1] * (x.shape[2] // 100), 100)
        return self.head(self.encoder(self.embed(patches)).mean(1))


class Two(Mine):
    def forward(self, x, mask):
        return super().forward(x)


class Words(Mine):
    def forward(self, x):
        return {"logits": super().forward(x)}


def build():
    return Mine()


def wide():
    return Mine(32)


def two():
    return Two()


def words():
    return Words()


def five():
    model = Mine()
    model.head = nn.Linear(16, 5)
    return model


def nothing():
    return None


def broken():
    raise RuntimeError("no such\\nfile")
'''

CONVENTION = """
classes = ["class 0", "class 1"]
channels = ["FP1-F7", "F7-T3", "T3-T5"]
sfreq = 200
window_s = 2
scaling = "q95"
name = "mine"
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with the model's file, weights, convention and windows; the process forgets the file in the end."""
    (tmp_path / "my_network.py").write_text(CODE)
    (tmp_path / "mine.toml").write_text(CONVENTION)
    before = list(sys.path)
    torch.manual_seed(0)
    save_file(Build(f"{tmp_path}/my_network.py:build").open().state_dict(), tmp_path / "mine.safetensors")
    small.prepared(tmp_path / "data", splits=("train", "val", "test"))
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.path[:] = before
    sys.modules.pop("my_network", None)


MODEL = ["--model", "my_network.py:build", "--checkpoint", "mine.safetensors", "--convention", "mine.toml"]
DATA = ["--data", "data"]


def test_commands_that_score_take_any_model(mine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", *MODEL, *DATA, "--ratio", "0.5", "--method", "tome", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["model"], len(told["scores"])) == ("Mine", 2)
    assert told["scores"][1]["removed"] > 0.4
    quick = ["--no-latency", "--no-intervals", "--ratios", "0.5"]
    assert main(["compare", *MODEL, *DATA, "--methods", "tome,zipbrain", *quick, "--out", "found", "--json"]) == 0
    assert main(["ablate", *MODEL, *DATA, "--ratio", "0.5", "--seeds", "1", "--no-intervals", "--out", "found"]) == 0
    capsys.readouterr()
    how = ["--ratio", "0.5", "--limit", "4", "--backend", "sequential", "--out", "searched", "--json"]
    assert main(["search", *MODEL, *DATA, *how]) == 0
    capsys.readouterr()
    recipe = str(next(Path("searched").rglob("recipe*.json")))
    assert main(["evaluate", *MODEL, *DATA, "--recipe", recipe, "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["scores"]) == 2


def test_finetune_trains_any_model_and_resumes_and_its_weights_open_it(mine: Path, capsys) -> None:
    small = ["--data", "data", "--epochs", "2", "--batch-size", "8", "--device", "cpu", "--lr", "0.01", "--out", "runs"]
    assert main(["finetune", *MODEL, *small, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["model"], told["recipe"]["model"]) == ("runs/weights.safetensors", "my_network.py:build")
    assert (told["scaling"], told["recipe"]["binary_loss"], told["init"]) == ("q95", "bce", ["mine.safetensors"])
    assert told["history"][-1]["loss"] < told["history"][0]["loss"]
    assert main(["finetune", *MODEL, *small, "--resume"]) == 0
    said = capsys.readouterr().out.replace("\n", "")
    assert "zipbrain evaluate --model my_network.py:build --checkpoint runs/weights.safetensors --convention" in said
    trained = [*MODEL[:3], "runs/weights.safetensors", *MODEL[4:]]
    assert main(["evaluate", *trained, *DATA, "--json"]) == 0
    after = json.loads(capsys.readouterr().out)["scores"][0]
    before = Build("my_network.py:build", Path("mine.safetensors")).open().state_dict()
    now = Build("my_network.py:build", Path("runs/weights.safetensors")).open().state_dict()
    assert all(not torch.equal(before[name], value) for name, value in now.items() if name != "head.bias")
    assert after["accuracy"] >= 0.5
    for more, words in (
        (["--init", "labram-base"], "starts from its own weights"),
        (["--settings", "paper"], "there are none for my_network.py:build"),
        (["--set", "dropout=0.5"], "my_network.py:build sets that itself"),
    ):
        assert main(["finetune", *MODEL, *small[:-1], "other", *more]) == 2
        error = capsys.readouterr().err
        assert words in error
        assert len(error.splitlines()) == 1
    assert main(["finetune", "--model", "biot", *small, "--convention", "mine.toml"]) == 2
    assert "it belongs to --model file.py:build" in capsys.readouterr().err
    assert main(["finetune", "--model", "my_network.py:five", *small[:-1], "five", "--convention", "mine.toml"]) == 2
    assert "a tensor (1, 5) to a window" in capsys.readouterr().err


def test_a_next_step_opens_the_same_model() -> None:
    whole = Build("a.py:build", Path("w.pt"), Path("c.toml"))
    assert model_words(whole) == ["--model", "a.py:build", "--checkpoint", "w.pt", "--convention", "c.toml"]
    assert model_words(Build("a.py:build")) == ["--model", "a.py:build"]
    assert model_words(Path("runs")) == ["runs"]


def test_tune_and_profile_take_any_model(mine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", *MODEL, *DATA, "--methods", "tome", "--runtimes", "torch", "--batch", "1", "--rounds", "1",
                 "--warmup", "0", "--no-memory", "--no-timeline", "--out", "profiled", "--json"]) == 0  # fmt: skip
    capsys.readouterr()
    assert main(["tune", *MODEL, *DATA, "--agree", "0.5", "--methods", "tome", "--backend", "sequential"]) == 2
    assert "each half needs at least 20 windows" in capsys.readouterr().err  # the model is fine


def test_an_exported_model_predicts_a_recording_by_its_convention(mine: Path, capsys) -> None:
    assert main(["export", *MODEL, *DATA, "--method", "tome", "--ratio", "0.5", "-o", "mine.onnx", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["model"], told["convention"]["model"], told["convention"]["scaling"]) == ("Mine", "mine", "q95")
    rng = np.random.default_rng(0)
    signals = [EdfSignal(rng.normal(0, 20, 2000), 200, label=f"EEG {name}", physical_dimension="uV",
                         physical_range=(-200, 200)) for name in ("FP1-REF", "F7-REF", "T7-REF", "P7-REF")]  # fmt: skip
    Edf(signals).write("a.edf")
    assert main(["predict", "a.edf", "--model", "mine.onnx", "--out", "answers", "--json"]) in (0, 1)
    assert "class 0" in "".join(path.read_text() for path in Path("answers").rglob("*.csv"))


def test_report_is_written_without_a_window_where_the_places_of_tokens_are_not_known(
    mine: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    quick = ["--no-latency", "--no-intervals", "--ratios", "0.5", "--methods", "tome"]
    assert main(["compare", *MODEL, *DATA, *quick, "--out", "found", "--json"]) == 0
    assert main(["report", "found", *MODEL, *DATA, "--limit", "4", "--json"]) == 0
    assert "where the tokens of Mine lie is not known" in capsys.readouterr().err
    assert Path("report", "report.html").is_file()
    assert main(["report", "found", "--convention", "mine.toml", *DATA]) == 2
    assert "it belongs to --model" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--model", "my_network.py:nothing"], "it returned NoneType and no nn.Module"),
        (["--model", "my_network.py:broken"], "it raised RuntimeError: no such file"),
        (["--model", "my_network.py:two"], "its forward takes x, mask, where one tensor (n, channels, samples) is"),
        (["--model", "my_network.py:two"], "wrap it in an nn.Module"),
        (["--model", "my_network.py:words", "--convention", "mine.toml"], "it answers dict to a window (1, 3, 400)"),
        (["--model", "my_network.py:five", "--convention", "mine.toml"], "a tensor (1, 5) to a window"),
        (["--model", "my_network.py:biuld"], "has no function biuld; it has"),
        (["--model", "my_network.py"], "it must be file.py:build or package.module:build"),
        (["--model", "none.py:build"], "there is no such file"),
        (["--model", "no_package.part:build"], "can't be imported: ModuleNotFoundError"),
        (["--model", "my_network.py:wide", "--checkpoint", "mine.safetensors"], "is it of another width?"),
        (["--model", "my_network.py:build", "--checkpoint", "other.pt"], "it does not fit the model"),
        (["--model", "my_network.py:build", "--checkpoint", "none.pt"], "there is no such file"),
        (["--model", "my_network.py:build", "--convention", "none.toml"], "zipbrain models convention writes one"),
        (["--model", "my_network.py:build", "--convention", "other.toml"], "with C3, C4"),
        (["runs", "--model", "my_network.py:build"], "with CHECKPOINT runs there are two models"),
        (["--checkpoint", "mine.safetensors"], "it belongs to --model file.py:build"),
        ([], "give the folder of a saved model, or --model file.py:build"),
    ],
)
def test_mistakes_are_one_line_and_code_two(mine: Path, arguments: list[str], words: str, capsys) -> None:
    torch.save({"embed.weight": torch.zeros(16, 100)}, "other.pt")
    Path("other.toml").write_text(CONVENTION.replace('"FP1-F7", "F7-T3", "T3-T5"', '"C3", "C4"'))
    assert main(["evaluate", *arguments, *DATA]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert len(error.splitlines()) == 1


def test_without_a_convention_it_is_said_how_windows_are_scaled(mine: Path, capsys) -> None:
    assert main(["evaluate", *MODEL[:4], *DATA]) == 0
    assert "--convention says it" in capsys.readouterr().err


def test_the_template_that_a_command_writes_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "convention"]) == 0
    (tmp_path / "convention.toml").write_text(capsys.readouterr().out)
    found = read_convention(tmp_path / "convention.toml")
    assert found.convention.ch_names == ("C3", "Cz", "C4")
    assert found.convention.filters == "from 0.5 Hz to 40 Hz, notch at 50 Hz"
    (tmp_path / "convention.json").write_text(json.dumps({
        "classes": ["a", "b"], "channels": ["F3-A2"], "sfreq": 100, "window_s": 30, "scaling": "none"}))  # fmt: skip
    assert read_convention(tmp_path / "convention.json").convention.montage == (("F3", "A2"),)


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ("sfreq = 200.0", "sfreq = -1.0", "sfreq"),
        ("sfreq = 200.0", "sfreq = nan", "sfreq"),
        ('scaling = "hundred"', 'scaling = "hundert"', "known scalings are none, hundred"),
        ('scaling = "hundred"', "", "scaling: got None, but it must be said"),
        ('["C3", "Cz", "C4"]', '["C3", "EEG C3-REF"]', "it is the same channel as"),
        ('["C3", "Cz", "C4"]', '"C3"', "it must be a list of names"),
        ('["rest", "task"]', '["rest"]', "at least two are needed"),
        ("notch = 50.0", "notsch = 50.0", "known are classes, channels"),
        ("band = [0.5, 40.0]", "band = [0.5]", "two frequencies"),
        ("classes", "classes = [", "it can't be read"),
    ],
)
def test_a_wrong_convention_is_refused_in_one_line(before: str, after: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "wrong.toml").write_text(TEMPLATE.replace(before, after))
    with pytest.raises(OptionError) as found:
        read_convention(tmp_path / "wrong.toml")
    assert words in str(found.value)


def test_a_model_of_a_package_is_imported_from_the_current_folder(mine: Path) -> None:
    code = "from zipbrain.models import Build; print(type(Build('my_network:build').open()).__name__)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "Mine"


def test_a_compressed_models_words_name_its_recipe_until_it_is_restored(mine: Path) -> None:
    model = Build("my_network.py:build").open()
    plain = repr(model)
    seen = {plain}
    for ratio in (0.4, 0.6):
        zipbrain.compress(model, "tome", ratio=ratio)
        assert f'"ratio": {ratio}' in repr(model)
        seen.add(repr(model))
        assert repr(zipbrain.restore(model)) == plain
    assert len(seen) == 3
