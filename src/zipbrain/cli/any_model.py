"""`takes_any_model`: a command that opens a saved model also takes one of the user's own, made by a function."""

from __future__ import annotations

import inspect
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from zipbrain.cli.stopping import Command
from zipbrain.errors import OptionError

if TYPE_CHECKING:
    from zipbrain.models import Build

Function = Annotated[
    str | None, typer.Option("--model", help="The model: instead of CHECKPOINT, file.py:build or package.module:build.")
]
Weights = Annotated[Path | None, typer.Option("--checkpoint", help="Weights of --model: .safetensors or .pt.")]
ConventionFile = Annotated[
    Path | None, typer.Option("--convention", help="How --model reads recordings: `zipbrain models convention`.")
]
_ADDED = {"function": Function, "weights": Weights, "convention_file": ConventionFile}


def takes_any_model(command: Command) -> Command:
    """Decorator of a command: its `checkpoint` may be left out, and is a `zipbrain.models.Build` where --model is."""
    signature = inspect.signature(command, eval_str=True)
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_ADDED[name])
        for name in _ADDED
    ]
    own = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in signature.parameters.values()]
    own = [one.replace(default=None) if one.name == "checkpoint" else one for one in own]

    @wraps(command)
    def run(**options: Any) -> None:
        function, weights, convention = (options.pop(name) for name in _ADDED)
        options["checkpoint"] = chosen_model(options["checkpoint"], function, weights, convention)
        command(**options)

    last = [one for one in own if one.name == "as_json"]
    shown = [one for one in own if one.name != "as_json"] + added + last
    run.__signature__ = signature.replace(parameters=shown)  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in shown}
    return run  # type: ignore[return-value]


def chosen_model(
    checkpoint: Path | None, function: str | None, weights: Path | None, convention: Path | None
) -> Path | Build:
    """The folder of a saved model, or the function of another one."""
    if function is None:
        _refuse_parts(weights, convention)
        if checkpoint is None:
            raise OptionError("CHECKPOINT", None, "give the folder of a saved model, or --model file.py:build")
        return checkpoint
    if checkpoint is not None:
        raise OptionError("--model", function, f"with CHECKPOINT {checkpoint} there are two models: give one of them")
    from zipbrain.models import Build

    return Build(function, weights, convention)


def own_model(model: str, weights: Path | None, convention: Path | None) -> Build | None:
    """A model of one's own where `model` is file.py:build, or None where it is the name of one of ours."""
    if ":" not in model:
        _refuse_parts(weights, convention)
        return None
    from zipbrain.models import Build

    return Build(model, weights, convention)


def model_words(checkpoint: Path | Build) -> list[str]:
    """The arguments of a command that opens this model."""
    from zipbrain.models import Build

    if not isinstance(checkpoint, Build):
        return [str(checkpoint)]
    parts = (("--checkpoint", checkpoint.weights), ("--convention", checkpoint.convention))
    return ["--model", checkpoint.function, *(word for name, path in parts if path for word in (name, str(path)))]


def _refuse_parts(weights: Path | None, convention: Path | None) -> None:
    """Refuse what belongs to a model of one's own where there is none."""
    for option, given in (("--checkpoint", weights), ("--convention", convention)):
        if given is not None:
            raise OptionError(option, str(given), "it belongs to --model file.py:build: give that too")
