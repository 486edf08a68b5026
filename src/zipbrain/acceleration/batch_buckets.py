"""Answers at a few batch sizes: windows are split, padded to the nearest size, and the answers cut and joined again."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor, nn

from zipbrain.training.inference import run_inference

Bucket = Callable[[Tensor], Tensor]  # (n, ...) -> (n, ...) in memory of its own, for n up to its size


class Unpadded:
    """A network called with as many windows as there are; `like` has their device and precision."""

    def __init__(self, network: nn.Module, like: Tensor, answers: torch.dtype) -> None:
        self.network, self.device, self.dtype, self.answers = network, like.device, like.dtype, answers

    def __call__(self, x: Tensor) -> Tensor:
        """(n, ...) -> (n, ...)"""
        # A copy made outside of inference mode is an ordinary tensor.
        return run_inference(self.network, x.to(self.device, self.dtype, non_blocking=True)).to(self.answers, copy=True)


class Padded:
    """A fixed input buffer (size, ...) and what reads it; `answer` may return the same memory at every call."""

    def __init__(self, buffer: Tensor, answer: Callable[[], Tensor], answers: torch.dtype) -> None:
        self.buffer, self.answer, self.answers = buffer, answer, answers

    def __call__(self, x: Tensor) -> Tensor:
        """(n, ...) -> (n, ...) for 1 <= n <= size"""
        fill(self.buffer, x)
        return self.answer()[: len(x)].to(self.answers, copy=True)


def fill(buffer: Tensor, x: Tensor) -> None:
    """Write windows (n, ...) into a buffer (size, ...), and copies of the last one into what is left of it."""
    count = len(x)
    buffer[:count].copy_(x, non_blocking=True)
    if count < len(buffer):
        # Copies of the last window, not zeros: dividing by the norm of a dead window can be slow.
        buffer[count:].copy_(buffer[count - 1 : count].expand_as(buffer[count:]))


def split_batch(count: int, sizes: tuple[int, ...]) -> Iterator[tuple[slice, int]]:
    """Slices of `count` windows, each with its bucket's size: the largest as often as it fits, then the next larger.

    `sizes` ascend.
    """
    for start in range(0, count, sizes[-1]):
        stop = min(start + sizes[-1], count)
        yield slice(start, stop), next(size for size in sizes if size >= stop - start)


class Buckets:
    """One bucket for every size, used by one thread and one stream at a time.

    `dtype` is the precision in which windows are sent to the device.
    """

    def __init__(self, buckets: Mapping[int, Bucket], device: torch.device, dtype: torch.dtype) -> None:
        self.buckets = dict(sorted(buckets.items()))
        self.sizes = tuple(self.buckets)
        self.device, self.dtype = device, dtype
        self._lock = threading.Lock()
        self._stage: Tensor | None = None
        self._stream: torch.cuda.Stream | None = None

    def __call__(self, x: Tensor) -> Tensor:
        """(n, ...) anywhere -> (n, ...) on the same device, n >= 1"""
        with self._lock:
            self._wait_for_the_last_stream()
            answers = [self._answer(x[part], size) for part, size in split_batch(len(x), self.sizes)]
        return answers[0] if len(answers) == 1 else torch.cat(answers)

    def _answer(self, x: Tensor, size: int) -> Tensor:
        if self.device.type == "cuda" and x.device.type == "cpu":
            # Bringing the answer back waits for the GPU, so the stage is free for the next windows.
            return self.buckets[size](self._staged(x)).to(x.device)
        return self.buckets[size](x).to(x.device)

    def _staged(self, x: Tensor) -> Tensor:
        """The windows in page-locked memory, which the GPU reads several times faster than other memory."""
        if x.dtype == self.dtype and x.is_pinned():
            return x
        if self._stage is None:
            try:
                with torch.inference_mode(False):  # else it could be written in the caller's inference mode only
                    self._stage = torch.empty((self.sizes[-1], *x.shape[1:]), dtype=self.dtype, pin_memory=True)
            except RuntimeError:  # the system allows no more of it
                return x
        return self._stage[: len(x)].copy_(x)

    def _wait_for_the_last_stream(self) -> None:
        """The buffers may still be in use on another stream of the caller's."""
        if self.device.type == "cuda":
            stream = torch.cuda.current_stream(self.device)
            if self._stream is not None and self._stream != stream:
                stream.wait_stream(self._stream)
            self._stream = stream
