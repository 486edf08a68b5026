"""`TrainingSettings`: every number of a training run in one frozen object, taken from the table, overridden by name."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Final

from zipbrain.errors import OptionError
from zipbrain.files import json_ready
from zipbrain.paper import DATASETS, NETWORKS, canonical_name
from zipbrain.training.settings_table import FOREIGN, MASKED_TOKENS, OFFICIAL, PAPER, SCRATCH, TOKEN_LEARNING, Settings

_CHOICES: Final = {
    "origin": ("paper", "official", "scratch"),
    "optimizer": ("adamw", "adam"),
    "schedule": ("cosine", "onecycle", "constant"),
    "binary_loss": ("bce", "ce"),
    "amp": ("no", "fp16", "bf16"),
    "selection": ("accuracy", "main", "last"),
    "stop_metric": ("accuracy", "main"),
}
_NAMES: Final = ("changed", "inert", "frozen")  # settings that are several names
_Rule = tuple[tuple[str, ...], Callable[[Any], bool], str]  # settings, what they must satisfy, and that in words
_LONGEST: Final = 100_000  # epochs, or steps of pretraining, that a run may have
_BOOLEANS: Final = {"true": True, "yes": True, "false": False, "no": False}


@dataclass(frozen=True)
class TrainingSettings:
    """All settings of one training run.

    Attributes
    ----------
    model : str
        The paper's name of the model, or where a foreign one comes from.
    dataset : str or None
        The corpus the settings belong to; None for settings of any corpus.
    origin : {"paper", "official", "scratch"}
        Whose settings these are: the paper's, the official script's where the paper trained nothing, or ours.
    changed : tuple of str
        Settings that were overridden.
    epochs, batch_size, seed : int
        Length, windows per optimiser step, seed of everything random.
    optimizer, lr, betas, eps, weight_decay
        Of AdamW or Adam.
    decay_all : bool
        Weight decay on every parameter; False spares biases, 1-D parameters, position and time embeddings and CLS.
    layer_decay : float
        Factor on the learning rate from a block to the one before it; 1 is off.
    inert : tuple of str
        Settings that the paper lists although the official code does not apply them, nor do we.
    schedule : {"cosine", "onecycle", "constant"}
        Cosine goes from 0 to `lr` in `warmup_epochs` and then to `final_lr`, which may lie above `lr`.
    binary_loss : {"bce", "ce"}
        One logit with a sigmoid, or two with a softmax.
    label_smoothing : float
        Of the cross-entropy of more than two classes.
    amp : {"no", "fp16", "bf16"}
        Autocast on a GPU; "fp16" with loss scaling. On a CPU all runs are float32.
    grad_clip : float or None
        Largest norm of the gradient.
    drop_last : bool
        Skip the last, smaller batch of an epoch.
    selection : {"accuracy", "main", "last"}
        Which epoch is kept: best validation accuracy, best main metric (AUROC of two classes, kappa of more), or last.
    patience : int or None
        Stop after so many epochs without a better `stop_metric`.
    drop_path, dropout : float or None
        Given to the model where it has them.
    head_scale : float or None
        LaBraM's head starts as a truncated normal of width 0.02 times this.
    frozen : tuple of str
        Parameters whose names start so are not trained, and their modules stay in evaluation mode.
    pretrain_steps : int
        TFM-Tokenizer without a checkpoint: optimiser steps of token learning, and half as many of masked-token
        prediction, before this run, rounded up to whole epochs.
    options : dict
        Further options of the model's class.
    """

    model: str
    dataset: str | None = None
    origin: str = "scratch"
    changed: tuple[str, ...] = ()
    epochs: int = 30
    batch_size: int = 64
    seed: int = 0
    optimizer: str = "adamw"
    lr: float = 5e-4
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    decay_all: bool = True
    layer_decay: float = 1.0
    inert: tuple[str, ...] = ()
    schedule: str = "constant"
    warmup_epochs: float = 0.0
    final_lr: float = 0.0
    binary_loss: str = "bce"
    label_smoothing: float = 0.0
    amp: str = "no"
    grad_clip: float | None = None
    drop_last: bool = False
    selection: str = "main"
    patience: int | None = None
    stop_metric: str = "main"
    drop_path: float | None = None
    dropout: float | None = None
    head_scale: float | None = None
    frozen: tuple[str, ...] = ()
    pretrain_steps: int = 0
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, allowed in _CHOICES.items():
            if getattr(self, name) not in allowed:
                raise OptionError(name, getattr(self, name), f"it must be one of {', '.join(allowed)}")
        for names, is_allowed, words in _RULES:
            for name in names:
                if not is_allowed(getattr(self, name)):
                    raise OptionError(name, getattr(self, name), words)
        if self.schedule != "constant" and self.warmup_epochs >= self.epochs:
            raise OptionError("warmup_epochs", self.warmup_epochs, f"it must be below epochs ({self.epochs})")

    def override(self, **settings: Any) -> TrainingSettings:
        """The same settings but for these.

        Fewer epochs shorten the warm-up in proportion, unless it is given too. An overridden setting is applied even
        where the official code ignores it; building a model that has no such thing (EEGPT: drop path) refuses it.
        """
        chosen = _with_tuples(settings)
        for name in chosen:
            if name not in _SETTINGS:
                raise OptionError("setting", name, f"known settings are {', '.join(_SETTINGS)}")
        epochs = chosen.get("epochs", self.epochs)
        if isinstance(epochs, int) and 1 <= epochs < self.epochs:
            chosen.setdefault("warmup_epochs", self.warmup_epochs * epochs / self.epochs)
        changed = dict.fromkeys((*self.changed, *(n for n, v in chosen.items() if v != getattr(self, n))))
        chosen |= {"changed": tuple(changed), "inert": tuple(name for name in self.inert if name not in chosen)}
        return replace(self, **chosen)

    def applied(self, name: str) -> Any:
        """A setting's value, or None where it is inert."""
        return None if name in self.inert else getattr(self, name)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return json_ready(asdict(self))

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> TrainingSettings:
        """The settings that `to_dict` described."""
        return cls(**_with_tuples(content))


_SETTINGS: Final = tuple(
    one.name for one in fields(TrainingSettings) if one.name not in ("model", "dataset", "origin", "changed", "inert")
)


def _is_whole(value: Any, least: int, most: float = math.inf) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _is_number(value: Any, below: float = math.inf) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < below


def _are_betas(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and all(_is_number(beta, 1) for beta in value)


_RULES: Final[tuple[_Rule, ...]] = (
    (("epochs",), lambda v: _is_whole(v, 1, _LONGEST), f"it must be a whole number from 1 to {_LONGEST:,}"),
    (("batch_size",), lambda v: _is_whole(v, 1), "it must be a whole number of at least 1"),
    (("seed",), lambda v: _is_whole(v, 0, 2**63 - 1), "it must be a whole number from 0 to 2**63 - 1"),
    (("pretrain_steps",), lambda v: _is_whole(v, 0, _LONGEST), f"it must be a whole number from 0 to {_LONGEST:,}"),
    (("lr", "weight_decay", "final_lr", "eps", "warmup_epochs"), _is_number, "it must be a number of at least 0"),
    (("label_smoothing",), lambda v: _is_number(v, 1), "it must be a number of at least 0 and below 1"),
    (("layer_decay",), lambda v: _is_number(v) and 0 < v <= 1, "it must be above 0 and at most 1 (1 is off)"),
    (("patience",), lambda v: v is None or _is_whole(v, 1), "it must be a whole number of at least 1, or none"),
    (("grad_clip",), lambda v: v is None or (_is_number(v) and v > 0), "it must be above 0, or none"),
    (("head_scale",), lambda v: v is None or _is_number(v), "it must be a number of at least 0, or none"),
    (("drop_path", "dropout"), lambda v: v is None or _is_number(v, 1), "it must be at least 0 and below 1, or none"),
    (("decay_all", "drop_last"), lambda v: isinstance(v, bool), "it must be true or false"),
    (_NAMES, lambda v: isinstance(v, tuple) and all(isinstance(one, str) for one in v), "it must be a list of names"),
    (("betas",), _are_betas, "it must be two numbers of at least 0 and below 1"),
    (("options",), lambda v: isinstance(v, dict), 'it must be names and values, such as {"depth": 4}'),
)


def _with_tuples(settings: Mapping[str, Any]) -> Settings:
    """Settings with tuples for lists, and for a single word where several are allowed."""
    words = {name: (value,) for name, value in settings.items() if isinstance(value, str) and name in _NAMES}
    return {name: tuple(value) if isinstance(value, list) else value for name, value in settings.items()} | words


def paper_settings(model: str, dataset: str) -> TrainingSettings:
    """The paper's settings for a model on a corpus, completed from the official scripts; those alone for others."""
    name = canonical_name("model", model, NETWORKS)
    if name in OFFICIAL:
        return TrainingSettings(name, origin="official", **OFFICIAL[name])
    key = name, canonical_name("dataset", dataset, DATASETS)
    return TrainingSettings(*key, **{"origin": "paper", **PAPER[key]})


def scratch_settings(model: str) -> TrainingSettings:
    """Our settings for a model that starts from random weights."""
    name = canonical_name("model", model, NETWORKS)
    return TrainingSettings(name, origin="scratch", **SCRATCH[name])


def foreign_settings(model: str) -> TrainingSettings:
    """Our settings for a foreign model, under the words that say where it comes from."""
    return TrainingSettings(model, origin="scratch", **FOREIGN)


def token_learning_settings() -> TrainingSettings:
    """The official settings of TFM-Tokenizer's token learning."""
    return TrainingSettings("TFM-Tokenizer", origin="official", **TOKEN_LEARNING)


def masked_tokens_settings() -> TrainingSettings:
    """The official settings of TFM-Tokenizer's masked-token prediction."""
    return TrainingSettings("TFM-Tokenizer", origin="official", **MASKED_TOKENS)


def parse_settings(given: Iterable[str]) -> dict[str, Any]:
    """``["lr=1e-3", "amp=no", "patience=none"]`` -> settings for `TrainingSettings.override`.

    Values are JSON where they can be (numbers, lists), words otherwise; ``none`` switches a setting off. What is true
    or false may be written as yes or no too, in any case.
    """
    types = {one.name: str(one.type) for one in fields(TrainingSettings)}
    settings: dict[str, Any] = {}
    for pair in given:
        name, equals, text = (part.strip() for part in pair.partition("="))
        name = name.replace("-", "_")
        if not equals or not text:
            raise OptionError("--set", pair, "write name=value, such as lr=1e-3")
        if name not in _SETTINGS:
            raise OptionError("--set", name, f"known settings are {', '.join(_SETTINGS)}")
        value: Any = text
        with suppress(json.JSONDecodeError):
            value = None if text.lower() == "none" else json.loads(text)
        if value is None and "None" not in types[name]:
            raise OptionError("--set", pair, f"{name} can't be switched off")
        if types[name] == "bool":
            if text.lower() not in _BOOLEANS:
                raise OptionError("--set", pair, f"{name} is true or false")
            value = _BOOLEANS[text.lower()]
        if value is not None and types[name].startswith(("int", "float")) and not isinstance(value, int | float):
            raise OptionError("--set", pair, f"{name} is a number")
        settings[name] = value
    return settings
