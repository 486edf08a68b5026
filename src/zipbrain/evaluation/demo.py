"""What `zipbrain demo` shows: a small trained model on made-up EEG, every method at some ratios, pictures, a report."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from time import perf_counter
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn

from zipbrain.data.synthetic import Synthetic
from zipbrain.data.windows import Windows
from zipbrain.errors import DataError, OptionError
from zipbrain.evaluation.comparison import Comparison, Progress, compare
from zipbrain.evaluation.comparison_tables import label, percent
from zipbrain.evaluation.options import read_ratios
from zipbrain.evaluation.report import write_report
from zipbrain.evaluation.report.example import example_sections
from zipbrain.evaluation.result import Result
from zipbrain.evaluation.store import Store
from zipbrain.evaluation.tables import NOTHING, Group, Row, Table, best_of, number
from zipbrain.files import scratch_folder, write_whole
from zipbrain.paper import METHODS
from zipbrain.pretrained import from_pretrained
from zipbrain.profiling import interleaved

RECIPE: Final = "recipe-0.8.json"  # ZIPBrain's setting that a search found for the model on validation windows
_FOLLOWED: Final = 40  # windows whose tokens are followed for the pictures
_BATCH: Final = 8  # windows of a timed call


@dataclass(frozen=True)
class Demonstration:
    """What a demonstration found and wrote."""

    comparison: Comparison  # without mass, measured now
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
        CPU threads; torch's choice if not given, or one where that is quicker.
    progress : callable, optional
        Called with what is done next, steps done, and steps in all.
    """
    started = perf_counter()
    shares, out = read_ratios(ratios), Path(out)
    say = _Say(progress, pictures=4 + len(shares) * len(METHODS))
    say("making windows")
    folder = copy_model(out / "model")
    model = from_pretrained(folder)
    split = Synthetic("events").split("test")
    places = np.linspace(0, len(split) - 1, min(windows, len(split))).astype(np.int64)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads or _quicker_threads(model, split, before))
        used = torch.get_num_threads()
        with scratch_folder() as fresh:  # an older run's store would answer in place of a measurement
            store = Store(fresh)
            timed: dict[str, Any] = {"latency_batch": _BATCH, "latency_rounds": rounds, "progress": say.compared}
            chosen: dict[str, Any] = {
                "ratios": shares,
                "setting": folder / RECIPE,
                "mass": "off",
                "checkpoint": str(folder),
            }
            found = compare(model, split.select(places), store=store, device="cpu", batch_size=32, **chosen, **timed)
            followed: dict[str, Any] = {"window": _eventful(split), "most": min(windows, _FOLLOWED)}
            sections = example_sections(model, split, store.records(), device="cpu", progress=say, **followed)
            say("writing the report")
            written = write_report(store.folder, out, sections)
    finally:
        torch.set_num_threads(before)
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
    """Accuracy, cost and agreement of a comparison in one table that fits 80 columns."""
    task = found.task
    heads = ("Method", "accuracy", "kappa", "tokens\nleft", "GFLOP a\nwindow", "speed", "same\nanswer")
    groups = []
    for ratio in dict.fromkeys(row.ratio for row in found.rows):
        rows = [row for row in found.rows if row.ratio == ratio]
        best = [best_of(row.scores[name] for row in rows) for name in ("accuracy", "kappa")]
        lines = []
        for place, row in enumerate(rows):
            cells = [label(row), *(number(row.scores[name], ".3f") for name in ("accuracy", "kappa"))]
            cells += [f"{row.token_counts[-1]}", NOTHING if row.hand is None else f"{2 * row.hand.macs / 1e9:.2f}"]
            cells += [NOTHING if row.latency is None and ratio is not None else f"{_speed(row):.2f}×"]
            cells += [NOTHING if ratio is None else f"{row.agreement:.1%}"]
            marked = frozenset(column for column, places in enumerate(best, 1) if place in places)
            lines.append(Row(tuple(cells), best=marked))
        heading = f"{percent(ratio)} asked, {100 * max(row.removed for row in rows):.1f} % removed"
        groups.append(Group("" if ratio is None else heading, tuple(lines)))
    title = f"{task['model']} on {task['dataset']}, {task['windows']} test windows of {task['subjects']} subjects"
    return Table(title, heads, tuple(groups))


def notes(found: Comparison) -> list[str]:
    """What must be read beside the table."""
    own = [note for note in found.notes if not note.startswith("95 %")]  # no intervals in this table
    return [*own, "Small differences between methods are chance: the report has 95 % intervals over subjects."]


def sentence(found: Comparison) -> str:
    """What ZIPBrain did at the largest ratio, in words."""
    row = [row for row in found.rows if row.method == "zipbrain"][-1]
    before, after = row.token_counts[0], row.token_counts[-1]
    words = f"ZIPBrain with {after} of {before} tokens left"
    original = found.original.scores["kappa"]
    words += f" keeps {row.scores['kappa'] / original:.1%} of the kappa" if original > 0 else ""
    return f"{words}, at {_speed(row):.2f}× the speed." if row.latency else f"{words}."


def _speed(row: Result) -> float:
    return 1 / row.latency["to_original"] if row.latency else 1.0


def _eventful(windows: Windows) -> int:
    """The first window with a spike, an event of few tokens, in which no channel is dead or drowns all others."""
    spikes = np.flatnonzero(windows.labels == windows.classes.index("SPSW"))
    size = windows.take(spikes).std(2)  # (spikes, channels), uV
    sound = (size.min(1) > 0) & (size.max(1) < 4 * np.median(size, 1))
    return int(spikes[np.argmax(sound)])


def _quicker_threads(model: nn.Module, windows: Windows, most: int) -> int:
    """One thread, or as many as torch took: on a busy machine threads that wait for each other are slower than one."""
    x = torch.zeros(_BATCH, windows.n_chans, windows.n_times)

    def run_with(count: int) -> Callable[[], Tensor]:
        def run() -> Tensor:
            torch.set_num_threads(count)
            answer: Tensor = model(x)
            return answer

        return run

    if most == 1:
        return 1
    with torch.inference_mode():
        found = interleaved({"one": run_with(1), "most": run_with(most)}, rounds=5, warmup=1)
    return 1 if found["one"].median < found["most"].median else most


class _Say:
    """Reports the parts of a demonstration as one row of steps: windows, comparison, pictures."""

    def __init__(self, progress: Progress | None, pictures: int) -> None:
        self.progress, self.done, self.total, self.pictures = progress, -1, 1, pictures

    def __call__(self, what: str) -> None:
        self.done += 1
        if self.progress is not None:
            self.progress(what, self.done, max(self.total, self.done))

    def compared(self, what: str, done: int, total: int) -> None:
        self.done, self.total = done, 1 + total + self.pictures
        if done < total:
            self(what)
