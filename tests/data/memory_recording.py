"""A recording whose samples are in memory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from zipbrain.signal.recording import Annotation, Array, Recording


class MemoryRecording(Recording):
    """Microvolts (C, n) as a recording: what is missing is NaN, and may lie in a gap."""

    def __init__(
        self,
        x: Array,
        ch_names: Sequence[str],
        sfreq: float,
        gaps: Sequence[tuple[int, int]] = (),
        limits: Array | None = None,
        annotations: Sequence[Annotation] = (),
    ) -> None:
        self.path, self.ch_names, self.left_out, self.notes = Path("memory"), list(ch_names), {}, []
        self.sfreq, self.n_times, self.gaps, self._x = sfreq, x.shape[1], list(gaps), x
        self.limits, self._annotations = limits, list(annotations)

    @property
    def annotations(self) -> list[Annotation]:
        """What was given."""
        return self._annotations

    def _read(self, start: int, stop: int, rows: NDArray[np.intp]) -> Array:
        return np.asarray(self._x[rows, start:stop])
