"""Facts of the ZIPBrain paper that code needs by name, and every accepted spelling of a name (stdlib only)."""

from __future__ import annotations

from typing import Final

from zipbrain.errors import OptionError

MODELS: Final = ("LaBraM", "EEGPT", "BIOT", "TFM-Tokenizer")
NETWORKS: Final = (*MODELS, "CBraMod")  # every model in zipbrain.models; the paper says nothing about the others
DATASETS: Final = ("TUAB", "TUEV", "ISRUC", "EarEEG", "EEGMAT")
TWO_CLASSES: Final = ("TUAB", "EEGMAT")  # datasets; the others have more
METHODS: Final = ("zipbrain", "tome", "tofu", "evit", "dart")  # the paper's own and those it is compared with
# What a comparison or a profile has rows of where none are named.
COMPARED: Final = (*METHODS, "pitome", "local_merging", "twins")
SPACES: Final = ("x", "q", "k", "v", "qh", "kh", "vh")

_ALIASES: Final = {
    "tfm": "TFM-Tokenizer",
    "tfmtokenizer": "TFM-Tokenizer",
    "tfmtoken": "TFM-Tokenizer",
    "tfmencoder": "TFM-Tokenizer",  # class names: of our encoder alone, and of the official code
    "tfmtokenclassifier": "TFM-Tokenizer",
    "biotclassifier": "BIOT",
    "eegptclassifier": "EEGPT",
    "labrambase": "LaBraM",
    "eesm23": "EarEEG",
    "isrucsleep": "ISRUC",
    **{name.lower().replace("-", ""): name for name in (*NETWORKS, *DATASETS)},
}
_SPACE_ALIASES: Final = {"xhat": "x", "x-hat": "x", "qs": "q", "ks": "k", "vs": "v"}
_PART_ALIASES: Final = {
    "zip": "zipbrain",
    "slice": "free_slicing",
    "slicing": "free_slicing",
    "local": "local_merging",
    "localmerging": "local_merging",
    "wardpairs": "ward_pairs",
    "weighted_mean": "mean",
}

# z1 z2 z3 rho of the paper's main table for each of DATASETS, selected by its two-stage search at maximum compression.
_WINNING: Final = {
    "LaBraM": "x v x 0.4, k k k 0.9, q v x 0.1, x vh kh 0.1, x q x 0.3",
    "EEGPT": "kh x x 0.0, q q q 1.0, x q qh 0.5, vh qh v 0.6, x v v 0.0",
    "BIOT": "v k kh 0.9, kh kh qh 0.9, x kh v 0.5, k k k 0.0, v k k 0.2",
    "TFM-Tokenizer": "qh qh qh 1.0, k x vh 0.8, x q x 0.5, qh vh kh 1.0, q v x 0.1",
}


def known_name(given: str, known: tuple[str, ...]) -> str:
    """The paper's spelling of a name where the paper has one (``"tfm"``: ``"TFM-Tokenizer"``), or the name."""
    name = _ALIASES.get("".join(c for c in given.lower() if c.isalnum()))
    return name if name in known else given


def canonical_name(option: str, given: str, allowed: tuple[str, ...]) -> str:
    """The paper's spelling of a model or dataset name; refuse what is not among the `allowed` ones."""
    name = known_name(str(given), allowed)
    if name not in allowed:
        words = "it must be one of" if allowed == NETWORKS else "the paper has"
        raise OptionError(option, given, f"{words} {', '.join(allowed)}")
    return name


def canonical_space(name: str, value: object) -> str:
    """The space's own name for any accepted spelling (``"QS"`` is ``"q"``); an error names the option `name`."""
    found = value.lower() if isinstance(value, str) else value
    found = _SPACE_ALIASES.get(found, found) if isinstance(found, str) else found
    if found not in SPACES:
        raise OptionError(name, value, f"a space is one of {', '.join(SPACES)}")
    assert isinstance(found, str)
    return found


def canonical_part(given: object) -> str:
    """How a method, a schedule or a part of them is spelled in the registry (``"ToFU"`` is ``"tofu"``)."""
    name = str(given).lower().replace("-", "_").replace(" ", "_")
    return _PART_ALIASES.get(name, name)


def winning_settings(model: str, dataset: str) -> tuple[str, str, str, float]:
    """(z1, z2, z3, rho) that the paper found best for a model on a dataset."""
    row = _WINNING[canonical_name("model", model, MODELS)].split(", ")
    z1, z2, z3, rho = row[DATASETS.index(canonical_name("dataset", dataset, DATASETS))].split()
    return z1, z2, z3, float(rho)
