"""Groups that depend on q, k and v alone, decided on a second CUDA stream while attention runs.

Only inside a captured CUDA graph, where a second stream costs nothing: launched one by one, kernels wait for the host
anyway, and the two streams would cost it more than they bring.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from zipbrain.pooling.grouping import Grouping
from zipbrain.pooling.methods.base import Method
from zipbrain.pooling.tokens import Tokens

_listeners = threading.local()
_streams: dict[torch.device, torch.cuda.Stream] = {}
_on = True


def switch(on: bool) -> bool:
    """Use the second stream, or decide behind attention (to measure what it brings); returns the old setting."""
    global _on
    before, _on = _on, on
    return before


def possible(x: Tensor) -> bool:
    """Whether a CUDA graph is being captured from eager operators."""
    return _on and x.is_cuda and not torch.compiler.is_compiling() and torch.cuda.is_current_stream_capturing()


def tell(q: Tensor, k: Tensor, v: Tensor) -> None:
    """Called by attention as soon as q, k and v are there."""
    if torch.compiler.is_compiling():
        return
    listener: Callable[[Tensor, Tensor, Tensor], None] | None = getattr(_listeners, "listener", None)
    if listener is not None:
        listener(q, k, v)


class Beside:
    """One block's decision on the second stream."""

    def __init__(self, method: Method, tokens: Tokens) -> None:
        self._method, self._tokens = method, tokens
        self._queries: Tensor | None = None
        self._grouping: Grouping | None = None

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Decide when attention tells what it works on."""
        _listeners.listener = self._decide
        try:
            yield
        finally:
            _listeners.listener = None

    def _decide(self, q: Tensor, k: Tensor, v: Tensor) -> None:
        _listeners.listener = None  # once
        given = self._tokens
        tokens = Tokens(given.x, given.r, q, k, v, given.leading, given.trailing)
        if q.device not in _streams:
            _streams[q.device] = torch.cuda.Stream(q.device)  # type: ignore[no-untyped-call]
        stream = _streams[q.device]
        # Waits for all that came before: also for whoever still reads what the last decision left in memory.
        stream.wait_stream(torch.cuda.current_stream(q.device))
        with torch.cuda.stream(stream):
            self._grouping = self._method.early(tokens)
        self._queries = q

    def grouping(self, q: Tensor) -> Grouping | None:
        """What was decided for these queries; the current stream waits for it."""
        if self._queries is None:
            return None
        torch.cuda.current_stream(q.device).wait_stream(_streams[q.device])
        return self._grouping if q is self._queries else None
