"""`zipbrain live`: the demo without torch, JSON lines, wrong uses in one line, and a picture for a terminal."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from zipbrain.cli import main
from zipbrain.cli.live_view import Panel
from zipbrain.edge import EdgeModel
from zipbrain.live.session import Session
from zipbrain.live.verify import verify

from ..edge import tiny_onnx
from ..live.made_up_source import Scripted, noise, paced

WITHOUT = """
import sys
for name in ("torch", "mne", "scipy", "sklearn", "matplotlib", "pylsl", "starlette", "joblib"):
    sys.modules[name] = None
from zipbrain.cli import main
sys.exit(main(sys.argv[1:]))
"""


def test_the_demo_runs_on_the_base_package_and_its_first_decision_comes_within_ten_seconds(tmp_path: Path) -> None:
    command = ["live", "--demo", "--out", str(tmp_path / "demo"), "--duration", "115", "--json", "--threads", "1"]
    began = time.monotonic()
    process = subprocess.Popen([sys.executable, "-c", WITHOUT, *command], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    first = json.loads(process.stdout.readline())
    assert time.monotonic() - began < 10
    rows = [first, *map(json.loads, process.stdout)]
    assert process.wait() == 0
    assert [row["line"] for row in rows].count("decision") > 50
    raised = {row["alarm"] for row in rows if row["line"] == "event" and row["kind"] == "raised"}
    assert {"spikes and waves", "electrode"} <= raised
    assert rows[-1]["line"] == "summary"
    assert rows[-1]["skipped"] == 0
    assert verify(tmp_path / "demo").verdict == "whole"
    assert list((tmp_path / "demo").glob("*.csv"))
    assert main(["live", "evaluate", str(tmp_path / "demo"), "--json"]) == 1  # nothing was marked


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ([], 2, "--model"),
        (["--model", "x.onnx"], 2, "--source"),
        (["--model", "tiny.onnx", "--source", "tcp:1"], 2, "lsl:NAME"),
        (["--model", "tiny.onnx", "--source", "replay:no.edf"], 1, "no.edf"),
        (["--model", "x.onnx", "--source", "replay:no.edf"], 1, "x.onnx"),
        (["--demo", "--model", "x.onnx"], 2, "leave it out"),
        (["--demo", "--format", "paper"], 2, "csv"),
        (["--demo", "--hop", "0"], 2, "hop"),
        *((["--demo", "--hop", number], 2, "hop") for number in ("nan", "inf", "-1", "1e308")),
        *((["--demo", "--duration", number], 2, "duration") for number in ("inf", "nan", "1e400", "1e308", "-1")),
        *((["--demo", "--retain", number], 2, "retain") for number in ("inf", "nan", "-1")),
        *((["--demo", "--audit", number], 2, "audit") for number in ("inf", "nan", "-1")),
        (["--demo", "--alarms", "no.toml"], 1, "no.toml"),
        (["--init-alarms", "x.toml"], 2, "--model"),
        (["--demo", "--no-board", "--page", "127.0.0.1:1"], 2, "board"),
        (["--page", "--demo", "--no-board"], 2, "127.0.0.1:8765"),  # an address need not be given
        (["--demo", "--no-board", "--page"], 2, "127.0.0.1:8765"),
        (["verify", "nowhere"], 1, "nowhere"),
    ],
)
def test_wrong_uses_get_one_line(
    tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch, arguments: list[str], code: int, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    tiny_onnx.save(Path("tiny.onnx"))
    assert main(["live", *arguments]) == code
    said = capsys.readouterr().err.strip().splitlines()
    assert len(said) == 1
    assert words in said[0]


def test_json_of_example_rules_names_the_file(tmp_path: Path, capsys: Any) -> None:
    model, rules = tiny_onnx.save(tmp_path / "tiny.onnx"), tmp_path / "rules.toml"
    assert main(["live", "--model", str(model), "--init-alarms", str(rules), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said.keys() == {"file", "model", "classes"}
    assert said["file"] == str(rules)
    assert rules.is_file()


def test_ctrl_c_says_what_is_kept_and_the_journal_is_closed(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "zipbrain", "live", "--demo", "--out", str(tmp_path), "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    said, errors = process.communicate(timeout=30)
    assert process.returncode == 130
    assert errors.strip().startswith("stopped: ")
    assert len(errors.strip().splitlines()) == 1
    assert json.loads(said.splitlines()[-1])["line"] == "summary"
    assert verify(tmp_path).verdict == "whole"


def test_a_recording_of_another_montage_is_refused(tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    pytest.importorskip("edfio")
    import edfio
    import numpy as np

    x = 20 * np.random.default_rng(0).standard_normal((2, 4000))
    signals = [
        edfio.EdfSignal(row, 200, label=name, physical_dimension="uV") for row, name in zip(x, "AB", strict=True)
    ]
    edfio.Edf(signals).write("two.edf")
    tiny_onnx.save(Path("tiny.onnx"))
    assert main(["live", "--model", "tiny.onnx", "--source", "replay:two.edf?speed=max"]) == 1
    assert "--rename" in capsys.readouterr().err
    assert not Path("live").exists()


def test_the_picture_fits_a_terminal_of_80_columns_and_shows_alarm_electrode_and_warning(tmp_path: Path) -> None:
    names = tiny_onnx.convention().ch_names
    x = noise(len(names), 1600)
    x[2] = 5.0
    source = Scripted(names, 200.0, [x[:, :800], *paced(x[:, 800:], 200.0)])
    model = EdgeModel(tiny_onnx.save(tmp_path / "tiny.onnx"), threads=1)
    shown = Panel(Console(width=80, file=io.StringIO(), force_terminal=True))
    states: list[Any] = []

    def watch(state: Any, news: Any) -> None:
        shown(state, news)
        states.append(state)

    Session(model, source, tmp_path / "bed").run(watch=watch)
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(shown.draw(states[-1]))
    text = console.export_text()
    assert max(map(len, text.splitlines())) <= 80
    for words in ("bed", "electrode on", f"flat: {names[2]}", "15 of 16 good", "Not a medical device", "arithmetic"):
        assert words in text
