"""`zipbrain evaluate`: the paper's metrics of a saved model, compressed or not."""

from __future__ import annotations

import json
import math
import warnings
from typing import TYPE_CHECKING, Annotated

import typer

from zipbrain.cli.loaders import cpu_threads, need_torch, open_checkpoint, open_windows, say_if_unknown
from zipbrain.cli.options import AsJson, BatchSize, Checkpoint, Data, Device, Limit, Split
from zipbrain.cli.progress import show_progress
from zipbrain.cli.terminal import Console

if TYPE_CHECKING:
    from torch import nn

    from zipbrain.data.windows import Windows
    from zipbrain.evaluation.reliability import Scored
    from zipbrain.progress import Progress


def evaluate(
    checkpoint: Checkpoint,
    data: Data,
    split: Split = "test",
    compress: Annotated[
        str | None, typer.Option(help="Also with this share of the tokens removed, such as 0.8, or max.")
    ] = None,
    method: Annotated[
        str, typer.Option(help="zipbrain, tome, tofu, evit, dart, or paper: the paper's setting for this corpus.")
    ] = "zipbrain",
    batch_size: BatchSize = 128,
    device: Device = "auto",
    limit: Limit = None,
    as_json: AsJson = False,
) -> None:
    """Score a saved model on one split, in float32; with --compress, before and after compression.

    [bold]Example:[/bold] zipbrain evaluate runs/tuab/model --data tuab-labram --compress 0.8 --method paper
    """
    need_torch()
    from zipbrain import seams
    from zipbrain.evaluation.options import read_method, read_ratio
    from zipbrain.evaluation.reliability import find_doubts
    from zipbrain.evaluation.tables import Table
    from zipbrain.evaluation.trial import note_differences
    from zipbrain.files import json_ready
    from zipbrain.training.checkpoints import note_unfinished

    ratio = None if compress is None else read_ratio(compress, "--compress")
    with show_progress() as progress, cpu_threads(None):
        model, name = open_checkpoint(checkpoint)
        windows = open_windows(data, model, name, split, limit, checkpoint)
        scored = [_scored(model, windows, batch_size, device, progress)]
        if ratio is not None:
            seams.compress(seams.restore(model), read_method(method, name, windows.name), ratio=ratio)
            scored.append(_scored(model, windows, batch_size, device, progress))
    say_if_unknown(model, data)
    rows = [row for row, _ in scored]
    doubts = find_doubts([one for _, one in scored], windows.classes)
    notes = [*doubts, *note_differences(model, windows), *note_unfinished(checkpoint)]
    if as_json:
        content = {"checkpoint": str(checkpoint), "model": name, "data": windows.name, "split": split}
        print(json.dumps(json_ready({**content, "windows": len(windows), "scores": rows, "notes": notes}), indent=2))
        return
    title = f"{name} on {windows.name}, {split}: {len(windows)} windows"
    cells = [[value if isinstance(value, str) else f"{value:.4f}" for value in row.values()] for row in rows]
    table = Table.of(title, (column.replace("_", " ") for column in rows[0]), cells)
    console = Console(highlight=False)
    console.print(table.to_rich())
    for note in notes:
        console.print(note, style="yellow", soft_wrap=True, markup=False)


def _compression(model: nn.Module) -> dict[str, str | float]:
    """Method and tokens, or none, and the share of the tokens that is truly removed."""
    from zipbrain import seams

    if not seams.is_compressed(model):
        return {"compression": "none", "removed": 0.0}
    found = seams.summary(model)
    if found.token_counts is None:
        return {"compression": str(found.method["name"]), "removed": math.nan}
    before, after = found.token_counts[0], found.token_counts[-1]
    return {"compression": f"{found.method['name']}, {before} to {after} tokens", "removed": 1 - after / before}


def _scored(
    model: nn.Module, windows: Windows, batch_size: int, device: str, tell: Progress
) -> tuple[dict[str, str | float], Scored]:
    """A row of the table, and what tells whether its scores say something."""
    from zipbrain.evaluation.reliability import Scored
    from zipbrain.metrics import check, main_metric, probabilities, scores
    from zipbrain.training import predict

    compression, done = _compression(model), 0

    def tick(count: int) -> None:
        nonlocal done
        done += count
        tell(f"predicting, compression {compression['compression']}", done, len(windows))

    with warnings.catch_warnings(record=True) as remarks:
        shares = probabilities(predict(model, windows, batch_size=batch_size, device=device, tick=tick))
        found = scores(windows.labels, shares)
    for remark in remarks:
        words = f"note: {remark.message}"
        Console(stderr=True).print(words, style="yellow", soft_wrap=True, highlight=False)
    table = check(windows.labels, shares).table
    title = "the uncompressed model" if compression["compression"] == "none" else "the compressed model"
    return {**_compression(model), **found}, Scored(title, found[main_metric(len(windows.classes))], table)
