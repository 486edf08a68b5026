"""What every output of a live session answers: it takes samples, decisions and alarms, and never stops the session."""

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
    """What a session is, told to its outputs once.

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
    """A way out of a session; `package` must be installed for it, and zipbrain's `extra` brings that.

    Apart from `open`, no method raises for the world's sake: `failure` says what is wrong, and is empty again when the
    output goes on by itself. An output takes of samples, decisions and alarms what it wants.
    """

    name: ClassVar[str]
    package: ClassVar[str] = ""
    extra: ClassVar[str] = ""
    failure: str = ""

    @abstractmethod
    def open(self, facts: SessionFacts) -> None:
        """Begin a session; DataError if that can't be."""

    def samples(self, first: int, rows: NDArray[np.float64]) -> None:  # noqa: B027
        """Take the stream's samples from number `first` on: (C, n) microvolts, NaN in gaps."""

    def decide(self, decision: Decision) -> None:  # noqa: B027
        """Take a decision."""

    def tell(self, event: Event) -> None:  # noqa: B027
        """Take what happened to an alarm."""

    def close(self) -> None:  # noqa: B027
        """End the session; what is complete stays."""

    def require(self) -> None:
        """MissingExtra if what it needs can't be imported here."""
        if self.package and find_spec(self.package) is None:
            raise MissingExtra(self.package, self.extra, f"the output {self.name}")
