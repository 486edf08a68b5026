"""What structure can't tell about foreign models, keyed by qualified class name.

`find` reads prefix tokens and blocks from a model's own attributes and structure. Facts that no attribute shows
(summary tokens at the end, the stack to reduce among several equal ones, blocks that do not reduce) stand here, one
line a model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Known:
    """Facts about one class of model."""

    encoder_path: str | None = None
    prefix_tokens: int | None = None
    suffix_tokens: int = 0
    reduce_at: tuple[int, ...] | None = None


KNOWN: Final[dict[str, Known]] = {
    # EEGPT attends across channels inside each time patch; its four summary tokens come last and alone are read.
    "braindecode.models.eegpt.EEGPT": Known("target_encoder.blocks", 0, 4, (2, 4, 6, 8)),
}


def facts(model: object) -> Known:
    """Facts about a model, from its own plain attributes first, then from the table by class (base classes too)."""
    table = next(
        (KNOWN[name] for kind in type(model).__mro__ if (name := f"{kind.__module__}.{kind.__qualname__}") in KNOWN),
        Known(),
    )
    reduce_at = getattr(model, "reduce_at", table.reduce_at)
    return Known(
        getattr(model, "encoder_path", table.encoder_path),
        getattr(model, "prefix_tokens", table.prefix_tokens),
        getattr(model, "suffix_tokens", table.suffix_tokens),
        None if reduce_at is None else tuple(reduce_at),
    )
