"""Networks in runtimes, timed in turn, and the peak memory of each in a process of its own."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
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
from zipbrain.progress import Progress

_MOST: Final = 0.8  # share of the windows that must be right: a few may hang on a near-tie

Array = NDArray[np.float32]


@dataclass(frozen=True)
class TimingSettings:
    """How a profile times: threads of every runtime, rounds that count, rounds before them, and when it must end."""

    threads: int
    rounds: int
    warmup: int
    tell: Progress
    deadline: float = math.inf  # of `time.monotonic`


def time_batch(pairs: Sequence[tuple[str, Candidate]], x: Array, timing: TimingSettings, left: int = 1) -> list[Speed]:
    """All networks in their runtimes at one batch, in turn; it may take its share of the time that `left` batches have.

    One round is always made.
    """
    calls = {}
    for place, (runtime, one) in enumerate(pairs):
        timing.tell(f"opening at batch {len(x)}: {one.name} in {runtime}", place, len(pairs))
        calls[runtime, one.name] = RUNNERS[runtime].open(one, x, timing.threads)
    with torch.inference_mode():
        expected = {one.name: one.network(torch.from_numpy(x)) for one in {id(one): one for _, one in pairs}.values()}
    errors = {key: _error(call(), expected[key[1]].numpy()) for key, call in calls.items()}
    named = {"/".join(key): call for key, call in calls.items()}
    total, made = timing.warmup + timing.rounds, 0

    def tick() -> None:
        nonlocal made
        made += 1
        timing.tell(f"timing at batch {len(x)}: round {made} of {total}", made, total)

    budget = max(0.0, timing.deadline - time.monotonic()) / left
    timings = interleaved(named, rounds=timing.rounds, warmup=timing.warmup, tick=tick, budget=budget)
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
        for place, speed in enumerate(speeds):
            runner, candidate = RUNNERS[speed.runtime], by_name[speed.variant]
            if runner.process:
                what = f"measuring memory: {speed.variant} in {speed.runtime}, batch {speed.batch}"
                timing.tell(what, place, len(speeds))
                if runner.has_file:
                    file.write_bytes(candidate.content(runner.precision, speed.batch))
                else:
                    torch.save(candidate.network, file)
                taken = peak_of_process(file, runner.process, speed.batch, candidate.shape, timing.threads)
                speed = replace(speed, memory=taken)
            found.append(speed)
    return found
