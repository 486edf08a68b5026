"""Peak memory of one call, beyond what was there before it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import torch


def peak_memory(call: Callable[[], object], device: torch.device | str = "cpu") -> int:
    """Bytes that a call needs at its peak beyond what is allocated when it starts.

    On CUDA this is the allocator's own count. On a CPU the resident set of the process is sampled every millisecond
    (Linux), so a call should take some ten milliseconds, and run in a fresh process for a clean figure.

    Parameters
    ----------
    call : callable
        What to run.
    device : torch.device or str
        Where it runs.
    """
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    before = peak = _resident()
    done = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.001):
            peak = max(peak, _resident())

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        kept = call()  # held until the last sample: the result counts too
        peak = max(peak, _resident())
        del kept
    finally:
        done.set()
        watcher.join()
    return peak - before


def _resident() -> int:
    statm = Path("/proc/self/statm")
    if not statm.exists():
        raise OSError("peak_memory on a CPU reads /proc/self/statm, which only Linux has")
    import resource

    return int(statm.read_text().split()[1]) * resource.getpagesize()
