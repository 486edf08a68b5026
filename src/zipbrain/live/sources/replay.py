"""A recording on disk, replayed at its own pace, faster, or as fast as it is read."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from itertools import repeat
from pathlib import Path
from typing import Any, Final

from zipbrain.errors import OptionError
from zipbrain.live.source import Chunk, SourceEnded
from zipbrain.live.sources.base import SourceKind, read_number
from zipbrain.signal.edf import open_edf
from zipbrain.signal.recording import Recording

_CHUNK_S: Final = 0.1  # seconds of wall time between two chunks
_BLOCK_S: Final = 2.0  # seconds of the recording in a chunk where there is no pace
_FASTEST: Final = 1e4  # times real time


class Replay:
    """A recording as a source; its gaps are gaps.

    Parameters
    ----------
    recording : Recording
        An open recording, as `zipbrain.edge.open_edf` gives it.
    speed : float
        Times real time; ``math.inf`` for as fast as it is read.
    is_live : bool
        True to behave as an amplifier does: what is not read in time is lost. A file waits until it is read.
    sizes : iterable of int, optional
        Samples of every chunk, in place of a tenth of a second of wall time.
    """

    def __init__(
        self, recording: Recording, *, speed: float = 1.0, is_live: bool = False, sizes: Iterable[int] | None = None
    ) -> None:
        self.name, self.recording, self.speed, self.is_live = "replay", recording, speed, is_live
        self.ch_names, self.sfreq = tuple(recording.ch_names), recording.sfreq
        self.limits, self.notes = getattr(recording, "limits", None), tuple(recording.notes)
        each_s = _CHUNK_S * speed if math.isfinite(speed) else _BLOCK_S
        self._sizes: Iterator[int] = iter(sizes if sizes is not None else repeat(max(1, round(each_s * self.sfreq))))
        self._place, self._missing, self._size = 0, 0, 0
        self._gaps = list(recording.gaps)
        self._began: float | None = None

    def read(self, timeout_s: float) -> Chunk | None:
        """The next samples when their time has come; a gap is missing samples."""
        if self._gaps and self._place >= self._gaps[0][0]:
            start, stop = self._gaps.pop(0)
            self._missing, self._place = stop - start, stop
        end = self._gaps[0][0] if self._gaps else self.recording.n_times
        if self._place >= self.recording.n_times:
            raise SourceEnded("the recording is at its end")
        self._size = min(self._size or max(next(self._sizes, 1), 1), end - self._place)
        if not self._wait((self._place + self._size) / self.sfreq / self.speed, timeout_s):
            return None
        chunk = Chunk(self.recording.read(self._place, self._place + self._size), missing=self._missing)
        self._place, self._missing, self._size = self._place + self._size, 0, 0
        return chunk

    def _wait(self, due_s: float, timeout_s: float) -> bool:
        """True when so many seconds of wall time have gone by since the first call; False after the time-out."""
        now = time.monotonic()
        self._began = now if self._began is None else self._began
        left = self._began + due_s - now
        if left > 0:
            time.sleep(min(left, timeout_s))
        return left <= timeout_s

    def close(self) -> None:
        """Nothing is held open."""


class ReplayKind(SourceKind):
    """EDF and BDF files."""

    name = "replay"
    form = "replay:FILE?speed=10"
    options = ("speed", "live")

    def open(self, what: str, options: dict[str, str], **reading: Any) -> Replay:
        """Open the file; ``speed`` is 1 if not given, ``speed=max`` as fast as the model can follow, ``live=yes``."""
        text = options.get("speed", "1")
        speed = math.inf if text == "max" else read_number("speed", text, 1e-3, _FASTEST)
        units, check = reading.get("units"), reading.get("check", True)
        live = options.get("live", "no")
        if live not in ("yes", "no") or (live == "yes" and speed == math.inf):
            raise OptionError("--source live", live, "it is yes, with a number for speed, or no")
        return Replay(open_edf(Path(what), units=units, check=check), speed=speed, is_live=live == "yes")
