"""Corpora whose labels come as tables: rows of file, onset, duration and label, in folders and BIDS datasets."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import ClassVar, Final

from zipbrain.data.corpora.base import BIPOLAR, Corpus, Found, ModelInput, Source
from zipbrain.data.labelling import Plan
from zipbrain.data.report import count_reasons
from zipbrain.errors import DataError
from zipbrain.signal.convention import Convention
from zipbrain.signal.cutting import regular
from zipbrain.signal.montage import parse_montage, scalp_channels
from zipbrain.signal.recording import Recording

_MOST_CLASSES: Final = 1000
_MOST_WINDOWS: Final = 1_000_000  # of one recording
SHARES: Final = {"train": 0.6, "val": 0.2, "test": 0.2}  # of the subjects


def in_order(labels: Iterable[str]) -> tuple[str, ...]:
    """Distinct labels, sorted as numbers if all are whole numbers, as text otherwise."""
    names = set(labels)
    if len(names) > _MOST_CLASSES:
        words = f"name {len(names):,} different classes, where at most {_MOST_CLASSES:,} make sense"
        raise DataError(f"the labels {words}; is the column of labels one of numbers or remarks?")
    if all(re.fullmatch(r"-?\d{1,18}", name) for name in names):
        return tuple(sorted(names, key=lambda name: (int(name), name)))
    return tuple(sorted(names))


@dataclass(frozen=True)
class TableCorpus(Corpus):
    """Recordings with labelled stretches; a source's `given` are rows of onset, duration (seconds or None), class."""

    window_s, hop_s = 4.0, 4.0
    inputs: ClassVar = {
        "labram": ModelInput((), "hundred"),
        "eegpt": ModelInput((), "zscore-average", cut_sfreq=256, sfreq=256),
        "biot": ModelInput(BIPOLAR, "q95"),
        "tfm": ModelInput(BIPOLAR, "q95"),
        "cbramod": ModelInput((), "hundred"),
    }
    extends: ClassVar[bool] = False  # a stretch shorter than a window gives one window instead of none

    def plan(self, source: Source, recording: Recording, convention: Convention) -> Plan:
        """Cut labelled stretches into windows `hop_s` apart; without onset and duration the whole recording is one."""
        plan = Plan()
        total = recording.duration
        stretches = []
        for onset, duration, label in source.given:
            if onset is None and duration is not None:
                plan.problems["label rows left out: a duration without an onset"] += 1
                continue
            start = onset or 0.0
            stop = total if onset is None else start + (convention.window_s if duration is None else duration)
            if self.extends:
                stop = max(stop, start + convention.window_s)
            if start >= total:
                plan.problems["label rows left out: past the end of the recording"] += 1
                continue
            starts = regular(start, min(stop, total), convention)
            if not starts:
                plan.problems["label rows left out: shorter than a window"] += 1
            elif stop > total + 1e-6:
                plan.problems["label rows cut short: past the end of the recording"] += 1
            for second in starts:
                plan.add(second, int(label))
            if len(plan.starts) > _MOST_WINDOWS:
                raise DataError(f"its label rows overlap so much that they ask for over {_MOST_WINDOWS:,} windows")
            stretches.append((start, stop, int(label)))
        end, before = 0.0, -1
        for start, stop, label in sorted(stretches):
            if start < end - 1e-6:
                which = "the same" if label == before else "another"
                plan.problems[f"label rows kept: overlap a row with {which} label"] += 1
            if stop > end:
                end, before = stop, label
        return plan

    def settle(self, convention: Convention, found: Found) -> Convention:
        """Take the scalp channels of the first recording that can be opened, if the convention names none."""
        if convention.montage:
            return convention
        refused = dict(found.refused)
        for source in found.sources:
            try:
                names = scalp_channels(source.open().ch_names)
            except DataError as error:
                refused[source.key] = str(error).removeprefix(f"{source.path}: ")
                continue
            if names:
                return replace(convention, montage=parse_montage(names), ch_names=tuple(names))
        if refused.keys() >= {source.key for source in found.sources}:
            raise DataError(f"no recording can be used: {count_reasons(refused)}")
        nameless = "no recording has a channel named as a place of the 10-10 system"
        raise DataError(f"{nameless}; name the channels (--channels)")
