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
class ClassFacts:
    """What is declared about one class of model."""

    encoder_path: str | None = None  # dotted path of the module that holds the blocks
    prefix_tokens: int | None = None  # protected tokens at the ends; read from the model where not given
    suffix_tokens: int | None = None
    reduce_at: tuple[int, ...] | None = None  # blocks that reduce, counted from 1
    reads_protected: bool = False  # the head reads the protected tokens and no others
    # The head reshapes tokens to channels x time: every token is put back into its place behind the last block.
    grid: bool = False
    # The model's attributes that say behind which block (from 1) tokens are put in front, and how many.
    late_prefix: tuple[str, str] | None = None
    obstacle: str | None = None  # why the model can't be compressed, in one sentence


_EEGPT: Final = ClassFacts("target_encoder.blocks", 0, None, (2, 4, 6, 8), reads_protected=True)
DECLARED: Final[dict[str, ClassFacts]] = {
    # EEGPT attends across channels inside each time patch; its summary tokens come last and alone are read.
    "braindecode.models.eegpt.EEGPT": _EEGPT,
    "*.EEGPTClassifier": _EEGPT,  # the official fine-tuning class, whatever folder it was imported from
    "*.TFM_TOKEN_Classifier": ClassFacts("LAT", reads_protected=True),  # the official class on TFM-Tokenizer's tokens
    "braindecode.models.bendr.BENDR": ClassFacts(prefix_tokens=1),  # the start token is a constant, not a parameter
    "braindecode.models.eegdino.EEGDINO": ClassFacts(
        "encoder_layers", 0, grid=True, late_prefix=("global_token_layer", "n_global_tokens")
    ),
    "braindecode.models.eegconformer.EEGConformer": ClassFacts(grid=True),
    "braindecode.models.reve.REVE": ClassFacts(grid=True),
    "braindecode.models.signal_jepa.SignalJEPA_Contextual": ClassFacts(grid=True),
    "transformers.models.vit.modeling_vit.ViTForMaskedImageModeling": ClassFacts(grid=True),
    "transformers.models.deit.modeling_deit.DeiTForMaskedImageModeling": ClassFacts(grid=True),
    "transformers.models.vit_mae.modeling_vit_mae.ViTMAEForPreTraining": ClassFacts(grid=True),
    "braindecode.models.mvpformer.MVPFormer": ClassFacts(
        obstacle="attention and feed-forward run side by side, so nothing lies between them, and its relative shifts "
        "need the full segment x channel grid"
    ),
    "braindecode.models.zuna.ZUNA": ClassFacts(
        obstacle="a register stands between any two patches, and rotary angles of a fixed length are tied to that order"
    ),
    "braindecode.models.codebrain.CodeBrain": ClassFacts(
        obstacle="it mixes tokens by long convolutions over the whole sequence and has no feed-forward behind its "
        "attention"
    ),
}


@dataclass(frozen=True)
class ChainFacts:
    """What holds for the blocks of one chain: of all that the modules around them declare, the nearest counts."""

    prefix_tokens: int | None = None  # as in `ClassFacts`
    suffix_tokens: int | None = None
    reduce_at: tuple[int, ...] | None = None
    reads_protected: bool = False
    grid: bool = False
    # Index of the first block that finds tokens put in front between the blocks, and how many they are.
    late: tuple[int, int] = (0, 0)
    elsewhere: bool = False  # a module around the blocks declares that its blocks are in another place
    obstacle: str | None = None  # why they can't be compressed, with the model's name


def resolve_facts(model: nn.Module, path: str) -> ChainFacts:
    """Facts about the blocks at `path`, from all that is declared about the modules around it."""
    found: dict[str, Any] = {}
    parts = path.split(".") if path else []
    for length in range(len(parts), -1, -1):
        where = ".".join(parts[:length])
        owner = model.get_submodule(where)
        declared = _declared(owner)
        if declared is None:
            continue
        for name in ("prefix_tokens", "suffix_tokens", "reduce_at"):
            if getattr(declared, name) is not None:
                found.setdefault(name, getattr(declared, name))
        for name in ("grid", "reads_protected"):
            if getattr(declared, name):
                found[name] = True
        if declared.late_prefix is not None:
            after, count = (int(getattr(owner, name)) for name in declared.late_prefix)
            found.setdefault("late", (after, count))
        if declared.encoder_path is not None:
            inside = f"{where}.{declared.encoder_path}" if where else declared.encoder_path
            found["elsewhere"] = found.get("elsewhere", False) or not f"{path}.".startswith(f"{inside}.")
        if declared.obstacle is not None:
            found.setdefault("obstacle", f"{type(owner).__name__} can't be compressed: {declared.obstacle}")
    return ChainFacts(**found)


def find_obstacle(model: nn.Module) -> str | None:
    """Why a model, or a part of it, can't be compressed; None where nothing is declared that says so."""
    for module in model.modules():
        declared = _declared(module)
        if declared is not None and declared.obstacle is not None:
            return f"{type(module).__name__} can't be compressed: {declared.obstacle}"
    return None


def _declared(module: nn.Module) -> ClassFacts | None:
    """What is declared about one module: by its own plain attributes, else for its class or a base class of it."""
    table = None
    for kind in type(module).__mro__:
        table = (
            table or DECLARED.get(f"{kind.__module__}.{kind.__qualname__}") or DECLARED.get(f"*.{kind.__qualname__}")
        )
    if table is not None and table.encoder_path is not None and not _has(module, table.encoder_path):
        table = None  # another class of the same name
    own = {name: value for name in _OWN if (value := _attribute(module, name)) is not None}
    if table is None and not own:
        return None
    return replace(table or ClassFacts(), **own)


_OWN: Final = ("encoder_path", "prefix_tokens", "suffix_tokens", "reduce_at", "reads_protected")


def _attribute(module: nn.Module, name: str) -> Any:
    """A plain attribute of the right type, else None: a model may use the name for something else."""
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
