"""`tune`: the fastest recipe that keeps a model's decisions, chosen on half of the people, certified on the others."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import torch
from numpy.typing import ArrayLike
from torch import nn

from zipbrain.cores import available_cores
from zipbrain.data.windows import Windows
from zipbrain.defaults import PROMISED_AGREEMENT, TUNED_METHODS
from zipbrain.edge.runtimes import MOST_THREADS
from zipbrain.errors import OptionError, ZipbrainError
from zipbrain.files import lock_folder, scratch_folder
from zipbrain.numerals import whole_number
from zipbrain.pooling.methods.base import Method
from zipbrain.progress import Progress, silent
from zipbrain.seams import is_compressed, restore
from zipbrain.seams.identity import network_of
from zipbrain.tuning.grouped_windows import GroupedWindows, read_grouped_windows
from zipbrain.tuning.logit_cache import LogitCache
from zipbrain.tuning.steps import Tuning
from zipbrain.tuning.times import Times, check_runtime
from zipbrain.tuning.tuned import Tuned
from zipbrain.weights import fingerprint

WORK: Final = "work"  # folder with the logits and times that a run has computed


def tune(
    model: nn.Module,
    windows: Windows | ArrayLike,
    *,
    agree: float = PROMISED_AGREEMENT,
    time: float | None = None,
    groups: Sequence[Any] | None = None,
    runtime: str = "torch",
    batch: int = 1,
    methods: Iterable[Method | str | dict[str, Any]] = TUNED_METHODS,
    thresholds: Sequence[float] = (0.5,),
    scaling: str | None = None,
    out: str | Path | None = None,
    threads: int | None = None,
    backend: str = "loky",
    workers: int | None = None,
    address: str | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Tuned:
    """The fastest recipe with which a model keeps its decisions, and a certificate of how many it keeps.

    Method, schedule and second look are chosen on the windows of half of the people. The decisions that stay in those
    of the other half are then counted once, and the lower bound of their share is the promise.

    Parameters
    ----------
    model : nn.Module
        Stays as it is; if it is compressed, its original is the same model without compression.
    windows : Windows or array (n, C, T)
        Windows of people like those it will be used on; labels are not needed. An array is taken as the model gets it.
    agree : float
        Share of the decisions that shall stay the same.
    time : float, optional
        Share of the original's time: find the most faithful recipe that takes no more, instead of the fastest one for
        `agree`.
    groups : sequence, optional
        Whose window it is, for every window; the subjects of `Windows` if not given. Windows of group -1, which keep
        two `zipbrain.tuning.stretches` apart, are left out.
    runtime : {"torch", "ort", "openvino"}
        What the model will run in: times are measured there, and decisions counted.
    batch : int
        Windows per call.
    methods : iterable
        Methods to choose from.
    thresholds : sequence of float
        Probabilities at which alarms are raised; the windows that stay on the same side of them are counted too.
    scaling : str, optional
        How a model that is none of ours reads microvolts, see `zipbrain.data.scale`.
    out : path, optional
        Folder in which logits and times are kept, so that a run that was stopped goes on where it was.
    threads : int, optional
        CPU threads of a timed call; as many as this process has cores if not given.
    backend, workers, address
        Who computes logits, see `zipbrain.jobs.run_jobs`.
    seed : int
        Of the random halves.
    progress : callable, optional
        See `zipbrain.progress`.

    Returns
    -------
    tuned : Tuned
        With `recipe`, `certificate` and `options`; print it.

    Examples
    --------
    >>> tuned = zipbrain.tune(model, windows, agree=0.99)  # doctest: +SKIP
    >>> model = zipbrain.compress(model, tuned.recipe)  # doctest: +SKIP
    """
    if not isinstance(model, nn.Module):
        raise OptionError("model", type(model).__name__, "it must be a torch.nn.Module")
    if threads is not None:
        whole_number("threads", threads, 1, MOST_THREADS)
    whole_number("seed", seed)
    asked = _check(agree, time, batch, thresholds)
    check_runtime(runtime)
    network = restore(copy.deepcopy(model)).to("cpu", torch.float32).eval()
    grouped = read_grouped_windows(network, windows, groups, scaling)
    note = ["the model came compressed: its original here is the same model without compression"]
    with ExitStack() as stack:
        if out is None:
            folder = stack.enter_context(scratch_folder())
        else:
            folder = Path(out) / WORK
            folder.mkdir(parents=True, exist_ok=True)
            stack.enter_context(
                lock_folder(folder, ZipbrainError(f"{folder}: another run is tuning there: wait for it"))
            )
        jobs = {"backend": backend, "workers": workers, "address": address}
        timing: dict[str, Any] = {"runtime": runtime, "batch": batch, "threads": threads or available_cores()}
        tuning = build_tuning(network, grouped, folder, jobs, progress or silent, seed, timing)
        tuning.weights = fingerprint(model.state_dict())
        tuning.notes += note if is_compressed(model) else []
        parameter = next(model.parameters(), torch.zeros(0))
        if parameter.dtype != torch.float32 or parameter.device.type != "cpu":
            tuning.notes.append(f"tuned in float32 on the CPU; the model is {parameter.dtype} on {parameter.device}")
        given = [methods] if isinstance(methods, str | dict | Method) else list(methods)
        return tuning.run(given, asked, time, tuple(thresholds))


def build_tuning(
    network: nn.Module,
    windows: GroupedWindows,
    folder: Path,
    jobs: dict[str, Any],
    tell: Progress,
    seed: int,
    timing: dict[str, Any],
) -> Tuning:
    """A tuning that keeps logits and times in a folder; `jobs` are options of `run_jobs`, `timing` those of `Times`."""
    identity = [network_of(network), fingerprint(network.state_dict()), windows.sha256()]
    token = hashlib.sha256(json.dumps(identity, sort_keys=True, default=str).encode()).hexdigest()
    shape = windows.x.shape[1], windows.x.shape[2]
    times = Times(network, shape=shape, folder=folder, token=token, tell=tell, **timing)
    return Tuning(network, windows, LogitCache(network, windows.x, folder, token, jobs, tell), times, seed)


def _check(agree: Any, time: Any, batch: Any, thresholds: Any) -> float:
    if isinstance(thresholds, str) or not isinstance(thresholds, Iterable):
        raise OptionError("thresholds", thresholds, "it must be a list of probabilities")
    for level in thresholds:
        if isinstance(level, bool) or not isinstance(level, int | float) or not 0 < level < 1:
            raise OptionError("thresholds", level, "it must be a probability between 0 and 1")
    if isinstance(agree, bool) or not isinstance(agree, int | float) or not 0.5 <= agree < 1:
        raise OptionError("agree", agree, "it must be a share from 0.5 to below 1, such as 0.99")
    if time is not None and (isinstance(time, bool) or not isinstance(time, int | float) or not 0 < time < 1):
        raise OptionError("time", time, "it must be a share of the original's time between 0 and 1, such as 0.5")
    if isinstance(batch, bool) or not isinstance(batch, int) or batch < 1:
        raise OptionError("batch", batch, "it must be a whole number of at least 1")
    return float(agree)
