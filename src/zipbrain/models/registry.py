"""The models by name: `create` makes one, with random or published weights."""

from __future__ import annotations

import inspect
import logging
from typing import Any, Final

from torch import nn

from zipbrain.errors import OptionError
from zipbrain.models.biot import BIOT
from zipbrain.models.catalogue import find_weights
from zipbrain.models.cbramod import CBraMod
from zipbrain.models.checkpoint import LoadReport, load_official
from zipbrain.models.eegpt import EEGPT
from zipbrain.models.labram import LaBraM
from zipbrain.models.tfm import TFM, TFMEncoder
from zipbrain.models.weights_cache import download

log = logging.getLogger("zipbrain")

_MODELS: Final[dict[str, type[nn.Module]]] = {
    "labram": LaBraM,
    "eegpt": EEGPT,
    "biot": BIOT,
    "tfm": TFM,
    "cbramod": CBraMod,
    "tfm-tokenizer": TFM,
    "tfm-encoder": TFMEncoder,
}


def model_name(model: nn.Module) -> str:
    """The name under which `create` makes a model of this class."""
    name = own_name(model)
    if name is None:
        known = ", ".join(dict.fromkeys(kind.__name__ for kind in _MODELS.values()))
        raise OptionError("model", type(model).__name__, f"it must be one of {known}")
    return name


def own_name(model: nn.Module) -> str | None:
    """The same name, or None for a foreign model."""
    return next((name for name, kind in _MODELS.items() if isinstance(model, kind)), None)


def name_of(model: nn.Module) -> str:
    """The same name, or that of the class of a foreign model."""
    return own_name(model) or type(model).__name__


def create(name: str, *, pretrained: str | None = None, **options: Any) -> nn.Module:
    """Make a model by name, with random weights or with published ones.

    Parameters
    ----------
    name : {"labram", "eegpt", "biot", "tfm", "tfm-encoder", "cbramod"}
        Any case.
    pretrained : str, optional
        Published weights, such as ``"base"`` of LaBraM: see `download`. What became of every tensor is logged and
        stands in the model's attribute `load_report`; blocks that would keep random weights are refused.
    **options
        What the model's class takes, such as `n_outputs`, `ch_names`, `n_times`.
    """
    if pretrained is None:
        return make(name, options)
    weights = find_weights(name, pretrained)
    model = make(name, {key: value for key, value in weights.options.items() if key in _taken(name)} | options)
    reports = [load_official(model, path) for path in download(name, pretrained).files]
    report = LoadReport.join(reports)
    check_blocks(model, report, weights.full_name)
    model.load_report = report  # type: ignore[assignment]
    return model


def check_blocks(model: nn.Module, report: LoadReport, source: str) -> None:
    """Refuse a checkpoint that leaves a block of the model at random weights."""
    path = str(getattr(model, "encoder_path", ""))
    left = [name for name in report.initial if path and name.startswith(f"{path}.")]
    if left:
        found = f"{len(left)} tensors of its blocks would keep random weights, such as {left[0]}"
        raise OptionError("pretrained", source, f"it does not fit {type(model).__name__}: {found}")


def make(name: str, options: dict[str, Any]) -> nn.Module:
    """A model by name with random weights, whatever the options say: nothing is fetched."""
    taken = _taken(name)
    if unknown := [option for option in options if option not in taken]:
        raise OptionError(unknown[0], options[unknown[0]], f"{name} takes {', '.join(taken)}")
    if missing := [key for key, one in taken.items() if one.default is one.empty and key not in options]:
        raise OptionError(missing[0], None, f"{name} needs it")
    return _MODELS[str(name).lower()](**options)


def _taken(name: str) -> dict[str, inspect.Parameter]:
    """What a model's class takes."""
    kind = _MODELS.get(str(name).lower())
    if kind is None:
        raise OptionError("name", name, f"known models are {', '.join(_MODELS)}")
    return dict(inspect.signature(kind).parameters)
