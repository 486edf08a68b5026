"""A file that says how recordings become windows for a model of one's own: read, checked, and a template of it."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from zipbrain.edge.description import check_convention
from zipbrain.errors import OptionError
from zipbrain.files import LARGEST_JSON, parse_json
from zipbrain.signal.convention import Convention
from zipbrain.signal.montage import check_distinct, parse_montage

TEMPLATE: Final = """\
# How recordings become windows for a model of your own: change every line to what it was trained with.
# Give it with --convention to the commands that take --model file.py:build.

classes = ["rest", "task"]        # in the order of the model's outputs
channels = ["C3", "Cz", "C4"]     # in the order of a window; "F3-A2" is a difference of two electrodes
sfreq = 200.0                     # Hz
window_s = 10.0                   # seconds of a window
hop_s = 10.0                      # seconds between the beginnings of two windows
scaling = "hundred"               # of microvolts: none, hundred (x / 100), q95, zscore or zscore-average

# What may be left out:
band = [0.5, 40.0]                # Hz; without it, nothing is filtered
notch = 50.0                      # Hz of the mains; without it, they stay
name = "my-model"
corpus = ""                       # what it was trained on
"""

_NEEDED: Final = ("classes", "channels", "sfreq", "window_s", "scaling")
_LISTS: Final = ("classes", "channels")
_KNOWN: Final = (*_NEEDED, "hop_s", "band", "notch", "name", "corpus")


@dataclass(frozen=True)
class ConventionFile:
    """The convention and the classes that such a file names."""

    convention: Convention
    classes: tuple[str, ...]


def read_convention(path: Path) -> ConventionFile:
    """The convention and the classes of a TOML or JSON file; anything wrong with it is refused in one line."""
    try:
        if not path.is_file():
            raise OptionError("convention", str(path), "there is no such file: zipbrain models convention writes one")
        text = path.read_bytes()[: LARGEST_JSON + 1]
        content = parse_json(text) if path.suffix.lower() == ".json" else tomllib.loads(text.decode("utf-8-sig"))
    except (OSError, ValueError) as error:
        if isinstance(error, OptionError):
            raise
        raise OptionError("convention", str(path), f"it can't be read: {' '.join(str(error).split())}") from None
    return _checked(path, content)


def _checked(path: Path, content: Any) -> ConventionFile:
    def refuse(key: str, given: object, allowed: str) -> OptionError:
        return OptionError(f"convention {path.name}: {key}", given, allowed)

    if not isinstance(content, Mapping):
        raise refuse("content", type(content).__name__, "it must be a table of names and values")
    for key in content:
        if key not in _KNOWN:
            raise refuse(str(key), content[key], f"known are {', '.join(_KNOWN)}")
    for key in _NEEDED:
        if key not in content:
            raise refuse(key, None, "it must be said: zipbrain models convention writes a template")
    for key in _LISTS:
        names = content[key]
        if not isinstance(names, list) or not names or not all(isinstance(name, str) and name for name in names):
            raise refuse(key, names, "it must be a list of names")
    if len(set(content["classes"])) < 2:
        raise refuse("classes", content["classes"], "at least two are needed")
    montage = parse_montage(content["channels"])
    check_distinct(f"convention {path.name}: channels", montage)
    rate, seconds, band = content["sfreq"], content["window_s"], content.get("band")
    how = {"window_s": seconds, "hop_s": content.get("hop_s", seconds), "scaling": content["scaling"]}
    edges = tuple(band) if isinstance(band, list) else band
    names = str(content.get("name", "")), str(content.get("corpus", ""))
    made = Convention(*names, montage, tuple(content["channels"]), edges, content.get("notch"), rate, rate, **how)
    check_convention(made, f"convention {path.name}")
    return ConventionFile(made, tuple(content["classes"]))
