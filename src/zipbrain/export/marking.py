"""Pooling that can be told from the rest of an exported graph: it runs inside a module of its own.

torch's exporter notes down, for every operator, the `forward` methods it was called from. Pooling has none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from torch import Tensor, nn

from zipbrain.pooling.grouping import Grouping
from zipbrain.pooling.merges import MergeRule
from zipbrain.pooling.methods.base import Mass, Method
from zipbrain.pooling.tokens import Tokens
from zipbrain.seams.class_swap import site_of

_HERE: Final = Path(__file__).name


class Wrapped(Method):
    """A method that does what another one does."""

    def __init__(self, method: Method) -> None:
        self.method = method

    def __call__(self, tokens: Tokens) -> Grouping:
        return self.method(tokens)

    def fused(self, tokens: Tokens) -> tuple[Tensor, Grouping | None] | None:
        return self.method.fused(tokens)

    def merge_rule(self, tokens: Tokens) -> MergeRule:
        return self.method.merge_rule(tokens)

    @property
    def reads(self) -> frozenset[str]:
        return self.method.reads

    @property
    def mass(self) -> Mass:
        return self.method.mass

    def needs_attention(self, leading: int, linear: bool) -> bool:
        return self.method.needs_attention(leading, linear)

    def limit(self, n: int) -> int:
        return self.method.limit(n)


class _Stage(nn.Module):
    def forward(self, step: Callable[..., Any], *given: Any) -> Any:
        return step(*given)


class _Marked(Wrapped):
    """A method whose operators are called from `_Stage.forward`."""

    def __init__(self, method: Method) -> None:
        super().__init__(method)
        self._stage = _Stage()

    def __call__(self, tokens: Tokens) -> Grouping:
        grouping: Grouping = self._stage(self.method, tokens)
        return grouping

    def fused(self, tokens: Tokens) -> tuple[Tensor, Grouping | None] | None:
        pooled: tuple[Tensor, Grouping | None] | None = self._stage(self.method.fused, tokens)
        return pooled

    def merge_rule(self, tokens: Tokens) -> MergeRule:
        rule = self.method.merge_rule(tokens)

        def merge(x: Tensor, grouping: Grouping, weight: Tensor | None = None) -> Tensor:
            merged: Tensor = self._stage(rule, x, grouping, weight)
            return merged

        return merge


@contextmanager
def wrapped(model: nn.Module, wrap: Callable[[Method], Wrapped]) -> Iterator[Wrapped | None]:
    """Wrap the method of a compressed model while the ``with`` block runs; of any other model, nothing."""
    sites = [site for site in map(site_of, model.modules()) if site is not None]
    if not sites:
        yield None
        return
    plan = sites[0].plan
    before, plan.method = plan.method, wrap(plan.method)
    try:
        yield plan.method
    finally:
        plan.method = before


def marked(model: nn.Module) -> Any:
    """Mark what pooling does while the ``with`` block runs; see `is_marked`."""
    return wrapped(model, _Marked)


def is_marked(stack: str) -> bool:
    """Whether the stack of an operator leads through a marked method."""
    return f'{_HERE}"' in stack
