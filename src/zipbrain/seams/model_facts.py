"""Facts about foreign models that their structure does not show, keyed by qualified class name.

`find` reads prefix tokens and blocks from a model's own attributes and structure. Facts that no attribute shows (the
stack to reduce among several equal ones, blocks that do not reduce, a head that needs every token in its place, a model
that can't be compressed in principle) stand here, one entry a model.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

from torch import nn


@dataclass(frozen=True)
class Known:
    """Facts about one class of model."""

    encoder_path: str | None = None  # dotted path of the module that holds the blocks
    prefix_tokens: int | None = None  # protected tokens at the ends; read from the model where not given
    suffix_tokens: int | None = None
    reduce_at: tuple[int, ...] | None = None  # blocks that reduce, counted from 1
    reads_protected: bool = False  # the head reads the protected tokens and no others
    # The head reshapes tokens to channels x time: every token is put back into its place behind the last block.
    grid: bool = False
    # The model's attributes that say behind which block (from 1) tokens are put in front, and how many.
    late_prefix: tuple[str, str] | None = None
    impossible: str | None = None  # why the model can't be compressed, in one sentence


_EEGPT: Final = Known("target_encoder.blocks", 0, None, (2, 4, 6, 8), reads_protected=True)
KNOWN: Final[dict[str, Known]] = {
    # EEGPT attends across channels inside each time patch; its summary tokens come last and alone are read.
    "braindecode.models.eegpt.EEGPT": _EEGPT,
    "*.EEGPTClassifier": _EEGPT,  # the official fine-tuning class, whatever folder it was imported from
    "*.TFM_TOKEN_Classifier": Known("LAT", reads_protected=True),  # the official class on TFM-Tokenizer's tokens
    "braindecode.models.bendr.BENDR": Known(prefix_tokens=1),  # the start token is a constant, not a parameter
    "braindecode.models.eegdino.EEGDINO": Known(
        "encoder_layers", 0, grid=True, late_prefix=("global_token_layer", "n_global_tokens")
    ),
    "braindecode.models.eegconformer.EEGConformer": Known(grid=True),
    "braindecode.models.reve.REVE": Known(grid=True),
    "braindecode.models.signal_jepa.SignalJEPA_Contextual": Known(grid=True),
    "transformers.models.vit.modeling_vit.ViTForMaskedImageModeling": Known(grid=True),
    "transformers.models.deit.modeling_deit.DeiTForMaskedImageModeling": Known(grid=True),
    "transformers.models.vit_mae.modeling_vit_mae.ViTMAEForPreTraining": Known(grid=True),
    "braindecode.models.mvpformer.MVPFormer": Known(
        impossible="attention and feed-forward run side by side, so nothing lies between them, and its relative shifts "
        "need the full segment x channel grid"
    ),
    "braindecode.models.zuna.ZUNA": Known(
        impossible="a register stands between any two patches, and rotary angles of a fixed length are tied to that "
        "order"
    ),
    "braindecode.models.codebrain.CodeBrain": Known(
        impossible="it mixes tokens by long convolutions over the whole sequence and has no feed-forward behind its "
        "attention"
    ),
}


@dataclass(frozen=True)
class Facts:
    """What is known about the blocks at one place: the nearest module around them that says it counts."""

    prefix_tokens: int | None = None  # as in `Known`
    suffix_tokens: int | None = None
    reduce_at: tuple[int, ...] | None = None
    reads_protected: bool = False
    grid: bool = False
    # Index of the first block that finds tokens put in front between the blocks, and how many they are.
    late: tuple[int, int] = (0, 0)
    elsewhere: bool = False  # A module around the blocks says that its blocks are in another place
    impossible: str | None = None  # why they can't be compressed, with the model's name


def facts(model: nn.Module, path: str) -> Facts:
    """What the modules around `path` say about the blocks there, from it up to the model itself."""
    found: dict[str, Any] = {}
    parts = path.split(".") if path else []
    for length in range(len(parts), -1, -1):
        where = ".".join(parts[:length])
        owner = model.get_submodule(where)
        known = _of(owner)
        if known is None:
            continue
        for name in ("prefix_tokens", "suffix_tokens", "reduce_at"):
            if getattr(known, name) is not None:
                found.setdefault(name, getattr(known, name))
        for name in ("grid", "reads_protected"):
            if getattr(known, name):
                found[name] = True
        if known.late_prefix is not None:
            after, count = (int(getattr(owner, name)) for name in known.late_prefix)
            found.setdefault("late", (after, count))
        if known.encoder_path is not None:
            inside = f"{where}.{known.encoder_path}" if where else known.encoder_path
            found["elsewhere"] = found.get("elsewhere", False) or not f"{path}.".startswith(f"{inside}.")
        if known.impossible is not None:
            found.setdefault("impossible", f"{type(owner).__name__} can't be compressed: {known.impossible}")
    return Facts(**found)


def impossible(model: nn.Module) -> str | None:
    """Why a model, or a part of it, can't be compressed; None if nothing of the kind is known."""
    for module in model.modules():
        known = _of(module)
        if known is not None and known.impossible is not None:
            return f"{type(module).__name__} can't be compressed: {known.impossible}"
    return None


def _of(module: nn.Module) -> Known | None:
    """Facts about one module: from its own plain attributes first, then from the table by class (base classes too)."""
    table = None
    for kind in type(module).__mro__:
        table = table or KNOWN.get(f"{kind.__module__}.{kind.__qualname__}") or KNOWN.get(f"*.{kind.__qualname__}")
    if table is not None and table.encoder_path is not None and not _has(module, table.encoder_path):
        table = None  # another class of the same name
    own = {name: value for name in _OWN if (value := _attribute(module, name)) is not None}
    if table is None and not own:
        return None
    return replace(table or Known(), **own)


_OWN: Final = ("encoder_path", "prefix_tokens", "suffix_tokens", "reduce_at", "reads_protected")


def _attribute(module: nn.Module, name: str) -> Any:
    """A plain attribute, if it has the form that it must have; a model may use the name for something else."""
    value = module.__dict__.get(name, getattr(type(module), name, None))
    if name == "encoder_path":
        return value if isinstance(value, str) and _has(module, value) else None
    if name == "reduce_at":
        if isinstance(value, tuple | list) and all(isinstance(number, int) for number in value):
            return tuple(value)
        return None
    if name == "reads_protected":
        return value if isinstance(value, bool) else None
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _has(module: nn.Module, path: str) -> bool:
    try:
        module.get_submodule(path)
    except AttributeError:
        return False
    return True
