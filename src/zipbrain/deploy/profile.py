"""`profile`: what a model costs, original and compressed, in every runtime, measured in one interleaved run."""

from __future__ import annotations

import copy
import json
import os
import platform
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from zipbrain import __version__
from zipbrain.cost.latency import Timing, interleaved
from zipbrain.data.windows import Windows
from zipbrain.deploy.counting import COUNTERS, NO_ATTENTION, Counts, attention_counts, count
from zipbrain.deploy.footprint import footprint
from zipbrain.deploy.runtimes import (
    REFERENCE,
    TITLES,
    Candidate,
    precision_of,
    read_runtimes,
    ready,
    usual,
    with_batch,
)
from zipbrain.deploy.timeline import Track, timelines
from zipbrain.edge.runtimes import available_threads
from zipbrain.edge.scaling import scale
from zipbrain.errors import OptionError
from zipbrain.models import model_name
from zipbrain.paper import canonical_part
from zipbrain.pooling import FreeSlicing, Method, as_method
from zipbrain.recipe import Recipe, as_recipe
from zipbrain.seams import compress, is_compressed, restore
from zipbrain.seams.compress import describe
from zipbrain.training.feed import scaling_of

METHODS: Final = ("zipbrain", "tome", "tofu", "evit", "dart", "twins")
ORIGINAL, SLICING = "original", "free slicing"
_LABELS: Final = {
    "zipbrain": "ZIPBrain", "tome": "ToMe", "tofu": "ToFu", "evit": "EViT", "dart": "DART", "twins": "Twins",
    "free_slicing": SLICING,
}  # fmt: skip
_WRONG, _WRONG_INT8 = 1e-2, 0.5  # errors that are more than rounding, a near-tie in one window, or quantisation
_CALIBRATION: Final = 32  # windows that fix the ranges of static int8
_PACKAGES: Final = ("torch", "onnx", "onnxruntime", "onnxruntime-gpu", "onnx-tool", "openvino")

Array = NDArray[np.float32]
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Variant:
    """One network: the original, free slicing, or a method.

    Attributes
    ----------
    name : str
    method : dict or None
        JSON form; None for the original.
    counts : Counts
        Parameters, tokens and multiply-adds.
    bytes : dict of str to int
        Size of the exported file by precision.
    """

    name: str
    method: dict[str, Any] | None
    counts: Counts
    bytes: dict[str, int]

    def file_bytes(self, runtime: str) -> int | None:
        """Size of the file that a runtime opens; None for PyTorch."""
        return None if runtime.startswith("torch") else self.bytes.get(precision_of(runtime))


@dataclass(frozen=True)
class Speed:
    """One network in one runtime at one batch.

    Attributes
    ----------
    runtime, variant : str
    batch : int
    p50, p95 : float
        Seconds per call.
    to_original, to_slicing : float
        Median over rounds of the time over that of the original and of free slicing in the same runtime.
    to_reference : float or None
        The same over the float32 original in ONNX Runtime; None where that was not run.
    error : float
        Median over windows of the largest difference of a logit from PyTorch's, over the largest logit.
    memory : int or None
        Bytes at the peak, see `zipbrain.deploy.footprint`.
    seconds : tuple of float
        All measured calls.
    """

    runtime: str
    variant: str
    batch: int
    p50: float
    p95: float
    to_original: float
    to_slicing: float
    to_reference: float | None
    error: float
    memory: int | None
    seconds: tuple[float, ...]


@dataclass(frozen=True)
class Profile:
    """What `profile` found.

    Attributes
    ----------
    about : dict
        Model, shape, ratio, machine, threads, versions, rounds, load.
    variants : list of Variant
        The original first, then free slicing, then the methods.
    speeds : list of Speed
        By batch, runtime and variant.
    tracks : list of Track
        ONNX Runtime's timeline of the original and of the first method; empty if it was not asked for.
    notes : list of str
        What must be read beside the numbers.
    """

    about: dict[str, Any]
    variants: list[Variant]
    speeds: list[Speed]
    tracks: list[Track]
    notes: list[str]

    @property
    def fastest(self) -> dict[int, Speed]:
        """By batch, the shortest time relative to the float32 original in ONNX Runtime; free slicing is no method."""
        found: dict[int, Speed] = {}
        for speed in self.speeds:
            best = found.get(speed.batch)
            if speed.variant == SLICING or speed.to_reference is None:
                continue
            if best is None or speed.to_reference < (best.to_reference or 0):
                found[speed.batch] = speed
        return found

    def rows(self) -> list[dict[str, Any]]:
        """One flat row per runtime, network and batch, for CSV and pictures."""
        variants = {variant.name: variant for variant in self.variants}
        base = self.variants[0].counts
        rows = []
        for speed in self.speeds:
            variant = variants[speed.variant]
            counts = variant.counts
            rows.append({
                "model": self.about["model"], "ratio": self.about["ratio"], "batch": speed.batch,
                "runtime": speed.runtime, "title": TITLES[speed.runtime], "variant": speed.variant,
                "p50_ms": round(1e3 * speed.p50, 4), "p95_ms": round(1e3 * speed.p95, 4),
                "to_original": round(speed.to_original, 4), "to_slicing": round(speed.to_slicing, 4),
                "to_reference": None if speed.to_reference is None else round(speed.to_reference, 4),
                "error": float(f"{speed.error:.2e}"), "memory_bytes": speed.memory,
                "file_bytes": variant.file_bytes(speed.runtime),
                "parameters": counts.parameters, "token_counts": list(counts.token_counts), "macs_hand": counts.hand,
                "macs_onnx_tool": counts.graph.macs, "macs_torch": counts.torch,
                "saved_hand": round(1 - counts.hand / base.hand, 5),
                "saved_onnx_tool": _rounded(counts.graph.saved(base.graph)),
                "saved_torch": round(1 - counts.torch / base.torch, 5),
                "rounds": len(speed.seconds), "threads": self.about["threads"],
            })  # fmt: skip
        return rows

    def to_dict(self) -> dict[str, Any]:
        """Everything, for JSON."""
        return {
            "about": self.about,
            "variants": [
                {"name": v.name, "method": v.method, "counts": v.counts.to_dict(), "bytes": v.bytes}
                for v in self.variants
            ],
            "speeds": [asdict(speed) for speed in self.speeds],
            "tracks": [track.to_dict() for track in self.tracks],
            "notes": self.notes,
        }


def profile(
    model: nn.Module,
    windows: Windows | Tensor | Array,
    *,
    ratio: float | str = 0.8,
    methods: Iterable[object] = METHODS,
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
    progress: Progress | None = None,
) -> Profile:
    """Count and time a model, its free slicing and its compressed forms.

    Parameters
    ----------
    model : nn.Module
        LaBraM, EEGPT, BIOT or TFM; stays as it is. If it is compressed, the network underneath is taken.
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
        CPU threads of every runtime; as many as the process may use if not given.
    runtimes : sequence of str, optional
        See `zipbrain.deploy.runtimes.TITLES`; the usual ones that can be used here if not given.
    rounds, warmup : int
        Calls that count and calls before them that don't; the paper has 32 of each.
    memory : bool
        Measure peak memory, one process for each (Linux).
    onnx_tool : bool
        Count with onnx-tool too.
    timeline : bool
        Take ONNX Runtime's timeline of the original and of the first method at the first batch.
    progress : callable, optional
        Called with what is done next, the steps done and all steps.
    """
    sizes = _positive("batches", batches)
    _positive("rounds", [rounds])
    _positive("warmup", [warmup], least=0)
    cores = available_threads() if threads is None else _positive("threads", [threads])[0]
    names = read_runtimes(usual() if runtimes is None else runtimes)
    x = _scaled(model, windows)
    candidates, ratio = _candidates(model, x, ratio, methods, recipe)
    more = _candidates(model, x, ratio, in_first_only, None)[0][2:] if recipe is None else []
    if twice := {one.name for one in candidates} & {one.name for one in more}:
        raise OptionError("in_first_only", sorted(twice), "these are among the methods already")
    candidates += more
    pairs = [(name, one) for name in names for one in candidates if name == names[0] or one not in more]
    needs_graph = onnx_tool or timeline or any(not name.startswith("torch") for name in names)
    steps = _Steps(len(candidates) * (2 if needs_graph else 1) + 2 * len(sizes) + memory + timeline, progress)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(cores)
        for candidate in candidates if needs_graph else ():
            steps.next(f"exporting {candidate.name}")
            _ = candidate.marked
        variants = []
        for candidate in candidates:
            steps.next(f"counting {candidate.name}")
            variants.append(_variant(candidate, [name for name, one in pairs if one is candidate], onnx_tool))
        speeds: list[Speed] = []
        for size in sizes:
            speeds += _timed(pairs, repeated(x, size), cores, rounds, warmup, steps)
        if memory:
            steps.next("measuring memory")
            speeds = _with_memory(speeds, candidates, cores, steps)
        tracks = []
        if timeline:
            steps.next("taking ONNX Runtime's timeline")
            shown = (candidates[0], candidates[2 if len(candidates) > 2 else 1])
            chosen = {candidate.name: candidate.marked for candidate in shown}
            tracks = timelines(chosen, repeated(x, sizes[0]), threads=cores)
        steps.end()
    finally:
        torch.set_num_threads(before)
    about = {
        "model": model_name(model), "ratio": ratio, "channels": x.shape[1], "samples": x.shape[2],
        "batches": list(sizes), "threads": cores, "rounds": rounds, "warmup": warmup, **_machine(),
    }  # fmt: skip
    notes = [*_notes(variants, names, memory), *_wrong(speeds)]
    if is_compressed(model):
        notes.append("The model came compressed: the network underneath it is the original here.")
    return Profile(about, variants, speeds, tracks, notes)


def repeated(x: Array, count: int) -> Array:
    """The first windows, repeated until there are so many: (n, C, T) -> (count, C, T)"""
    return np.ascontiguousarray(np.resize(x, (count, *x.shape[1:])))


# -- what is compared --------------------------------------------------------------------------------------------------


def _scaled(model: nn.Module, windows: Windows | Tensor | Array) -> Array:
    if isinstance(windows, Windows):
        chosen = np.unique(np.linspace(0, len(windows) - 1, min(_CALIBRATION, len(windows))).astype(np.int64))
        return np.asarray(scale(windows.take(chosen), scaling_of(model_name(model), windows)), dtype=np.float32)
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
        chosen: list[Method] = [as_method(_named(method)) for method in methods]
        if any(isinstance(method, FreeSlicing) for method in chosen):
            raise OptionError("methods", "free_slicing", "it is always there: leave it out")
    else:
        found = as_recipe(Path(recipe) if isinstance(recipe, str) else recipe)
        if found is None:
            raise OptionError("recipe", recipe, "it must be a Recipe or the path of its JSON file")
        options, chosen = found.options(), [as_method(found.method)]
        ratio = found.schedule.get("ratio", json.dumps(found.schedule, sort_keys=True))
    windows = x[:_CALIBRATION]
    shape = int(x.shape[1]), int(x.shape[2])
    made = [Candidate(ORIGINAL, base, shape, windows)]
    for method in (FreeSlicing(), *chosen):
        given = {**options, "mass": False} if isinstance(method, FreeSlicing) else options
        name = _unused(_LABELS.get(method.name, method.name), made)
        made.append(Candidate(name, compress(copy.deepcopy(base), method, **given), shape, windows))
    return made, ratio


def _named(method: object) -> object:
    return canonical_part(method) if isinstance(method, str) else method


def _unused(name: str, made: list[Candidate]) -> str:
    taken = {candidate.name for candidate in made}
    return next(new for new in (name, *(f"{name} {i}" for i in range(2, 100))) if new not in taken)


def _variant(candidate: Candidate, runtimes: Sequence[str], onnx_tool: bool) -> Variant:
    proto = candidate.marked.proto if onnx_tool else None
    precisions = dict.fromkeys(precision_of(name) for name in runtimes if not name.startswith("torch"))
    sizes = {precision: candidate.bytes(precision) for precision in precisions}
    method = describe(candidate.network)["method"] if is_compressed(candidate.network) else None
    return Variant(candidate.name, method, count(candidate.network, candidate.shape, proto), sizes)


# -- time and memory ---------------------------------------------------------------------------------------------------


def _timed(
    pairs: Sequence[tuple[str, Candidate]], x: Array, threads: int, rounds: int, warmup: int, steps: _Steps
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
    return float(np.median(np.abs(logits - expected).max(1)) / np.abs(expected).max())


def _speed(key: tuple[str, str], batch: int, found: dict[tuple[str, str], Timing], error: float) -> Speed:
    runtime, variant = key
    own, reference = found[key], found.get((REFERENCE, ORIGINAL))
    return Speed(
        runtime, variant, batch, own.median, own.quantile(0.95), own.ratio(found[runtime, ORIGINAL]),
        own.ratio(found[runtime, SLICING]), None if reference is None else own.ratio(reference), error, None,
        own.seconds,
    )  # fmt: skip


_PROCESS: Final = {
    "torch": "torch", "ort": "ort", "ort-int8": "ort", "ort-int8-static": "ort", "openvino": "openvino",
    "openvino-int8": "openvino", "openvino-nncf": "openvino",
}  # fmt: skip


def _with_memory(speeds: list[Speed], candidates: list[Candidate], threads: int, steps: _Steps) -> list[Speed]:
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


# -- words -------------------------------------------------------------------------------------------------------------


class _Steps:
    """Tells what is done next."""

    def __init__(self, total: int, tell: Progress | None) -> None:
        self.done, self.total, self.tell = -1, total, tell
        self.what, self.round, self.rounds = "", 0, 0

    def next(self, what: str) -> None:
        self.done += 1
        self.what, self.round = what, 0
        self.say(what)

    def tick(self) -> None:
        """One more round of the present step."""
        self.round += 1
        self.say(f"{self.what}, round {self.round} of {self.rounds}")

    def say(self, what: str) -> None:
        if self.tell is not None:
            self.tell(what, self.done, self.total)

    def end(self) -> None:
        self.done = self.total
        self.say("done")


def _positive(option: str, given: Sequence[int], least: int = 1) -> tuple[int, ...]:
    for number in given:
        if isinstance(number, bool) or not isinstance(number, int) or number < least:
            raise OptionError(option, number, f"it must be an integer of at least {least}")
    if not given:
        raise OptionError(option, list(given), "at least one is needed")
    return tuple(dict.fromkeys(given))


def _machine() -> dict[str, Any]:
    versions = {}
    for package in _PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return {
        "cpu": processor(), "cores": os.cpu_count(), "gpu": _gpu(), "load": _load(), "zipbrain": __version__,
        "python": platform.python_version(), "versions": versions,
    }  # fmt: skip


def processor() -> str:
    """The processor's name, as far as the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def _gpu() -> str | None:
    return torch.cuda.get_device_name() if torch.cuda.is_available() else None


def _load() -> float | None:
    """Processes that wanted a core during the last minute, this one included."""
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 5)


def _wrong(speeds: list[Speed]) -> list[str]:
    """A note for every pair that does not compute the network it is said to be."""
    pairs = dict.fromkeys(
        (speed.runtime, speed.variant)
        for speed in speeds
        if not speed.error <= (_WRONG if precision_of(speed.runtime) == "float32" else _WRONG_INT8)
    )
    return [
        f"{TITLES[runtime]} answers otherwise than PyTorch with {variant}: its time is not that of the same network."
        for runtime, variant in pairs
    ]


def _notes(variants: list[Variant], runtimes: Sequence[str], memory: bool) -> list[str]:
    notes = [f"FLOPs are 2 x multiply-adds. {words[0].upper()}{words[1:]}." for words in (COUNTERS["hand"],)]
    notes += [f"{words[0].upper()}{words[1:]}." for key, words in COUNTERS.items() if key != "hand"]
    if not attention_counts():
        notes[-1] += f" {NO_ATTENTION}, and our own CPU kernel for pooling too."
    for variant in variants:
        graph = variant.counts.graph
        if graph.failure and graph.failure != "not asked for":
            notes.append(f"onnx-tool on {variant.name}: {graph.failure}.")
        elif graph.uncounted:
            notes.append(f"onnx-tool on {variant.name} counts as nothing: {', '.join(graph.uncounted)}.")
    notes.append(
        "Times are from one interleaved run per batch; a ratio is the median over rounds of two calls of the same "
        "round. Free slicing drops tokens without looking at them: no method can be faster."
    )
    if memory:
        notes.append(
            "Peak memory is what a process of its own takes beyond its imports for loading the network and answering "
            "one batch."
        )
    if any(name.endswith("int8") or name.endswith("static") for name in runtimes):
        notes.append("int8: the matrix products of the blocks; scores that decide over tokens stay float32.")
    return notes
