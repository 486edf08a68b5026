"""Decision: what the model said about one window of a stream."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zipbrain.files import encode_nan


@dataclass(frozen=True, eq=False)
class Decision:
    """What the model said about one window of a stream.

    Parameters
    ----------
    start_s, stop_s : float
        The window in stream time, seconds since the first sample.
    probabilities : ndarray, shape (K,), float32
        One per class; NaN where there is no decision.
    decision : int
        The most probable class, -1 for none.
    note : str
        Why there is no decision, or what limits it; empty otherwise.
    looked_twice : bool
        True if the window ran again uncompressed.
    compute_s, delay_s : float
        Seconds the model needed, and seconds from the window's last sample to the decision.
    """

    start_s: float
    stop_s: float
    probabilities: NDArray[np.float32]
    decision: int
    note: str = ""
    looked_twice: bool = False
    compute_s: float = 0.0
    delay_s: float = 0.0

    @property
    def is_made(self) -> bool:
        """True if the window has a decision."""
        return self.decision >= 0 and bool(np.isfinite(self.probabilities).all())

    def to_dict(self) -> dict[str, Any]:
        """The decision as JSON has it, None for NaN."""
        content: dict[str, Any] = encode_nan(dict(vars(self)))
        return content
