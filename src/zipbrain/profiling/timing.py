"""Networks in runtimes, timed in turn, and the peak memory of each in a process of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from zipbrain.files import scratch_folder
from zipbrain.profiling.latency import Timing, interleaved
from zipbrain.profiling.process_memory import peak_of_process
from zipbrain.profiling.result import ORIGINAL, SLICING, Speed
from zipbrain.profiling.runners import REFERENCE, RUNNERS, Candidate

_MOST: Final = 0.8  # share of the windows that must be right: a few may hang on a near-tie

Array = NDArray[np.float32]
Progress = Callable[[str, int, int], None]


class ProgressSteps:
    """Counts the steps of a profile and tells each to a callback."""

    def __init__(self, total: int, tell: Progress | None) -> None:
        self.done, self.total, self.tell = -1, total, tell
        self.what, self.round = "", 0

    def next(self, what: str) -> None:
        """Begin another step."""
        self.done += 1
        self.what, self.round = what, 0
        self.say(what)

    def tick(self, rounds: int) -> None:
        """One more of the rounds of the present step."""
        self.round += 1
        self.say(f"{self.what}, round {self.round} of {rounds}")

    def say(self, what: str) -> None:
        """Tell what is done now."""
        if self.tell is not None:
            self.tell(what, self.done, self.total)

    def end(self) -> None:
        """Tell that all is done."""
        self.done = self.total
        self.say("done")


@dataclass(frozen=True)
class TimingSettings:
    """How a profile times: threads of every runtime, rounds that count, and rounds before them."""

    threads: int
    rounds: int
    warmup: int
    steps: ProgressSteps


def time_batch(pairs: Sequence[tuple[str, Candidate]], x: Array, timing: TimingSettings) -> list[Speed]:
    """All networks in their runtimes at one batch, in turn."""
    timing.steps.next(f"opening at batch {len(x)}")
    calls = {(runtime, one.name): RUNNERS[runtime].open(one, x, timing.threads) for runtime, one in pairs}
    with torch.inference_mode():
        expected = {one.name: one.network(torch.from_numpy(x)) for one in {id(one): one for _, one in pairs}.values()}
    errors = {key: _error(call(), expected[key[1]].numpy()) for key, call in calls.items()}
    timing.steps.next(f"timing at batch {len(x)}")
    named = {"/".join(key): call for key, call in calls.items()}
    total = timing.warmup + timing.rounds
    timings = interleaved(named, rounds=timing.rounds, warmup=timing.warmup, tick=lambda: timing.steps.tick(total))
    found = {key: timings["/".join(key)] for key in calls}
    return [_speed(key, len(x), found, errors[key]) for key in found]


def _error(answer: object, expected: Array) -> float:
    """See `Speed.error`."""
    logits = answer.cpu().numpy() if isinstance(answer, Tensor) else np.asarray(answer, dtype=np.float32)
    return float(np.quantile(np.abs(logits - expected).max(1), _MOST) / np.abs(expected).max())


def _speed(key: tuple[str, str], batch: int, found: dict[tuple[str, str], Timing], error: float) -> Speed:
    runtime, variant = key
    own, reference = found[key], found.get((REFERENCE, ORIGINAL))
    times = own.median, own.quantile(0.95)
    ratios = own.ratio(found[runtime, ORIGINAL]), own.ratio(found[runtime, SLICING])
    to_reference = None if reference is None else own.ratio(reference)
    return Speed(runtime, variant, batch, *times, *ratios, to_reference, error, None, own.seconds)


def with_memory(speeds: list[Speed], candidates: list[Candidate], timing: TimingSettings) -> list[Speed]:
    """The same speeds with the peak memory of those runtimes that a process of its own can show."""
    by_name = {candidate.name: candidate for candidate in candidates}
    found = []
    with scratch_folder() as folder:
        file = folder / "network"
        for speed in speeds:
            runner, candidate = RUNNERS[speed.runtime], by_name[speed.variant]
            if runner.process:
                timing.steps.say(f"measuring memory: {speed.variant} in {speed.runtime}, batch {speed.batch}")
                if runner.has_file:
                    file.write_bytes(candidate.content(runner.precision, speed.batch))
                else:
                    torch.save(candidate.network, file)
                taken = peak_of_process(file, runner.process, speed.batch, candidate.shape, timing.threads)
                speed = replace(speed, memory=taken)
            found.append(speed)
    return found
