"""The readout: which tokens behind the last block a model's head reads, and whether their places count.

Judged on an example. The blocks run once; then they hand on what they gave, as it was or changed, so that only the
embedding and the head run again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final

import torch
from torch import Tensor, nn

from zipbrain.errors import OptionError
from zipbrain.seams.class_swap import swapped_back
from zipbrain.seams.evaluation_mode import evaluation_mode
from zipbrain.seams.find import Chain

_SAME: Final = 1e-3  # relative difference below which an answer counts as unchanged; half precision: its own rounding


@dataclass(frozen=True)
class Readout:
    """What a head reads of the T tokens behind the last block.

    Attributes
    ----------
    total : int
        T.
    places : tuple of int
        Tokens that the answer depends on.
    has_fixed_places : bool
        True if the head fails on fewer tokens or answers otherwise in another order (flatten, grid).
    is_passed_on : bool
        True if the model returns the tokens themselves.
    stands_alone : bool
        True if the answer is the same without all tokens that are not protected, and whatever those hold.
    """

    total: int
    places: tuple[int, ...]
    has_fixed_places: bool = False
    is_passed_on: bool = False
    stands_alone: bool = False

    def is_within(self, leading: int, trailing: int) -> bool:
        """True if all that is read stands at the two ends."""
        return bool(self.places) and all(i < leading or i >= self.total - trailing for i in self.places)

    def ends(self) -> tuple[int, int]:
        """Leading and trailing tokens that the head alone reads, or alone leaves out; (0, 0) for any other head."""
        read, total = {*self.places}, self.total
        for chosen in (read, {*range(total)} - read):
            for leading, trailing in ((len(chosen), 0), (0, len(chosen))):
                ends = {*range(leading), *range(total - trailing, total)}
                if 0 < len(chosen) < total and chosen == ends and 2 * len(chosen) <= total:
                    return leading, trailing
        return 0, 0

    def __str__(self) -> str:
        if self.is_passed_on:
            return "gives the tokens on"
        if self.has_fixed_places:
            return "reads every token in its place"
        if len(self.places) == self.total:
            return "reads all tokens alike"
        leading, trailing = self.ends()
        if not leading and not trailing:
            return f"reads {len(self.places)} of {self.total} tokens"
        count = leading or trailing
        end = f"{'first' if leading else 'last'} {'token' if count == 1 else f'{count} tokens'}"
        return f"reads the {end} only" if len(self.places) == count else f"reads all but the {end}"


@dataclass(frozen=True)
class Probe:
    """What running an example showed.

    Attributes
    ----------
    total : int
        Tokens at the first block.
    constant : (int, int) or None
        Leading and trailing tokens there that no input changes; None if no other input could be made of the example.
    readout : Readout or None
        None where no gradient passes the head.
    cells_per_token : int
        Cells of a grid that stand side by side in a token; 1 where there is no grid.
    """

    total: int
    constant: tuple[int, int] | None
    readout: Readout | None
    cells_per_token: int = 1


def probe(model: nn.Module, chain: Chain, example: Any, ends: tuple[int, int]) -> Probe:
    """Run an example through the uncompressed model, and its head again; `ends` are the protected tokens."""
    with swapped_back(model), evaluation_mode(model), torch.no_grad():
        blocks = _Blocks(chain)
        with blocks.recorded():
            answer = _call(model, example)
        if blocks.first is None:
            raise OptionError("example", type(example).__name__, f"running it did not reach {chain}")
        constant = None
        with suppress(Exception):  # an input that the model refuses
            constant = blocks.constant_ends(model, example)
        found = None
        with suppress(Exception):  # a head without gradient
            found = blocks.readout(model, example, answer, constant or (0, 0), ends)
    is_grid, shape = bool(chain.dialect.cells), blocks.first.shape
    return Probe(int(shape[blocks.axis]), constant, found, int(shape[3 - blocks.axis]) if is_grid else 1)


@dataclass(eq=False)
class _Blocks:
    """The blocks of a model, and what went in and came out when an example ran."""

    chain: Chain
    axis: int = 1
    first: Tensor | None = None
    outputs: list[Any] = field(default_factory=list)

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """Remember the tokens before the first block and behind the last."""

        def enter(host: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if self.first is None:
                self.first = _tokens(args, kwargs)
                self.axis = self.chain.dialect.token_axis(host, self.first)

        handles = [self.chain.hosts[0].register_forward_pre_hook(enter, with_kwargs=True)]
        handles.append(self.chain.hosts[-1].register_forward_hook(lambda _, __, output: self.outputs.append(output)))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    @contextmanager
    def giving(self, tokens: Tensor) -> Iterator[None]:
        """Replace the forward of every block: the last one returns these tokens, the others their input."""
        own = [host.__dict__.get("forward") for host in self.chain.hosts]
        for host in self.chain.hosts:
            host.__dict__["forward"] = lambda *args, **kwargs: _tokens(args, kwargs)
        self.chain.hosts[-1].__dict__["forward"] = lambda *args, **kwargs: tokens
        try:
            yield
        finally:
            for host, forward in zip(self.chain.hosts, own, strict=True):
                del host.__dict__["forward"]
                if forward is not None:
                    host.__dict__["forward"] = forward

    def constant_ends(self, model: nn.Module, example: Any) -> tuple[int, int] | None:
        """Tokens at the ends of the first block's input that stay as they are if noise is added to the example."""
        other = _Blocks(self.chain)
        noisy, is_other = _with_noise(example)
        if not is_other or self.first is None:
            return None
        with other.giving(self.outputs[-1]), other.recorded():
            _call(model, noisy)
        if other.first is None or other.first.shape != self.first.shape:
            return None
        moved = (other.first != self.first).movedim(self.axis, 0).flatten(1).any(1).tolist()
        return (moved.index(True), moved[::-1].index(True)) if any(moved) else None

    def readout(
        self, model: nn.Module, example: Any, answer: Any, constant: tuple[int, int], protected: tuple[int, int]
    ) -> Readout | None:
        """What the head reads, by the gradient of its answer and by what fewer or reversed tokens make of it."""
        if len(self.outputs) != 1 or not isinstance(self.outputs[0], Tensor):
            return None
        tokens, axis = self.outputs[0], self.axis
        total, late = int(tokens.shape[axis]), self.chain.facts.late[1]
        leading, trailing = late + max(constant[0], protected[0]), max(constant[1], protected[1])
        with torch.inference_mode(False), torch.enable_grad():
            leaf = tokens.clone().requires_grad_()
            with self.giving(leaf):
                mixed = _mixed(_call(model, example))
            slope = torch.autograd.grad(mixed, leaf)[0]
        slope = slope.movedim(axis, 0).flatten(1).abs().sum(1)
        places = tuple(slope.nonzero().flatten().tolist()) if slope.isfinite().all() else ()
        found = Readout(total, places)
        if not places or total < 2 or not {*range(leading, total - trailing)} <= {*places}:
            alone = found.is_within(*protected) and self._stands_alone(model, example, answer, protected)
            return replace(found, stands_alone=alone) if places else None
        try:
            with self.giving(tokens.narrow(axis, 0, total - 1)):
                fewer = _call(model, example)
        except Exception:  # whatever a head raises where a token is missing
            return replace(found, has_fixed_places=True)
        if [values.shape for values in _tensors(fewer)] != [values.shape for values in _tensors(answer)]:
            return replace(found, is_passed_on=True)
        order = torch.arange(total, device=tokens.device)
        order[leading : total - trailing] = order[leading : total - trailing].flip(0)
        with self.giving(tokens.index_select(axis, order)):
            turned = _call(model, example)
        return replace(found, has_fixed_places=not _is_same(_tensors(turned), _tensors(answer)))

    def _stands_alone(self, model: nn.Module, example: Any, answer: Any, ends: tuple[int, int]) -> bool:
        """True if the head answers the same without all but the tokens at the two ends, and with others between."""
        tokens, axis = self.outputs[0], self.axis
        total, (leading, trailing) = int(tokens.shape[axis]), ends
        others = tokens.clone()
        others.narrow(axis, leading, total - leading - trailing).mul_(-3)
        first, last = tokens.narrow(axis, 0, leading), tokens.narrow(axis, total - trailing, trailing)
        for given in (torch.cat((first, last), dim=axis), others):
            try:
                with self.giving(given):
                    found, wanted = _tensors(_call(model, example)), _tensors(answer)
            except Exception:  # whatever a head raises where tokens are missing
                return False
            if [values.shape for values in found] != [values.shape for values in wanted] or not _is_same(found, wanted):
                return False
        return True


def _call(model: nn.Module, example: Any) -> Any:
    if isinstance(example, dict):
        return model(**example)
    return model(*example) if isinstance(example, tuple) else model(example)


def _tokens(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return args[0] if args else next(iter(kwargs.values()))


def _with_noise(example: Any) -> tuple[Any, bool]:
    """The example with noise of its own size on every floating-point tensor, and whether there is any."""
    generator = torch.Generator().manual_seed(0)

    def disturb(value: Any) -> Any:
        if not isinstance(value, Tensor) or not value.is_floating_point():
            return value
        noise = torch.randn(value.shape, generator=generator).to(value)
        size = value.abs().mean()
        return value + noise * torch.where(size > 0, size, 1.0)

    if isinstance(example, dict):
        return {name: disturb(value) for name, value in example.items()}, any(map(_is_signal, example.values()))
    if isinstance(example, tuple):
        return tuple(map(disturb, example)), any(map(_is_signal, example))
    return disturb(example), _is_signal(example)


def _is_signal(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def _tensors(answer: Any) -> list[Tensor]:
    """All floating-point tensors in a model's answer."""
    if isinstance(answer, Mapping):
        answer = list(answer.values())
    if isinstance(answer, tuple | list):
        return [values for part in answer for values in _tensors(part)]
    return [answer] if _is_signal(answer) else []


def _mixed(answer: Any) -> Tensor:
    """Weighted sum of all values of an answer; weights differ, because equal ones would cancel behind a softmax."""
    parts = [values for values in _tensors(answer) if values.requires_grad]
    weights = [torch.arange(1.0, values.numel() + 1, device=values.device).cos() for values in parts]
    return torch.stack([(values.flatten() * weight).sum() for values, weight in zip(parts, weights, strict=True)]).sum()


def _is_same(found: list[Tensor], expected: list[Tensor]) -> bool:
    for values, wanted in zip(found, expected, strict=True):
        bound = max(_SAME, 16 * torch.finfo(wanted.dtype).eps)
        if not (values - wanted).abs().max() <= bound * wanted.abs().max():
            return False
    return True
