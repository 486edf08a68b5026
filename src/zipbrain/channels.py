"""Electrode names: any case, any order, clinical decorations, old and new 10-20 names (stdlib only)."""

from __future__ import annotations

import difflib
import logging
import re
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from zipbrain.errors import OptionError

log = logging.getLogger("zipbrain")

# Old and new names of the same place; the exact name is tried first, the other only where it is missing.
_RENAMED: Final = {"T3": "T7", "T4": "T8", "T5": "P7", "T6": "P8", "M1": "A1", "M2": "A2"}
SYNONYMS: Final = _RENAMED | {new: old for old, new in _RENAMED.items()}

_PREFIX: Final = re.compile(r"^(EEG|POL)[\s_:]+")
_SUFFIX: Final = re.compile(r"[-_\s](REF|LE|AR|AVG|AVERAGE|CAR)$")


def electrode(name: str) -> str:
    """Return the bare upper-case name of a channel: ``"EEG Fp1-REF"`` and ``"Fp1."`` are ``"FP1"``.

    A bipolar name such as ``"FP1-F7"`` keeps both parts.
    """
    bare = _PREFIX.sub("", str(name).strip().upper())
    bare = _SUFFIX.sub("", bare).replace(".", "")
    return "-".join(part.strip() for part in bare.split("-"))


def find_channels(names: Sequence[str], table: Sequence[str], whose: str) -> list[int]:
    """Rows of channels, named as a recording has them, in a table of bare upper-case names; `whose` is for errors."""
    if not names:
        raise OptionError("ch_names", list(names), f"{whose} needs at least one channel")
    known = {name.upper(): row for row, name in enumerate(table)}
    rows: list[int] = []
    taken: dict[int, str] = {}
    for name in names:
        bare = electrode(name)
        row = known.get(bare, known.get(SYNONYMS.get(bare, "")))
        if row is None:
            close = difflib.get_close_matches(bare, known, 3)
            hint = f"close ones are {', '.join(close)}" if close else f"it has {len(table)}, such as {table[0]}"
            raise OptionError("ch_names", name, f"{whose} does not know it: {hint}")
        if row in taken:
            raise OptionError("ch_names", name, f"it is the same electrode as {taken[row]!r}")
        taken[row] = name
        rows.append(row)
        if table[row].upper() != bare:
            log.info("%s reads %s as %s", whose, name, table[row])
    return rows


def measured_at(name: str) -> str:
    """Where a channel measures: a derivation against an ear, such as F3-A2, is its electrode."""
    first, _, second = electrode(name).partition("-")
    return first if second in ("A1", "A2", "M1", "M2") else name


@dataclass(frozen=True)
class ChannelMatch:
    """How the channels of some data lie to the channels that are wanted."""

    renamed: tuple[tuple[str, str], ...] = ()  # wanted and given, where another name stands for the same place
    references: tuple[tuple[str, str], ...] = ()  # wanted and given, where both name a reference, and not the same
    missing: tuple[str, ...] = ()  # wanted, not given
    unknown: tuple[str, ...] = ()  # given, not wanted
    is_moved: bool = False  # the same channels in another order

    @property
    def fits(self) -> bool:
        """True if every wanted channel is given in its place, and no other one."""
        return not (self.missing or self.unknown or self.is_moved)

    def __str__(self) -> str:
        words = [f"{given} stands for {wanted}" for wanted, given in self.renamed]
        words += [f"{given} has another reference than {wanted}" for wanted, given in self.references]
        words += [f"missing: {', '.join(self.missing)}"] if self.missing else []
        words += [f"not wanted: {', '.join(self.unknown)}"] if self.unknown else []
        words += ["the same channels in another order"] if self.is_moved else []
        return "; ".join(words) or "the same channels"


def match_channels(given: Sequence[str], wanted: Sequence[str]) -> ChannelMatch:
    """Compare channels by place: case and decorations don't count, old and new names of a place are the same."""
    own, asked = _places(given, wanted), _places(wanted, given)
    lacking, more = Counter(asked) - Counter(own), Counter(own) - Counter(asked)
    if lacking or more:
        missing = [name for name, place in zip(wanted, asked, strict=True) if place in lacking]
        unknown = [name for name, place in zip(given, own, strict=True) if place in more]
        return ChannelMatch(missing=tuple(missing), unknown=tuple(unknown))
    pairs = [(name, given[own.index(place)]) for name, place in zip(wanted, asked, strict=True)]
    renamed = [pair for pair in pairs if electrode(pair[0]) != electrode(pair[1])]
    others = [
        (one, two) for one, two in pairs if _reference(one) and _reference(two) and _reference(one) != _reference(two)
    ]
    return ChannelMatch(tuple(renamed), tuple(others), is_moved=own != asked)


def check_channels(option: str, given: Sequence[str], wanted: Sequence[str], whose: str) -> None:
    """Refuse channels that are not the wanted ones in their order; warn where only their reference is another one."""
    found = match_channels(given, wanted)
    if not found.fits:
        raise OptionError(option, f"channels {', '.join(given)}", f"{whose} {', '.join(wanted)} ({found})")
    if found.references:
        warnings.warn(f"{option}: {found}: {whose} {', '.join(wanted)}", stacklevel=3)
    elif found.renamed:
        log.info("%s: %s", option, found)


def _places(names: Sequence[str], others: Sequence[str]) -> list[str]:
    """Channels under one name for each place, or under their own where either side tells old and new names apart."""
    bare = [electrode(name) for name in names]
    for side in (bare, [electrode(name) for name in others]):
        if any(SYNONYMS.get(name) in side for name in side):
            return bare
    return ["-".join(min(part, SYNONYMS.get(part, part)) for part in name.split("-")) for name in bare]


def _reference(name: str) -> str:
    """The common reference that a decorated name ends in, or nothing."""
    found = _SUFFIX.search(_PREFIX.sub("", str(name).strip().upper()))
    return found[1] if found else ""
