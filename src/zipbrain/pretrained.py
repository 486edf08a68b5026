"""`save_pretrained` and `from_pretrained`: a folder that holds a model, compression included; and a model to try."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from zipbrain import __version__
from zipbrain.errors import OptionError
from zipbrain.files import read_json, scratch_folder, write_whole
from zipbrain.hub import download_repository, is_repository_name, upload_folder
from zipbrain.model_card import model_card
from zipbrain.models import Task, model_name, remember, task_of
from zipbrain.models.checkpoint import check_weight
from zipbrain.models.registry import make
from zipbrain.recipe import Recipe
from zipbrain.seams import compress, is_compressed
from zipbrain.seams.compress import describe, origin_of
from zipbrain.weights import fingerprint

CONFIG, WEIGHTS, RECIPE, CARD = "config.json", "model.safetensors", "recipe.json", "README.md"
_HASH: Final = "sha256"  # in the metadata of the weights
_OPTIONS_HASH: Final = "options_sha256"  # there too: of the model's name and options, which may fit the weights wrongly


def save_pretrained(model: nn.Module, folder: str | Path, *, task: Task | None = None) -> Path:
    """Write one of our models into a folder: config.json, model.safetensors, and recipe.json if it is compressed.

    Every file is written whole or not at all; a folder that holds an older model is overwritten file by file.

    Parameters
    ----------
    model : LaBraM, EEGPT, BIOT, TFM, TFMEncoder or CBraMod
        The model.
    folder : path
        Made if it is not there.
    task : Task, optional
        What the model was trained for: names of the classes, channels, rate, scaling. If not given, what the model
        carries: `zipbrain.training.finetune` and `from_pretrained` leave it there.

    Returns
    -------
    folder : Path
    """
    name = model_name(model)
    folder = _path("folder", folder)
    if folder.exists() and not folder.is_dir():
        raise OptionError("folder", str(folder), "it is a file: give a folder")
    state = _checked_state(model)
    folder.mkdir(parents=True, exist_ok=True)
    config: dict[str, Any] = {"model": name, "options": model.config, "zipbrain": __version__}
    known = task if task is not None else task_of(model)
    if known is not None:
        config["task"] = known.to_dict()
    _write_weights(state, folder / WEIGHTS, {_OPTIONS_HASH: _options_hash(config)})
    write_whole(folder / CONFIG, (json.dumps(config, indent=1) + "\n").encode())
    if is_compressed(model):
        options, origin = {**describe(model), "model": name}, origin_of(model)
        recipe = Recipe(**options) if origin is None else replace(origin, **options)  # with what it was chosen on
        recipe.save(folder / RECIPE)
    else:
        (folder / RECIPE).unlink(missing_ok=True)
    return folder


def save_weights(model: nn.Module, path: Path) -> None:
    """Write the weights of any model whole into a safetensors file, with their hash."""
    _write_weights(_checked_state(model), path, {})


def _checked_state(model: nn.Module) -> dict[str, Tensor]:
    state = {key: value.detach().cpu().contiguous() for key, value in model.state_dict().items()}
    for key, value in state.items():
        check_weight("model", key, value, value)
    return state


def _write_weights(state: dict[str, Tensor], path: Path, about: dict[str, str]) -> None:
    from safetensors.torch import save

    about = {"format": "pt", _HASH: fingerprint(state), **about}
    write_whole(path, _with_sorted_metadata(save(state, metadata=about)))


def _path(option: str, given: object) -> Path:
    if not isinstance(given, str | Path):
        raise OptionError(option, given, "it must be the path of a folder")
    return Path(given)


def _with_sorted_metadata(content: bytes) -> bytes:
    """A safetensors file whose metadata stand in order: the library shuffles them, and the same model has one file."""
    start = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:start])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    return content[:8] + text.ljust(start - 8) + content[start:]


def push_to_hub(
    model: nn.Module,
    repository: str,
    *,
    task: Task | None = None,
    private: bool = False,
    token: str | None = None,
    message: str = "Upload a model with zipbrain",
) -> str:
    """Put one of our models on the Hugging Face hub, compression and certificate included.

    The repository holds what `save_pretrained` writes, and a model card: what the model reads, how it is compressed,
    and, if it was compressed with a recipe of `zipbrain.tune`, the certificate for these weights.

    Parameters
    ----------
    model : LaBraM, EEGPT, BIOT, TFM, TFMEncoder or CBraMod
        The model.
    repository : str
        ``owner/name``; made if it is not there. ``HF_ENDPOINT`` names another hub than huggingface.co.
    task : Task, optional
        As for `save_pretrained`.
    private : bool
        Of a repository that is made now.
    token : str, optional
        That of ``hf auth login`` if not given.
    message : str
        Of the commit.

    Returns
    -------
    address : str
        Of the commit.
    """
    if not isinstance(repository, str) or not is_repository_name(repository):
        raise OptionError("repository", repository, "a hub name has the form owner/name")
    with scratch_folder() as scratch:
        folder = save_pretrained(model, scratch / "model", task=task)
        recipe = Recipe.load(folder / RECIPE) if (folder / RECIPE).exists() else None
        known, weights = task if task is not None else task_of(model), fingerprint(model.state_dict())
        card = model_card(model, repository, recipe=recipe, task=known, weights=weights)
        write_whole(folder / CARD, card.encode())
        return upload_folder(folder, repository, message, private=private, token=token)


def from_pretrained(
    source: str | Path, recipe: Recipe | str | Path | None = None, *, revision: str | None = None
) -> nn.Module:
    """Read a model that `save_pretrained` wrote; a compressed one comes back compressed, in evaluation mode.

    What it was trained for, if the folder says so, is its attribute `trained_for`: windows of other classes are refused
    when it is compared, searched or exported.

    Parameters
    ----------
    source : path or str
        A folder, or the name of a repository on the Hugging Face hub (needs ``zipbrain[hub]`` and a network).
    recipe : Recipe or path, optional
        How to compress the model, in place of the recipe that the folder may hold.
    revision : str, optional
        Branch, tag or commit of a repository on the hub.
    """
    if recipe is not None and not isinstance(recipe, Recipe):
        recipe = Recipe.load(recipe)
    folder = _path("source", source)
    if folder.is_file():
        raise OptionError("source", str(source), f"it is a file: give the folder, {folder.parent}")
    if (folder / "model" / CONFIG).is_file() and not (folder / CONFIG).exists():  # what `finetune` makes
        raise OptionError("source", str(source), f"it is the folder of a run: give its model, {folder / 'model'}")
    if not folder.is_dir():
        if not is_repository_name(str(source)):
            words = "there is no such folder, and a hub name has the form owner/name"
            raise OptionError("source", str(source), words)
        folder = download_repository(str(source), (CONFIG, WEIGHTS, RECIPE), revision)
    with _reading(CONFIG, source):
        config = read_json(folder / CONFIG)
        with torch.device("meta"), _Plain():  # sizes alone: options of any size take no memory
            sketch = make(config["model"], config["options"])
        task = Task.from_dict(config["task"]) if "task" in config else None
    with _reading(WEIGHTS, source):
        state, about = _read_weights(folder / WEIGHTS, sketch.state_dict())
    with _reading(CONFIG, source):
        if about.get(_OPTIONS_HASH, own := _options_hash(config)) != own:
            raise ValueError("its options are not what was saved (their hash differs): copy or save it again")
    model = make(config["model"], config["options"])
    model.load_state_dict(state)
    model.eval()
    if task is not None:
        remember(model, task)
    if recipe is None and (folder / RECIPE).exists():
        recipe = Recipe.load(folder / RECIPE)
    if recipe is not None:
        compress(model, recipe)
    return model


@contextmanager
def _reading(name: str, source: str | Path) -> Iterator[None]:
    """Turn whatever is wrong with a file of a folder into one line."""
    try:
        yield
    except FileNotFoundError:
        raise OptionError("source", str(source), f"it holds no {name}") from None
    except ImportError:
        raise
    except Exception as error:  # a changed file can ask for anything
        reason = " ".join(str(error).split()) or type(error).__name__
        raise OptionError("source", str(source), f"its {name} can't be used: {reason[:300]}") from None


class _Plain(TorchFunctionMode):
    """Keep from the meta device what torch would import its compiler for, which takes seconds."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options = dict(kwargs or {})
        if func is nn.init.normal_:
            return options.get("tensor", args[0] if args else None)
        if func is Tensor.mul and isinstance(args[1], float):
            return args[0]
        return func(*args, **({"device": "cpu"} if func is torch.arange else {}), **options)


def _read_weights(path: Path, own: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors of a file, each like the model's `own`, finite and as they were saved; and the file's metadata."""
    from safetensors import safe_open

    with safe_open(path, "pt") as file:
        shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118 - no mapping
        wrong = sorted({*own} ^ {*shapes}) or [name for name in own if tuple(own[name].shape) != shapes[name]]
        if wrong:
            raise ValueError(f"it does not fit {CONFIG}: see {wrong[0]}")
        state: dict[str, Tensor] = {name: file.get_tensor(name) for name in shapes}
        about: dict[str, str] = file.metadata() or {}
    for name, value in state.items():
        check_weight("weights", name, value, own[name])
    if _HASH in about and fingerprint(state) != about[_HASH]:
        raise ValueError("it is not what was saved (its hash differs): copy or save it again")
    return state, about


def _options_hash(config: dict[str, Any]) -> str:
    """SHA-256 of what the network is made from, the same before and after JSON."""
    made_from = json.loads(json.dumps([config["model"], config["options"]]))  # keys are strings then
    return hashlib.sha256(json.dumps(made_from, sort_keys=True).encode()).hexdigest()


def example_model(ch_names: Sequence[str] | None = None, *, seconds: float | None = None) -> nn.Module:
    """The LaBraM that comes with zipbrain, in evaluation mode, to try things on without data or download.

    It was trained on six kinds of made-up events (`zipbrain.data.Synthetic`): what it says of recordings is no finding.

    Parameters
    ----------
    ch_names : sequence of str, optional
        Electrodes of your windows; the 23 that it was trained with if not given.
    seconds : float, optional
        Length of your windows, whole seconds; 5 if not given.

    Examples
    --------
    >>> from zipbrain.pretrained import example_model
    >>> example_model(["C3", "C4", "O1", "O2"], seconds=4).n_tokens
    16
    """
    trained = from_pretrained(Path(str(files("zipbrain") / "demo_model")))
    if ch_names is None and seconds is None:
        return trained
    task, options = task_of(trained), dict(trained.config)  # type: ignore[arg-type]
    assert task is not None
    assert task.sfreq is not None
    names = task.ch_names if ch_names is None else tuple(ch_names)
    options["ch_names"] = list(names)
    options["n_times"] = options["n_times"] if seconds is None else round(seconds * task.sfreq)
    model = make("LaBraM", options)
    model.load_state_dict(trained.state_dict())
    remember(model, replace(task, ch_names=names))
    return model.eval()
