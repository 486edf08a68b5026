"""CUDA-graph capture, shared by captured training steps, `accelerate` and profiling."""

from __future__ import annotations

import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

_WARM_UP: Final = 3  # calls in which kernels are compiled, chosen and loaded and workspaces made
_one_capture = threading.Lock()
_HOME: Final = Path(__file__).parents[1]
# Frames of these folders say nothing about the model whose capture failed.
_OTHERS: Final = {Path(torch.__file__).parent, _HOME / "training", _HOME / "acceleration"}
_PYTHON: Final = Path(threading.__file__).parent


class CapturedForward:
    """A captured forward; calling it replays the kernels on what lies in the buffer.

    The network is kept because the graph reads its weights where they lie.
    """

    def __init__(
        self, network: Callable[[Tensor], Any], graph: torch.cuda.CUDAGraph, buffer: Tensor, output: Any
    ) -> None:
        self.network, self.graph, self.buffer, self.output = network, graph, buffer, output

    def __call__(self) -> Any:
        """What the network answers to the buffer's windows, in memory that the next call overwrites."""
        self.graph.replay()
        return self.output


def capture_forward(network: Callable[[Tensor], Any], buffer: Tensor, pool: Any = None) -> CapturedForward:
    """Rehearse a network on a side stream and capture its forward; raises whatever the network or CUDA raises.

    The graph will read its windows from `buffer`, CUDA memory with real windows in it. Graphs that are never replayed
    at the same time may share their memory: ``pool=torch.cuda.graph_pool_handle()``.
    """
    with one_capture(buffer.device):
        rehearse(lambda: network(buffer), buffer.device, _WARM_UP)
        graph, side = torch.cuda.CUDAGraph(), _side_stream(buffer.device)
        with torch.cuda.graph(graph, pool=pool, stream=side, capture_error_mode="thread_local"):
            output = network(buffer)
    return CapturedForward(network, graph, buffer, output)


@contextmanager
def one_capture(device: torch.device) -> Iterator[None]:
    """Allow one capture at a time; one that breaks off leaves stream and random numbers usable."""
    with _one_capture, torch.cuda.device(device):
        current = torch.cuda.current_stream()
        try:
            yield
        except BaseException:
            # An aborted capture leaves its stream the current one, and the generator waiting for its end.
            torch.cuda.set_stream(current)
            generator = torch.cuda.default_generators[torch.cuda.current_device()]
            generator.graphsafe_set_state(generator.clone_state())
            raise


def rehearse(call: Callable[[], object], device: torch.device, times: int = 1) -> None:
    """Run a call on the side stream so many times, then once more under `sync_guard`.

    A call that waits for the GPU must be found before the capture begins: a capture that breaks off does harm.
    """
    side, current = _side_stream(device), torch.cuda.current_stream(device)
    side.wait_stream(current)
    with torch.cuda.stream(side):
        for _ in range(times):
            call()
        with sync_guard():
            call()
    current.wait_stream(side)


@cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    """One stream for all captures: cuBLAS keeps a workspace for every stream that it has seen."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


@contextmanager
def sync_guard() -> Iterator[None]:
    """Raise where the host waits for the GPU, as far as torch detects it."""
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that it does not detect everything; the capture detects the rest
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


def explain_failure(error: BaseException) -> str:
    """An error in one line, with the place in the model's own code where it came up."""
    while "capture" in str(error) and error.__context__ is not None:  # what made the capture fail says more
        error = error.__context__
    words = (str(error).strip().splitlines() or [""])[0]
    if "synchronizing CUDA operation" in words:
        words = "it waits for the GPU inside a forward (a value read back, or sent over from the CPU)"
    else:
        words = f"{type(error).__name__}: {words}" if words else type(error).__name__
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename)
        if path.suffix == ".py" and path.parent != _PYTHON and not _OTHERS & set(path.parents):
            return f"{words} ({path.name}, line {frame.lineno})"
    return words
