"""Facts of the ZIPBrain paper that code needs by name: its models, datasets and winning settings (stdlib only)."""

from __future__ import annotations

from typing import Final

from zipbrain.errors import OptionError

MODELS: Final = ("LaBraM", "EEGPT", "BIOT", "TFM-Tokenizer")
DATASETS: Final = ("TUAB", "TUEV", "ISRUC", "EarEEG", "EEGMAT")

_ALIASES: Final = {
    "tfm": "TFM-Tokenizer",
    "tfmtokenizer": "TFM-Tokenizer",
    "tfmtoken": "TFM-Tokenizer",
    "labrambase": "LaBraM",
    "eesm23": "EarEEG",
    "isrucsleep": "ISRUC",
    **{name.lower().replace("-", ""): name for name in (*MODELS, *DATASETS)},
}

# z1, z2, z3, rho of the paper's main table, selected by its two-stage search at maximum compression.
_WINNING: Final = {
    ("LaBraM", "TUAB"): ("x", "v", "x", 0.4),
    ("LaBraM", "EEGMAT"): ("x", "q", "x", 0.3),
    ("LaBraM", "TUEV"): ("k", "k", "k", 0.9),
    ("LaBraM", "ISRUC"): ("q", "v", "x", 0.1),
    ("LaBraM", "EarEEG"): ("x", "vh", "kh", 0.1),
    ("EEGPT", "TUAB"): ("kh", "x", "x", 0.0),
    ("EEGPT", "EEGMAT"): ("x", "v", "v", 0.0),
    ("EEGPT", "TUEV"): ("q", "q", "q", 1.0),
    ("EEGPT", "ISRUC"): ("x", "q", "qh", 0.5),
    ("EEGPT", "EarEEG"): ("vh", "qh", "v", 0.6),
    ("BIOT", "TUAB"): ("v", "k", "kh", 0.9),
    ("BIOT", "EEGMAT"): ("v", "k", "k", 0.2),
    ("BIOT", "TUEV"): ("kh", "kh", "qh", 0.9),
    ("BIOT", "ISRUC"): ("x", "kh", "v", 0.5),
    ("BIOT", "EarEEG"): ("k", "k", "k", 0.0),
    ("TFM-Tokenizer", "TUAB"): ("qh", "qh", "qh", 1.0),
    ("TFM-Tokenizer", "EEGMAT"): ("q", "v", "x", 0.1),
    ("TFM-Tokenizer", "TUEV"): ("k", "x", "vh", 0.8),
    ("TFM-Tokenizer", "ISRUC"): ("x", "q", "x", 0.5),
    ("TFM-Tokenizer", "EarEEG"): ("qh", "vh", "kh", 1.0),
}


def canonical_name(option: str, given: str, allowed: tuple[str, ...]) -> str:
    """Return the paper's spelling of a model or dataset name (``"tfm"`` is ``"TFM-Tokenizer"``)."""
    name = _ALIASES.get("".join(c for c in str(given).lower() if c.isalnum()))
    if name not in allowed:
        raise OptionError(option, given, f"the paper has {', '.join(allowed)}")
    return name


def winning_settings(model: str, dataset: str) -> tuple[str, str, str, float]:
    """Return (z1, z2, z3, rho) that the paper found best for a model on a dataset."""
    key = canonical_name("model", model, MODELS), canonical_name("dataset", dataset, DATASETS)
    return _WINNING[key]
