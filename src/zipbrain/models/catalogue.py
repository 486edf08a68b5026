"""Published weights: where each file lies and how it is verified, what it makes, its licence and whom to cite."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from zipbrain.errors import OptionError
from zipbrain.files import GIT_BLOB


@dataclass(frozen=True)
class Source:
    """A public place that holds weights."""

    title: str  # of the model
    page: str  # for people
    root: str  # address of the files, without a slash at the end
    folder: str  # of the files in the cache
    licence: str
    citation: str


@dataclass(frozen=True)
class WeightFile:
    """One file of a source."""

    fills: str  # model of `zipbrain.models.create`, or a part of one that is none itself
    path: str  # below the source's root
    hash: str | None  # see `zipbrain.files.hash_file`; None where the source gives none
    name: str = ""  # in the cache, where the path says nothing

    @property
    def place(self) -> str:
        """Path in the folder of its source."""
        return self.name or self.path


@dataclass(frozen=True)
class Weights:
    """Weights that `zipbrain.models.create` can start a model with."""

    model: str
    name: str
    source: Source
    files: tuple[WeightFile, ...]
    trained_on: str
    options: dict[str, Any] = field(default_factory=dict)  # of the model, where none are given

    @property
    def full_name(self) -> str:
        """Model and name, as checkpoints are named: ``"labram-base"``."""
        return f"{self.model}-{self.name}"


def _github(title: str, repository: str, commit: str, licence: str, citation: str) -> Source:
    page, root = f"https://github.com/{repository}", f"https://raw.githubusercontent.com/{repository}/{commit}"
    return Source(title, page, root, f"{repository.replace('/', '-')}-{commit[:12]}", licence, citation)


_LABRAM: Final = _github(
    "LaBraM",
    "935963004/LaBraM",
    "c431221e6cfd23dbfa9950e0180682fb322b0548",
    "MIT",
    "Jiang, Zhao, Lu: Large Brain Model for Learning Generic Representations with Tremendous EEG Data in BCI, "
    "ICLR 2024",
)
_BIOT: Final = _github(
    "BIOT",
    "ycq091044/BIOT",
    "d138e32634e52ae9fa6ec98ac9c4087b14ca869a",
    "MIT",
    "Yang, Westover, Sun: BIOT: Biosignal Transformer for Cross-data Learning in the Wild, NeurIPS 2023",
)
_TFM: Final = _github(
    "TFM-Tokenizer",
    "Jathurshan0330/TFM-Tokenizer",
    "d716ab9fec905fffebe235915244a20a8c6edde7",
    "MIT",
    "Pradeepkumar, Piao, Chen, Sun: Single-Channel EEG Tokenization Through Time-Frequency Modeling, arXiv:2502.16060",
)
_EEGPT: Final = Source(
    "EEGPT",
    "https://figshare.com/s/e37df4f8a907a866df4b",
    "https://figshare.com/ndownloader/files",
    "EEGPT-46452745",
    "Apache-2.0 (of the code, github.com/BINE022/EEGPT; the share names none)",
    "Wang, Liu, He, Xu, Ma, Li: EEGPT: Pretrained Transformer for Universal and Reliable Representation of EEG "
    "Signals, NeurIPS 2024",
)

_PREST: Final = "5 M resting windows of Massachusetts General Hospital"
_MULTIPLE: Final = "pretrained_weigths/multiple_dataset_settings"  # spelt as in the repository
_SINGLE: Final = "pretrained_weigths/single_dataset_settings"


def _biot(name: str, path: str, blob: str, channels: int, trained_on: str) -> Weights:
    file = WeightFile("biot", f"pretrained-models/{path}", f"{GIT_BLOB}:{blob}")
    return Weights("biot", name, _BIOT, (file,), trained_on, {"n_chans": channels})


def _tfm(name: str, tokenizer: str, encoder: str, trained_on: str, outputs: int | None = None) -> Weights:
    """Both files, each given as ``"folder/file blob"``."""
    files = []
    for fills, given in (("tokenizer", tokenizer), ("tfm-encoder", encoder)):
        path, blob = given.split()
        files.append(WeightFile(fills, path, f"{GIT_BLOB}:{blob}"))
    return Weights("tfm", name, _TFM, tuple(files), trained_on, {} if outputs is None else {"n_outputs": outputs})


_TOKENIZER: Final = (
    f"{_MULTIPLE}/Pretrained_tfm_tokenizer_2x2x8/tfm_tokenizer_last.pth 5c62187146bf130f7b2ecfee44dadef62ebe4f93"
)


def _single(corpus: str, tokenizer: str, encoder: str, outputs: int) -> Weights:
    folder = f"{_SINGLE}/{corpus}_tfm_tokenizer_2x2x8"
    files = f"{folder}/tfm_tokenizer_last.pth {tokenizer}", f"{folder}/tfm_encoder_best_model.pth {encoder}"
    return _tfm(corpus.lower(), *files, f"{corpus}, fine-tuned there", outputs)


# The first of a model is the one that is meant where no name is given.
CATALOGUE: Final = (
    Weights(
        "labram",
        "base",
        _LABRAM,
        (WeightFile("labram", "checkpoints/labram-base.pth", f"{GIT_BLOB}:221148b5af403e9178629bb61e94b2e7d89ef172"),),
        "2,500 hours of 20 corpora",
    ),
    _biot("prest-16", "EEG-PREST-16-channels.ckpt", "dd9a5b3970f754f1b9b119e0ed0caa4d49a6579f", 16, _PREST),
    _biot(
        "shhs-prest-18",
        "EEG-SHHS+PREST-18-channels.ckpt",
        "5e4d1ee6fdc5442059d093b99053dfa14c8c8b61",
        18,
        f"{_PREST}, 5 M of SHHS",
    ),
    _biot(
        "six-datasets-18",
        "EEG-six-datasets-18-channels.ckpt",
        "04dfe806a0c8f0ad2cf2e7e343232faca82bb951",
        18,
        "the same, TUAB, TUEV, CHB-MIT, IIIC Seizure",
    ),
    Weights(
        "eegpt",
        "large",
        _EEGPT,
        (WeightFile("eegpt", "46452745?private_link=e37df4f8a907a866df4b", None, "eegpt_mcae_58chs_4s_large4E.ckpt"),),
        "five corpora, 58 channels, windows of 4 s",
    ),
    _tfm(
        "multiple",
        _TOKENIZER,
        f"{_MULTIPLE}/MTP_Pretrained_tfm_encoder_64x4/tfm_encoder_mtp_last.pth "
        "5372ddedc3dc6834ddd6d48e2088248db1a7c979",
        "several corpora, masked tokens",
    ),
    _tfm(
        "multiple-tuev",
        _TOKENIZER,
        f"{_MULTIPLE}/Finetuned_TUEV/tfm_encoder_best_model.pth ea1c0169c4198b549a13e5aee40355e8fe39604b",
        "several corpora, fine-tuned on TUEV",
        6,
    ),
    _tfm(
        "multiple-chbmit",
        _TOKENIZER,
        f"{_MULTIPLE}/Finetuned_CHBMIT/tfm_encoder_best_model.pth 499c455cda879f82e79762e14bac1f8508d8db89",
        "several corpora, fine-tuned on CHB-MIT",
        1,
    ),
    _single("TUAB", "ccf1136097b93c592a43ce3102d578175e115f29", "0dd0cc2c7d64b344abba79423193a8b71fc5599f", 1),
    _single("TUEV", "6368b42ca3fe46512b592a75e74982f43f6142d7", "3d6fd3ee54ac16edac4a1156d201fbb70a9a8cda", 6),
    _single("CHBMIT", "7024441be6b658c67ed6d2825f667d4bea0e871b", "8932ffb1b13b5d846553f11abeb208f63086e96c", 1),
)


def find_weights(model: str, name: str | None = None) -> Weights:
    """The published weights of a model under this name, or the first ones; TFM's encoder has the whole's."""
    wanted = str(model).lower()
    wanted = wanted.removesuffix("-encoder").removesuffix("-tokenizer")
    known = [weights for weights in CATALOGUE if weights.model == wanted]
    if not known:
        models = ", ".join(dict.fromkeys(weights.model for weights in CATALOGUE))
        raise OptionError("model", model, f"weights are published of {models}")
    found = next((weights for weights in known if name in (None, weights.name)), None)
    if found is None:
        raise OptionError("pretrained", name, f"published of {wanted} are {', '.join(w.name for w in known)}")
    return found


def named_weights(full_name: str) -> Weights | None:
    """The published weights of this full name, such as ``"labram-base"``, or None."""
    return next((weights for weights in CATALOGUE if weights.full_name == full_name.lower()), None)
