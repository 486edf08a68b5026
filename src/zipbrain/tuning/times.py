"""`Times`: times of networks in a runtime relative to the original's, kept in a file."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from zipbrain import __version__
from zipbrain.errors import DataError, OptionError
from zipbrain.files import read_json, write_whole
from zipbrain.profiling.latency import interleaved
from zipbrain.profiling.machine import processor, torch_threads
from zipbrain.profiling.runners import Call, find_runner
from zipbrain.profiling.runners import Candidate as Network
from zipbrain.progress import Progress
from zipbrain.recipe import Recipe
from zipbrain.seams import compress

NAME: Final = "times.json"
ORIGINAL: Final = "original"
RUNTIMES: Final = {"torch": "torch", "ort": "onnxruntime", "openvino": "openvino"}  # names here: those in zipbrain.edge
SECONDS: Final = 20.0  # that one comparison takes at most, by default

_NOISE: Final = 0.97  # ratio of two times above which timing is too imprecise to tell which is shorter
_ROUNDS: Final = 15  # rounds of a comparison that count
_WARMUP: Final = 2  # rounds before them that do not


@dataclass(frozen=True, eq=False)
class Times:
    """Relative times of networks, measured in turn; a stored time is never measured again."""

    model: nn.Module  # not compressed
    runtime: str
    batch: int
    threads: int
    shape: tuple[int, int]  # channels and samples of a window
    folder: Path
    token: str  # hash of weights and windows
    tell: Progress
    seconds: float = SECONDS  # that one comparison takes at most
    _kept: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        try:
            found = read_json(self.folder / NAME)
            self._kept.update({key: float(value) for key, value in found.items() if _is_time(value)})
        except (OSError, ValueError, AttributeError):
            return  # measured again

    def relative(self, recipes: Sequence[Recipe], x: NDArray[np.float32], what: str) -> list[float]:
        """Time of a call with some windows, relative to the original's, for every recipe; without a second look."""
        keys = [self._key(recipe) for recipe in recipes]
        missing = {key: recipe for key, recipe in zip(keys, recipes, strict=True) if key not in self._kept}
        if missing:
            networks = {key: compress(copy.deepcopy(self.model), recipe) for key, recipe in missing.items()}
            measured = self._measure({ORIGINAL: self.model, **networks}, x, what)
            self._keep(measured)
        return [self._kept[key] for key in keys]

    def _measure(self, networks: dict[str, nn.Module], x: NDArray[np.float32], what: str) -> dict[str, float]:
        with torch_threads(self.threads):
            return self._timed(self._open(networks, x), what)

    def _open(self, networks: dict[str, nn.Module], x: NDArray[np.float32]) -> dict[str, Call]:
        runner, shape = find_runner(self.runtime), (x.shape[1], x.shape[2])
        calls = {}
        for number, (name, network) in enumerate(networks.items()):
            self.tell("opening networks", number, len(networks))
            calls[name] = runner.open(Network(name, network, shape, x), x, self.threads)
        return calls

    def _timed(self, calls: dict[str, Call], what: str) -> dict[str, float]:
        made = 0

        def tick() -> None:
            nonlocal made
            made += 1
            self.tell(f"timing {what}", made, _ROUNDS + _WARMUP)

        timed = interleaved(calls, rounds=_ROUNDS, warmup=_WARMUP, tick=tick, budget=self.seconds)
        return {name: timed[name].ratio(timed[ORIGINAL]) for name in calls if name != ORIGINAL}

    def of_single(self, x: NDArray[np.float32]) -> float:
        """The original's time for one window, relative to that for all of `x`."""
        if len(x) == 1:
            return 1.0

        def opened() -> dict[str, Call]:
            return {**self._open({ORIGINAL: self.model}, x), **self._open({"one": self.model}, x[:1])}

        return self.of_calls("one window", "", opened)["one"]

    def of_calls(self, what: str, key: str, opened: Callable[[], dict[str, Call]]) -> dict[str, float]:
        """Times of calls relative to that of ``original``, kept under a title and a key."""
        key = f"{self._place} {what} {key} "
        known = {one.removeprefix(key): value for one, value in self._kept.items() if one.startswith(key)}
        if not known:
            with torch_threads(self.threads):
                known = self._timed(opened(), what)
            self._keep({key + one: value for one, value in known.items()})
        return known

    @property
    def _place(self) -> str:
        made = f"{processor()}, zipbrain {__version__}, torch {torch.__version__}"
        return f"{self.token[:16]} {self.runtime} {self.threads} threads, batch {self.batch}, {made}"

    def _key(self, recipe: Recipe) -> str:
        return f"{self._place} {recipe.key()}"

    def _keep(self, measured: dict[str, float]) -> None:
        self._kept.update(measured)
        path = self.folder / NAME
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_whole(path, (json.dumps(self._kept, indent=1, sort_keys=True) + "\n").encode())
        except OSError as error:
            raise DataError(f"{path}: it can't be written ({error.strerror or error})") from None


def check_runtime(runtime: str) -> None:
    """Refuse a runtime that is not known or not installed."""
    if runtime not in RUNTIMES:
        raise OptionError("runtime", runtime, f"it must be one of {', '.join(RUNTIMES)}")
    reason = find_runner(runtime).find_missing()
    if reason:
        raise OptionError("runtime", runtime, reason)


def is_gain(time: float) -> bool:
    """True if a time relative to the original's is shorter than that by more than noise."""
    return time <= _NOISE


def is_within(time: float, asked: float) -> bool:
    """True if a relative time is no longer than the one that was asked for, by more than noise."""
    return time <= asked / _NOISE


def second_look_time(behind: float, share: float, batch: int, single: float) -> float:
    """Expected time of the second passes of a call, relative to the original's call.

    `behind` is the part of the network behind the first reduction, `share` that of doubtful windows, and `single` the
    original's time for one window relative to that for `batch` of them: few windows cost more than their share.
    """
    if batch == 1:
        return behind * share
    any_doubtful = 1 - (1 - share) ** batch
    return behind * (any_doubtful * single + (share * batch - any_doubtful) * (1 - single) / (batch - 1))


def _is_time(value: Any) -> bool:
    return isinstance(value, float | int) and not isinstance(value, bool) and 0 < value < 1e6
