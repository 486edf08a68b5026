"""The two passes of a model with a second look as modules of their own, to be compiled, captured or exported."""

from __future__ import annotations

from functools import partial

from torch import Tensor, nn

from zipbrain.errors import OptionError
from zipbrain.seams.forward import Root, plan_of
from zipbrain.seams.second_look import Forward, first_pass, second_pass


class FirstPass(nn.Module):
    """Windows -> logits (B, K) of the compressed model, and the tokens (B, T, D) at its first reduction."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, windows: Tensor) -> tuple[Tensor, Tensor]:
        """(B, C, n_times) -> (B, K), (B, T, D)"""
        logits, tap = first_pass(plan_of(self.model), forward_of(self.model), (windows,), {})
        assert tap.tokens is not None
        return logits, tap.tokens


class SecondPass(nn.Module):
    """Windows, and their tokens at the first reduction -> logits (B, K) of the uncompressed model."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, windows: Tensor, tokens: Tensor) -> Tensor:
        """(B, C, n_times), (B, T, D) -> (B, K)"""
        logits: Tensor = second_pass(plan_of(self.model), forward_of(self.model), tokens, (windows,), {})
        return logits


def forward_of(model: nn.Module) -> Forward:
    """A compressed model's own forward, without a second look."""
    place = model.__dict__.get("_zipbrain")
    if not isinstance(place, Root):
        raise OptionError("model", type(model).__name__, "it is no compressed model whose decisions could be looked at")
    return partial(place.run, model)
