"""Networks in runtimes, timed in turn, and the peak memory of each in a process of its own."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from zipbrain.profiling.latency import Timing, interleaved
from zipbrain.profiling.process_memory import footprint
from zipbrain.profiling.result import ORIGINAL, SLICING, Speed
from zipbrain.profiling.runners import REFERENCE, Candidate, precision_of, ready, with_batch

_MOST: Final = 0.8  # share of the windows that must be right: a few may hang on a near-tie

Array = NDArray[np.float32]
Progress = Callable[[str, int, int], None]

# The runtimes whose memory a process of its own can show, and what runs there.
_PROCESS: Final = {
    "torch": "torch", "ort": "ort", "ort-int8": "ort", "ort-int8-static": "ort", "openvino": "openvino",
    "openvino-int8": "openvino", "openvino-nncf": "openvino",
}  # fmt: skip


class Steps:
    """Tells what is done next."""

    def __init__(self, total: int, tell: Progress | None) -> None:
        self.done, self.total, self.tell = -1, total, tell
        self.what, self.round, self.rounds = "", 0, 0

    def next(self, what: str) -> None:
        """Begin another step."""
        self.done += 1
        self.what, self.round = what, 0
        self.say(what)

    def tick(self) -> None:
        """One more round of the present step."""
        self.round += 1
        self.say(f"{self.what}, round {self.round} of {self.rounds}")

    def say(self, what: str) -> None:
        """Tell what is done now."""
        if self.tell is not None:
            self.tell(what, self.done, self.total)

    def end(self) -> None:
        """Tell that all is done."""
        self.done = self.total
        self.say("done")


def timed(
    pairs: Sequence[tuple[str, Candidate]], x: Array, threads: int, rounds: int, warmup: int, steps: Steps
) -> list[Speed]:
    """All networks in their runtimes at one batch, in turn."""
    steps.next(f"opening at batch {len(x)}")
    calls = {(runtime, one.name): ready(runtime, one, x, threads) for runtime, one in pairs}
    with torch.inference_mode():
        expected = {one.name: one.network(torch.from_numpy(x)) for one in {id(one): one for _, one in pairs}.values()}
    errors = {key: _error(call(), expected[key[1]].numpy()) for key, call in calls.items()}
    steps.next(f"timing at batch {len(x)}")
    names = {f"{runtime}/{variant}": (runtime, variant) for runtime, variant in calls}
    steps.rounds = warmup + rounds
    timings = interleaved(
        {name: calls[key] for name, key in names.items()}, rounds=rounds, warmup=warmup, tick=steps.tick
    )
    found = {key: timings[name] for name, key in names.items()}
    return [_speed(key, len(x), found, errors[key]) for key in found]


def _error(answer: object, expected: Array) -> float:
    """See `Speed.error`."""
    logits = answer.cpu().numpy() if isinstance(answer, Tensor) else np.asarray(answer, dtype=np.float32)
    return float(np.quantile(np.abs(logits - expected).max(1), _MOST) / np.abs(expected).max())


def _speed(key: tuple[str, str], batch: int, found: dict[tuple[str, str], Timing], error: float) -> Speed:
    runtime, variant = key
    own, reference = found[key], found.get((REFERENCE, ORIGINAL))
    return Speed(
        runtime, variant, batch, own.median, own.quantile(0.95), own.ratio(found[runtime, ORIGINAL]),
        own.ratio(found[runtime, SLICING]), None if reference is None else own.ratio(reference), error, None,
        own.seconds,
    )  # fmt: skip


def with_memory(speeds: list[Speed], candidates: list[Candidate], threads: int, steps: Steps) -> list[Speed]:
    """The same speeds with the peak memory of those runtimes that a process of its own can show."""
    by_name = {candidate.name: candidate for candidate in candidates}
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for speed in speeds:
            if speed.runtime in _PROCESS:
                steps.say(f"measuring memory: {speed.variant} in {speed.runtime}, batch {speed.batch}")
                candidate, file = by_name[speed.variant], Path(folder) / "network"
                _store(candidate, speed, file)
                taken = footprint(file, _PROCESS[speed.runtime], speed.batch, candidate.shape, threads)
                speed = replace(speed, memory=taken)
            found.append(speed)
    return found


def _store(candidate: Candidate, speed: Speed, file: Path) -> None:
    if speed.runtime == "torch":
        torch.save(candidate.network, file)
    else:
        proto = with_batch(candidate.graph(precision_of(speed.runtime)), speed.batch)
        file.write_bytes(proto.SerializeToString())
