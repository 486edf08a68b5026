"""`Prefix`: what a model computes before its first reduction, kept batch by batch and resumed by every recipe.

Embedding, blocks that do not reduce yet and the attention of the first one that does depend on model and input alone:
masses are all 1 until something is merged. The first pass notes them down; later passes over the same batches start
there and give the same answers to the last bit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn

from zipbrain.seams.dialects.base import Attended, Dialect
from zipbrain.seams.forward import Plan, find_plan, site_of
from zipbrain.seams.observe import Observer, observe
from zipbrain.seams.second_look import first_reduction

Call = tuple[nn.Module, str]  # a module, and the name of the method that was called
Wrap = Callable[[Call, Callable[..., Any]], Callable[..., Any]]
# What a prefix depends on besides model and input: where the blocks are, their dialect (of a grid, its axis), and
# whether the last one runs for protected tokens alone.
Layout = tuple[str, type[Dialect], bool]


class PrefixMemo(Observer):
    """The prefix of one batch: filled by the first forward that it observes, known to the following ones."""

    def __init__(self) -> None:
        self.index: int | None = None  # the first block that reduced, from 0
        self.answers: list[tuple[Call, Tensor | None]] = []  # of modules before the first block; None for no tensor
        self.outputs: list[Tensor] = []  # (B, T, D) of the blocks before block `index`
        # Block `index` after its attention, without and with the map: other operators, so other last bits.
        self.attentions: dict[bool, Attended] = {}
        self.tokens = self.passes = 0  # T at the first block, and how often the blocks ran in the filling forward
        self.seconds = 0.0  # to the first reduction
        self.complete = False  # the filling forward is over
        self._removed: tuple[int, ...] = ()
        self._started = perf_counter()

    def entered(self, plan: Plan, x: Tensor) -> None:
        self._removed = plan.flow.removed
        if not self.complete:
            self.passes += 1
            self.tokens = int(x.shape[1])

    def known_output(self, index: int) -> Tensor | None:
        return self.outputs[index].clone() if self.complete and index < len(self.outputs) else None

    def known_attention(self, index: int, need_map: bool) -> Attended | None:
        return self.attentions.get(need_map) if self.complete and index == self.index else None

    def attended(self, index: int, attended: Attended) -> None:
        if self.index is None and self._removed[index]:
            self.index = index
            if attended.q.is_cuda:
                torch.cuda.synchronize(attended.q.device)
            self.seconds = perf_counter() - self._started
        if index == self.index:
            attended.x  # noqa: B018 - adds the branch: nothing may change once it is shared
            self.attentions[attended.attention is not None] = attended

    def fed(self, index: int, x: Tensor) -> None:
        if self.index is None and index == len(self.outputs):
            self.outputs.append(x.clone())  # the model may go on in place

    @property
    def nbytes(self) -> int:
        """Memory that is held; a view holds all that it is a view of."""
        tensors = [answer for _, answer in self.answers if answer is not None] + self.outputs
        for attended in self.attentions.values():
            tensors += attended.tensors()
        storages = [tensor.untyped_storage() for tensor in tensors]
        return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


class Prefix:
    """The prefixes of all batches of a split, for one model; at most `budget` bytes are held.

    Batches that no longer fit are run in full every time. For a model whose weights do not change, in evaluation mode
    and without gradients; in any other state it is run in full, and so is a model that runs its blocks several times in
    one forward. Recipes that reduce first at different blocks share the prefix of the earliest one seen so far.
    """

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.held = 0
        self._memos: dict[int, PrefixMemo] = {}
        self._layout: Layout | None = None  # of all that is held
        self._closed = False  # nothing more is noted down

    def __len__(self) -> int:
        """Batches that are held."""
        return len(self._memos)

    @property
    def seconds(self) -> float:
        """What computing the prefixes that are held took, and what a pass that resumes from them saves."""
        return sum(memo.seconds for memo in self._memos.values())

    @contextmanager
    def batch(self, model: nn.Module, number: int) -> Iterator[None]:
        """Run the model on one batch inside: ``with prefix.batch(model, 3): model(x)``.

        Parameters
        ----------
        model : nn.Module
            The compressed model. Afterwards its classes, attributes and ``state_dict`` are what they were.
        number : int
            Of the batch. The same number always stands for the same input.
        """
        plan = None if model.training or torch.is_grad_enabled() else find_plan(model)
        memo = None if plan is None else self._memo(plan, number)
        if memo is None:
            yield
            return
        before = memo.nbytes
        try:
            with observe(model, memo), _wrapped(model, memo):
                yield
        finally:
            if memo.complete:
                self._grow(memo, memo.nbytes - before)
        if not memo.complete:
            self._add(number, memo)

    def _memo(self, plan: Plan, number: int) -> PrefixMemo | None:
        """The memo to resume from, a fresh one to fill, or None to run in full."""
        layout = plan.where, plan.dialect, plan.can_run_tail
        if layout != self._layout:
            self._memos.clear()
            self.held, self._layout, self._closed = 0, layout, False
        memo = self._memos.get(number)
        first = None if memo is None else first_reduction(plan.removals(memo.tokens - plan.protected))
        if memo is not None and memo.index is not None and first is not None and first < memo.index:
            del self._memos[number]
            self.held -= memo.nbytes
            memo, self._closed = None, False
        return PrefixMemo() if memo is None and not self._closed else memo

    def _add(self, number: int, memo: PrefixMemo) -> None:
        if memo.index is None:  # nothing was reduced
            return
        size = memo.nbytes
        if memo.passes != 1 or self.held + size > self.budget:
            self._closed = True
            return
        memo.complete = True
        self._memos[number] = memo
        self.held += size

    def _grow(self, memo: PrefixMemo, size: int) -> None:
        """A pass has added the attention that it needed, without the map or with it."""
        if size and self.held + size > self.budget:
            memo.attentions.popitem()  # the newest
        else:
            self.held += size


def _early_calls(model: nn.Module) -> list[Call]:
    """All that may be called before the first block: modules outside the blocks, and methods named `tokens`."""
    paths = [path for path, module in model.named_modules() if site_of(module) is not None]
    calls: list[Call] = []
    for path, module in model.named_modules():
        if any(path == host or path.startswith(f"{host}.") for host in paths):
            continue
        if callable(getattr(type(module), "tokens", None)):
            calls.append((module, "tokens"))
        around = not path or any(host.startswith(f"{path}.") for host in paths)  # its call ends behind the blocks
        if not around and not isinstance(module, torch.jit.ScriptModule):
            calls.append((module, "forward"))
    return calls


def _recording(memo: PrefixMemo) -> Wrap:
    inside = False

    def wrap(call: Call, original: Callable[..., Any]) -> Callable[..., Any]:
        def record(*args: Any, **kwargs: Any) -> Any:
            nonlocal inside
            if inside or memo.passes:
                return original(*args, **kwargs)
            inside = True
            try:
                answer = original(*args, **kwargs)
            finally:
                inside = False
            if not memo.passes:
                memo.answers.append((call, answer.clone() if isinstance(answer, Tensor) else None))
            return answer

        return record

    return wrap


def _playing(memo: PrefixMemo) -> Wrap:
    def wrap(call: Call, original: Callable[..., Any]) -> Callable[..., Any]:
        waiting = deque(answer for other, answer in memo.answers if other == call)

        def play(*args: Any, **kwargs: Any) -> Any:
            answer = waiting.popleft() if waiting else None
            return original(*args, **kwargs) if answer is None else answer.clone()

        return play

    return wrap


@contextmanager
def _wrapped(model: nn.Module, memo: PrefixMemo) -> Iterator[None]:
    """Note down the answers of calls, or give those noted down; put every method back afterwards."""
    if memo.complete:
        wrap, calls = _playing(memo), list(dict.fromkeys(call for call, _ in memo.answers))
    else:
        wrap, calls = _recording(memo), _early_calls(model)
    before = [(module, name, module.__dict__.get(name)) for module, name in calls]
    try:
        for module, name in calls:
            module.__dict__[name] = wrap((module, name), getattr(module, name))
        yield
    finally:
        for module, name, value in before:
            if value is None:
                module.__dict__.pop(name, None)
            else:
                module.__dict__[name] = value
