"""Peak memory of one call, beyond what was there before it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

_STATUS, _RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


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
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    if not _RESET.exists():
        raise OSError(f"peak_memory on a CPU needs {_RESET}, which only Linux has")
    _RESET.write_text("5")  # the high-water mark becomes the present size
    before = _kilobytes("VmRSS")
    kept = call()
    peak = _kilobytes("VmHWM")
    del kept
    return max(0, peak - before) * 1024


def _kilobytes(field: str) -> int:
    line = next(line for line in _STATUS.read_text().splitlines() if line.startswith(f"{field}:"))
    return int(line.split()[1])
