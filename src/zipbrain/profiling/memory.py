"""Peak memory of one call in this process, beyond what was there before it."""

from __future__ import annotations

from collections.abc import Callable

import torch

from zipbrain.profiling.process_memory import peak_of_call


def peak_memory(call: Callable[[], object], device: torch.device | str = "cpu") -> int:
    """Bytes that a call needs at its peak beyond what is in use when it starts.

    On CUDA this is the allocator's own count. On a CPU it is the kernel's high-water mark of the resident set (Linux),
    which is reset first; run it in a fresh process for a clean figure, since memory that earlier calls freed but kept
    is not counted again.

    Parameters
    ----------
    call : callable
        What to run.
    device : torch.device or str
        Where it runs.
    """
    if torch.device(device).type != "cuda":
        return peak_of_call(call)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before
