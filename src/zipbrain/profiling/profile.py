"""`profile`: what a model costs, original and compressed, in every runtime, measured in one interleaved run."""

from __future__ import annotations

import copy
import json
import math
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from zipbrain.cores import free_cores
from zipbrain.data.windows import Windows
from zipbrain.errors import OptionError
from zipbrain.export.checks import spread
from zipbrain.models import name_of
from zipbrain.paper import COMPARED, canonical_part
from zipbrain.pooling import FreeSlicing, Method, as_method
from zipbrain.profiling.flops import count_window
from zipbrain.profiling.machine import processor, this_machine, torch_threads
from zipbrain.profiling.result import ORIGINAL, SLICING, Profile, ProfiledNetwork, Speed, remarks, right
from zipbrain.profiling.runners import RUNNERS, Candidate, read_runtimes, usual
from zipbrain.profiling.timeline import timelines
from zipbrain.profiling.timing import TimingSettings, time_batch, with_memory
from zipbrain.progress import Progress, silent
from zipbrain.recipe import Recipe, as_recipe
from zipbrain.seams import compress, is_compressed, restore
from zipbrain.seams.compress import describe
from zipbrain.signal.scaling import scale
from zipbrain.training.loader import scaling_for

__all__ = ["ORIGINAL", "SLICING", "Profile", "ProfiledNetwork", "Speed", "processor", "profile", "repeated"]

_CALIBRATION: Final = 32  # windows that fix the ranges of static int8

Array = NDArray[np.float32]


def profile(
    model: nn.Module,
    windows: Windows | Tensor | Array,
    *,
    ratio: float | str = 0.8,
    methods: Iterable[object] = COMPARED,
    recipe: Recipe | str | Path | None = None,
    in_first_only: Iterable[object] = (),
    batches: Sequence[int] = (1, 32),
    threads: int | None = None,
    runtimes: Sequence[str] | None = None,
    rounds: int = 32,
    warmup: int = 32,
    memory: bool = True,
    onnx_tool: bool = True,
    timeline: bool = True,
    time_budget: float = math.inf,
    progress: Progress | None = None,
) -> Profile:
    """Count and time a model, its free slicing and its compressed forms.

    Parameters
    ----------
    model : nn.Module
        LaBraM, EEGPT, BIOT, TFM or CBraMod; stays as it is. If it is compressed, the network underneath is taken.
    windows : Windows, or Tensor or ndarray of shape (n, C, T)
        Real windows, which are scaled as the model wants them, or an array that is scaled already. Fewer than a batch
        are repeated.
    ratio : float or "max"
        Share of the tokens that the methods remove.
    methods : iterable of str, dict or Method
        What is compared with the original and with free slicing.
    recipe : Recipe or path, optional
        In place of ratio and methods: this compression, and free slicing to the same token counts.
    in_first_only : iterable of str, dict or Method
        Further methods, which are run in the first runtime only: many methods in many runtimes take long.
    batches : sequence of int
        Windows per call.
    threads : int, optional
        CPU threads of every runtime; as many as cores are free if not given.
    runtimes : sequence of str, optional
        See `zipbrain.profiling.runners.RUNNERS`; the usual ones that can be used here if not given.
    rounds, warmup : int
        Calls that count and calls before them that don't; the paper has 32 of each.
    memory : bool
        Measure peak memory, one process for each (Linux).
    onnx_tool : bool
        Count with onnx-tool too.
    timeline : bool
        Take ONNX Runtime's timeline of the original and of the first method at the first batch.
    time_budget : float
        Seconds for timing all batches; rounds that don't fit are left out, but for one of each batch.
    progress : callable, optional
        See `zipbrain.progress`.
    """
    sizes = _positive("batches", batches)
    _positive("rounds", [rounds])
    _positive("warmup", [warmup], least=0)
    if not time_budget > 0:
        raise OptionError("time_budget", time_budget, "it must be a positive number of seconds")
    cores = free_cores() if threads is None else _positive("threads", [threads])[0]
    names = read_runtimes(usual() if runtimes is None else runtimes)
    x = _scaled(model, windows)
    candidates, ratio = _candidates(model, x, ratio, methods, recipe)
    further = list(in_first_only)
    if further and recipe is not None:
        raise OptionError("in_first_only", further, "a recipe stands alone: leave one of them out")
    more = _candidates(model, x, ratio, further, None)[0][2:] if further else []
    if twice := {one.name for one in candidates} & {one.name for one in more}:
        raise OptionError("in_first_only", sorted(twice), "these are among the methods already")
    candidates += more
    pairs = [(name, one) for name in names for one in candidates if name == names[0] or one not in more]
    needs_graph = onnx_tool or timeline or any(RUNNERS[name].has_file for name in names)
    tell = progress or silent
    with torch_threads(cores):
        for place, candidate in enumerate(candidates if needs_graph else ()):
            tell(f"exporting: {candidate.name}", place, len(candidates))
            _ = candidate.mapped
        variants = []
        for place, candidate in enumerate(candidates):
            tell(f"counting: {candidate.name}", place, len(candidates))
            variants.append(_counted(candidate, [name for name, one in pairs if one is candidate], onnx_tool))
        speeds: list[Speed] = []
        timing = TimingSettings(cores, rounds, warmup, tell, time.monotonic() + time_budget)
        for place, size in enumerate(sizes):
            speeds += time_batch(pairs, repeated(x, size), timing, len(sizes) - place)
        every, speeds = speeds, right(speeds)
        if memory:
            speeds = with_memory(speeds, candidates, timing)
        tracks = []
        if timeline:
            tell("taking ONNX Runtime's timeline", 0, 0)
            shown = (candidates[0], candidates[2 if len(candidates) > 2 else 1])
            chosen = {candidate.name: candidate.mapped for candidate in shown}
            tracks = timelines(chosen, repeated(x, sizes[0]), threads=cores)
    about = {"model": name_of(model), "ratio": ratio, "channels": x.shape[1], "samples": x.shape[2]}
    about |= {"batches": list(sizes), "threads": cores, "rounds": rounds, "warmup": warmup, **this_machine()}
    notes = remarks(variants, every, names, memory=memory)
    for size in sizes:
        made = next(len(speed.seconds) for speed in every if speed.batch == size)
        if made < rounds:
            short = (
                f"Batch {size}: {made} of {rounds} rounds, for which the time budget of {time_budget:g} s was enough"
            )
            notes.append(f"{short}; --time-budget gives more.")
    if is_compressed(model):
        notes.append("The model came compressed: the network underneath it is the original here.")
    if recipe is not None and _read(recipe).second_look is not None:
        notes.append("The recipe's second look is left out: all figures are those of the first pass.")
    return Profile(about, variants, speeds, tracks, notes)


def repeated(x: Array, count: int) -> Array:
    """The first windows, repeated until there are so many: (n, C, T) -> (count, C, T)"""
    return np.ascontiguousarray(np.resize(x, (count, *x.shape[1:])))


def _positive(option: str, given: Sequence[int], least: int = 1) -> tuple[int, ...]:
    for number in given:
        if isinstance(number, bool) or not isinstance(number, int) or number < least:
            raise OptionError(option, number, f"it must be an integer of at least {least}")
    if not given:
        raise OptionError(option, list(given), "at least one is needed")
    return tuple(dict.fromkeys(given))


def _scaled(model: nn.Module, windows: Windows | Tensor | Array) -> Array:
    if isinstance(windows, Windows):
        chosen = windows.take(spread(len(windows), _CALIBRATION))
        x = np.asarray(scale(chosen, scaling_for(model, windows)), dtype=np.float32)
    else:
        x = np.asarray(windows.detach().cpu() if isinstance(windows, Tensor) else windows, dtype=np.float32)
    if x.ndim != 3 or not len(x):
        raise OptionError("windows", tuple(x.shape), "windows are (n, channels, samples) with n of at least 1")
    return x


def _candidates(
    model: nn.Module, x: Array, ratio: float | str, methods: Iterable[object], recipe: Recipe | str | Path | None
) -> tuple[list[Candidate], float | str]:
    base = copy.deepcopy(model).to("cpu", torch.float32).eval()
    if is_compressed(base):
        restore(base)
    if recipe is None:
        options: dict[str, Any] = {"ratio": ratio}
        chosen: list[Method] = [as_method(canonical_part(one) if isinstance(one, str) else one) for one in methods]
        if any(isinstance(method, FreeSlicing) for method in chosen):
            raise OptionError("methods", "free_slicing", "it is always there: leave it out")
    else:
        found = _read(recipe)
        options, chosen = {**found.options(), "second_look": None}, [as_method(found.method)]
        ratio = found.schedule.get("ratio", json.dumps(found.schedule, sort_keys=True))
    windows = x[:_CALIBRATION]
    shape = int(x.shape[1]), int(x.shape[2])
    made = [Candidate(ORIGINAL, base, shape, windows)]
    for method in (FreeSlicing(), *chosen):
        given = {**options, "mass": False} if isinstance(method, FreeSlicing) else options
        name = _unused(method.title or method.name, made)
        made.append(Candidate(name, compress(copy.deepcopy(base), method, **given), shape, windows))
    return made, ratio


def _read(recipe: Recipe | str | Path) -> Recipe:
    found = as_recipe(Path(recipe) if isinstance(recipe, str) else recipe)
    if found is None:
        raise OptionError("recipe", recipe, "it must be a Recipe or the path of its JSON file")
    return found


def _unused(name: str, made: list[Candidate]) -> str:
    taken = {candidate.name for candidate in made}
    return next(new for new in (name, *(f"{name} {i}" for i in range(2, 100))) if new not in taken)


def _counted(candidate: Candidate, runtimes: Sequence[str], onnx_tool: bool) -> ProfiledNetwork:
    precisions = dict.fromkeys(RUNNERS[name].precision for name in runtimes if RUNNERS[name].has_file)
    sizes = {precision: int(candidate.graph(precision).ByteSize()) for precision in precisions}
    method = describe(candidate.network)["method"] if is_compressed(candidate.network) else None
    counts = count_window(candidate.network, candidate.shape, candidate.mapped.proto if onnx_tool else None)
    return ProfiledNetwork(candidate.name, method, counts, sizes)
