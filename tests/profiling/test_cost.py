"""Timing and memory: ratios from one interleaved run, peaks beyond the start."""

from __future__ import annotations

import time

import numpy as np
import pytest
import torch

from zipbrain.profiling import Timing, interleaved, peak_memory, quantile


def test_candidates_take_turns_and_ratios_come_from_the_same_rounds() -> None:
    calls: list[str] = []
    ticks: list[int] = []

    def sleeper(name: str, seconds: float) -> None:
        calls.append(name)
        time.sleep(seconds)

    timings = interleaved(
        {"short": lambda: sleeper("short", 0.002), "long": lambda: sleeper("long", 0.006)},
        rounds=6, warmup=2, tick=lambda: ticks.append(1),
    )  # fmt: skip
    assert calls[:4] == ["short", "long", "long", "short"]  # every round starts with another one
    assert len(timings["short"].seconds) == 6
    assert len(ticks) == 8
    assert 1.5 < timings["long"].ratio(timings["short"]) < 6
    assert timings["short"].ratio(timings["short"]) == 1


def test_quantiles_and_median() -> None:
    timing = Timing("t", tuple(float(i) for i in range(1, 101)))
    assert timing.median == 50.5
    assert timing.quantile(0.95) == pytest.approx(95.05)
    assert timing.quantile(0.0) == 1
    assert timing.quantile(1.0) == 100


@pytest.mark.parametrize("rounds", [1, 2, 8, 10, 16, 24, 32])
def test_few_calls_do_not_round_the_slow_ones_away(rounds: int) -> None:
    calls = [1.0] * (rounds - 1) + [2.0]
    assert quantile(calls, 0.95) == pytest.approx(np.percentile(calls, 95))
    assert 1.0 < quantile(calls, 0.95) <= 2.0 or rounds > 21  # one call in 20 is slower than 95 % of them
    assert quantile(calls, 0.5) == Timing("t", tuple(calls)).median == Timing("t", tuple(calls)).quantile(0.5)


def test_peak_memory_sees_what_a_call_allocates_and_frees() -> None:
    def work() -> None:
        values = torch.ones(64, 2**20)
        time.sleep(0.05)
        del values

    assert 200 * 2**20 < peak_memory(work) < 400 * 2**20
