"""Timing within a budget: tables before it, rounds that outlive a kill, rows that are not timed, which one to use."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import zipbrain
from search import small
from zipbrain.cli import main
from zipbrain.cli.program import command_line
from zipbrain.errors import OptionError
from zipbrain.evaluation import compare, recommendation, rounds
from zipbrain.evaluation.comparison import Comparison
from zipbrain.evaluation.store import Store
from zipbrain.profiling.latency import interleaved, timed_rounds

QUICK: dict[str, Any] = {"methods": ["tome", "dart"], "mass": "off", "device": "cpu", "latency_batch": 2}
QUICK |= {"intervals": False, "latency_rounds": 4}


def run(store: Store | None = None, **options: Any) -> Comparison:
    return compare(small.model(), small.windows(), **{"ratios": [0.4, 0.8], "store": store, **QUICK, **options})


def test_no_call_begins_after_the_deadline_and_a_round_is_given_up() -> None:
    calls = {"a": lambda: time.sleep(0.05), "b": lambda: time.sleep(0.05)}
    started = time.monotonic()
    made = list(timed_rounds(calls, rounds=1000, warmup=3, deadline=started + 0.5))
    assert time.monotonic() - started < 1.0
    assert 1 <= len(made) <= 4  # a quarter of the time is for warming up
    assert all(one.keys() == calls.keys() for one in made)
    assert list(timed_rounds(calls, rounds=3, deadline=time.monotonic() - 1)) == []


def test_rounds_that_are_done_are_not_made_again() -> None:
    called: list[str] = []
    calls = {name: (lambda name=name: called.append(name)) for name in "abc"}
    assert len(list(timed_rounds(calls, rounds=5, warmup=0, done=3))) == 2
    assert "".join(called) == "abcbca"  # rounds 4 and 5 begin where they would have begun


def test_a_budget_ends_a_run_but_not_before_one_round() -> None:
    timings = interleaved({"a": lambda: time.sleep(0.02)}, rounds=500, warmup=500, budget=0.3)
    assert 1 <= len(timings["a"].seconds) < 20


def test_tables_are_there_before_the_first_call_is_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    real = timed_rounds

    def watched(*given: Any, **options: Any) -> Iterator[dict[str, float]]:
        seen.append("timing")
        yield from real(*given, **options)

    def on_table(found: Comparison) -> None:
        seen.append(f"table, untimed {len(found.untimed)}")
        assert len(found.rows) == 5
        assert all(not math.isnan(row.scores["accuracy"]) for row in found.rows)
        assert found.to_csv().count("\n") == 6

    monkeypatch.setattr(rounds, "timed_rounds", watched)
    run(Store(tmp_path), on_table=on_table)
    assert seen == ["table, untimed 2", "timing", "table, untimed 1", "timing", "table, untimed 0"]


def test_what_the_budget_does_not_reach_is_untimed_and_timed_by_the_next_run(tmp_path: Path) -> None:
    found = run(Store(tmp_path), time_budget=1e-9)
    assert found.untimed == (0.4, 0.8)
    assert [row.latency for row in found.rows] == [None] * 5
    for table in found.tables()[:2]:
        assert table.columns[1] == "times\nas fast"
        cells = [row[1] for row in table.rows if not row[0].startswith(" ")]
        assert cells == ["1.00", *["untimed"] * 4]
    assert any("Not timed yet: 40 %, 80 %" in note for note in found.notes)
    assert found.recommendation == ""
    again = run(Store(tmp_path))
    assert again.untimed == ()
    assert all(row.latency is not None for row in again.rows[1:])
    assert "Not timed" not in " ".join(again.notes)


def test_a_kill_loses_no_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[int] = []
    real = timed_rounds

    def stopped(calls: Any, **options: Any) -> Iterator[dict[str, float]]:
        done.append(options["done"])
        for number, seconds in enumerate(real(calls, **options)):
            yield seconds
            if number == 1 and len(done) == 1:
                raise KeyboardInterrupt

    monkeypatch.setattr(rounds, "timed_rounds", stopped)
    with pytest.raises(KeyboardInterrupt):
        run(Store(tmp_path), threads=2)
    (kept,) = rounds.read_rounds(tmp_path).values()
    assert len(kept["rounds"]) == 2
    found = run(Store(tmp_path))
    assert done == [0, 2, 0]
    assert found.timing["threads"] == 2  # those of the stored rounds: others would be other times
    assert not (tmp_path / rounds.NAME).exists()
    assert run(Store(tmp_path)).rows == found.rows


@pytest.mark.parametrize("place", ["between two latencies", "after the last one"])
def test_a_kill_while_latencies_are_stored_leaves_no_rounds_behind(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = Store.add, [0]

    def add(self: Store, record: dict[str, Any]) -> None:
        real(self, record)
        calls[0] += record["kind"] == "latency"
        if calls[0] == 2 and place == "between two latencies":
            raise KeyboardInterrupt

    def forget(self: rounds.TimingRounds, group: str) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Store, "add", add)
        if place == "after the last one":
            patch.setattr(rounds.TimingRounds, "forget", forget)
        with pytest.raises(KeyboardInterrupt):
            run(Store(tmp_path))
    assert rounds.read_rounds(tmp_path)
    found = run(Store(tmp_path))
    assert all(row.latency is not None for row in found.rows[1:])
    assert not (tmp_path / rounds.NAME).exists()


@pytest.mark.parametrize("content", ["", "[]", "{", '{"a": 3}', '{"a": {"about": {}, "rounds": [{"x": -1.0}]}}'])
def test_damaged_rounds_are_measured_again(content: str, tmp_path: Path) -> None:
    (tmp_path / rounds.NAME).write_text(content)
    assert rounds.read_rounds(tmp_path) == {}
    assert run(Store(tmp_path)).untimed == ()


@pytest.mark.parametrize("budget", [0, -1, math.nan, "2", True])
def test_a_budget_that_is_none_is_refused(budget: Any) -> None:
    with pytest.raises(OptionError, match="time_budget"):
        run(time_budget=budget)


@pytest.mark.parametrize("agree", [0, 1.5, math.nan, -0.1])
def test_a_share_of_answers_is_above_zero_and_at_most_one(agree: Any) -> None:
    with pytest.raises(OptionError, match="agree"):
        run(agree=agree)


@pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL")
def test_a_killed_command_leaves_tables_and_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, data, out = small.checkpoint(tmp_path / "model"), small.prepared(tmp_path / "data"), tmp_path / "out"
    arguments = ["compare", str(model), "--data", str(data), "--out", str(out), "--device", "cpu", "--threads", "1"]
    arguments += ["--methods", "tome", "--ratios", "0.4,0.8", "--no-mass", "--no-intervals"]
    with subprocess.Popen(
        [sys.executable, "-m", "zipbrain", *arguments, "--rounds", "100000"], stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": str(Path(zipbrain.__file__).parents[1])},
    ) as process:  # fmt: skip
        until = time.monotonic() + 90
        while not (out / rounds.NAME).exists() and time.monotonic() < until:
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
    assert (out / rounds.NAME).exists()
    assert (out / "compare.csv").read_text().count("\n") == 4
    assert "untimed" in (out / "compare.md").read_text()
    assert main([*arguments, "--rounds", "100000", "--time-budget", "0.2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["untimed"] == [0.4, 0.8]
    assert found["go_on"] == command_line([*arguments, "--rounds", "100000", "--time-budget", "0.2", "--json"])
    assert main([*arguments, "--rounds", "2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["untimed"] == []
    assert "go_on" not in found


def recommend(found: Comparison, agree: float) -> str:
    return recommendation.recommend(found.original, found.rows[1:], agree)


def rows(*given: tuple[str, float, float | None]) -> Comparison:
    """A comparison of rows with a label, an agreement and a time to the original, of a model that is mostly right."""
    found = run(latency=False, ratios=[0.4], methods=["tome"])
    base = found.rows[1]
    made = [
        replace(base, label=label, agreement=agreement, latency=None if time is None else {"to_original": time})
        for label, agreement, time in given
    ]
    original = replace(found.original, confusion=[[11, 1], [1, 11]], scores={**found.original.scores, "auroc": 0.95})
    return replace(found, rows=[original, *made])


def test_the_recommendation_is_the_fastest_row_that_keeps_the_answers() -> None:
    found = rows(("slow", 1.0, 0.9), ("right", 23 / 24, 0.6), ("wrong", 0.5, 0.3), ("unknown", 1.0, None))
    kept = "95.8 % of the decisions unchanged (23 of 24 windows, 95 % interval 79 to 100 %)"
    assert f"Which to use: right at 40 %, 1.67 times as fast with {kept}" in recommend(found, 0.95)
    assert "slow at 40 %" in recommend(found, 0.99)
    assert "wrong at 40 %" in recommend(found, 0.4)


def test_the_recommendation_prefers_answers_among_equal_times_and_knows_when_there_is_none() -> None:
    assert "b at 40 %" in recommend(rows(("a", 0.96, 0.60), ("b", 1.0, 0.61)), 0.95)
    assert "none keeps 95 % of the decisions; the nearest is b" in recommend(
        rows(("a", 0.2, 0.5), ("b", 0.9, 0.6)), 0.95
    )
    assert "Which to use: the original" in recommend(rows(("a", 1.0, 1.2), ("b", 0.5, 0.3)), 0.95)
    assert recommend(rows(("a", 1.0, None)), 0.95) == ""


def with_noise(found: Comparison, noise: float) -> Comparison:
    noisy = [replace(row, latency={**(row.latency or {}), "noise": noise}) for row in found.rows[1:]]
    return replace(found, rows=[found.original, *noisy])


def test_times_that_the_noise_does_not_tell_apart_are_equal_and_said_to_be() -> None:
    found = rows(("a", 0.96, 0.60), ("b", 1.0, 0.64), ("c", 0.97, 0.80))
    sure, unsure = (recommend(with_noise(found, noise), 0.95) for noise in (0.01, 0.05))
    assert "Which to use: a at 40 %" in sure
    assert "noise" not in sure
    assert "Which to use: b at 40 %" in unsure
    assert unsure.endswith("as fast within the noise of timing, with fewer of them or as many: a at 40 %.")
    assert "Which to use: the original" in recommend(with_noise(rows(("a", 1.0, 0.95)), 0.06), 0.95)


def test_a_row_that_is_no_faster_within_its_noise_does_not_hide_one_that_is() -> None:
    found = with_noise(rows(("slow", 0.99, 0.83), ("fast", 0.96, 0.65)), 0.18)
    assert "Which to use: fast at 40 %, 1.54 times as fast" in recommend(found, 0.95)


def test_the_verdict_says_in_one_sentence_what_was_gained_and_kept() -> None:
    def said(found: Comparison) -> str:
        return recommendation.verdict(found.original, found.rows[1:])

    row = ("right", 23 / 24, 0.6)
    sentence = "right at 40 %: 1.67 times as fast with 95.8 % of the decisions unchanged (23 of 24 windows)."
    assert said(rows(row, ("wrong", 0.5, 0.3))) == sentence
    assert said(rows(("slow", 1.0, 1.1))).startswith("No row that keeps 95 % of the decisions is surely faster")
    untimed = rows(("a", 1.0, None))
    assert "of the operations with 100.0 % of the decisions unchanged (24 of 24 windows); times are not" in said(
        untimed
    )
    found = rows(row)
    useless = replace(found.original, confusion=[[12, 0], [12, 0]])
    assert said(replace(found, rows=[useless, found.rows[1]])) == ""


@pytest.mark.parametrize(
    ("confusion", "auroc", "words"),
    [
        ([[6, 6], [6, 6]], 0.5, "no better than chance"),
        ([[12, 0], [12, 0]], 0.5, "calls 100 % of the windows class 0"),
        ([[39, 1], [0, 0]], 0.9, "calls 98 % of the windows class 0"),
    ],
)
def test_a_model_at_chance_or_of_one_answer_gets_no_recommendation(
    confusion: list[list[int]], auroc: float, words: str
) -> None:
    found = rows(("a", 1.0, 0.5))
    original = replace(found.original, confusion=confusion, scores={**found.original.scores, "auroc": auroc})
    said = recommend(replace(found, rows=[original, found.rows[1]]), 0.95)
    assert said.startswith("Which to use: none can be named: ")
    assert words in said
    assert "a at 40 %" not in said


def test_ours_is_among_the_rows_without_being_named() -> None:
    found = compare(small.model(), small.windows(), ratios=[0.5], mass="off", latency=False, intervals=False)
    rivals = ["ToMe", "ToFu", "EViT", "DART", "PiToMe", "Local merging"]
    assert [row.label for row in found.rows] == ["Original", "ZIPBrain", *rivals, "Twins"]


def test_a_command_to_type_is_found_from_where_the_user_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / ".venv" / "bin" / "zipbrain"
    script.parent.mkdir(parents=True)
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script.with_name("python")))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "/usr/bin")
    assert command_line(["demo", "--out", "a b"]) == ".venv/bin/zipbrain demo --out 'a b'"
    monkeypatch.setenv("PATH", str(script.parent))
    assert command_line(["demo"]) == "zipbrain demo"
    script.unlink()
    assert command_line(["demo"]) == ".venv/bin/python -m zipbrain demo"


def test_threads_of_timed_calls_are_the_free_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zipbrain.evaluation.timings.free_cores", lambda: 3)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(4)
        assert run(ratios=[0.4]).timing["threads"] == 3
        assert run(ratios=[0.4], threads=2).timing["threads"] == 2
        torch.set_num_threads(1)
        assert run(ratios=[0.4]).timing["threads"] == 1
    finally:
        torch.set_num_threads(before)
