"""The corpora: one small file each, all of the same shape. A new one is a class and a line here."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, Final

from zipbrain.data.corpora.base import Corpus, Expected, Found, Source
from zipbrain.data.corpora.bids import BIDS
from zipbrain.data.corpora.eareeg import EarEEG
from zipbrain.data.corpora.eegmat import EEGMAT
from zipbrain.data.corpora.eegmmidb import EEGMMIDBEyes, EEGMMIDBImagery
from zipbrain.data.corpora.folder import Folder
from zipbrain.data.corpora.isruc import ISRUC
from zipbrain.data.corpora.tuab import TUAB
from zipbrain.data.corpora.tuev import TUEV
from zipbrain.errors import OptionError

__all__ = ["CORPORA", "Corpus", "Expected", "Found", "Source", "corpus"]

_KINDS: Final[tuple[type[Corpus], ...]] = (
    TUAB, TUEV, ISRUC, EarEEG, EEGMAT, EEGMMIDBEyes, EEGMMIDBImagery, Folder, BIDS,
)  # fmt: skip
CORPORA: Final = {kind.name: kind for kind in _KINDS}


def corpus(name: str, **options: Any) -> Corpus:
    """Make a corpus by name.

    Parameters
    ----------
    name : str
        Any case; one of `CORPORA`.
    **options
        What its class takes, such as ``multiple=20`` for ISRUC. Text is turned into a number where one is expected.
    """
    kind = CORPORA.get(str(name).lower())
    if kind is None:
        raise OptionError("corpus", name, f"known corpora are {', '.join(CORPORA)}")
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
