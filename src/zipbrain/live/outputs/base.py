"""The interface of an output: it takes samples, decisions and alarm events, and never stops the session."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from zipbrain.errors import MissingExtra
from zipbrain.live.alarms import Event
from zipbrain.live.decision import Decision


@dataclass(frozen=True)
class SessionFacts:
    """Facts of a session, given to every output once.

    Parameters
    ----------
    ch_names : tuple of str
        Channels of the stream.
    sfreq : float
        Its nominal rate in Hz.
    classes : tuple of str
        Those of the model.
    hop_s, window_s : float
        Seconds from one window to the next, and of one window.
    started : datetime
        When the first sample came, UTC.
    name : str
        What the session is called; it stands in no file's name.
    folder : Path
        Where files go.
    """

    ch_names: tuple[str, ...]
    sfreq: float
    classes: tuple[str, ...]
    hop_s: float
    window_s: float
    started: datetime
    name: str
    folder: Path


class Output(ABC):
    """An output of a session; it needs `package`, which zipbrain's `extra` installs.

    Apart from `open`, no method raises for a full disk or a lost network: `failure` says what is wrong, and is empty
    again once the output works again. Calls come from one thread at a time, not always the same one. What an output
    does not override is not for it.
    """

    name: ClassVar[str]
    package: ClassVar[str] = ""
    extra: ClassVar[str] = ""
    failure: str = ""

    @abstractmethod
    def open(self, facts: SessionFacts) -> None:
        """Begin a session; DataError if the output can't be made."""

    def samples(self, first: int, rows: NDArray[np.float64]) -> None:  # noqa: B027
        """Take the stream's samples from number `first` on: (C, n) microvolts, NaN in gaps."""

    def decide(self, decision: Decision) -> None:  # noqa: B027
        """Take a decision."""

    def tell(self, event: Event) -> None:  # noqa: B027
        """Take an alarm event."""

    def close(self) -> None:  # noqa: B027
        """End the session; what is complete stays."""

    def require(self) -> None:
        """MissingExtra if `package` is not installed."""
        if self.package and find_spec(self.package) is None:
            raise MissingExtra(self.package, self.extra, f"the output {self.name}")
