"""The corpora, one file each. A new one is a subclass of `Corpus` and a call of `register`."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, Final

from zipbrain.data.corpora.base import Corpus, Expected, Found, Source
from zipbrain.data.corpora.bids import BIDS
from zipbrain.data.corpora.chbmit import CHBMIT
from zipbrain.data.corpora.eareeg import EarEEG
from zipbrain.data.corpora.eegmat import EEGMAT
from zipbrain.data.corpora.eegmmidb import EEGMMIDBEyes, EEGMMIDBImagery
from zipbrain.data.corpora.folder import Folder
from zipbrain.data.corpora.isruc import ISRUC
from zipbrain.data.corpora.sleepedf import SleepEDF
from zipbrain.data.corpora.tuab import TUAB
from zipbrain.data.corpora.tuev import TUEV
from zipbrain.data.file_trees import FileTree, OnRequest
from zipbrain.errors import OptionError
from zipbrain.signal.convention import Convention

__all__ = ["CORPORA", "Corpus", "Expected", "Found", "Source", "convention", "corpus", "find_published", "register"]

CORPORA: Final[dict[str, type[Corpus]]] = {}


def register(kind: type[Corpus]) -> type[Corpus]:
    """Let every command know a corpus by its name."""
    CORPORA[kind.name] = kind
    return kind


for _kind in (TUAB, TUEV, ISRUC, EarEEG, EEGMAT, EEGMMIDBEyes, EEGMMIDBImagery, CHBMIT, SleepEDF, Folder, BIDS):
    register(_kind)


def find_published(name: str) -> FileTree | OnRequest:
    """Where a corpus is published, by its name or another one of it (any case, hyphens or not)."""
    plain = "".join(letter for letter in str(name).lower() if letter.isalnum())
    places = {kind.published.name: kind.published for kind in CORPORA.values() if kind.published is not None}
    for place in places.values():
        if plain in (place.name, *place.aliases):
            return place
    trees = [place.name for place in places.values() if isinstance(place, FileTree)]
    others = ", ".join(sorted(places.keys() - set(trees)))
    raise OptionError("corpus", name, f"it must be one of {', '.join(trees)} (or {others} to see where to apply)")


def corpus(name: str, **options: Any) -> Corpus:
    """Make a corpus by name.

    Parameters
    ----------
    name : str
        Any case; one of `CORPORA`.
    **options
        What its class takes, such as ``multiple=20`` for ISRUC. Text is turned into a number where one is expected.
    """
    kind = _kind_of(name)
    defaults = {field.name: field.default for field in fields(kind)}
    for option, value in options.items():
        if option not in defaults:
            raise OptionError("option", option, f"{kind.name} has {', '.join(defaults) or 'no options'}")
        if isinstance(defaults[option], int):
            try:
                options[option] = int(value)
            except ValueError:
                raise OptionError(option, value, "it must be a whole number") from None
    return kind(**options)


def convention(model: str, corpus: str) -> Convention:
    """Return how a corpus is prepared for a model.

    Parameters
    ----------
    model : {"labram", "eegpt", "biot", "tfm", "cbramod"}
        Any case; the paper's spelling works too.
    corpus : str
        Any case; one of `CORPORA`.
    """
    return _kind_of(corpus).convention(model)


def _kind_of(name: str) -> type[Corpus]:
    if (kind := CORPORA.get(str(name).lower())) is None:
        raise OptionError("corpus", name, f"known corpora are {', '.join(CORPORA)}")
    return kind
