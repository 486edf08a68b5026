"""Sleep stages among class names, and how YASA and EDF+ spell them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

EPOCH_S: Final = 30.0  # seconds that one stage is scored for

# Bare class name: YASA's name (yasa.Hypnogram), EDF+'s standard text, and the line of a hypnogram, from top to bottom.
_STAGES: Final = {
    "W": ("WAKE", "Sleep stage W"),
    "REM": ("REM", "Sleep stage R"),
    "N1": ("N1", "Sleep stage N1"),
    "N2": ("N2", "Sleep stage N2"),
    "N3": ("N3", "Sleep stage N3"),
    "ARTEFACT": ("ART", "Artefact"),
}
_SPELLINGS: Final = {"WAKE": "W", "R": "REM", "ARTIFACT": "ARTEFACT", "ART": "ARTEFACT"}
ORDER: Final = tuple(_STAGES)
YASA_NAMES: Final = {stage: name for stage, (name, _) in _STAGES.items()}
EDF_TEXTS: Final = {stage: text for stage, (_, text) in _STAGES.items()}
UNDECIDED: Final = ("UNS", "Sleep stage ?")


def sleep_stages(classes: Sequence[str]) -> tuple[str, ...] | None:
    """The stage of every class, as in `ORDER`, or None if they are not sleep stages; any order and usual spelling."""
    names = tuple(_SPELLINGS.get(name.strip().upper(), name.strip().upper()) for name in classes)
    known = set(names) <= set(ORDER) and len(set(names)) == len(names)
    return names if known and {"W", "N2"} <= set(names) else None
