"""How each model wants each corpus: montage, filters, rates, window, scaling. One table."""

from __future__ import annotations

from typing import Final

from zipbrain.errors import OptionError
from zipbrain.paper import MODELS, canonical_name
from zipbrain.signal.convention import Channel, Convention

__all__ = ["BIPOLAR", "CORPORA", "INPUTS", "REFERENTIAL", "Convention", "convention", "parse_montage"]

_REFERENTIAL: Final = "FP1 FP2 F3 F4 C3 C4 P3 P4 O1 O2 F7 F8 T3 T4 T5 T6 A1 A2 FZ CZ PZ T1 T2"
_BIPOLAR: Final = """
FP1-F7 F7-T3 T3-T5 T5-O1 FP2-F8 F8-T4 T4-T6 T6-O2 FP1-F3 F3-C3 C3-P3 P3-O1 FP2-F4 F4-C4 C4-P4 P4-O2
"""
_SLEEP: Final = "F3-A2 C3-A2 O1-A2 F4-A1 C4-A1 O2-A1"
_EAR: Final = "RB RT LB LT"
_SIXTEEN: Final = "FP1 FP2 F3 F4 F7 F8 T3 T4 C3 C4 T5 T6 P3 P4 O1 O2"  # EEGMAT's first 16, in file order
_SIXTEEN_NEW: Final = "FP1 FP2 F3 F4 F7 F8 T7 T8 C3 C4 P7 P8 P3 P4 O1 O2"  # the same places, new names
_FROM_FILE: Final = ""  # folder, BIDS: the scalp channels of the first recording

REFERENTIAL: Final = tuple(_REFERENTIAL.split())
BIPOLAR: Final = tuple(_BIPOLAR.split())

# Seconds of a window, and from one to the next.
_TIMES: Final = {
    "tuab": (10.0, 10.0),
    "tuev": (5.0, 5.0),
    "isruc": (30.0, 30.0),
    "eareeg": (30.0, 30.0),
    "eegmat": (4.0, 2.0),
    "eegmmidb-eyes": (4.0, 2.0),
    "eegmmidb-imagery": (4.0, 4.0),
    "folder": (4.0, 4.0),
    "bids": (4.0, 4.0),
}
CORPORA: Final = tuple(_TIMES)

_WIDE: Final = (0.1, 75.0)  # LaBraM's band; its notch is at 50 Hz even for recordings from 60 Hz countries
_EAR_BAND: Final = (0.1, 100.0)

# montage; names for the model; band; notch; Hz of the cut; Hz of the model; how a window gets there; scaling.
# EEGPT's official scripts stretch windows to 256 Hz by nearest neighbour, except on TUAB and TUEV, where 200 Hz go in
# as they are. TFM's cut at 256 Hz and BIOT's on TUEV at the recording's own rate, then go to 200 Hz per window.
_Row = tuple[str, str, tuple[float, float] | None, float | None, float | None, float, str, str]
_TABLE: Final[dict[tuple[str, str], _Row]] = {
    ("labram", "tuab"): (_REFERENTIAL, "", _WIDE, 50, 200, 200, "fft", "hundred"),
    ("eegpt", "tuab"): (_REFERENTIAL, "", _WIDE, 50, 200, 200, "fft", "hundred"),
    ("biot", "tuab"): (_BIPOLAR, "", None, None, 200, 200, "fft", "q95"),
    ("tfm", "tuab"): (_BIPOLAR, "", _WIDE, 50, 256, 200, "fft", "q95"),
    ("labram", "tuev"): (_REFERENTIAL, "", _WIDE, 50, 200, 200, "fft", "hundred"),
    ("eegpt", "tuev"): (_REFERENTIAL, "", _WIDE, 50, 200, 200, "fft", "hundred"),
    ("biot", "tuev"): (_BIPOLAR, "", None, None, None, 200, "fft", "q95"),
    ("tfm", "tuev"): (_BIPOLAR, "", _WIDE, 50, 256, 200, "fft", "q95"),
    ("labram", "isruc"): (_SLEEP, "F3 C3 O1 F4 C4 O2", _WIDE, 50, 200, 200, "fft", "hundred"),
    ("eegpt", "isruc"): (_SLEEP, "F3 C3 O1 F4 C4 O2", _WIDE, 50, 200, 256, "nearest", "zscore-average"),
    ("biot", "isruc"): (_SLEEP, "", _WIDE, 50, 200, 200, "fft", "q95"),
    ("tfm", "isruc"): (_SLEEP, "", _WIDE, 50, 200, 200, "fft", "q95"),
    ("labram", "eareeg"): (_EAR, "A2 T8 A1 T7", _EAR_BAND, 50, None, 200, "fft", "hundred"),
    ("eegpt", "eareeg"): (_EAR, "TP8 T8 TP7 T7", _EAR_BAND, 50, None, 256, "nearest", "zscore-average"),
    ("biot", "eareeg"): (_EAR, "", _EAR_BAND, 50, None, 200, "fft", "q95"),
    ("tfm", "eareeg"): (_EAR, "", _EAR_BAND, 50, None, 200, "fft", "q95"),
    ("labram", "eegmat"): (_SIXTEEN, "", None, None, 200, 200, "fft", "hundred"),
    ("eegpt", "eegmat"): (_SIXTEEN, _SIXTEEN_NEW, None, None, 200, 256, "nearest", "zscore-average"),
    ("biot", "eegmat"): (_BIPOLAR, "", None, None, 200, 200, "fft", "q95"),
    ("tfm", "eegmat"): (_BIPOLAR, "", None, None, 200, 200, "fft", "q95"),
    ("labram", "eegmmidb"): (_SIXTEEN_NEW, "", _WIDE, 60, 200, 200, "fft", "hundred"),
    ("eegpt", "eegmmidb"): (_SIXTEEN_NEW, "", _WIDE, 60, 200, 256, "nearest", "zscore-average"),
    ("biot", "eegmmidb"): (_BIPOLAR, "", _WIDE, 60, 200, 200, "fft", "q95"),
    ("tfm", "eegmmidb"): (_BIPOLAR, "", _WIDE, 60, 200, 200, "fft", "q95"),
    ("labram", "folder"): (_FROM_FILE, "", _WIDE, 50, 200, 200, "fft", "hundred"),
    ("eegpt", "folder"): (_FROM_FILE, "", _WIDE, 50, 256, 256, "fft", "zscore-average"),
    ("biot", "folder"): (_BIPOLAR, "", _WIDE, 50, 200, 200, "fft", "q95"),
    ("tfm", "folder"): (_BIPOLAR, "", _WIDE, 50, 200, 200, "fft", "q95"),
}
_SAME_AS: Final = {"eegmmidb-eyes": "eegmmidb", "eegmmidb-imagery": "eegmmidb", "bids": "folder"}
_SHORT: Final = dict(zip(MODELS, ("labram", "eegpt", "biot", "tfm"), strict=True))
INPUTS: Final = tuple(_SHORT.values())


def convention(model: str, corpus: str) -> Convention:
    """Return how a corpus is prepared for a model.

    Parameters
    ----------
    model : {"labram", "eegpt", "biot", "tfm"}
        Any case; the paper's spelling works too.
    corpus : {"tuab", "tuev", "isruc", "eareeg", "eegmat", "eegmmidb-eyes", "eegmmidb-imagery", "folder", "bids"}
        Any case.
    """
    short = _SHORT[canonical_name("model", model, MODELS)]
    name = str(corpus).lower()
    if name not in _TIMES:
        raise OptionError("corpus", corpus, f"known corpora are {', '.join(_TIMES)}")
    row = _TABLE[short, _SAME_AS.get(name, name)]
    montage, names, band, notch, cut_sfreq, sfreq, window_resampling, scaling = row
    window_s, hop_s = _TIMES[name]
    return Convention(
        short, name, parse_montage(montage.split()), tuple((names or montage).split()), band, notch, cut_sfreq, sfreq,
        window_s, hop_s, scaling, window_resampling=window_resampling, filter_windows=name == "eareeg",
    )  # fmt: skip


def parse_montage(names: list[str]) -> tuple[Channel, ...]:
    """Turn ``["C3", "F3-A2"]`` into ``("C3", ("F3", "A2"))``."""
    channels: list[Channel] = []
    for name in names:
        first, dash, second = name.partition("-")
        if not first or (dash and not second):
            raise OptionError("channels", name, "a channel is an electrode such as C3 or a difference such as F3-A2")
        channels.append((first, second) if dash else first)
    return tuple(channels)
