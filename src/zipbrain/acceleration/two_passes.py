"""A model with a second look as two networks, each compiled or captured: its doubtful windows run again in buckets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from zipbrain.acceleration.batch_buckets import fill, split_batch
from zipbrain.seams import is_compressed
from zipbrain.seams.forward import plan_of
from zipbrain.seams.passes import FirstPass, SecondPass, forward_of
from zipbrain.seams.second_look import first_pass, is_doubtful, rows_of


@dataclass(frozen=True, eq=False)
class TwoPasses:
    """Both passes of a model with a second look, as functions.

    Called like the model, it runs both for all windows, which takes one shape only: to compare, not to save time.
    """

    first: Callable[[Tensor], tuple[Tensor, Tensor]]  # windows -> logits, tokens at the first reduction
    second: Callable[[Tensor, Tensor], Tensor]  # windows and those tokens -> logits
    margin: float

    @classmethod
    def of(cls, network: nn.Module, x: Tensor) -> TwoPasses | None:
        """The passes of a model; None if it looks once at windows such as x."""
        if not is_compressed(network) or (margin := plan_of(network).second_look) is None or network.training:
            return None
        with torch.inference_mode():
            _, tap = first_pass(plan_of(network), forward_of(network), (x[:1],), {})
        return None if tap.tokens is None else cls(FirstPass(network), SecondPass(network), margin)

    def __call__(self, x: Tensor) -> Tensor:
        """(B, ...) -> (B, K)"""
        logits, tokens = self.first(x)
        return torch.where(is_doubtful(logits, self.margin)[:, None], self.second(x, tokens), logits)


class SecondBucket:
    """Fixed buffers for the windows (size, ...) and their tokens, and what reads both."""

    def __init__(self, windows: Tensor, tokens: Tensor, answer: Callable[[], Tensor]) -> None:
        self.windows, self.tokens, self.answer = windows, tokens, answer

    def __call__(self, x: Tensor, tokens: Tensor) -> Tensor:
        """(n, ...), (n or n patches, T, D) -> (n, K) for 1 <= n <= size"""
        shape = tokens.shape[1:]
        fill(self.windows, x)
        fill(self.tokens.view(len(self.windows), -1, *shape), tokens.reshape(len(x), -1, *shape))
        return self.answer()[: len(x)].clone()


class LookingTwice:
    """A bucket whose doubtful windows run again: a fixed buffer, the first pass that reads it, and second buckets."""

    def __init__(
        self,
        buffer: Tensor,
        first: Callable[[], tuple[Tensor, Tensor]],
        second: Mapping[int, SecondBucket],
        margin: float,
        answers: torch.dtype,
    ) -> None:
        self.buffer, self.first, self.margin, self.answers = buffer, first, margin, answers
        self.second, self.sizes = second, tuple(sorted(second))

    def __call__(self, x: Tensor) -> Tensor:
        """(n, ...) -> (n, K) for 1 <= n <= size"""
        fill(self.buffer, x)
        logits, tokens = self.first()
        rows = is_doubtful(logits[: len(x)], self.margin).nonzero()[:, 0]
        found = logits[: len(x)].to(self.answers, copy=True)  # before another graph may write into its memory
        if len(rows):
            picked, again = rows_of(tokens, rows, len(self.buffer)), self.buffer[rows]
            patches = len(picked) // len(rows)
            for part, size in split_batch(len(rows), self.sizes):
                some = picked[part.start * patches : part.stop * patches]
                found[rows[part]] = self.second[size](again[part], some).to(self.answers)
        return found
