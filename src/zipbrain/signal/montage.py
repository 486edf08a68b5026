"""Which rows of a recording make the channels of a window, and how."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from zipbrain.channels import SYNONYMS, electrode, match_channels
from zipbrain.errors import DataError, OptionError
from zipbrain.signal.convention import Channel

# Places of the 10-10 system, mastoids and ear lobes; not EKG, EMG, photic, numbered or respiration channels.
_SCALP: Final = re.compile(r"^(FP|AF|FT|FC|TP|CP|PO|CB|F|T|C|P|O|I|A|M)(Z|\d{1,2})$")


@dataclass(frozen=True)
class Derivation:
    """Channels as differences of recorded rows."""

    picks: tuple[int, ...]  # rows of the recording that are needed
    plus: tuple[int | None, ...]  # position in `picks` of what each channel takes
    minus: tuple[int | None, ...]  # position in `picks` of what is subtracted from it
    notes: tuple[str, ...] = ()  # what stands for what, where the recording has another name or reference

    def apply(self, rows: NDArray[Any]) -> NDArray[np.float64]:
        """(len(picks), n) -> (C, n)"""
        out = np.zeros((len(self.plus), rows.shape[1]))
        for channel, (plus, minus) in enumerate(zip(self.plus, self.minus, strict=True)):
            if plus is not None:
                out[channel] = rows[plus]
            if minus is not None:
                out[channel] -= rows[minus]
        return out


def derive(
    montage: Sequence[Channel], ch_names: Sequence[str], *, only: str = "*", zeros: Sequence[str] = ()
) -> Derivation:
    """Find the rows for a montage: any case, clinical decorations, old and new names, A1/A2 for M1/M2.

    A channel recorded as a pair's difference is used as it is, otherwise the two electrodes are subtracted. Recorded
    names must match the upper-case pattern `only`, such as ``"EEG *-REF"``. Channels in `zeros`, written as
    ``"F3-A2"``, may be missing and are then zero.
    """
    rows: dict[str, int] = {}
    twice: dict[str, int] = {}
    for row, name in enumerate(ch_names):
        if fnmatchcase(name.upper(), only) and rows.setdefault(electrode(name), row) != row:
            twice[electrode(name)] = row
    spelt = [channel if isinstance(channel, str) else "-".join(channel) for channel in montage]
    pairs = [_find(channel, rows) for channel in montage]
    missing = [name for name, pair in zip(spelt, pairs, strict=True) if pair is None and name not in zeros]
    if missing:
        form = "" if only == "*" else f" as {only}"
        raise DataError(f"has no {_some(missing)}{form}; its channels are {_some(ch_names) or 'none'}")
    found = [pair or (None, None) for pair in pairs]
    for bare, row in twice.items():
        if any(rows[bare] in pair for pair in found):
            raise DataError(f"{bare} could be {ch_names[rows[bare]]} or {ch_names[row]}; rename one of them")
    picks = sorted({row for pair in found for row in pair if row is not None})
    sides = [tuple(None if row is None else picks.index(row) for row in side) for side in zip(*found, strict=True)]
    plus, minus = sides or ((), ())
    return Derivation(tuple(picks), plus, minus, _notes(montage, found, ch_names))


def _notes(
    montage: Sequence[Channel], found: Sequence[tuple[int | None, int | None]], ch_names: Sequence[str]
) -> tuple[str, ...]:
    """How the recorded channels differ from those that were asked for, each said once."""
    said: dict[str, None] = {}
    for channel, rows in zip(montage, found, strict=True):
        parts = [channel] if isinstance(channel, str) else list(channel)
        given = [ch_names[row] for row in rows if row is not None]
        if len(given) < len(parts):  # recorded as the difference, or zero
            parts = ["-".join(parts)]
        for part, name in zip(parts, given, strict=False):
            match = match_channels([name], [part])
            if match.renamed or match.references:
                said[str(match)] = None
    return tuple(said)


def parse_montage(names: Sequence[str]) -> tuple[Channel, ...]:
    """Turn ``["C3", "F3-A2"]`` into ``("C3", ("F3", "A2"))``; ``"EEG C3-REF"`` is an electrode and no difference."""
    channels: list[Channel] = []
    for name in names:
        first, dash, second = name.partition("-")
        if dash and first and second and "-" not in electrode(name):
            channels.append(name)
            continue
        if not first or (dash and not second):
            raise OptionError("channels", name, "a channel is an electrode such as C3 or a difference such as F3-A2")
        channels.append((first, second) if dash else first)
    return tuple(channels)


def check_distinct(option: str, channels: Sequence[Channel]) -> None:
    """Refuse channels that are the same place twice, in whatever spelling, and a difference of a place and itself."""
    seen: dict[tuple[str, ...], str] = {}
    for channel in channels:
        name = channel if isinstance(channel, str) else "-".join(channel)
        places = tuple(_place(part) for part in ([channel] if isinstance(channel, str) else channel))
        if len(places) == 2 and places[0] == places[1]:
            raise OptionError(option, name, "a difference of an electrode and itself is zero: name two")
        if not all(places):
            raise OptionError(option, name, "every channel needs a name")
        if places in seen:
            raise OptionError(option, name, f"it is the same channel as {seen[places]!r}: name each once")
        seen[places] = name


def is_scalp(name: str) -> bool:
    """True for a place of the 10-10 system, or a difference of two."""
    return all(_SCALP.match(part) for part in electrode(name).split("-"))


def scalp_channels(ch_names: Sequence[str]) -> list[str]:
    """The bare names of those channels that are places of the 10-10 system, in the order of the recording."""
    bare = [electrode(name) for name in ch_names]
    return list(dict.fromkeys(name for name in bare if _SCALP.match(name)))


def _some(names: Sequence[str], most: int = 12) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _place(name: str) -> str:
    """One name for all names of a place; ear lobes and mastoids stand in for each other, but are two places."""
    bare = electrode(name)
    return bare if bare[:1] in ("A", "M") else min(_either(bare))


def _either(name: str) -> list[str]:
    """The bare name and its synonym."""
    bare = electrode(name)
    return [bare, SYNONYMS[bare]] if bare in SYNONYMS else [bare]


def _find(channel: Channel, rows: dict[str, int]) -> tuple[int, int | None] | None:
    if isinstance(channel, str):
        return next(((rows[name], None) for name in _either(channel) if name in rows), None)
    first, second = (_either(name) for name in channel)
    recorded = [rows[f"{a}-{b}"] for a in first for b in second if f"{a}-{b}" in rows]
    if recorded:
        return recorded[0], None
    plus, minus = _find(channel[0], rows), _find(channel[1], rows)
    return None if plus is None or minus is None else (plus[0], minus[0])
