"""`zipbrain evaluate`: the paper's metrics of a saved model, and the answers that compression keeps."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from zipbrain.cli.loaders import (
    cpu_threads,
    need_torch,
    open_checkpoint,
    open_windows,
    say_if_unknown,
    warnings_as_notes,
)
from zipbrain.cli.options import (
    AsJson,
    BatchSize,
    Checkpoint,
    Data,
    Device,
    Limit,
    Method,
    RatioIfAny,
    Split,
    which_recipe,
)
from zipbrain.cli.progress import show_progress
from zipbrain.cli.terminal import Console
from zipbrain.errors import OptionError, ZipbrainError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import nn

    from zipbrain.data.windows import Windows
    from zipbrain.evaluation.reliability import Scored
    from zipbrain.evaluation.tables import Table
    from zipbrain.progress import Progress

_SHARES: Final = ("operations", "same_answer", "looked_twice", "removed")  # shown in per cent


def evaluate(
    checkpoint: Checkpoint,
    data: Data,
    split: Split = "test",
    ratio: RatioIfAny = None,
    method: Method = "zipbrain",
    recipe: Annotated[Path | None, which_recipe("scored too, in place of --ratio")] = None,
    batch_size: BatchSize = 128,
    device: Device = "auto",
    limit: Limit = None,
    as_json: AsJson = False,
) -> None:
    """Score a saved model on one split, also compressed.

    In float32; with --ratio or --recipe before and after compression. Compressed rows say how many answers stay, and
    what a recipe promises of that.

    Example: zipbrain evaluate runs/tuab/model --data tuab-labram --ratio 0.8 --method paper
    """
    need_torch()
    from zipbrain import seams
    from zipbrain.evaluation.options import read_method, read_ratio
    from zipbrain.evaluation.reliability import find_doubts
    from zipbrain.evaluation.trial import note_differences
    from zipbrain.files import json_ready
    from zipbrain.recipe import Recipe
    from zipbrain.seams.class_swap import swapped_back
    from zipbrain.training.checkpoints import note_unfinished

    share = None if ratio is None else read_ratio(ratio, "--ratio")
    if recipe is not None and share is not None:
        raise OptionError("--recipe", str(recipe), "with --ratio there are two ways to compress: give one of them")
    chosen = None if recipe is None else Recipe.load(recipe)
    with show_progress() as progress, cpu_threads(None):
        model, name = open_checkpoint(checkpoint)
        scorer = _Scorer(model, open_windows(data, model, name, split, limit, checkpoint), batch_size, device, progress)
        with swapped_back(model):
            scorer.score()
        if seams.is_compressed(model):
            scorer.score()
        if chosen is not None or share is not None:
            with warnings_as_notes():
                how: dict[str, Any] = {} if chosen is not None else {"ratio": share}
                seams.compress(seams.restore(model), chosen or read_method(method, name, scorer.windows.name), **how)
            scorer.score()
    say_if_unknown(model, data)
    windows, rows = scorer.windows, scorer.rows
    notes = [*scorer.promises, *find_doubts(scorer.scored, windows.classes), *note_differences(model, windows)]
    notes += note_unfinished(checkpoint)
    if as_json:
        content = {"checkpoint": str(checkpoint), "model": name, "data": windows.name, "split": split}
        print(json.dumps(json_ready({**content, "windows": len(windows), "scores": rows, "notes": notes}), indent=2))
        return
    console = Console(highlight=False)
    console.print(_table(f"{name} on {windows.name}, {split}: {len(windows)} windows", rows).to_rich())
    for note in notes:
        console.print(note, style="yellow", soft_wrap=True, markup=False)


def _table(title: str, rows: list[dict[str, Any]]) -> Table:
    """Columns that no row has anything to say in are left out."""
    from zipbrain.evaluation.tables import Table, number
    from zipbrain.evaluation.wording import OPERATIONS, UNCHANGED, share_text
    from zipbrain.metrics import METRICS

    def cell(name: str, value: str | float) -> str:
        if isinstance(value, str):
            return value
        if name in _SHARES:
            return share_text(value, 0 if name == "operations" else 1)
        return number(value)

    names = [name for name in rows[0] if any(isinstance(r[name], str) or not math.isnan(r[name]) for r in rows)]
    cells = ([cell(name, row[name]) for name in names] for row in rows)
    shorter = {"operations": OPERATIONS, "same_answer": UNCHANGED} | {
        name: metric.short for name, metric in METRICS.items()
    }
    return Table.of(title, (shorter.get(name, name.replace("_", "\n")) for name in names), cells)


@dataclass
class _Scorer:
    """Scores one model again and again, each time as it is compressed then; the first time without compression."""

    model: nn.Module
    windows: Windows
    batch_size: int
    device: str
    tell: Progress

    def __post_init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.scored: list[Scored] = []  # what tells whether scores say something
        self.promises: list[str] = []
        self._original: NDArray[np.float32] | None = None  # logits

    def score(self) -> None:
        """Add a row."""
        from zipbrain import metrics, seams
        from zipbrain.evaluation.reliability import Scored
        from zipbrain.evaluation.second_look import count_looks
        from zipbrain.training import predict

        windows, title, done = self.windows, _compression(self.model)["compression"], 0

        def tick(count: int) -> None:
            nonlocal done
            done += count
            self.tell(f"predicting, compression {title}", done, len(windows))

        with warnings_as_notes(), count_looks(self.model) as looks:
            logits = predict(self.model, windows, batch_size=self.batch_size, device=self.device, tick=tick)
            found = metrics.scores(windows.labels, shares := metrics.probabilities(logits))
        self._original = logits if self._original is None else self._original
        compressed = seams.is_compressed(self.model)
        same = metrics.agreement(logits, self._original) if compressed else math.nan
        about = _compression(self.model)
        row = {"compression": about["compression"], "operations": _operations(self.model, looks.second_look_share)}
        row |= {"same_answer": same, "looked_twice": looks.second_look_share}
        self.rows.append({**row, **found, "removed": about["removed"]})
        name = "the compressed model" if compressed else "the uncompressed model"
        table = metrics.check(windows.labels, shares).table
        self.scored.append(Scored(name, found[metrics.main_metric(len(windows.classes))], table))
        self._add_promise(same)

    def _add_promise(self, same: float) -> None:
        from zipbrain import seams
        from zipbrain.seal import Promise
        from zipbrain.seams.compress import origin_of
        from zipbrain.weights import fingerprint

        origin = origin_of(self.model) if seams.is_compressed(self.model) else None
        if origin is not None:
            promise = Promise.of(origin.to_dict(), fingerprint(self.model.state_dict()))
            self.promises += [] if promise is None else [f"The recipe: {promise.beside(same, len(self.windows))}."]


def _compression(model: nn.Module) -> dict[str, Any]:
    """Method and tokens, or none, and the share of the tokens that is truly removed."""
    from zipbrain import seams

    if not seams.is_compressed(model):
        return {"compression": "none", "removed": 0.0}
    found = seams.summary(model)
    if found.token_counts is None:
        return {"compression": str(found.method["name"]), "removed": math.nan}
    before, after = found.token_counts[0], found.token_counts[-1]
    return {"compression": f"{found.method['name']}, {before} to {after} tokens", "removed": 1 - after / before}


def _operations(model: nn.Module, looked: float) -> float:
    """Operations over the uncompressed model's, pooling and second looks included; NaN where they can't be counted."""
    from zipbrain import seams
    from zipbrain.profiling.flops import hand_flops

    if not seams.is_compressed(model):
        return 1.0
    try:
        return hand_flops(model).operations(0.0 if math.isnan(looked) else looked)
    except ZipbrainError:
        return math.nan
