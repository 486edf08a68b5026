"""The result of a profile: networks with their counts, their speed in every runtime, and notes to read beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from zipbrain.profiling.flops import COUNTERS, NOT_ASKED, Counts, torch_sees_attention
from zipbrain.profiling.runners import RUNNERS
from zipbrain.profiling.timeline import Track

ORIGINAL, SLICING = "original", "free slicing"

_WRONG = 1e-3  # relative error of float32 that is more than rounding or a near-tie in one window
_WRONG_COARSE = 0.5  # relative error that is more than few bits


@dataclass(frozen=True)
class ProfiledNetwork:
    """One network: the original, free slicing, or a method."""

    name: str
    method: dict[str, Any] | None  # JSON form; None for the original
    counts: Counts
    bytes: dict[str, int]  # of the exported file, by precision

    def file_bytes(self, runtime: str) -> int | None:
        """Size of the file that a runtime opens; None for PyTorch."""
        runner = RUNNERS[runtime]
        return self.bytes.get(runner.precision) if runner.has_file else None


@dataclass(frozen=True)
class Speed:
    """One network in one runtime at one batch.

    Ratios are medians over rounds of the time over that of the original and of free slicing in the same runtime, and of
    the float32 original in ONNX Runtime. The error is what four of five windows stay below: the largest difference of a
    logit from PyTorch's, over the largest logit.
    """

    runtime: str
    variant: str
    batch: int
    p50: float  # seconds per call
    p95: float
    to_original: float
    to_slicing: float
    to_reference: float | None
    error: float
    memory: int | None  # bytes at the peak, see `process_memory`
    seconds: tuple[float, ...]

    @property
    def wrong(self) -> bool:
        """Whether it does not compute the network it is said to be."""
        return not self.error <= (_WRONG_COARSE if RUNNERS[self.runtime].is_coarse else _WRONG)


@dataclass(frozen=True)
class Profile:
    """What `profile` found."""

    about: dict[str, Any]  # model, shape, ratio, machine, threads, versions, rounds, load
    variants: list[ProfiledNetwork]  # the original first, then free slicing, then the methods
    speeds: list[Speed]  # by batch, runtime and variant
    tracks: list[Track]  # timelines of the original and of the first method, if asked for
    notes: list[str]  # to be read beside the numbers

    @property
    def fastest(self) -> dict[int, Speed]:
        """By batch, the shortest time relative to the float32 original in ONNX Runtime.

        Free slicing is no method, and what answers otherwise than the network is not that network.
        """
        found: dict[int, Speed] = {}
        for speed in self.speeds:
            best = found.get(speed.batch)
            if speed.variant == SLICING or speed.to_reference is None or speed.wrong:
                continue
            if best is None or speed.to_reference < (best.to_reference or 0):
                found[speed.batch] = speed
        return found

    def rows(self) -> list[dict[str, Any]]:
        """One flat row per runtime, network and batch, for CSV and pictures."""
        variants = {variant.name: variant for variant in self.variants}
        return [self._row(speed, variants[speed.variant]) for speed in self.speeds]

    def _row(self, speed: Speed, variant: ProfiledNetwork) -> dict[str, Any]:
        counts, base, title = variant.counts, self.variants[0].counts, RUNNERS[speed.runtime].title
        row = {"model": self.about["model"], "ratio": self.about["ratio"], "batch": speed.batch}
        row |= {"runtime": speed.runtime, "title": title, "variant": speed.variant}
        row |= {"p50_ms": round(1e3 * speed.p50, 4), "p95_ms": round(1e3 * speed.p95, 4)}
        row |= {"to_original": round(speed.to_original, 4), "to_slicing": round(speed.to_slicing, 4)}
        row |= {"to_reference": _rounded(speed.to_reference, 4), "error": float(f"{speed.error:.2e}")}
        row |= {"memory_bytes": speed.memory, "file_bytes": variant.file_bytes(speed.runtime)}
        row |= {"parameters": counts.parameters, "token_counts": list(counts.token_counts)}
        row |= {"macs_hand": counts.hand, "macs_onnx_tool": counts.graph.macs, "macs_torch": counts.torch}
        row["saved_hand"] = round(1 - counts.hand / base.hand, 5)
        row["saved_onnx_tool"] = _rounded(counts.graph.saved(base.graph))
        row["saved_torch"] = round(1 - counts.torch / base.torch, 5)
        return row | {"rounds": len(speed.seconds), "threads": self.about["threads"]}

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


def _rounded(value: float | None, digits: int = 5) -> float | None:
    return None if value is None else round(value, digits)


def remarks(
    variants: list[ProfiledNetwork], speeds: list[Speed], runtimes: Sequence[str], *, memory: bool
) -> list[str]:
    """Notes to read beside the numbers; `memory`: whether it was measured."""
    notes = [f"FLOPs are 2 x multiply-adds. {COUNTERS['hand']}", COUNTERS["onnx-tool"], COUNTERS["torch"]]
    if not torch_sees_attention():
        notes[-1] += (
            " torch counts fused attention (SDPA) on this CPU as nothing, and our own CPU kernel for pooling too."
        )
    for variant in variants:
        graph = variant.counts.graph
        if graph.failure and graph.failure != NOT_ASKED:
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
    if any(RUNNERS[name].precision != "float32" for name in runtimes):
        notes.append("int8: the matrix products of the blocks; scores that decide over tokens stay float32.")
    wrong = dict.fromkeys((speed.runtime, speed.variant) for speed in speeds if speed.wrong)
    for runtime, network in wrong:
        told = f"{RUNNERS[runtime].title} answers otherwise than PyTorch with {network}: "
        if RUNNERS[runtime].precision == "float32":
            notes.append(told + "its time is left out, it would be that of another network.")
        else:
            notes.append(told + "few bits decide over tokens otherwise, most of all in an untrained network.")
    return notes


def right(speeds: list[Speed]) -> list[Speed]:
    """The speeds of networks whose answers are right at every batch, and so are those they are compared with.

    In few bits other tokens may be chosen, which takes the same time: those stay, and a note says so.
    """
    exact = [speed for speed in speeds if RUNNERS[speed.runtime].precision == "float32"]
    wrong = {(speed.runtime, speed.variant) for speed in exact if speed.wrong}
    own = {id(speed): {(speed.runtime, name) for name in (speed.variant, ORIGINAL, SLICING)} for speed in speeds}
    return [speed for speed in speeds if wrong.isdisjoint(own[id(speed)])]
