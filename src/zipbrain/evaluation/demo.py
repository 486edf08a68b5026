"""What `zipbrain demo` shows: a small trained model on made-up EEG, every method at some ratios, pictures, a report."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from time import perf_counter
from typing import Any, Final

import numpy as np
import torch

from zipbrain.cores import free_cores
from zipbrain.data.synthetic import Synthetic
from zipbrain.data.windows import Windows
from zipbrain.defaults import KEPT_AGREEMENT
from zipbrain.errors import DataError, OptionError
from zipbrain.evaluation.comparison import Comparison, compare
from zipbrain.evaluation.comparison_tables import heading, label, operations, percent, removed_text, times_as_fast
from zipbrain.evaluation.options import TUNED as TUNED_LABEL
from zipbrain.evaluation.options import read_ratios
from zipbrain.evaluation.recommendation import is_faster
from zipbrain.evaluation.report import write_report
from zipbrain.evaluation.report.example import example_sections
from zipbrain.evaluation.store import Store
from zipbrain.evaluation.tables import Group, Row, Table, best_of, number
from zipbrain.evaluation.wording import NOTHING, OPERATIONS, TIMES_AS_FAST, UNCHANGED, share_text, speed_text
from zipbrain.files import scratch_folder, write_whole
from zipbrain.pretrained import from_pretrained
from zipbrain.profiling.machine import torch_threads
from zipbrain.progress import Progress, silent
from zipbrain.seal import Promise, count_text

RECIPE: Final = "recipe-0.8.json"  # ZIPBrain's setting that a search found for the model on validation windows
TUNED: Final = "tuned.json"  # a recipe of `zipbrain tune` for the model, made on other made-up people
_NO_FASTER: Final = "No faster on this machine,"
_FOLLOWED: Final = 40  # windows whose tokens are followed for the pictures
_BATCH: Final = 8  # windows of a timed call
_OWN: Final = (
    "95 %",
    "Not timed",
    "Operations:",
    "Looked twice:",
    "Times as fast:",
)  # notes that the demo words in its own way


@dataclass(frozen=True)
class Demonstration:
    """What a demonstration found and wrote."""

    comparison: Comparison  # without mass, with the tuned recipe if the model has one; measured now
    model: Path  # folder with the model that was used, and with the recipe of ZIPBrain's setting
    report: Path  # the HTML page
    picture: Path  # the merge map of one window
    files: tuple[Path, ...]  # all that were written
    threads: int  # of the CPU
    seconds: float  # that all of it took


def demonstrate(
    out: str | Path,
    *,
    windows: int = 120,
    ratios: Iterable[object] = (0.4, 0.8),
    rounds: int = 8,
    threads: int | None = None,
    time_budget: float = math.inf,
    agree: float = KEPT_AGREEMENT,
    progress: Progress | None = None,
) -> Demonstration:
    """Compare all methods on the demo model, a LaBraM trained on synthetic events, on a CPU.

    Parameters
    ----------
    out : path
        Folder for the model, the report and its pictures; an older report in it is overwritten.
    windows : int
        At most so many test windows are scored, spread evenly over the split.
    ratios : iterable of float or "max"
        Shares of the tokens to remove.
    rounds : int
        Timed calls of every method.
    threads : int, optional
        CPU threads; as many as cores are free if not given, of those that torch uses.
    time_budget, agree
        As in `compare`.
    progress : callable, optional
        See `zipbrain.progress`.
    """
    started = perf_counter()
    shares, out = read_ratios(ratios), Path(out)
    tell = progress or silent
    tell("making windows", 0, 0)
    folder = copy_model(out / "model")
    model = from_pretrained(folder)
    split = Synthetic("events").split("test")
    places = np.linspace(0, len(split) - 1, min(windows, len(split))).astype(np.int64)
    used = threads or min(torch.get_num_threads(), free_cores())
    with torch_threads(used), scratch_folder() as fresh:  # an older run's store would answer in place of a measurement
        store = Store(fresh)
        timed: dict[str, Any] = {"latency_batch": _BATCH, "latency_rounds": rounds, "threads": used}
        timed |= {"time_budget": time_budget, "agree": agree, "progress": tell}
        chosen: dict[str, Any] = {"ratios": shares, "mass": "off", "checkpoint": str(folder)}
        chosen |= {"setting": folder / RECIPE, "tuned": folder / TUNED if (folder / TUNED).is_file() else None}
        found = compare(model, split.select(places), store=store, device="cpu", batch_size=32, **chosen, **timed)
        followed: dict[str, Any] = {"window": _eventful(split), "most": min(windows, _FOLLOWED)}
        sections = example_sections(model, split, store.records(), device="cpu", progress=tell, **followed)
        tell("writing the report", 0, 0)
        written = write_report(store.folder, out, sections)
    report, picture = out / "report.html", out / "figures" / "merge-map.png"
    everything = (*sorted(folder.iterdir()), *written.files)
    return Demonstration(found, folder, report, picture, everything, used, perf_counter() - started)


def copy_model(folder: Path) -> Path:
    """Copy the demo model out of the package, so that other commands can be given its folder.

    Files that are there already stay if they are the same; others are not overwritten but refused.
    """
    for part in sorted((files("zipbrain") / "demo_model").iterdir(), key=lambda part: part.name):
        if not part.is_file():
            continue
        target, content = folder / part.name, part.read_bytes()
        try:
            if not target.exists():
                folder.mkdir(parents=True, exist_ok=True)
                write_whole(target, content)
            elif target.read_bytes() != content:
                raise OptionError(
                    "--out", str(folder.parent), f"its model/{part.name} is another: choose another folder"
                )
        except OSError as error:
            raise DataError(
                f"{target}: it can't be written ({error.strerror or error}); choose another --out"
            ) from None
    return folder


def table(found: Comparison) -> Table:
    """Speed, operations, decisions, accuracy and tokens of a comparison in one table that fits 80 columns."""
    task = found.task
    heads = ("Method", TIMES_AS_FAST, OPERATIONS, UNCHANGED, "accu-\nracy", "kappa", "tokens\nleft")
    groups = []
    for ratio in dict.fromkeys((row.ratio, row.is_original) for row in found.rows):
        rows = [row for row in found.rows if (row.ratio, row.is_original) == ratio]
        best = [best_of(row.scores[name] for row in rows) for name in ("accuracy", "kappa")]
        lines = []
        for place, row in enumerate(rows):
            cells = [label(row), times_as_fast(found, row), operations(row)]
            cells.append(NOTHING if row.is_original else share_text(row.agreement))
            cells += [number(row.scores[name], ".3f") for name in ("accuracy", "kappa")]
            cells.append(f"{row.token_counts[-1]}")
            marked = frozenset(column for column, places in enumerate(best, 4) if place in places)
            lines.append(Row(tuple(cells), best=marked))
        words = "" if rows[0].is_original else f"{heading(ratio[0])}, {removed_text(rows)} removed"
        groups.append(Group(words, tuple(lines)))
    title = f"{task['model']} on {task['dataset']}, {task['windows']} test windows of {task['subjects']} subjects"
    return Table(title, heads, tuple(groups))


def notes(found: Comparison) -> list[str]:
    """What must be read beside the table: the comparison's notes on columns that it has, and those on its own."""
    lines = [note for note in found.notes if note != found.recommendation and not note.startswith(_OWN)]
    timing, hand, looked = found.timing, found.original.hand, [row.looked for row in found.rows if row.looked > 0]
    lines += [f"Tuned: {100 * share:.0f} % of the windows looked twice." for share in looked]
    threads = f"{timing['threads']} thread{'s' * (timing['threads'] != 1)}"
    total = "" if hand is None else f" ({2 * hand.original / 1e9:.2f} GFLOP)"
    lines.append(
        f"Times as fast: as the original; torch, batch {timing['batch']}, {threads}, {timing['device']}, median of "
        f"{timing['rounds']} calls made in turn{_resolution(found)}. Operations: of the original's{total}, matrix "
        f"products of the blocks and of pooling{', second looks included' if looked else ''}. Tokens left: after the "
        f"last block, of {found.original.token_counts[0]}."
    )
    if found.untimed:
        ratios = ", ".join(percent(ratio) for ratio in found.untimed)
        lines.append(f"Not timed: {ratios}; --time-budget gives more seconds for it.")
    return [*lines, "Small differences between methods are chance: report.html has 95 % intervals over subjects."]


def _resolution(found: Comparison) -> str:
    """What difference of times is none, by the noise of the timing; nothing where that is not known."""
    noise = [row.latency["noise"] for row in found.rows if row.latency is not None and "noise" in row.latency]
    usual = math.sqrt(2) * statistics.median(noise) if noise else 0.0  # of a difference of two times
    return f"; times that differ by less than {share_text(usual, 0)} of the original's are alike" if noise else ""


def headline(found: Comparison) -> str:
    """What the tuned recipe gained and kept, as measured and as promised; empty if there is none."""
    row = next((row for row in found.rows if row.label == TUNED_LABEL), None)
    if row is None:
        return ""
    windows = found.task["windows"]
    if row.latency is None:
        gain = f"{share_text(row.operations, 0)} of the operations"
    else:
        gain = f"{speed_text(row.latency['to_original'])} times as fast" if is_faster(row) else _NO_FASTER
    promise = Promise.of(row.recipe, found.task["weights_sha256"])
    if promise is None:
        return f"{gain} with the decisions unchanged in {count_text(row.agreement, windows)}"
    kept = f"{gain} with {promise.percent} of the decisions unchanged"
    return f"{kept} ({promise.terms}, made up as all here; on others, now: {count_text(row.agreement, windows)})"


def sentence(found: Comparison) -> str:
    """What ZIPBrain did at the largest ratio, in words."""
    row = [row for row in found.rows if row.method == "zipbrain"][-1]
    before, after = row.token_counts[0], row.token_counts[-1]
    words = f"ZIPBrain with {after} of {before} tokens left"
    original = found.original.scores["kappa"]
    words += f" keeps {share_text(row.scores['kappa'] / original)} of the kappa" if original > 0 else ""
    return f"{words}, {speed_text(row.latency['to_original'])} times as fast." if row.latency else f"{words}."


def _eventful(windows: Windows) -> int:
    """The first window with a spike, an event of few tokens, in which no channel is dead or drowns all others."""
    spikes = np.flatnonzero(windows.labels == windows.classes.index("SPSW"))
    size = windows.take(spikes).std(2)  # (spikes, channels), uV
    sound = (size.min(1) > 0) & (size.max(1) < 4 * np.median(size, 1))
    return int(spikes[np.argmax(sound)])
