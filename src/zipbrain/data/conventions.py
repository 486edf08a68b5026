"""`convention`: how a corpus is prepared for a model, as the corpus itself says."""

from __future__ import annotations

from zipbrain.data.corpora import CORPORA
from zipbrain.errors import OptionError
from zipbrain.signal.convention import Convention


def convention(model: str, corpus: str) -> Convention:
    """Return how a corpus is prepared for a model.

    Parameters
    ----------
    model : {"labram", "eegpt", "biot", "tfm"}
        Any case; the paper's spelling works too.
    corpus : {"tuab", "tuev", "isruc", "eareeg", "eegmat", "eegmmidb-eyes", "eegmmidb-imagery", "folder", "bids"}
        Any case.
    """
    kind = CORPORA.get(str(corpus).lower())
    if kind is None:
        raise OptionError("corpus", corpus, f"known corpora are {', '.join(CORPORA)}")
    return kind.convention(model)
