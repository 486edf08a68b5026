"""The interface of a source of samples: an amplifier, a file or a stream, as a session reads it.

A custom source needs the attributes and the two methods of `Source`, and nothing of zipbrain but this module::

    class Amplifier:
        name, sfreq, limits, is_live = "amplifier", 256.0, None, True
        ch_names = ("Fp1", "Fp2", "C3", "C4")

        def read(self, timeout_s):
            rows = driver.wait(timeout_s)  # (C, n) in microvolts, or None
            return None if rows is None else Chunk(rows)

        def close(self):
            driver.stop()


    Session(EdgeModel("model.onnx"), Amplifier(), "bed-3").run()
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from zipbrain.errors import ZipbrainError
from zipbrain.signal.recording import Array


class SourceLost(ZipbrainError):
    """The stream has gone; `Source.read` is called again, and tries to come back."""


class SourceEnded(ZipbrainError):
    """No more samples will ever come."""


@dataclass(frozen=True, eq=False)
class Chunk:
    """Samples that follow each other.

    Parameters
    ----------
    samples : ndarray of float64, shape (C, n)
        In microvolts, NaN where a sample is no number; n may be 0.
    stamps : ndarray of float64, shape (n,), optional
        Seconds of the source's clock at which they were taken; they are audited.
    missing : int, optional
        Samples that are known to be missing before these. Where it is not given, stamps say it, and after a loss
        without stamps the time that went by.
    """

    samples: Array
    stamps: Array | None = None
    missing: int | None = None


class Source(Protocol):
    """Where samples come from; one session reads it, from one thread.

    Attributes
    ----------
    name : str
        For people; it is kept in the journal, so it should name no patient.
    ch_names : sequence of str
    sfreq : float
        Hz.
    limits : ndarray, shape (C, 2), optional
        The lowest and the highest value, in microvolts, that the source can give: at these a channel is saturated.
    is_live : bool
        True if samples come at their own pace, read or not; False if the source waits until it is read.
    notes : sequence of str, optional
        What was left out or repaired; shown, and kept in the journal.
    """

    name: str
    ch_names: tuple[str, ...]
    sfreq: float
    limits: Array | None
    is_live: bool

    def read(self, timeout_s: float) -> Chunk | None:
        """The next samples, as soon as there are some; None if nothing came in time.

        Raises `SourceLost` where the stream has gone (the next call tries to come back) and `SourceEnded` at its end.
        """

    def close(self) -> None:
        """Close the stream."""
