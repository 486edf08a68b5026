"""What the ZIPBrain paper reports: its result tables as facts, to be shown beside figures of your own (stdlib only)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from zipbrain.errors import OptionError
from zipbrain.paper import DATASETS, MODELS, TWO_CLASSES, canonical_name

_COLUMNS: Final = ("original", "evit", "tome", "tofu", "dart", "zipbrain")  # of the lines below
RATIOS: Final = (0.2, 0.4, 0.6, 0.8)  # of the ratio sweep; every pair has "max"
SAVED_FLOPS: Final = {("LaBraM", "TUAB", 0.8): 0.4230, ("LaBraM", "TUEV", 0.8): 0.4236}  # counted by onnx-tool

COPY_ERROR: Final = "the paper prints EEGPT's row here, so BIOT's own value is unknown"

_BINARY: Final = ("auroc", "pr_auc", "accuracy", "balanced_accuracy")
_MULTICLASS: Final = ("kappa", "weighted_f1", "accuracy", "balanced_accuracy")

# Ten-thousandths, one group of four metrics (main, second, accuracy, balanced accuracy) for each of _COLUMNS.
_MAXIMUM: Final = {
    ("LaBraM", "TUAB"): (
        "9067 9092 8221 8206 | 8529 8501 7716 7687 | 8854 8893 8108 8036 | "
        "8884 8928 8150 8085 | 8731 8713 7918 7918 | 8906 8916 8041 8053"
    ),
    ("LaBraM", "EEGMAT"): (
        "6230 6244 5655 5655 | 6342 6316 5793 5793 | 6086 6042 5724 5724 | "
        "6154 6234 5828 5828 | 6207 6077 5621 5621 | 6477 6751 6172 6172"
    ),
    ("LaBraM", "TUEV"): (
        "6616 8292 8238 6585 | 5766 7922 8120 4357 | 6227 8106 8113 5975 | "
        "6272 8129 8133 6025 | 5416 7704 7642 5468 | 6479 8226 8269 6212"
    ),
    ("LaBraM", "ISRUC"): (
        "7383 7958 8003 7717 | 5972 6849 6908 6641 | 6084 6951 6982 6684 | "
        "6332 7139 7183 6866 | 6642 7348 7445 7020 | 6763 7508 7518 7244"
    ),
    ("LaBraM", "EarEEG"): (
        "4255 5413 5951 4463 | 2474 4003 4226 3566 | 3072 4476 4728 3869 | "
        "3069 4497 4759 3855 | 3489 4805 5326 3934 | 4249 5318 5802 4607"
    ),
    ("EEGPT", "TUAB"): (
        "8684 8470 8012 7992 | 8665 8449 8000 7982 | 8672 8457 7998 7980 | "
        "8672 8458 7995 7977 | 8687 8468 7999 7985 | 8690 8482 7989 7974"
    ),
    ("EEGPT", "EEGMAT"): (
        "6517 6211 6034 6034 | 6512 6211 6138 6138 | 6444 6108 6207 6207 | "
        "6459 6120 6207 6207 | 6528 6201 6172 6172 | 6563 6257 6138 6138"
    ),
    ("EEGPT", "TUEV"): (
        "5677 7887 8014 5411 | 5603 7861 8053 5316 | 5557 7850 8008 5315 | "
        "5566 7854 8011 5311 | 5620 7872 8029 5378 | 5746 7889 8018 5527"
    ),
    ("EEGPT", "ISRUC"): (
        "6587 7252 7383 7141 | 6544 7203 7347 7112 | 6411 7111 7245 7028 | "
        "6441 7134 7269 7041 | 6637 7301 7424 7162 | 6612 7273 7402 7143"
    ),
    ("EEGPT", "EarEEG"): (
        "4797 5767 6196 4675 | 4558 5565 6009 4513 | 4539 5543 6056 4457 | "
        "4539 5550 6050 4464 | 4647 5634 6131 4530 | 4689 5656 6121 4571"
    ),
    ("BIOT", "TUAB"): (
        "8782 8797 8081 8009 | 8647 8673 7913 7900 | 8767 8765 8073 8014 | "
        "8771 8771 8073 8010 | 8639 8660 7907 7876 | 8797 8791 7989 7974"
    ),
    ("BIOT", "EEGMAT"): (
        "7721 7805 6276 6276 | 8251 8266 6138 6138 | 7454 7425 6448 6448 | "
        "7410 7419 6552 6552 | 7255 7309 6414 6414 | 8286 8149 6138 6138"
    ),
    ("BIOT", "TUEV"): (
        "5082 7444 7274 5059 | 4649 7151 7007 4959 | 5000 7412 7331 4941 | "
        "5020 7423 7360 4881 | 4587 7138 7013 4419 | 5199 7488 8018 5527"
    ),
    ("BIOT", "ISRUC"): (
        "7536 8050 8132 7776 | 5702 6643 6707 6463 | 7334 7905 7978 7641 | "
        "7343 7892 7987 7617 | 6238 7180 7180 6745 | 7345 7933 7402 7143"
    ),
    ("BIOT", "EarEEG"): (
        "3935 5267 5802 4136 | 4965 5943 6236 5154 | 4172 5325 5904 4210 | "
        "4101 5289 5863 4165 | 2705 4042 4759 3440 | 4663 5642 6121 4571"
    ),
    ("TFM-Tokenizer", "TUAB"): (
        "8895 8964 8208 8144 | 8708 8779 8000 7979 | 8793 8834 8070 7994 | "
        "8793 8846 8080 7998 | 8624 8662 7935 7893 | 8812 8888 8076 7977"
    ),
    ("TFM-Tokenizer", "EEGMAT"): (
        "6299 6210 5862 5862 | 6075 5713 5931 5931 | 6363 6279 6172 6172 | "
        "6435 6526 6138 6138 | 5990 5889 5724 5724 | 6727 6662 6207 6207"
    ),
    ("TFM-Tokenizer", "TUEV"): (
        "5611 7713 7696 5388 | 4411 7155 7462 3643 | 5421 7615 7659 4615 | "
        "5399 7603 7651 4724 | 5240 7523 7505 5060 | 5628 7712 7659 5399"
    ),
    ("TFM-Tokenizer", "ISRUC"): (
        "7094 7684 7798 7391 | 6727 7429 7500 7149 | 6879 7487 7624 7256 | "
        "6921 7530 7655 7294 | 6870 7537 7625 7226 | 7120 7641 7818 7376"
    ),
    ("TFM-Tokenizer", "EarEEG"): (
        "4077 5250 5703 4247 | 4436 5488 6019 4402 | 3927 5071 5442 4280 | "
        "3862 5016 5377 4228 | 2687 4227 4626 3486 | 4839 5771 6206 4802"
    ),
}
_SWEEP: Final = {
    ("BIOT", "TUAB", 0.2): (
        "8782 8797 8081 8009 | 8773 8799 8091 8028 | 8786 8789 8090 8020 | "
        "8787 8790 8092 8022 | 8781 8802 8095 8028 | 8792 8805 8093 8026"
    ),
    ("BIOT", "TUAB", 0.4): (
        "8782 8797 8081 8009 | 8754 8789 8064 8011 | 8786 8776 8087 8018 | "
        "8787 8777 8086 8017 | 8773 8799 8085 8025 | 8801 8811 8100 8036"
    ),
    ("BIOT", "TUAB", 0.6): (
        "8782 8797 8081 8009 | 8726 8766 8039 8000 | 8779 8760 8086 8021 | "
        "8780 8762 8080 8014 | 8747 8777 8052 8002 | 8810 8812 8102 8045"
    ),
    ("BIOT", "TUAB", 0.8): (
        "8782 8797 8081 8009 | 8691 8729 7989 7966 | 8773 8763 8082 8022 | "
        "8775 8767 8092 8029 | 8680 8712 7979 7943 | 8812 8805 8106 8061"
    ),
    ("LaBraM", "TUEV", 0.2): (
        "6616 8292 8238 6585 | 6664 8321 8243 6480 | 6526 8254 8185 6602 | "
        "6526 8254 8185 6603 | 6525 8248 8187 6531 | 6774 8379 8356 6607"
    ),
    ("LaBraM", "TUEV", 0.4): (
        "6616 8292 8238 6585 | 6633 8308 8227 6021 | 6493 8230 8180 6608 | "
        "6548 8251 8211 6563 | 6338 8152 8078 6355 | 6735 8352 8340 6541"
    ),
    ("LaBraM", "TUEV", 0.6): (
        "6616 8292 8238 6585 | 6564 8275 8206 5221 | 6302 8141 8064 6407 | "
        "6370 8165 8100 6484 | 6037 8003 7930 6179 | 6625 8284 8283 6542"
    ),
    ("LaBraM", "TUEV", 0.8): (
        "6616 8292 8238 6585 | 6240 8123 8155 4542 | 6290 8133 8071 6366 | "
        "6397 8195 8144 6319 | 5806 7886 7820 5704 | 6539 8258 8237 6397"
    ),
}
# Main metric in ten-thousandths; the ratio is not stated. "full" is what the paper's table calls Original.
_ABLATION: Final = {
    ("LaBraM", "TUAB"): {"full": 8903, "random grouping": 8883, "random matching": 8790, "simple merge": 8895},
    ("BIOT", "TUEV"): {"full": 5103, "random grouping": 5073, "random matching": 4927, "simple merge": 5043},
}


@dataclass(frozen=True)
class Reported:
    """One printed value.

    Attributes
    ----------
    value : float
        As printed, with four digits.
    doubt : str
        Why it can't be what it claims to be; empty for an ordinary value. Never show the value without this.
    """

    value: float
    doubt: str = ""


def reported(model: str, dataset: str, method: str, ratio: float | str | None = None) -> dict[str, Reported]:
    """The paper's values of one method on one pair, by metric; nothing where its tables have none.

    Parameters
    ----------
    model, dataset : str
        Any usual spelling; a name that the paper doesn't have gives nothing.
    method : {"original", "evit", "tome", "tofu", "dart", "zipbrain"}
        Any other gives nothing.
    ratio : float or "max", optional
        Share of tokens removed. Not looked at for ``"original"``.

    Returns
    -------
    values : dict of str to Reported
        auroc and pr_auc (two classes) or kappa and weighted_f1, then accuracy and balanced_accuracy.
    """
    pair = known_pair(model, dataset)
    if pair is None or method not in _COLUMNS:
        return {}
    line: str | None = None
    if method == "original" or ratio == "max":
        line = _MAXIMUM[pair]
    elif isinstance(ratio, float):
        line = _SWEEP.get((*pair, ratio))
    if line is None:
        return {}
    numbers = line.split(" | ")[_COLUMNS.index(method)].split()
    copied = pair[0] == "BIOT" and method == "zipbrain" and ratio == "max"
    return {
        metric: Reported(int(number) / 10000, COPY_ERROR if copied and metric.endswith("accuracy") else "")
        for metric, number in zip(metrics_of(pair[1]), numbers, strict=True)
    }


def reported_ablation(model: str, dataset: str) -> dict[str, float]:
    """The paper's ablation of a pair, by variant as `zipbrain.pooling.ablations` names them, in its main metric."""
    pair = known_pair(model, dataset)
    return {} if pair is None else {name: value / 10000 for name, value in _ABLATION.get(pair, {}).items()}


def metrics_of(dataset: str) -> tuple[str, str, str, str]:
    """The four metrics that the paper reports of one of its datasets, the main one first."""
    return _BINARY if canonical_name("dataset", dataset, DATASETS) in TWO_CLASSES else _MULTICLASS


def known_pair(model: str, dataset: str) -> tuple[str, str] | None:
    """Model and dataset in the paper's spelling, or None where it has no such pair."""
    try:
        return canonical_name("model", model, MODELS), canonical_name("dataset", dataset, DATASETS)
    except OptionError:
        return None
