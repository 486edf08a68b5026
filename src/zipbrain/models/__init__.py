"""Models: LaBraM, EEGPT, BIOT, TFM-Tokenizer, CBraMod, each one file; official checkpoints, and trained tasks."""

from __future__ import annotations

import inspect
from typing import Any

from torch import nn

from zipbrain.errors import OptionError
from zipbrain.models.biot import BIOT
from zipbrain.models.cbramod import CBraMod
from zipbrain.models.checkpoint import LoadReport, load_official, read_checkpoint
from zipbrain.models.eegpt import EEGPT
from zipbrain.models.encoder import TokenEncoder
from zipbrain.models.labram import LaBraM
from zipbrain.models.task import Task, remember, task_of
from zipbrain.models.tfm import TFM, TFMEncoder, TFMTokenizer

__all__ = ["BIOT", "EEGPT", "TFM", "CBraMod", "LaBraM", "TFMEncoder", "TFMTokenizer", "TokenEncoder"]
__all__ += ["LoadReport", "Task", "create", "load_official", "model_name", "read_checkpoint", "remember", "task_of"]

_MODELS: dict[str, type[nn.Module]] = {"labram": LaBraM, "eegpt": EEGPT, "biot": BIOT, "tfm": TFM}
_MODELS |= {"cbramod": CBraMod, "tfm-tokenizer": TFM, "tfm-encoder": TFMEncoder}


def model_name(model: nn.Module) -> str:
    """The name under which `create` makes a model of this class."""
    for name, kind in _MODELS.items():
        if isinstance(model, kind):
            return name
    known = ", ".join(kind.__name__ for kind in _MODELS.values())
    raise OptionError("model", type(model).__name__, f"it must be one of {known}")


def create(name: str, **options: Any) -> nn.Module:
    """Make a model by name with random weights.

    Parameters
    ----------
    name : {"labram", "eegpt", "biot", "tfm", "tfm-encoder", "cbramod"}
        Any case.
    **options
        What the model's class takes, such as `n_outputs`, `ch_names`, `n_times`.
    """
    kind = _MODELS.get(str(name).lower())
    if kind is None:
        raise OptionError("name", name, f"known models are {', '.join(_MODELS)}")
    taken = inspect.signature(kind).parameters
    if unknown := [option for option in options if option not in taken]:
        raise OptionError(unknown[0], options[unknown[0]], f"{name} takes {', '.join(taken)}")
    if missing := [key for key, one in taken.items() if one.default is one.empty and key not in options]:
        raise OptionError(missing[0], None, f"{name} needs it")
    return kind(**options)
