"""Which windows of a recording have which label, and the cutting of those."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from zipbrain.signal.convention import Convention
from zipbrain.signal.cutting import Cuts, regular
from zipbrain.signal.montage import Derivation
from zipbrain.signal.recording import Recording

_NOT_FINITE = "windows left out: NaN or infinite values"
_PAST_END = "windows left out: past the end of the recording"


@dataclass
class Plan:
    """The windows to cut from one recording."""

    starts: list[float] = field(default_factory=list)  # seconds; a window begins at the first sample not before
    labels: list[int] = field(default_factory=list)  # one per window
    problems: Counter[str] = field(default_factory=Counter)  # what was wrong with the labels, and how often
    wrap: bool = False  # samples beyond an end are taken from the other end

    @classmethod
    def regular(cls, start: float, stop: float, convention: Convention, label: int) -> Plan:
        """The windows that fit between two times, `hop_s` apart, all of one class."""
        starts = regular(start, stop, convention)
        return cls(starts, [label] * len(starts))

    def add(self, start: float, label: int) -> None:
        """One more window."""
        self.starts.append(float(start))
        self.labels.append(int(label))


class Cutter:
    """Cuts the planned windows out of one recording; what is wrong with them is added to the plan's problems."""

    def __init__(self, recording: Recording, derivation: Derivation, convention: Convention, plan: Plan) -> None:
        self._cuts, self._plan = Cuts(recording, derivation, convention), plan
        self.notes = self._cuts.notes  # what the filter left out
        self.labels: list[int] = []  # of the windows that were yielded so far
        self.starts: list[float] = []  # theirs, in seconds

    def chunks(self) -> Iterator[NDArray[np.float32]]:
        """Yield the windows, (m, C, T) microvolts each; afterwards `labels` and `starts` say what they are."""
        plan, cuts = self._plan, self._cuts
        firsts = [cuts.first(start) for start in plan.starts]
        inside = [i for i, first in enumerate(firsts) if plan.wrap or 0 <= first <= cuts.total - cuts.length]
        if len(inside) < len(firsts):
            plan.problems[_PAST_END] += len(firsts) - len(inside)
        if not plan.wrap:
            inside.sort(key=firsts.__getitem__)  # a recording is read once, from the front
        left = iter(inside)
        for windows in cuts.finished(cuts.cut([firsts[i] for i in inside], wrap=plan.wrap)):
            good = np.array([np.isfinite(window).all() for window in windows])
            if not good.all():
                plan.problems[_NOT_FINITE] += int((~good).sum())
            kept = [i for i, fine in zip(islice(left, len(windows)), good, strict=True) if fine]
            self.labels += [plan.labels[i] for i in kept]
            self.starts += [plan.starts[i] for i in kept]
            if kept:
                yield windows[good]
