"""Targets: the most accurate recipe that is fast enough, or the fastest that is accurate enough."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from zipbrain.errors import OptionError
from zipbrain.evaluation.result import Result
from zipbrain.metrics import METRICS
from zipbrain.search.result import Entry, ranked

FINALISTS: Final = 3  # recipes of every ratio that are timed
_SAME: Final = 1.02  # times closer than this are no difference on a usual machine

_FORM: Final = re.compile(r"\s*([a-z_0-9]+)\s*(<=|>=)\s*([0-9]*\.?[0-9]+)\s*(x?)\s*", re.IGNORECASE)


@dataclass(frozen=True)
class Target:
    """A bound on the latency ratio or on a score."""

    name: str  # latency, agreement or a metric
    bound: float  # the largest latency ratio, or the smallest score
    relative: bool  # the bound is a multiple of the uncompressed model's value; that of latency always is

    @classmethod
    def parse(cls, text: str) -> Target:
        """Read ``"latency<=0.6"``, ``"kappa>=0.99x"`` or ``"auroc>=0.85"``."""
        allowed = (
            "it must be latency<=NUMBER or SCORE>=NUMBER, NUMBERx for a share of the uncompressed model's score; "
            f"scores are {', '.join((*METRICS, 'agreement'))}"
        )
        found = _FORM.fullmatch(text)
        if found is None:
            raise OptionError("target", text, allowed)
        name, sign, number, times = found[1].lower(), found[2], float(found[3]), bool(found[4])
        if (name, sign) != ("latency", "<=") and (name not in (*METRICS, "agreement") or sign != ">="):
            raise OptionError("target", text, allowed)
        if number <= 0 or (number > 1 and name != "latency" and not times):
            raise OptionError("target", text, "the number must be above 0, and a score is at most 1")
        return cls(name, number, times or name == "latency")

    @property
    def on_latency(self) -> bool:
        """True if latency is bounded and accuracy maximised, not the other way round."""
        return self.name == "latency"

    def least(self, original: Result) -> float:
        """The score that must be reached, given the uncompressed model's result."""
        return self.bound * original.value(self.name) if self.relative else self.bound

    def __str__(self) -> str:
        sign = "<=" if self.on_latency else ">="
        return f"{self.name}{sign}{self.bound:g}{'x' if self.relative and not self.on_latency else ''}"


def finalists(target: Target, entries: Sequence[Entry], original: Result) -> list[Entry]:
    """The entries worth timing.

    Latency depends on how many tokens go, hence on the ratio, and hardly on the representations. So a few of the best
    of every ratio are timed: by the main metric if latency is bounded, else by the bounded score among those that
    hold it. Entries that are one and the same network are timed once.
    """
    chosen: list[Entry] = []
    candidates = list(entries)
    if not target.on_latency:
        least = target.least(original)
        candidates = [entry for entry in entries if entry.result.value(target.name) >= least]
        candidates.sort(key=lambda entry: -entry.result.value(target.name))
    for ratio in dict.fromkeys(entry.ratio for entry in candidates):
        keys: set[str] = set()
        for entry in candidates:
            if entry.ratio == ratio and entry.result.key not in keys and len(keys) < FINALISTS:
                keys.add(entry.result.key)
                chosen.append(entry)
    return chosen


def choose(target: Target, timed: Sequence[tuple[Entry, float]]) -> Entry | None:
    """The winner among timed finalists (entry, latency ratio), or None if the target is out of reach."""
    good = list(timed)
    if target.on_latency:
        good = [pair for pair in timed if pair[1] <= target.bound]
        most = max((entry.score for entry, _ in good), default=0.0)
        good = [pair for pair in good if pair[0].score == most]
    if not good:
        return None
    fastest = min(latency for _, latency in good)
    return ranked([entry for entry, latency in good if latency <= fastest * _SAME])[0]
