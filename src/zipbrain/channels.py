"""Electrode names: any case, any order, clinical decorations, old and new 10-20 names (stdlib only)."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from typing import Final

from zipbrain.errors import OptionError

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
    return rows
