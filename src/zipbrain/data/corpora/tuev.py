"""TUEV, the TUH EEG Events Corpus 2.0: which of six events?"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from zipbrain.data.corpora.base import BIPOLAR, Corpus, Expected, Found, ModelInput, Source, key, read_lines
from zipbrain.data.corpora.temple import TEMPLE_INPUTS, from_temple
from zipbrain.data.labelling import Plan
from zipbrain.data.splits import by_subject
from zipbrain.signal.convention import Convention
from zipbrain.signal.recording import Recording

_CLASSES = ("SPSW", "GPED", "PLED", "EYEM", "ARTF", "BCKG")
_UNREADABLE = "label rows left out: not <channel>,<start>,<stop>,<class 1 to 6>"


@dataclass(frozen=True)
class TUEV(Corpus):
    """One window per row of the .rec file: its second with 2 s before and after. `eval` is the test split.

    A row names one channel, which is not used: a second with several rows gives several equal windows, as in the
    published counts. The end of a recording joins its beginning, so windows at the edges are whole.

    Parameters
    ----------
    seed : int
        Of the shuffle that deals the subjects of `train` to training (80 %) and validation (20 %).
    """

    name = "tuev"
    title = "TUEV"
    layout = "edf/{train,eval}/<subject>/<recording>.edf with <recording>.rec beside it"
    only = "EEG *-REF"
    fixed = True
    expected = (Expected("test", "all", 29_421), Expected("test", "BCKG", 19_647), Expected("test", "EYEM", 330))
    window_s, hop_s = 5.0, 5.0
    inputs: ClassVar = {**TEMPLE_INPUTS, "biot": ModelInput(BIPOLAR, "q95", band=None, notch=None, cut_sfreq=None)}
    published = from_temple(
        "tuev",
        "tuh_eeg_events/v2.0.1",
        """\
DIR/edf/train/<subject>/<subject>_<8 digits>.edf and .rec
DIR/edf/eval/<NNN>/<class>_<NNN>_a_<k>.edf and .rec""",
    )

    seed: int = 4523

    def find(self, root: Path) -> Found:
        base = root / "edf" if (root / "edf").is_dir() else root
        train, test = (sorted((base / part).glob("*/*.edf")) for part in ("train", "eval"))
        split = by_subject((path.parent.name for path in train), {"train": 0.8, "val": 0.2}, self.seed)
        sources = [
            Source(key(path, root), path, path.parent.name, kind, labels=path.with_suffix(".rec"))
            for paths, fixed in ((train, None), (test, "test"))
            for path in paths
            for kind in [fixed or split[path.parent.name]]
        ]
        return self.check(Found(sorted(sources, key=lambda source: source.key), _CLASSES), root)

    def plan(self, source: Source, recording: Recording, convention: Convention) -> Plan:
        plan = Plan(wrap=True)
        seconds: dict[float, list[int]] = defaultdict(list)
        for line in read_lines(source):
            row = _parse(line)
            if row is None:
                plan.problems[_UNREADABLE] += 1
                continue
            start, stop, label = row
            if start < 0 or stop > recording.duration + 1e-6:
                plan.problems["label rows left out: past the end of the recording"] += 1
            elif abs(stop - start - (convention.window_s - 4)) > 0.01:
                plan.problems["label rows left out: not one second long"] += 1
            else:
                plan.add(start - 2, label)
                seconds[start].append(label)
        again = sum(len(labels) - len(set(labels)) for labels in seconds.values())
        other = sum(len(set(labels)) - 1 for labels in seconds.values())
        if again:
            plan.problems["label rows kept: same second and class as another (other channel)"] += again
        if other:
            plan.problems["label rows kept: same second as another, other class"] += other
        return plan


def _parse(line: str) -> tuple[float, float, int] | None:
    """Start, stop and class from 0 of a row ``channel,start,stop,class``."""
    parts = line.split(",")
    try:
        start, stop, label = float(parts[1]), float(parts[2]), int(parts[3])
    except (IndexError, ValueError):
        return None
    good = len(parts) == 4 and 1 <= label <= len(_CLASSES) and math.isfinite(start) and stop > start
    return (start, stop, label - 1) if good else None
