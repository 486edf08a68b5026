"""What structure can't tell about foreign models, keyed by qualified class name.

`find` reads prefix tokens and blocks from a model's own attributes and structure. Facts that no attribute shows (the
stack to reduce among several equal ones, blocks that do not reduce, a head that needs every token in its place, a model
that can't be compressed in principle) stand here, one entry a model.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

from torch import nn


@dataclass(frozen=True)
class Known:
    """Facts about one class of model.

    Parameters
    ----------
    encoder_path : str, optional
        Dotted path of the module that holds the blocks.
    prefix_tokens, suffix_tokens : int, optional
        Protected tokens at the ends; read from the model where not given.
    reduce_at : tuple of int, optional
        Blocks that reduce, counted from 1.
    grid : bool
        The head reshapes tokens to channels x time: every token is put back into its place behind the last block.
    late_prefix : (str, str), optional
        The model's attributes that say behind which block (from 1) tokens are put in front, and how many.
    impossible : str, optional
        Why the model can't be compressed, in one sentence.
    """

    encoder_path: str | None = None
    prefix_tokens: int | None = None
    suffix_tokens: int | None = None
    reduce_at: tuple[int, ...] | None = None
    grid: bool = False
    late_prefix: tuple[str, str] | None = None
    impossible: str | None = None


_EEGPT: Final = Known("target_encoder.blocks", 0, 4, (2, 4, 6, 8))
KNOWN: Final[dict[str, Known]] = {
    # EEGPT attends across channels inside each time patch; its four summary tokens come last and alone are read.
    "braindecode.models.eegpt.EEGPT": _EEGPT,
    "*.EEGPTClassifier": _EEGPT,  # the official fine-tuning class, whatever folder it was imported from
    "braindecode.models.bendr.BENDR": Known(prefix_tokens=1),  # the start token is a constant, not a parameter
    "braindecode.models.eegdino.EEGDINO": Known(
        "encoder_layers", 0, grid=True, late_prefix=("global_token_layer", "n_global_tokens")
    ),
    "braindecode.models.eegconformer.EEGConformer": Known(grid=True),
    "braindecode.models.reve.REVE": Known(grid=True),
    "braindecode.models.signal_jepa.SignalJEPA_Contextual": Known(grid=True),
    "transformers.models.vit.modeling_vit.ViTForMaskedImageModeling": Known(grid=True),
    "braindecode.models.cbramod.CBraMod": Known(
        impossible="its criss-cross attention runs along rows and columns of a full channel x time grid, which merged "
        "tokens no longer form"
    ),
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


def facts(model: nn.Module, within: str | None = None) -> tuple[str, Known]:
    """Facts about a model or about the one part of it that is known.

    Parameters
    ----------
    model : nn.Module
        Any model.
    within : str, optional
        Dotted path of the part that will be compressed.

    Returns
    -------
    path : str
        Dotted path of the known part, "" for the model itself and where nothing is known.
    known : Known
        From the part's own plain attributes first, then from the table by class (base classes too).
    """
    found: list[tuple[str, Known]] = []
    for path, module in model.named_modules():
        if any(not outer or path.startswith(f"{outer}.") for outer, _ in found):
            continue  # inside a part that is known
        known = _of(module)
        if known is not None and (within is None or within == path or not path or within.startswith(f"{path}.")):
            found.append((path, known))
    return found[0] if len(found) == 1 else ("", Known())


def _of(module: nn.Module) -> Known | None:
    """Facts about one module, None if nothing is known."""
    table = None
    for kind in type(module).__mro__:
        table = table or KNOWN.get(f"{kind.__module__}.{kind.__qualname__}") or KNOWN.get(f"*.{kind.__qualname__}")
    own = {
        field.name: getattr(module, field.name)
        for field in fields(Known)
        if isinstance(getattr(type(module), field.name, module.__dict__.get(field.name)), str | int | tuple)
    }
    if table is None and not own:
        return None
    base = table or Known()
    return Known(**{field.name: own.get(field.name, getattr(base, field.name)) for field in fields(Known)})
