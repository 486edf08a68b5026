"""`zipbrain profile`: FLOPs, memory and latency of a model in every runtime, with a waterfall and a timeline."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.padding import Padding

from zipbrain.cli.any_model import ConventionFile, Weights, chosen_model
from zipbrain.cli.loaders import need_torch, open_checkpoint, open_windows, split_names
from zipbrain.cli.options import (
    ALL_METHODS,
    AsJson,
    DataIfAny,
    Methods,
    OnnxTool,
    Ratio,
    Rounds,
    Threads,
    TimeBudget,
    where_to_write,
    which_model,
    which_recipe,
    which_runtime,
)
from zipbrain.cli.progress import show_progress
from zipbrain.cli.terminal import Console
from zipbrain.errors import DataError, MissingExtra, OptionError

if TYPE_CHECKING:
    import torch
    from torch import nn

    from zipbrain.data.windows import Windows
    from zipbrain.evaluation.tables import Table
    from zipbrain.models import Build
    from zipbrain.profiling.profile import Profile

_COUNTERS = ("GFLOP\nby hand", "GFLOP\nonnx-tool", "GFLOP\ntorch")
_RATIOS = ("times\nas fast", "as fast\nas slicing", "as fast as\nfloat32\noriginal\nin ORT")
_SPEEDS = ("runtime", "network", "p50 ms", "p95 ms", *_RATIOS, "peak\nMB", "file\nMB")
_OUTPUTS = {"tuab": 1, "tuev": 6, "isruc": 5, "eareeg": 5, "eegmat": 1}


def profile(
    checkpoint: Annotated[
        Path | None, typer.Argument(help="Folder of a run of finetune, or of a saved model; or give --model.")
    ] = None,
    data: DataIfAny = None,
    model: Annotated[
        str | None,
        which_model("instead of CHECKPOINT labram, eegpt, biot, tfm or cbramod with random weights, or file.py:build"),
    ] = None,
    weights: Weights = None,
    convention: ConventionFile = None,
    corpus: Annotated[
        str, typer.Option(help="Corpus whose shape --model gets: TUAB, TUEV, ISRUC, EarEEG, EEGMAT.")
    ] = "TUAB",
    ratio: Ratio = "0.8",
    recipe: Annotated[Path | None, which_recipe("in place of --ratio and --method")] = None,
    methods: Methods = ALL_METHODS,
    batch: Annotated[
        str, typer.Option("--batch", "--batch-size", help="Windows per call: several with commas between.")
    ] = "1,32",
    threads: Threads = None,
    runtimes: Annotated[
        str | None,
        which_runtime(
            "any of torch, torch-compile, torch-cuda, torch-cuda-graph, ort, ort-int8, ort-int8-static, ort-cuda, "
            "ort-cuda-graph, openvino, openvino-bf16, openvino-int8, openvino-nncf; if not given, torch, ort, ort-int8 "
            "and openvino as far as installed"
        ),
    ] = None,
    rounds: Rounds = 32,
    warmup: Annotated[int, typer.Option(min=0, help="Calls of every row that come before the timed ones.")] = 32,
    time_budget: TimeBudget = 120.0,
    memory: Annotated[bool, typer.Option(help="Measure peak memory, each in a process of its own.")] = True,
    onnx_tool: OnnxTool = True,
    timeline: Annotated[
        bool, typer.Option(help="Draw ONNX Runtime's timeline of the original and the first method.")
    ] = True,
    out: Annotated[Path, where_to_write("tables, pictures and the trace")] = Path("profile"),
    as_json: AsJson = False,
) -> None:
    """Measure time, memory and FLOPs in every runtime.

    Of the original, of free slicing and of the compressed model, in one run. Writes profile.csv, .json and .md,
    waterfall.png and .svg, timeline.png and .svg, and trace.json, which ui.perfetto.dev and chrome://tracing open.

    Example: zipbrain profile runs/tuab --data tuab-labram --method zipbrain --threads 2

    Example: zipbrain profile --model labram --corpus TUAB --ratio 0.8 --runtime ort,ort-int8
    """
    need_torch()
    from zipbrain.data.windows import Windows
    from zipbrain.edge.writers import check_writable
    from zipbrain.evaluation.options import read_ratio
    from zipbrain.evaluation.trial import note_differences
    from zipbrain.profiling.profile import profile as run

    asked = [] if recipe is not None else split_names(methods)
    if recipe is not None and not recipe.is_file():
        raise OptionError("--recipe", str(recipe), "there is no such file: the search writes one as recipe.json")
    share, sizes = read_ratio(ratio, "--ratio"), _numbers("--batch", batch)
    with show_progress() as progress:
        network, windows, name = _opened(_model(checkpoint, model, weights, convention), data, corpus)
        check_writable(out)  # before minutes of measuring
        found = run(
            network,
            windows,
            ratio=share,
            methods=asked,
            recipe=recipe,
            batches=sizes,
            threads=threads,
            runtimes=None if runtimes is None else split_names(runtimes),
            rounds=rounds,
            warmup=warmup,
            memory=memory,
            onnx_tool=onnx_tool,
            timeline=timeline,
            time_budget=time_budget,
            progress=progress,
        )
    tables = tables_of(found, name)
    if isinstance(windows, Windows):
        found.notes.extend(note_differences(network, windows))
    written, remarks = _write(found, tables, name, out)
    if as_json:
        from zipbrain.files import json_ready

        content = {**found.to_dict(), "notes": [*found.notes, *remarks], "files": [str(path) for path in written]}
        print(json.dumps(json_ready(content), indent=2))
        return
    console = Console(highlight=False)
    for grid in tables:
        console.print(grid.to_rich())
    for line in (*_headlines(found), *found.notes, *remarks):
        console.print(Padding(line, (0, 0, 0, 2)), style="dim", markup=False)
    console.print(f"\nWritten: {', '.join(str(path) for path in written)}", soft_wrap=True, markup=False)


# -- what is profiled --------------------------------------------------------------------------------------------------


def _model(
    checkpoint: Path | None, model: str | None, weights: Path | None, convention: Path | None
) -> Path | Build | str:
    """The folder of a saved model, the function of another one, or the name of one of ours."""
    if (checkpoint is None) == (model is None):
        given = None if checkpoint is None else str(checkpoint)
        raise OptionError("CHECKPOINT", given, "give either the folder of a model or --model, not both or neither")
    if model is not None and ":" not in model:
        chosen_model(Path(model), None, weights, convention)
        return model
    return chosen_model(checkpoint, model, weights, convention)


def _opened(
    checkpoint: Path | Build | str, data: str | None, corpus: str
) -> tuple[nn.Module, Windows | torch.Tensor, str]:
    """The network, windows for it, and what to call it."""
    import torch

    generator = torch.Generator().manual_seed(0)
    if not isinstance(checkpoint, str):
        network, name = open_checkpoint(checkpoint)
        if data is not None:
            return network, open_windows(data, network, name, "test", 64, checkpoint), f"{checkpoint} on {data}"
        return network, torch.randn(32, *_shape(network), generator=generator), f"{checkpoint} on noise"
    if data is not None:
        raise OptionError("--data", data, "a model with random weights is run on noise: leave it out")
    network = paper_model(checkpoint, corpus)
    words = f"{type(network).__name__} at the shape of {corpus}, random weights, noise"
    return network, torch.randn(32, *_shape(network), generator=generator), words


def paper_model(name: str, corpus: str) -> nn.Module:
    """A model with random weights for the windows of one of the paper's corpora; what it costs depends on no weight."""
    import torch

    from zipbrain.data.corpora import convention
    from zipbrain.models import create

    how, key = convention(name, corpus), corpus.lower()
    if key not in _OUTPUTS:
        raise OptionError("--corpus", corpus, f"it must be one of {', '.join(_OUTPUTS)}")
    options: dict[str, Any] = {"n_outputs": _OUTPUTS[key], "n_times": how.n_times}
    if how.model in ("labram", "eegpt"):
        options["ch_names"] = list(how.ch_names)
    else:
        options["n_chans"] = len(how.ch_names)
    if how.model == "eegpt" and key in ("tuab", "tuev"):
        options["front_end"] = key
    torch.manual_seed(0)
    return create(how.model, **options).eval()


def _shape(network: Any) -> tuple[int, int]:
    config = getattr(network, "config", None)
    if not isinstance(config, dict) or "n_times" not in config:
        raise OptionError("--data", None, f"{type(network).__name__} does not say what windows it reads: give some")
    channels = len(config["ch_names"]) if config.get("ch_names") else config["n_chans"]
    return int(channels), int(config["n_times"])


def _numbers(option: str, given: str) -> list[int]:
    try:
        return [int(part) for part in split_names(given)]
    except ValueError:
        raise OptionError(option, given, "it must be whole numbers with commas between, such as 1,32") from None


# -- tables and files --------------------------------------------------------------------------------------------------


def tables_of(found: Profile, name: str) -> list[Table]:
    """What each network costs by count, and how long it takes at each batch."""
    from zipbrain.evaluation.tables import Table

    about, base = found.about, found.variants[0].counts
    columns = ("network", "parameters", "tokens\nleft", *(word for counter in _COUNTERS for word in (counter, "saved")))
    lines = []
    for variant in found.variants:
        counts = variant.counts
        cells = [
            variant.name,
            f"{counts.parameters / 1e6:.2f} M",
            f"{counts.token_counts[-1]}/{counts.token_counts[0]}",
        ]
        pairs = ((counts.hand, base.hand), (counts.graph.macs, base.graph.macs), (counts.torch, base.torch))
        for own, whole in pairs:
            cells += (
                ["-", "-"]
                if own is None
                else [f"{2 * own / 1e9:.3g}", f"{100 * (1 - own / whole):.1f} %" if whole else "-"]
            )
        lines.append(cells)
    title = f"One window, {about['ratio']} of the tokens removed: {name}"
    tables = [Table.of(title, columns, lines)]
    for batch in about["batches"]:
        tables.append(_speeds(found, batch))
    return tables


def _speeds(found: Profile, batch: int) -> Table:
    from zipbrain.evaluation.tables import Group, Row, Table
    from zipbrain.evaluation.wording import speed_text
    from zipbrain.profiling.runners import RUNNERS

    about = found.about
    variants = {variant.name: variant for variant in found.variants}
    groups = []
    for runtime in dict.fromkeys(speed.runtime for speed in found.speeds):
        lines: list[Row] = []
        for speed in found.speeds:
            if (speed.runtime, speed.batch) != (runtime, batch):
                continue
            size = variants[speed.variant].file_bytes(runtime)
            cells = [f"{1e3 * seconds:.2f}" for seconds in (speed.p50, speed.p95)]
            cells += [speed_text(time) for time in (speed.to_original, speed.to_slicing, speed.to_reference)]
            cells.append("-" if speed.memory is None else f"{speed.memory / 1e6:.0f}")
            cells.append("-" if size is None else f"{size / 1e6:.1f}")
            lines.append(Row(("" if lines else RUNNERS[runtime].title, speed.variant, *cells)))
        groups.append(Group("", tuple(lines)))
    cores = f"{about['threads']} thread{'s' * (about['threads'] != 1)}"
    title = f"Batch {batch}, {cores}, {about['rounds']} calls after {about['warmup']}, {about['cpu']}"
    return Table(title, _SPEEDS, tuple(groups), words=2)


def _headlines(found: Profile) -> list[str]:
    from zipbrain.evaluation.wording import speed_text
    from zipbrain.profiling.runners import RUNNERS

    lines = [
        f"Fastest at batch {batch}: {best.variant} in {RUNNERS[best.runtime].title}, {speed_text(best.to_reference)} "
        "times as fast as the float32 original in ONNX Runtime."
        for batch, best in found.fastest.items()
    ]
    for track in found.tracks[1:]:
        parts = track.by_part()
        share = parts.get("pooling", 0.0) / sum(parts.values())
        lines.append(
            f"Pooling takes {share:.1%} of {track.name}'s operators' time in ONNX Runtime, batch {track.batch}."
        )
    return lines


def _write(found: Profile, tables: list[Table], name: str, folder: Path) -> tuple[list[Path], list[str]]:
    """Write everything into a folder, numbers before pictures; these only where matplotlib is installed."""
    from zipbrain.evaluation.tables import csv_text, markdown_of
    from zipbrain.files import json_ready
    from zipbrain.profiling.timeline import trace_file

    contents = {
        "profile.json": (json.dumps(json_ready(found.to_dict()), indent=1) + "\n").encode(),
        "profile.csv": csv_text(found.rows()).encode(),
        "profile.md": markdown_of(tables, [*_headlines(found), *found.notes]).encode(),
    }
    if found.tracks:
        contents["trace.json"] = json.dumps(trace_file(found.tracks)).encode()
    written = _stored(contents, folder)
    try:
        return written + _stored(_pictures(found, name), folder), []
    except MissingExtra as missing:
        return written, [f"No pictures: {missing}"]


def _stored(contents: dict[str, bytes], folder: Path) -> list[Path]:
    from zipbrain.files import write_whole

    for file, content in contents.items():
        try:
            folder.mkdir(parents=True, exist_ok=True)
            write_whole(folder / file, content)
        except OSError as error:
            raise DataError(f"{folder / file}: it can't be written ({error.strerror or error})") from None
    return [folder / file for file in contents]


def _pictures(found: Profile, name: str) -> dict[str, bytes]:
    from zipbrain.evaluation.plots.runtimes import waterfall
    from zipbrain.evaluation.plots.timeline import profile_timeline

    about = found.about
    figures = {"waterfall": waterfall(found.rows(), f"{name}, {about['threads']} threads")}
    if found.tracks:
        tracks = [track.to_dict() for track in found.tracks]
        words = f"ONNX Runtime, float32, batch {tracks[0]['batch']}, {about['threads']} threads: {name}"
        figures["timeline"] = profile_timeline(tracks, words)
    contents = {}
    for file, figure in figures.items():
        for ending in ("png", "svg"):
            stream = io.BytesIO()
            figure.savefig(stream, format=ending, dpi=150, metadata={"Date": None} if ending == "svg" else {})
            contents[f"{file}.{ending}"] = stream.getvalue()
    return contents
