"""`zipbrain export`: a saved model as one .onnx file that describes itself, compared with PyTorch before it is kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from zipbrain.cli.loaders import (
    cpu_threads,
    need_torch,
    open_checkpoint,
    open_windows,
    own_convention,
    say_if_unknown,
    say_notes,
    warnings_as_notes,
)
from zipbrain.cli.options import (
    ALL_METHODS,
    AsJson,
    Checkpoint,
    Data,
    Mass,
    RatioIfAny,
    how_to_pool,
    where_to_write,
    which_recipe,
)
from zipbrain.cli.progress import show_progress
from zipbrain.cli.terminal import Console
from zipbrain.errors import OptionError

if TYPE_CHECKING:
    from torch import nn

    from zipbrain.data.windows import Windows
    from zipbrain.export import Exported
    from zipbrain.recipe import Recipe
    from zipbrain.signal.convention import Convention


def export(
    checkpoint: Checkpoint,
    data: Data,
    out: Annotated[Path, where_to_write("the .onnx file")] = Path("model.onnx"),
    recipe: Annotated[Path | None, which_recipe("how to compress, in place of --method and --ratio")] = None,
    method: Annotated[
        str | None, how_to_pool(f"{ALL_METHODS}, or paper for the paper's setting for this corpus")
    ] = None,
    ratio: RatioIfAny = None,
    mass: Mass = False,
    original: Annotated[bool, typer.Option("--original", help="Without the compression that was saved.")] = False,
    precision: Annotated[
        str,
        typer.Option(
            help="Numbers in the file: float32, float16, int8-dynamic, or int8-static (calibrated on training windows)."
        ),
    ] = "float32",
    quantiser: Annotated[
        str, typer.Option(help="What makes int8-static: onnxruntime, or nncf for OpenVINO, with zipbrain[openvino].")
    ] = "onnxruntime",
    batch: Annotated[
        int | None,
        typer.Option("--batch", "--batch-size", min=1, help="Windows per call.", show_default="any number"),
    ] = None,
    split: Annotated[str, typer.Option(help="Part of the data: that on which to compare with PyTorch.")] = "test",
    limit: Annotated[int, typer.Option(min=1, help="At most so many windows: to compare on, spread evenly.")] = 290,
    opset: Annotated[int, typer.Option(min=18, help="Version of ONNX's operators.")] = 18,
    force: Annotated[
        bool, typer.Option("--force", help="Keep float16 or int8 even if its decisions or scores change too much.")
    ] = False,
    groups: Annotated[
        bool, typer.Option("--groups", help="A second output that says for every token which one it ended in.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Write a model as one .onnx file that describes itself.

    With weights, recipe, labels, channels, filters, scaling, versions and parity. The file is read back in ONNX Runtime
    and compared with PyTorch on real windows. If logits, groupings or decisions are not the same, nothing is written.

    Example: zipbrain export runs/tuab --data tuab-labram --method paper --ratio 0.8 -o tuab.onnx
    """
    need_torch()
    from zipbrain.evaluation.trial import note_differences
    from zipbrain.export import export as run
    from zipbrain.export.checks import check_path
    from zipbrain.models import task_of
    from zipbrain.seams import restore
    from zipbrain.training.checkpoints import note_unfinished

    check_path(out, "--out")
    _check_compression(recipe, method, ratio, mass, original)
    with show_progress() as progress, cpu_threads(None), warnings_as_notes():
        model, name = open_checkpoint(checkpoint)
        windows = open_windows(data, model, name, split, limit, checkpoint)
        chosen = _recipe(model, name, windows.name, recipe, method, ratio, mass)
        apart = precision == "int8-static" and split != "train"  # else `run` keeps calibration and comparison apart
        calibration = open_windows(data, model, name, "train", 64, checkpoint) if apart else None
        convention = own_convention(checkpoint) or _convention(data, model, windows)
        if original:
            restore(model)
        found = run(
            model,
            windows,
            out,
            convention=convention,
            precision=precision,
            batch=batch,
            opset=opset,
            calibration=calibration,
            force=force,
            checkpoint=Path(checkpoint).resolve().name,
            recipe=chosen,
            quantiser=quantiser,
            groups=groups,
            progress=progress,
        )
    if as_json:
        whose = "data" if task_of(model) is None else "checkpoint"
        said = json.loads(found.description.to_json())
        content = {"file": str(found.path), "bytes": found.bytes, "classes_from": whose, **said}
        print(json.dumps(content, indent=2))
    else:
        _show(found)
        if found.description.looks_twice:
            _show_certificate(found, windows)
    say_if_unknown(model, data)
    say_notes([*note_differences(model, windows), *note_unfinished(checkpoint)])


def _check_compression(recipe: Path | None, method: str | None, ratio: str | None, mass: bool, original: bool) -> None:
    """Refuse options that no model could be compressed by, before one is opened."""
    from zipbrain.evaluation.options import read_method, read_ratio
    from zipbrain.recipe import Recipe

    given = [option for option, yes in (("--method", method), ("--ratio", ratio), ("--mass", mass)) if yes]
    if recipe is not None and (given or original):
        other = (given or ["--original"])[0]
        raise OptionError(other, "with --recipe", "the recipe says all of it: give one of them")
    if original and given:
        raise OptionError("--original", f"with {given[0]}", "the original is not compressed: give one of them")
    if recipe is not None:
        Recipe.load(recipe)
    if given and ratio is None:
        raise OptionError("--ratio", None, "say how many tokens shall go, such as 0.8 or max")
    if ratio is not None:
        read_ratio(ratio, "--ratio")
    if method is not None and method.strip().lower() != "paper":  # whose setting depends on model and corpus
        read_method(method, "", "")


def _recipe(
    model: nn.Module, name: str, corpus: str, recipe: Path | None, method: str | None, ratio: str | None, mass: bool
) -> Recipe | None:
    """What the options say; None to leave the model as it was saved, or to restore it."""
    from zipbrain.evaluation.options import read_method, read_ratio
    from zipbrain.evaluation.trial import recipe_for
    from zipbrain.paper import DATASETS, known_name
    from zipbrain.recipe import Recipe

    if recipe is not None:
        return Recipe.load(recipe)
    if ratio is None:
        return None
    chosen, share = read_method(method or "zipbrain", name, corpus), read_ratio(ratio, "--ratio")
    return recipe_for(model, chosen, ratio=share, mass=mass, dataset=known_name(corpus, DATASETS))


def _convention(data: str, model: nn.Module, windows: Windows) -> Convention:
    from dataclasses import replace

    from zipbrain.data.windows import open_prepared
    from zipbrain.export import convention_of
    from zipbrain.training.window_sources import SYNTHETIC

    if data in SYNTHETIC:
        return convention_of(model, windows)
    stored = open_prepared(data).convention
    return stored if windows.scaling is None else replace(stored, scaling=windows.scaling)


def _show_certificate(found: Exported, windows: Windows) -> None:
    """What the file itself keeps of its uncompressed decisions: another precision needs a certificate of its own."""
    from zipbrain.tuning.exported import certify_file

    console = Console(highlight=False)
    try:
        lines = [*certify_file(found.path, windows).lines()][:4]
    except OptionError as error:
        lines = [f"No certificate for this file on these windows: {error}"]
    for line in lines:
        console.print(line, markup=False, soft_wrap=True)


def _show(found: Exported) -> None:
    from zipbrain.edge.audit import promised_agreement

    console, said, parity = Console(highlight=False), found.description, found.parity
    table = Table(box=SIMPLE_HEAD, show_header=False, title=f"{said.model} for {said.corpus}, {said.precision}")
    tokens = " ".join(map(str, said.token_counts))
    recipe = "none" if said.recipe is None else str(said.recipe["method"]["name"])
    table.add_row("compression", recipe)
    table.add_row("tokens", tokens or "unknown")
    table.add_row("classes", ", ".join(said.classes))
    table.add_row("windows per call", "any number" if said.batch is None else str(said.batch))
    table.add_row("compared on", f"{parity.windows} windows")
    table.add_row("decisions as in PyTorch", f"{100 * parity.agreement:.1f} %")
    grouped = said.precision == "float32" and (said.recipe is not None or parity.other_groupings)
    where = f" where groupings agree ({parity.other_groupings} don't)" if grouped else ""
    table.add_row("error of logits", f"{parity.error:.1e}{where}")
    if parity.before == parity.before:  # defined
        table.add_row(parity.metric, f"{parity.before:.4f} in PyTorch, {parity.after:.4f} in the file")
    if said.looks_twice and said.second_look is not None:
        looked = f"{parity.looked_twice} of {parity.windows} windows, margin below {said.second_look['margin']:.3g}"
        beside = f"; {parity.other_looks} in one of both alone" if parity.other_looks else ""
        table.add_row("looked twice", f"{looked}{beside}")
        if said.precision == "float32":
            table.add_row("their probabilities", f"within {parity.look_error:.1e} of PyTorch's")
        promise = promised_agreement(said)
        table.add_row("promised", "nothing" if promise is None else f"{100 * promise:.1f} % of the decisions unchanged")
    console.print(table)
    if parity.is_chance:
        words = "no better than chance on these windows: is --data what the model was trained for?"
        console.print(words, style="bold yellow", markup=False, soft_wrap=True)
    for fault in parity.faults:
        console.print(f"kept by --force: {fault}", style="bold yellow", markup=False, soft_wrap=True)
    console.print(f"Written: {found.path} ({found.bytes / 1e6:.1f} MB)", markup=False, soft_wrap=True)
