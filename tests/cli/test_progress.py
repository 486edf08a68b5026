"""Long work speaks: lines on stderr where there is no terminal, a bar where there is one, and stdout stays clean."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
from rich.console import Console

import zipbrain
from data import tiny_corpora
from edge import tiny_onnx
from search import small
from zipbrain.cli import main, progress
from zipbrain.data.synthetic import Synthetic
from zipbrain.models import BIOT
from zipbrain.progress import Progress
from zipbrain.search import scorer
from zipbrain.search.space import Point


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines from the first moment on."""
    monkeypatch.setattr(progress, "_QUIET", 0.0)
    monkeypatch.setattr(progress, "_PAUSE", 0.0)


def lines_of(work: object, monkeypatch: pytest.MonkeyPatch, quiet: float = 0.0, sign: float = 60.0) -> list[str]:
    """What `work`, a function of the progress, lets be printed to a file."""
    monkeypatch.setattr(progress, "_QUIET", quiet)
    monkeypatch.setattr(progress, "_PAUSE", 0.0)
    monkeypatch.setattr(progress, "_SIGN", sign)
    written = io.StringIO()
    with progress._Lines(Console(file=written, width=40)) as tell:
        work(tell)  # type: ignore[operator]
    return written.getvalue().splitlines()


def test_there_is_a_line_per_stage_and_per_tenth_with_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    def work(tell: Progress) -> None:
        for done in range(200):
            tell(f"scoring: row {done}", done, 200)
        tell("timing: a name that is much wider than the forty columns of this console", 0, 3)
        time.sleep(0.3)
        tell("timing: second", 1, 3)
        tell("timing: done", 3, 3)

    said = [line for line in lines_of(work, monkeypatch) if "scoring" in line or "timing" in line]
    assert len(said) == 10 + 3
    assert [re.findall(r"(\d+) of 200 \((\d+) %\)", line)[0] for line in said[1:10:4]] == [
        ("20", "10"),
        ("100", "50"),
        ("180", "90"),
    ]
    assert said[10].endswith("columns of this console, 0 of 3 (0 %)")
    assert said[11].endswith("timing: second, 1 of 3 (33 %), about 0:01 left")
    assert said[12].endswith("timing: done, 3 of 3 (100 %)")


def test_time_left_is_that_of_the_present_pace_not_of_what_was_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])

    def work(tell: Progress) -> None:
        for done in range(60):  # stored by an earlier run
            tell("scoring: known", done, 100)
        for done in range(60, 91):
            tell("scoring: new", done, 100)
            clock[0] += 7

    said = lines_of(work, monkeypatch)
    assert "70 of 100 (70 %), about 3:30 left" in said[-3]
    assert "90 of 100 (90 %), about 1:10 left" in said[-1]


def test_short_work_says_nothing_and_long_silence_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    assert lines_of(lambda tell: tell("reading", 0, 4), monkeypatch, quiet=60.0) == []

    def work(tell: Progress) -> None:
        tell("reading", 0, 0)
        time.sleep(0.5)

    said = lines_of(work, monkeypatch, quiet=0.1, sign=0.15)
    assert 2 <= len(said) <= 4
    assert all(line.endswith("] reading") for line in said)


def test_names_from_outside_change_no_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    (line,) = lines_of(lambda tell: tell("predicting: \x1b[31mred[/]\n.edf", 0, 1), monkeypatch)
    assert line.endswith("predicting: \\x1b[31mred[/]\\n.edf, 0 of 1 (0 %)")


def commands(folder: Path) -> dict[str, tuple[list[str], str]]:
    """Every command that may take long, on little data, and words of one of its stages."""
    model, data = str(small.checkpoint(folder / "model")), str(small.prepared(folder / "data"))
    large = str(zipbrain.save_pretrained(BIOT(6, 16, 400, dim=16, heads=2, depth=1), folder / "large"))
    tiny = str(tiny_onnx.save(folder / "m.onnx"))
    names = [f"EEG {name}" for name in tiny_onnx.convention().ch_names]
    recording = tiny_corpora.write_edf(folder / "a.edf", names, 200, 8)
    raw = str(tiny_corpora.folder(folder / "raw"))
    on = [model, "--data", data]
    out = ["--out", str(folder / "out")]
    quick = ["--methods", "tome", "--rounds", "1"]
    timed = [*quick, "--runtimes", "torch", "--warmup", "0", "--no-memory", "--no-onnx-tool", "--no-timeline"]
    return {
        "evaluate": (["evaluate", *on, "--device", "cpu"], "predicting"),
        "compare": (["compare", *on, *quick, "--ratios", "0.5", "--device", "cpu", *out], "timing: 50 %, round 1 of 1"),
        "ablate": (["ablate", *on, "--seeds", "1", "--device", "cpu", *out], "scoring: random matching, seed 0"),
        "search": (["search", *on, "--backend", "sequential", "--device", "cpu", *out], "scoring: ratio max, stage 1"),
        "profile": (["profile", *on, *timed, "--batch", "1", *out], "timing at batch 1: round 1 of 1"),
        "predict": (["predict", str(recording), "--model", tiny, "--format", "csv", *out], "predicting: a.edf"),
        "prepare": (["data", "prepare", "folder", "--root", raw, *out, "--channels", "C3,C4"], "preparing folder"),
        "export": (["export", large, "--data", "synthetic-events", "--out", str(folder / "x.onnx")], "comparing with"),
    }


LONG = ["demo", "finetune", "evaluate", "compare", "ablate", "search", "report", "export", "profile", "predict"]
LONG += ["data prepare", "data download"]
NAMES = ("evaluate", "compare", "ablate", "search", "profile", "predict", "prepare", "export")


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("name", NAMES)
def test_every_long_command_speaks_without_a_terminal_and_leaves_stdout_to_json(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scorer, "stage_1", lambda: [Point("x", "q", "x", rho) for rho in (0.0, 0.2, 0.5, 0.8)])
    synthetic = partial(Synthetic, n_subjects=8, windows_per_subject=6, seconds=2)
    monkeypatch.setattr("zipbrain.training.window_sources.Synthetic", synthetic)
    arguments, words = commands(tmp_path)[name]
    assert main([*arguments, "--json"]) == 0
    said = capsys.readouterr()
    json.loads(said.out)
    stages = [line for line in said.err.splitlines() if line.startswith("[0:")]
    assert any(words in line for line in stages), said.err


@pytest.mark.skipif(sys.platform == "win32", reason="no pseudo-terminals")
def test_with_a_terminal_there_is_a_bar_and_no_lines() -> None:
    import pty

    code = (
        "import time; from zipbrain.cli import progress; progress._QUIET = 0.0\n"
        "with progress.show_progress('opening') as tell:\n"
        "    for done in range(4):\n"
        "        tell('scoring: row', done, 4); time.sleep(0.15)\n"
        "print('table')"
    )
    master, slave = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "80"}
    with subprocess.Popen([sys.executable, "-c", code], stdout=slave, stderr=slave, env=environment) as process:
        os.close(slave)
        seen = b""
        while True:
            try:
                part = os.read(master, 4096)
            except OSError:  # Linux says so that the other end is closed
                break
            if not part:
                break
            seen += part
        assert process.wait(60) == 0
    os.close(master)
    assert "━" in seen.decode()
    assert "3/4" in seen.decode()
    assert "[0:0" not in seen.decode()
    assert seen.decode().rstrip().endswith("table")


@pytest.mark.parametrize("command", LONG)
def test_help_cuts_nothing_off(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main([*command.split(), "--help"]) == 0
    said = capsys.readouterr().out
    assert "…" not in said
    assert "zipbrain)" not in said  # [extra] is no markup
