"""Training steps captured in CUDA graphs: forward and backward are one launch each."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable
from functools import partial
from typing import Any, Final, Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call

from zipbrain.errors import OptionError
from zipbrain.pooling.module_hooks import has_hooks
from zipbrain.seams.forward import site_of
from zipbrain.training.cuda_graphs import explain_failure, one_capture, rehearse
from zipbrain.training.inference import autocast

log = logging.getLogger("zipbrain")

Choice = bool | Literal["auto"]
YES: Final = "yes"
_NO_GRAPHS: Final = "training on {}, which has no CUDA graphs"
_Call = Callable[..., Tensor]


class NotCaptured(Exception):
    """Why a network can't be captured."""


class Captured(nn.Module):
    """What `capture` returns: batches like the captured one replay the graphs, all others run as before.

    Logits and what backward needs lie in memory that the next call overwrites: one backward for every call, before the
    next. A call replays only while all gradients are None, as ``zero_grad`` leaves them.
    """

    def __init__(self, module: nn.Module, graphed: _Call, like: Tensor, own: list[Tensor], amp: str) -> None:
        super().__init__()
        self.module = module
        self._graphed, self._like, self._own, self._mode, self._amp = graphed, like, own, module.training, amp
        self._calls = 0

    def forward(self, x: Tensor) -> Tensor:
        """Windows (B, ...) -> logits (B, ...)"""
        if self._fits(x) and all(value.grad is None for value in self._own):
            logits = self._graphed(x, *self._own)
            self._calls += 1
            logits.register_hook(partial(self._check, self._calls))  # type: ignore[no-untyped-call]
            return logits
        with autocast(x.device, self._amp):
            answer: Tensor = self.module(x)
        return answer

    def _fits(self, x: Tensor) -> bool:
        like = self._like
        same = x.shape == like.shape and x.dtype == like.dtype and x.device == like.device and not x.requires_grad
        return same and torch.is_grad_enabled() and self.module.training == self._mode

    def _check(self, call: int, _: Tensor) -> None:
        if call != self._calls:
            found = f"backward of call {call} behind call {self._calls}"
            raise RuntimeError(f"{found}: a captured network is called once for every backward; train without capture")


def capture(module: nn.Module, example: Tensor, amp: str = "no") -> Captured:
    """Capture forward and backward of a network in CUDA graphs.

    Parameters
    ----------
    module : nn.Module
        One tensor in, one tensor out; compressed or not, in the mode in which it will be called. Its weights may be
        changed in place afterwards, by an optimiser or by ``load_state_dict``. What it decides in Python, it decides
        now.
    example : Tensor, shape (B, ...)
        Real windows on the module's CUDA device, as many as there will be in a batch.
    amp : {"no", "fp16", "bf16"}
        Autocast, also of batches that are not replayed; what is on outside does not count.

    Returns
    -------
    network : Captured
        With the same logits, gradients and random numbers as the module. Weights, buffers and generators are left as
        they were.

    Raises
    ------
    NotCaptured
        If it can't be done: the module is as usable as before.
    """
    if any(has_hooks(part) for part in module.modules()):
        raise NotCaptured("the model has hooks, is compiled or has another forward put into it")
    own = {name: value for name, value in (*module.named_parameters(), *module.named_buffers()) if value.requires_grad}
    # The graph is taken of aliases, so that no node of torch's own bookkeeping for the weights stays on its stream.
    aliases = [value.detach().requires_grad_() for value in own.values()]
    like = example.detach().clone()

    def call(x: Tensor, *values: Tensor) -> Tensor:
        with autocast(x.device, amp, cache=False):
            logits: Tensor = functional_call(module, dict(zip(own, values, strict=True)), (x,))
        return logits

    buffers = [(value, value.clone()) for value in module.buffers()]  # a forward may count or average in them
    devices = [example.device] if example.is_cuda else []
    try:
        with torch.random.fork_rng(devices):
            graphed = _graphs(call, (like, *aliases))
    except NotCaptured:
        raise
    except Exception as error:
        raise NotCaptured(explain_failure(error)) from None
    finally:
        with torch.no_grad():
            for value, before in buffers:
                if not torch.equal(value, before):
                    value.copy_(before)
    return Captured(module, graphed, like, list(own.values()), amp)


def _graphs(call: _Call, given: tuple[Tensor, ...]) -> _Call:
    """The call as two CUDA graphs, forward and backward, over the memory of what is given now."""
    device = given[0].device
    if device.type != "cuda":
        raise NotCaptured(_NO_GRAPHS.format(device.type))
    with one_capture(device):
        torch.cuda.empty_cache()
        before = torch.cuda.mem_get_info()[0]
        rehearse(lambda: _step(call, given), device)
        graphed: _Call = torch.cuda.make_graphed_callables(call, given, allow_unused_input=True)  # type: ignore[assignment]
        after = torch.cuda.mem_get_info()[0]
    # A batch of another size needs nearly as much again, and an optimiser two numbers for every weight.
    taken = before - after
    if after < 1.3 * taken + 2 * sum(value.nbytes for value in given[1:]):
        needed = f"{taken / 2**30:.1f} GiB of the GPU, {after / 2**30:.1f} GiB would be left"
        raise NotCaptured(f"its graphs take {needed}: too little for batches of other sizes")
    return graphed


def _step(call: _Call, given: tuple[Tensor, ...]) -> None:
    """One forward and one backward; refuses what has no gradient."""
    logits: Any = call(*given)
    if not isinstance(logits, Tensor) or not logits.requires_grad:
        found = "a tensor without gradients" if isinstance(logits, Tensor) else f"a {type(logits).__name__}"
        raise NotCaptured(f"the model answers with {found}")
    gradients = torch.autograd.grad(logits, given[1:], torch.ones_like(logits), allow_unused=True)
    places = [one.data_ptr() for one in gradients if one is not None and one.numel()]
    if len(set(places)) < len(places):
        raise NotCaptured("two of its weights get one gradient, which would be clipped and scaled twice")


def check_choice(choice: object) -> None:
    """Refuse anything but "auto", True and False."""
    if not isinstance(choice, bool) and choice != "auto":
        raise OptionError("capture", choice, "it must be 'auto', True or False")


class StepCapture:
    """What the steps of a run call: the module, or its captured form where that was asked for and is possible.

    With choice True a warning says why nothing is captured, with "auto" only the record does. `accumulates`: gradients
    of several passes are added up. `network` is what to call; `status` is "yes", or "no" and why.
    """

    def __init__(self, module: nn.Module, device: torch.device, amp: str, choice: Choice, accumulates: bool) -> None:
        check_choice(choice)
        self.module, self.device, self.amp, self.choice, self.accumulates = module, device, amp, choice, accumulates
        self.status = "no: no epoch was run"
        self.network = module
        self._captured_state: list[Any] | None = None

    def prepare(self, example: Callable[[], Tensor]) -> None:
        """Before an epoch: capture, if that was not done yet or the module has changed since."""
        state = _module_state(self.module)
        if state == self._captured_state:
            return
        self.release()
        self._captured_state = state
        refusal = self._refusal() or self._attempt(example)
        self.status = YES if refusal is None else f"no: {refusal}"
        if refusal is not None and self.choice is True:
            log.warning("steps are not captured: %s", refusal)

    def _refusal(self) -> str | None:
        if self.choice is False:
            return "not asked for"
        if self.device.type != "cuda":
            return _NO_GRAPHS.format(self.device.type)
        return "gradients of several passes are added up (micro_batch)" if self.accumulates else None

    def _attempt(self, example: Callable[[], Tensor]) -> str | None:
        try:
            self.network = capture(self.module, example(), self.amp)
            return None
        except NotCaptured as error:
            refusal = str(error)
        gc.collect()  # frees what the attempt left on the GPU
        return refusal

    def release(self) -> None:
        """Give the graphs and their memory back."""
        if self.network is not self.module:
            self.network = self.module
            gc.collect()  # torch keeps a graph in a class of its own, and classes refer to themselves

    def __enter__(self) -> StepCapture:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def _module_state(module: nn.Module) -> list[Any]:
    """What a graph depends on and a caller may change between two epochs: submodules, modes, memory."""
    parts = [(type(part), part.training, site_of(part), has_hooks(part)) for part in module.modules()]
    return [*parts, *((value.data_ptr(), value.requires_grad) for value in (*module.parameters(), *module.buffers()))]
