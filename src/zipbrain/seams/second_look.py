"""Second look: a window whose two best classes are close runs again uncompressed, from the first reduction on.

Whatever comes before the first reduction is the same in both passes, so the second one begins there; the embedding runs
again, unless a compiler or an exporter sees that its result is not read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from zipbrain.errors import OptionError
from zipbrain.pooling.backends.choose import is_exported
from zipbrain.seams.dialects.base import Attended
from zipbrain.seams.observe import Observer, Observers

if TYPE_CHECKING:
    from zipbrain.seams.forward import Plan

Forward = Callable[..., Any]


class FirstReductionTap(Observer):
    """Keeps the tokens at the first reduction, behind the attention of its block."""

    def __init__(self) -> None:
        self.index: int | None = None  # of the block that reduces first
        self.passes = 0  # of the blocks in one forward
        self.tokens: Tensor | None = None  # (B, T, D)

    def entered(self, plan: Plan, x: Tensor) -> None:
        self.index = first_reduction(plan.flow.removed)
        self.passes += 1

    def attended(self, index: int, attended: Attended) -> None:
        if index == self.index:
            self.tokens = attended.x


class Resumption(Observer):
    """Lets a forward begin behind the attention of the first block that reduces, and remove no token."""

    def __init__(self, tokens: Tensor) -> None:
        self.tokens = tokens
        self.index: int | None = None

    def entered(self, plan: Plan, x: Tensor) -> None:
        self.index = first_reduction(plan.flow.removed)
        plan.flow.removed = (0,) * plan.depth

    def known_output(self, index: int) -> Tensor | None:
        is_before = self.index is not None and index < self.index
        return self.tokens if is_before else None  # any tensor will do: the next block does not read it

    def known_attention(self, index: int, need_map: bool) -> Attended | None:
        if index != self.index:
            return None
        return Attended(self.tokens, self.tokens, self.tokens, self.tokens, 1.0)  # no grouping reads q, k and v


def first_reduction(removed: tuple[int, ...]) -> int | None:
    """Index of the first block that removes tokens; None if none does."""
    return next((index for index, r in enumerate(removed) if r), None)


def margins(logits: Tensor) -> Tensor:
    """Log-odds (B,) of the best class against the second best; of a single output, its size."""
    if logits.shape[1] == 1:
        return logits[:, 0].float().abs()
    best = logits.float().topk(2, dim=1).values
    return best[:, 0] - best[:, 1]


def is_doubtful(logits: Tensor, margin: float) -> Tensor:
    """bool (B,): windows whose margin is below `margin`, or not a number."""
    return ~(margins(logits) >= margin)


def first_pass(
    plan: Plan, forward: Forward, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, FirstReductionTap]:
    """The compressed model's answer, and the tokens at its first reduction."""
    flow, tap = plan.flow, FirstReductionTap()
    before = flow.observer
    flow.observer = tap if before is None else Observers(before, tap)
    try:
        return forward(*args, **kwargs), tap
    finally:
        flow.observer = before


def second_pass(plan: Plan, forward: Forward, tokens: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The uncompressed model's answer, computed from the tokens at the first reduction."""
    flow = plan.flow
    before, flow.observer = flow.observer, Resumption(tokens)  # others watch the first pass alone
    try:
        return forward(*args, **kwargs)
    finally:
        flow.observer = before


def look_twice(plan: Plan, forward: Forward, *args: Any, **kwargs: Any) -> Tensor:
    """A model's logits (B, K), those of doubtful windows from a second pass; the first argument holds the windows."""
    assert plan.second_look is not None
    if is_exported():  # it would keep the rows that were doubtful in the example
        allowed = "no single graph can look twice: zipbrain.export writes a file that does"
        raise OptionError("second_look", plan.second_look, allowed)
    answer, tap = first_pass(plan, forward, args, kwargs)
    logits = check_logits(answer)
    if tap.passes != 1:
        raise OptionError("second_look", plan.second_look, f"the model runs its blocks {tap.passes} times for a window")
    doubtful = is_doubtful(logits, plan.second_look)
    rows = _rows_where(doubtful)
    if tap.tokens is not None and len(rows):
        if len(tap.tokens) != len(logits) > 1 and not plan.is_window_major:
            _check_order(plan, forward, tap.tokens, len(logits), args, kwargs)
        tokens = rows_of(tap.tokens, rows, len(logits))
        again = second_pass(plan, forward, tokens, *_some_windows(rows, args, kwargs))
        logits = logits.index_copy(0, rows, again)
    if plan.flow.observer is not None:
        plan.flow.observer.looked(doubtful)
    return logits


def _rows_where(chosen: Tensor) -> Tensor:
    """Indices of the windows for which bool (B,) is True."""
    if torch.compiler.is_compiling():  # their number depends on the data
        torch._dynamo.graph_break()
    return chosen.nonzero()[:, 0]


def _some_windows(
    rows: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The same arguments, of whose first one some rows are taken."""
    if args:
        return (args[0][rows], *args[1:]), kwargs
    name = next(iter(kwargs))
    return args, {**kwargs, name: kwargs[name][rows]}


def _check_order(
    plan: Plan, forward: Forward, tokens: Tensor, windows: int, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """Refuse a model that folds windows into the batch in another order: patches of a window must follow each other."""
    last = torch.tensor([windows - 1], device=tokens.device)
    alone = first_pass(plan, forward, *_some_windows(last, args, kwargs))[1].tokens
    if alone is None or not torch.allclose(alone, rows_of(tokens, last, windows), rtol=1e-3, atol=1e-3):
        raise OptionError(
            "second_look", plan.second_look, "the model mixes the patches of several windows in its batch"
        )
    plan.is_window_major = True


def rows_of(tokens: Tensor, rows: Tensor, windows: int) -> Tensor:
    """The tokens of some windows; a model may have folded patches into the batch, (windows x patches, T, D)."""
    if tokens.shape[0] == windows:
        return tokens[rows]
    folded = tokens.reshape(windows, -1, *tokens.shape[1:])[rows]  # (rows, patches, T, D)
    return folded.flatten(0, 1)


def check_logits(logits: Any) -> Tensor:
    """A model's answer, refused if it is no decision between classes."""
    if not isinstance(logits, Tensor) or logits.dim() != 2 or not logits.is_floating_point():
        found = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise OptionError("second_look", f"a model that returns {found}", "it needs logits of shape (windows, classes)")
    return logits
