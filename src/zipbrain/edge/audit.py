"""`Audit`: a random share of the windows runs again uncompressed, to watch on new data what a recipe promises."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from zipbrain.binomial import share_bounds
from zipbrain.edge.description import Description
from zipbrain.errors import OptionError
from zipbrain.numerals import finite_number, whole_number
from zipbrain.seal import Promise

CONFIDENCE: Final = 0.95  # of the interval, two-sided


@dataclass(frozen=True)
class Audit:
    """How many of the audited windows got the uncompressed network's decision.

    Attributes
    ----------
    share : float
        Of the windows, drawn at random.
    seed : int
        Of the draw, together with the recording's name.
    windows, agreeing : int
        Decided windows that were drawn, and those whose decision stayed.
    """

    share: float
    seed: int
    windows: int = 0
    agreeing: int = 0

    @property
    def agreement(self) -> float | None:
        """Share of the audited windows whose decision stayed; None if none was drawn."""
        return self.agreeing / self.windows if self.windows else None

    @property
    def interval(self) -> tuple[float, float]:
        """Clopper-Pearson bounds of the agreement, as if windows were independent."""
        return share_bounds(self.agreeing, self.windows, (1 + CONFIDENCE) / 2)

    def draw(self, recording: str | Path) -> np.random.Generator:
        """The random numbers of a recording, the same in every run."""
        return np.random.default_rng([self.seed, zlib.crc32(Path(recording).name.encode("utf-8", "surrogateescape"))])

    def add(self, before: NDArray[Any], after: NDArray[Any]) -> Audit:
        """The audit with some more windows: their probabilities (m, classes), and the uncompressed network's."""
        decided = np.isfinite(before).all(1) & np.isfinite(after).all(1)
        same = before[decided].argmax(1) == after[decided].argmax(1)
        return replace(self, windows=self.windows + int(decided.sum()), agreeing=self.agreeing + int(same.sum()))

    def to_dict(self) -> dict[str, Any]:
        """For JSON: with the agreement and its interval."""
        counts = {"share": self.share, "seed": self.seed, "windows": self.windows, "agreeing": self.agreeing}
        return {**counts, "agreement": self.agreement, "interval": list(self.interval), "confidence": CONFIDENCE}


def read_audit(share: float | None, seed: int, description: Description, path: str | Path) -> Audit | None:
    """The audit that was asked for, nothing counted yet; refused for a file without a second look."""
    if share is None:
        return None
    value = finite_number("audit", share)
    if not 0 < value <= 1:
        raise OptionError("audit", share, "it must be a share of the windows, above 0 and at most 1")
    whole_number("audit_seed", seed, 0)
    description.need_second_look("audit", share, path)
    return Audit(value, seed)


def sum_audits(found: Iterable[dict[str, Any]]) -> Audit | None:
    """One audit of several recordings, given as in their summaries; None if there is none."""
    audits = [Audit(one["share"], one["seed"], one["windows"], one["agreeing"]) for one in found]
    if not audits:
        return None
    counts = sum(one.windows for one in audits), sum(one.agreeing for one in audits)
    return Audit(audits[0].share, audits[0].seed, *counts)


def promised_agreement(description: Description) -> float | None:
    """The agreement that the file's recipe promises; None where it promises none, or none for this file."""
    promise = Promise.of(description.recipe, description.weights_sha256, description.precision)
    return promise.agree if promise is not None and promise.is_promise else None
