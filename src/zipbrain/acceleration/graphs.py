"""Capture of a network at one batch size in a CUDA graph: no launch is left to the host but one."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from zipbrain.acceleration.batch_buckets import run
from zipbrain.seams.sync_guard import no_waiting

_WARM_UP: Final = 3  # calls that let kernels be compiled, chosen and loaded, and workspaces be made
_one_capture = threading.Lock()
_streams: dict[torch.device, torch.cuda.Stream] = {}
_TORCH, _OWN, _PYTHON = (Path(file).parent for file in (torch.__file__, __file__, threading.__file__))


class Captured:
    """A captured forward; calling it replays the kernels on what lies in the buffer.

    The network is kept because the graph reads its weights where they lie.
    """

    def __init__(
        self, network: Callable[[Tensor], Tensor], graph: torch.cuda.CUDAGraph, buffer: Tensor, output: Tensor
    ) -> None:
        self.network, self.graph, self.buffer, self.output = network, graph, buffer, output

    def __call__(self) -> Tensor:
        """The logits of the buffer's windows, in memory that the next call overwrites."""
        self.graph.replay()
        return self.output


def capture(network: Callable[[Tensor], Tensor], buffer: Tensor, pool: Any) -> Captured:
    """Warm a network up on a side stream and capture it.

    Parameters
    ----------
    network : callable
        One tensor in, one tensor out.
    buffer : Tensor, shape (size, ...)
        CUDA memory with real windows in it, which the graph will read.
    pool
        ``torch.cuda.graph_pool_handle()``: graphs that are never replayed at the same time share their memory.

    Raises
    ------
    Exception
        Whatever the network raises, or CUDA, if it can't be captured. A network that waits for the GPU is found before
        the capture begins: a capture that breaks off would leave torch's random numbers unusable.
    """
    with _one_capture, torch.cuda.device(buffer.device):
        if buffer.device not in _streams:
            _streams[buffer.device] = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side = _streams[buffer.device]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(_WARM_UP):
                run(network, buffer)
            with no_waiting():
                run(network, buffer)
        current = torch.cuda.current_stream()
        current.wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, pool=pool, stream=side, capture_error_mode="thread_local"):
                output = run(network, buffer)
        except BaseException:
            torch.cuda.set_stream(current)  # which torch does not do if a capture breaks off
            raise
    return Captured(network, graph, buffer, output)


def why(error: BaseException) -> str:
    """An error in one line, with the place in the model's own code where it came up."""
    while "capture" in str(error) and error.__context__ is not None:  # what made the capture fail says more
        error = error.__context__
    lines = str(error).strip().splitlines()
    words = lines[0] if lines else ""
    if "synchronizing CUDA operation" in words:
        words = "it waits for the GPU inside a forward (a value read back, or sent over from the CPU)"
    else:
        words = f"{type(error).__name__}: {words}" if words else type(error).__name__
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename)
        if path.suffix == ".py" and path.parent != _PYTHON and not {_TORCH, _OWN} & set(path.parents):
            return f"{words} ({path.name}, line {frame.lineno})"
    return words
