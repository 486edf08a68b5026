"""`Prediction`: a model's answers for all windows of a recording."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from zipbrain.edge.audit import Audit
from zipbrain.edge.description import Description

NO_ANSWER: Final = "no finite answer"  # why there is no decision
NO_DECISION: Final = "no decision"  # in place of a class in tables and annotations


@dataclass(frozen=True)
class Prediction:
    """A model's answers for all windows of a recording.

    Attributes
    ----------
    path : Path
        Of the recording.
    description : Description
    model_sha256, runtime : str
        Hash of the model's file, and what ran it.
    starts : ndarray (n,) of float64
        Seconds from the recording's first sample.
    probabilities : ndarray (n, classes) of float32
        NaN where there is no decision.
    flags : tuple of str
        One per window: why there is no decision, or "".
    hop_s, duration, seconds : float
        Seconds from one window to the next, of the recording, and that reading and computing took.
    start : datetime, optional
        When the recording began.
    notes : list of str
        What was repaired, left out or resampled.
    looked_twice : ndarray (n,) of bool, optional
        Windows that were answered by the uncompressed network; None if the file has no second look.
    audit : Audit, optional
        How answers compare with the uncompressed network's, where that was asked for.
    """

    path: Path
    description: Description
    model_sha256: str
    runtime: str
    starts: NDArray[np.float64]
    probabilities: NDArray[np.float32]
    flags: tuple[str, ...]
    hop_s: float
    duration: float
    seconds: float
    start: datetime | None = None
    notes: list[str] = field(default_factory=list)
    looked_twice: NDArray[np.bool_] | None = None
    audit: Audit | None = None

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes."""
        return self.description.classes

    @property
    def window_s(self) -> float:
        """Seconds of a window."""
        return float(self.description.convention.window_s)

    @property
    def decisions(self) -> NDArray[np.int64]:
        """The most probable class of every window (n,), counted from 0; -1 for no decision."""
        decided = np.array([not flag for flag in self.flags], dtype=bool)
        return np.where(decided, np.nan_to_num(self.probabilities).argmax(axis=1), -1)

    @property
    def labels(self) -> list[str]:
        """The decision of every window by name; "" for no decision."""
        names = (*self.classes, "")
        return [names[decision] for decision in self.decisions]

    def summary(self) -> dict[str, Any]:
        """Shares and minutes of every class, what was not decided and why, and how fast it was; JSON.

        Shares are of the decided windows. A window stands for the time until the next one, so minutes of overlapping
        windows add up to the recording's length.
        """
        counts = np.bincount(self.decisions[self.decisions >= 0], minlength=len(self.classes))
        decided, each_s = int(counts.sum()), min(self.hop_s, self.window_s)
        said = self.description
        return {
            "recording": self.path.name,
            "recorded_at": None if self.start is None else self.start.isoformat(),
            "minutes": _rounded(self.duration / 60),
            "windows": len(self.starts),
            "window_s": self.window_s,
            "hop_s": self.hop_s,
            "no_decision": len(self.starts) - decided,
            "no_decision_because": dict(Counter(_kind(flag) for flag in self.flags if flag)),
            **({} if self.looked_twice is None else {"looked_twice": int(self.looked_twice.sum())}),
            **({} if self.audit is None else {"audit": self.audit.to_dict()}),
            "classes": {
                name: {
                    "windows": int(count),
                    "share": _rounded(count / decided) if decided else None,
                    "minutes": _rounded(count * each_s / 60),
                }
                for name, count in zip(self.classes, counts, strict=True)
            },
            "seconds": _rounded(self.seconds),
            "times_real_time": _rounded(self.duration / self.seconds) if self.seconds > 0 else None,
            "model": {
                "name": said.model,
                "corpus": said.corpus,
                "precision": said.precision,
                "compressed": None if said.recipe is None else said.recipe["method"]["name"],
                "sha256": self.model_sha256,
                "runtime": self.runtime,
            },
            "notes": list(self.notes),
        }


def read_key(summary: Mapping[str, Any]) -> dict[str, Any]:
    """What a summary's answers depend on; earlier versions wrote no runtime into the key, but beside it."""
    name, *rest = summary["model"]["runtime"].split()
    return {"runtime": " ".join([name, *rest[1:]]), **summary.get("key", {})}  # without the version


def _kind(flag: str) -> str:
    """``"flat: F3, C4; saturated: O1"`` -> ``"flat and saturated"``"""
    return " and ".join(part.split(":")[0] for part in flag.split("; "))


def _rounded(value: float) -> float:
    return float(f"{value:.6g}")
