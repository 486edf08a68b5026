"""Where a forward spends its time: ONNX Runtime's own profile, by block, part and operator.

The profile has the time of every operator that really ran, fused ones under new names. The tensors that an operator
leaves behind say to which block and part it belongs (see `zipbrain.profiling.graph_map`).
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from zipbrain.edge.description import INPUT
from zipbrain.errors import ZipbrainError
from zipbrain.export.onnx_graph import fix_batch
from zipbrain.files import scratch_folder
from zipbrain.profiling.graph_map import MappedGraph, Place

Key = TypeVar("Key")
_NODE: Final = "_kernel_time"  # how ONNX Runtime ends the name of an operator's event


class ProfileFailed(ZipbrainError, RuntimeError):
    """ONNX Runtime's profile can't be read."""


@dataclass(frozen=True)
class Event:
    """One operator of one forward; times in microseconds from the beginning of the forward."""

    name: str
    operator: str
    block: int
    part: str
    start: float
    duration: float


@dataclass(frozen=True)
class Track:
    """One forward of one network, the median of `runs` by its microseconds; events in order of execution."""

    name: str
    duration: float
    events: tuple[Event, ...]
    blocks: int
    batch: int
    threads: int
    runs: int

    def by_place(self) -> dict[Place, float]:
        """Microseconds of every part of every block, in the order of execution."""
        return self._sums(lambda event: Place(event.block, event.part))

    def by_part(self) -> dict[str, float]:
        """Microseconds of all blocks together, by part."""
        return self._sums(lambda event: event.part)

    def by_operator(self) -> dict[tuple[str, bool], float]:
        """Microseconds by kind of operator and whether it pools, the longest first."""
        found = self._sums(lambda event: (event.operator, event.part == "pooling"))
        return dict(sorted(found.items(), key=lambda item: -item[1]))

    def _sums(self, key_of: Callable[[Event], Key]) -> dict[Key, float]:
        found: dict[Key, float] = {}
        for event in self.events:
            found[key_of(event)] = found.get(key_of(event), 0.0) + event.duration
        return found

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def timelines(
    graphs: Mapping[str, MappedGraph], x: NDArray[np.float32], *, threads: int = 1, runs: int = 15, warmup: int = 5
) -> list[Track]:
    """Run float32 graphs in turn on scaled windows (batch, C, T) under ONNX Runtime's profiler; the median of each."""
    with scratch_folder() as folder:
        sessions = {
            name: _Profiled(fix_batch(graph.proto, len(x)), folder / str(number), threads)
            for number, (name, graph) in enumerate(graphs.items())
        }
        for _ in range(warmup + runs):
            for session in sessions.values():
                session.run(x)
        return [
            Track(name, *_middle(*session.end(), graphs[name], runs), graphs[name].blocks, len(x), threads, runs)
            for name, session in sessions.items()
        ]


def trace_file(tracks: list[Track]) -> dict[str, Any]:
    """The tracks for Chrome's trace viewer and Perfetto (ui.perfetto.dev), where an operator's category is its part."""
    events: list[dict[str, Any]] = []
    for number, track in enumerate(tracks, start=1):
        words = f"{track.name}: {track.duration / 1e3:.2f} ms, batch {track.batch}, {track.threads} threads"
        events += [
            {"ph": "M", "name": "process_name", "pid": number, "args": {"name": words}},
            {"ph": "M", "name": "process_sort_index", "pid": number, "args": {"sort_index": number}},
            {"ph": "M", "name": "thread_name", "pid": number, "tid": 1, "args": {"name": "ONNX Runtime"}},
        ]
        for spans, kind in ((_spans(track, blocks=True), "block"), (_spans(track, blocks=False), "")):
            for label, part, start, end in spans:
                events.append(_slice(label, kind or part, number, start, end - start, {}))
        for event in track.events:
            about = {"node": event.name, "block": event.block, "part": event.part}
            events.append(_slice(event.operator, event.part, number, event.start, event.duration, about))
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _slice(name: str, category: str, process: int, start: float, duration: float, about: dict[str, Any]) -> Any:
    where = {"pid": process, "tid": 1, "ts": start, "dur": duration}
    return {"ph": "X", "name": name, "cat": category, **where, "args": about}


def _spans(track: Track, blocks: bool) -> list[tuple[str, str, float, float]]:
    """Stretches of operators of one block, or of one part of a block: (label, part, start, end)."""
    found: list[list[Any]] = []
    before: Any = None
    for event in track.events:
        key = event.block if blocks else (event.block, event.part)
        if blocks and not event.block:
            before = None  # the embedding and the head have no block around them
            continue
        if key != before:
            label = f"block {event.block}" if blocks else event.part
            found.append([label, event.part, event.start, event.start + event.duration])
        found[-1][3] = max(found[-1][3], event.start + event.duration)
        before = key
    return [(label, part, start, end) for label, part, start, end in found]


class _Profiled:
    """A session that writes a profile, and the graph it runs."""

    def __init__(self, proto: Any, prefix: Path, threads: int) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.enable_profiling, options.profile_file_prefix = True, str(prefix)
        self._graph = prefix.with_suffix(".onnx")
        options.optimized_model_filepath, options.log_severity_level = str(self._graph), 4
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        content = proto.SerializeToString()
        self._session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])

    def run(self, x: NDArray[np.float32]) -> None:
        self._session.run(None, {INPUT: x})

    def end(self) -> tuple[list[dict[str, Any]], Any]:
        """The events of the profile, and the graph that was run."""
        import onnx

        profile = Path(self._session.end_profiling())
        return json.loads(profile.read_text()), onnx.load(self._graph).graph


def _middle(profile: list[dict[str, Any]], ran: Any, graph: MappedGraph, runs: int) -> tuple[float, tuple[Event, ...]]:
    """Of the last `runs` forwards in a profile, the one whose time is the median."""
    whole = sorted((entry for entry in profile if entry.get("name") == "model_run"), key=lambda entry: entry["ts"])
    if len(whole) < runs:
        raise ProfileFailed(f"ONNX Runtime's profile holds {len(whole)} forwards, {runs} were made")
    whole = whole[-runs:]
    middle = statistics.median_low(entry["dur"] for entry in whole)
    chosen = next(entry for entry in whole if entry["dur"] == middle)
    start, end = chosen["ts"], chosen["ts"] + chosen["dur"]
    places = operator_places(ran, graph.places)
    events = []
    for entry in profile:
        if entry.get("cat") == "Node" and entry["name"].endswith(_NODE) and start <= entry["ts"] <= end:
            node = entry["name"].removesuffix(_NODE)
            place = places.get(node, Place(0, "head"))
            events.append(
                Event(node, entry["args"]["op_name"], *place, float(entry["ts"] - start), float(entry["dur"]))
            )
    return float(chosen["dur"]), tuple(sorted(events, key=lambda event: event.start))


def operator_places(ran: Any, places: Mapping[str, Place]) -> dict[str, Place]:
    """Where every operator of the graph that a runtime made belongs, by its name.

    By the tensors it makes, whose names survive when operators are fused. Of an operator that the runtime put in itself
    (a change of layout, a cast), by what it reads; if that is unknown too, by the operator before it.
    """
    known = dict(places)
    found: dict[str, Place] = {}
    last = Place(0, "embedding")
    for node in ran.node:
        place = next((known[name] for name in (*node.output, *node.input) if name in known), last)
        found[node.name] = last = place
        for name in node.output:
            known.setdefault(name, place)
    return found
