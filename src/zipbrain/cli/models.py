"""`zipbrain models`: list the models, fetch published weights, describe a model, convert an official checkpoint."""

from __future__ import annotations

import json
import tomllib
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from zipbrain.cli.app import App
from zipbrain.cli.options import AsJson, which_mirror
from zipbrain.cli.progress import show_progress
from zipbrain.cli.stopping import GOES_ON, when_stopped
from zipbrain.cli.terminal import Console, say
from zipbrain.errors import OptionError
from zipbrain.files import json_ready

models = App(help="List models, fetch their weights, describe or convert one.")

# What `list` shows: how each model is used on TUAB.
_TUAB = "FP1 FP2 F3 F4 C3 C4 P3 P4 O1 O2 F7 F8 T3 T4 T5 T6 A1 A2 FZ CZ PZ T1 T2"
_EXAMPLES: dict[str, dict[str, Any]] = {
    "labram": {"ch_names": _TUAB.split()},
    "eegpt": {"ch_names": _TUAB.split(), "front_end": "tuab"},
    "biot": {"n_chans": 16},
    "tfm": {"n_chans": 16},
    "cbramod": {"n_chans": 16, "head_layers": 0},
}

# Loaded without the projection of TUAB's channels, which its weights don't have.
_KNOWN_PLACES: dict[str, dict[str, Any]] = {"eegpt": {"ch_names": _TUAB.split()[:16], "front_end": None}}

Outputs = Annotated[int, typer.Option(min=1, help="Number of classes (1 for a binary logit).")]
Channels = Annotated[str, typer.Option(help="Channel names, separated by commas (LaBraM, EEGPT).")]
Count = Annotated[int, typer.Option(min=1, help="Number of channels (BIOT, TFM, CBraMod).")]
Times = Annotated[int, typer.Option(min=1, help="Samples of a window.")]


@models.command("list")
def list_models(as_json: AsJson = False) -> None:
    """List the models, with the numbers of a TUAB window.

    Example: zipbrain models list
    """
    from zipbrain.models import create

    rows: list[dict[str, Any]] = []
    for name, options in _EXAMPLES.items():
        model = create(name, n_outputs=1, **options)
        size = sum(parameter.numel() for parameter in model.parameters())
        rows.append({"model": name, "parameters": size, "tokens": model.n_tokens, **_blocks(model)})
    if as_json:
        print(json.dumps(rows, indent=1))
        return
    table = Table(box=SIMPLE_HEAD, title="As they are used on TUAB")
    for column in ("model", "parameters", "blocks", "width", "tokens", "protected"):
        table.add_column(column, justify="left" if column == "model" else "right")
    for row in rows:
        million = f"{row['parameters'] / 1e6:.1f} M"
        table.add_row(row["model"], million, *(str(row[key]) for key in ("blocks", "width", "tokens", "protected")))
    Console().print(table)


@models.command()
@when_stopped(f"what has come is in the cache; {GOES_ON}")
def download(
    model: Annotated[str, typer.Argument(help="Which model; if not given, all published weights are listed.")] = "",
    name: Annotated[str, typer.Argument(help="Which of its weights; the first if not given.")] = "",
    base_url: Annotated[str | None, which_mirror("ZIPBRAIN_WEIGHTS_URL")] = None,
    as_json: AsJson = False,
) -> None:
    """Fetch published weights and verify them.

    They are loaded too, and what became of every tensor is said. The files stay in your cache folder, or in the one
    that the environment variable ZIPBRAIN_CACHE names. With ZIPBRAIN_OFFLINE=1 what is there is used and nothing is
    fetched.

    Example: zipbrain models download

    Example: zipbrain models download labram base
    """
    if not model:
        _list_weights(as_json)
        return
    from zipbrain.models import create
    from zipbrain.models import download as fetch

    with show_progress(f"asking for the weights of {model}") as tell:
        came: dict[str, int] = {}

        def show(file: str, count: int) -> None:
            came[file] = came.get(file, 0) + count
            tell(f"fetching {file}: {came[file] / 1e6:.1f} MB", 0, 0)

        found = fetch(model, name or None, base_url=base_url, received=show)
        weights, source = found.weights, found.weights.source
        options = {"n_outputs": 1, **_EXAMPLES[weights.model], **_KNOWN_PLACES.get(weights.model, {})}
        loaded: Any = create(model, pretrained=weights.name, **options | weights.options)
    report = loaded.load_report
    if as_json:
        about: dict[str, Any] = {"weights": weights.full_name, "files": list(map(str, found.files))}
        about |= {
            "hashes": list(found.hashes),
            "fetched": found.fetched,
            "licence": source.licence,
            "cite": source.citation,
        }
        print(json.dumps({**about, "page": source.page, "report": asdict(report)}, indent=1))
        return
    published = {file.hash for file in weights.files}
    for path, value in zip(found.files, found.hashes, strict=True):
        how = "is what was published" if value in published else "no hash is published; this one was found"
        say(f"{path}\n  {path.stat().st_size / 1e6:.1f} MB, {value}: {how}")
    say(f"Licence: {source.licence}\nPlease cite: {source.citation}\nFrom: {source.page}")
    say(f"Into {type(loaded).__name__}:\n{report}")


def _list_weights(as_json: bool) -> None:
    from zipbrain.models.catalogue import CATALOGUE

    if as_json:
        rows = [{"model": w.model, "name": w.name, "trained_on": w.trained_on, **asdict(w.source)} for w in CATALOGUE]
        print(json.dumps(rows, indent=1))
        return
    table = Table(box=SIMPLE_HEAD, title="Published weights")
    for column in ("model", "name", "trained on", "licence"):
        table.add_column(column)
    for weights in CATALOGUE:
        table.add_row(weights.model, weights.name, weights.trained_on, weights.source.licence.partition(" ")[0])
    Console().print(table)


@models.command()
def convention(as_json: AsJson = False) -> None:
    """Write a template of how a model of your own reads recordings.

    As TOML with a comment on every line, or as JSON; --convention takes both.

    Example: zipbrain models convention > convention.toml
    """
    from zipbrain.edge.convention_file import TEMPLATE

    if as_json:
        print(json.dumps(tomllib.loads(TEMPLATE), indent=1))
    else:
        print(TEMPLATE, end="")


@models.command()
def describe(
    folder: Annotated[Path, typer.Argument(help="What save_pretrained or convert wrote.")], as_json: AsJson = False
) -> None:
    """Describe a saved model: its options, size and compression.

    Example: zipbrain models describe my-model
    """
    from zipbrain.pretrained import from_pretrained
    from zipbrain.seams import is_compressed, summary

    model: Any = from_pretrained(folder)
    size = sum(parameter.numel() for parameter in model.parameters())
    if as_json:
        about = {"model": type(model).__name__, "parameters": size, "tokens": model.n_tokens, "options": model.config}
        pooled = asdict(summary(model)) if is_compressed(model) else None
        print(json.dumps(json_ready({**about, "compression": pooled}), indent=1))
        return
    say(f"{type(model).__name__}, {size / 1e6:.1f} M parameters, {model.n_tokens} tokens per window")
    for key, value in model.config.items():
        say(f"  {key:10s} {' '.join(value) if isinstance(value, list) else value}")
    say(summary(model) if is_compressed(model) else "not compressed")


@models.command()
def convert(
    model: Annotated[str, typer.Argument(help="Which model: labram, eegpt, biot, tfm-encoder or cbramod.")],
    checkpoint: Annotated[
        Path, typer.Argument(help="A file of the official repository, or published weights such as biot-prest-16.")
    ],
    out: Annotated[Path, typer.Argument(help="Folder to write.")],
    n_outputs: Outputs = 1,
    ch_names: Channels = "",
    n_chans: Count = 16,
    n_times: Times = 2000,
    front_end: Annotated[str, typer.Option(help="EEGPT's channel front end: tuab or tuev.")] = "",
    head: Annotated[str, typer.Option(help="EEGPT's head: flat or probe.")] = "flat",
    as_json: AsJson = False,
) -> None:
    """Turn an official checkpoint into a folder for from_pretrained.

    What became of every tensor is said.

    Example: zipbrain models convert biot EEG-six-datasets-18-channels.ckpt my-biot --n-chans 18
    """
    from zipbrain.models import LoadReport, create, load_official, model_name
    from zipbrain.models.weights_cache import checkpoint_files
    from zipbrain.pretrained import save_pretrained

    options: dict[str, Any] = {"n_outputs": n_outputs, "n_times": n_times}
    if model.lower() in ("labram", "eegpt"):
        if not ch_names:
            raise OptionError("--ch-names", ch_names, f"{model} needs the names of its channels, such as C3,C4,O1")
        options["ch_names"] = [channel.strip() for channel in ch_names.split(",")]
    else:
        options["n_chans"] = n_chans
    if model.lower() == "eegpt":
        options |= {"front_end": front_end or None, "head": head}
    elif front_end or head != "flat":
        raise OptionError("--front-end" if front_end else "--head", front_end or head, "only EEGPT has a choice")
    made = create(model, **options)
    files = checkpoint_files(checkpoint, model_name(made), "checkpoint")
    report = LoadReport.join([load_official(made, file) for file in files])
    folder = save_pretrained(made, out)
    if as_json:
        print(json.dumps({"model": type(made).__name__, "out": str(folder), "report": asdict(report)}, indent=1))
        return
    say(report)
    say(f"Written to {folder}")


@models.command()
def push(
    folder: Annotated[Path, typer.Argument(help="What save_pretrained or convert wrote.")],
    repository: Annotated[str, typer.Argument(help="owner/name; made if it is not there.")],
    private: Annotated[bool, typer.Option("--private", help="Make it private, if it is made now.")] = False,
    as_json: AsJson = False,
) -> None:
    """Put a saved model on the Hugging Face hub.

    With a card that carries its certificate.

    Example: zipbrain models push my-biot people/my-biot
    """
    from zipbrain.pretrained import from_pretrained, push_to_hub

    address = push_to_hub(from_pretrained(folder), repository, private=private)
    if as_json:
        print(json.dumps({"repository": repository, "address": address}, indent=1))
    else:
        say(address)


def _blocks(model: Any) -> dict[str, int]:
    from zipbrain.seams.find import find_chain, protected_ends

    chain = find_chain(model)
    shape = chain.dialect.shape(chain.blocks[0])
    return {"blocks": len(chain.blocks), "width": shape.dim, "protected": sum(protected_ends(model, chain))}
