"""Windows -> scaled batches on a device: kept there or in memory where they fit, read ahead where they don't."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from zipbrain.data.corpora import CORPORA, convention
from zipbrain.data.windows import Windows
from zipbrain.errors import OptionError
from zipbrain.models import own_name, task_of
from zipbrain.paper import NETWORKS, canonical_name
from zipbrain.signal.scaling import scale

PLACES: Final = ("auto", "device", "memory", "disk")
_CHUNK: Final = 256  # windows scaled at once
_SHARE: Final = 0.4  # of what is free, that windows may take


def check_windows(option: str, given: object) -> None:
    """Refuse an array, a name or anything else where `Windows` are needed."""
    if not isinstance(given, Windows):
        allowed = "it must be Windows: make them with Windows.from_arrays, or open_prepared(folder).split(name)"
        raise OptionError(option, type(given).__name__, allowed)


def scaling_of(model: str, windows: Windows) -> str:
    """The scaling by which a model reads these windows.

    That of a folder which was prepared for the model; else the usual one of the corpus, or of recordings of your own.
    """
    if windows.scaling is not None and windows.model is not None:
        prepared, asked = (canonical_name("model", name, NETWORKS) for name in (windows.model, model))
        if prepared == asked:
            return windows.scaling
    corpus = windows.name.lower()
    return convention(model, corpus if corpus in CORPORA else "folder").scaling


def scaling_for(model: nn.Module, windows: Windows) -> str:
    """The scaling by which a model reads windows: see `scaling_of`.

    For a foreign model it is that of its task, else that of the folder which the windows come from.
    """
    name, task = own_name(model), task_of(model)
    if name is not None:
        return scaling_of(name, windows)
    found = windows.scaling if task is None or task.scaling is None else task.scaling
    if found is None:
        known = "is none of our models: say how it reads microvolts, such as 'hundred' (--convention)"
        raise OptionError("scaling", None, f"{type(model).__name__} {known}")
    return found


def pick_device(device: str | torch.device) -> torch.device:
    """``"auto"`` is the GPU if there is one."""
    if str(device) == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
        if chosen.type == "cuda" and not torch.cuda.is_available():
            raise RuntimeError("torch sees no CUDA device")
        torch.empty(0, device=chosen)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise OptionError("device", str(device), f"it can't be used ({reason}): try auto, cpu or cuda") from None
    return chosen


class Feed:
    """Batches of one split.

    Parameters
    ----------
    windows : Windows
        The split.
    scaling : str
        See `zipbrain.data.scale`.
    device : torch.device
        Where batches are needed.
    place : {"auto", "device", "memory", "disk"}
        Where scaled windows wait: on the device, in the computer's memory, or nowhere (read and scaled batch by batch,
        one batch ahead). "auto" takes the first of these that has room.
    """

    def __init__(self, windows: Windows, scaling: str, device: torch.device, place: str = "auto") -> None:
        if place not in PLACES:
            raise OptionError("cache", place, f"it must be one of {', '.join(PLACES)}")
        if not len(windows):
            raise OptionError("windows", repr(windows), "there is none")
        self.windows, self.scaling, self.device = windows, scaling, device
        self.labels = torch.from_numpy(windows.labels).to(device)
        bytes_needed = 4 * len(windows) * windows.n_chans * windows.n_times
        self.place = _roomiest(bytes_needed, device) if place == "auto" else place
        self.stored: Tensor | None = None
        if self.place != "disk":
            self.stored = self._load()

    def __len__(self) -> int:
        return len(self.windows)

    def batches(self, order: NDArray[np.int64], size: int, drop_last: bool = False) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield (x (m, C, T), labels (m,)) on the device, in this order."""
        stop = len(order) - len(order) % size if drop_last else len(order)
        starts = range(0, stop, size)
        if self.stored is not None and (self.place == "device" or self.device.type == "cpu"):
            places = torch.from_numpy(order).to(self.device)
            for start in starts:
                part = places[start : start + size]
                yield self.stored[part], self.labels[part]
            return
        parts = [order[start : start + size] for start in starts]
        with ThreadPoolExecutor(1) as ahead:
            waiting = ahead.submit(self._fetch, parts[0]) if parts else None
            for number in range(len(parts)):
                assert waiting is not None
                batch = waiting.result()
                if number + 1 < len(parts):
                    waiting = ahead.submit(self._fetch, parts[number + 1])
                yield batch

    def _fetch(self, part: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        if self.stored is None:
            x = torch.from_numpy(scale(self.windows.take(part), self.scaling))
        else:
            x = self.stored[torch.from_numpy(part)]
        if self.device.type == "cuda":
            x = x.pin_memory()
        return x.to(self.device, non_blocking=True), self.labels[torch.from_numpy(part).to(self.device)]

    def _load(self) -> Tensor:
        where = self.device if self.place == "device" else torch.device("cpu")
        x = torch.empty(len(self), self.windows.n_chans, self.windows.n_times, device=where)
        for start in range(0, len(self), _CHUNK):
            chunk = self.windows.take(slice(start, start + _CHUNK))
            x[start : start + len(chunk)] = torch.from_numpy(scale(chunk, self.scaling))
        return x


def _roomiest(needed: int, device: torch.device) -> str:
    if device.type == "cuda" and needed <= _SHARE * torch.cuda.mem_get_info(device)[0]:
        return "device"
    return "memory" if needed <= _SHARE * _free_memory() else "disk"


def _free_memory() -> int:
    """Bytes that can be had without swapping; 2 GiB where the system does not tell."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return 1024 * int(next(line for line in lines if line.startswith("MemAvailable")).split()[1])
    except (OSError, StopIteration, ValueError):
        return 2**31
