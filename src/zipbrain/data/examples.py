"""A few real recordings, and windows cut from them, to try things on: from a folder, the cache or PhysioNet."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np

from zipbrain.data.corpora import convention
from zipbrain.data.downloads import download
from zipbrain.data.windows import Windows
from zipbrain.errors import DataError, OptionError
from zipbrain.signal.cutting import windows
from zipbrain.signal.edf import open_edf
from zipbrain.transfer import cache_folder

FOLDER: Final = "ZIPBRAIN_EEGMAT"  # environment: folder that holds files of EEGMAT already

_PEOPLE: Final = range(36)
_USED_S: Final = 60.0  # from the beginning of each recording, so that both classes have as many windows
_CLASSES: Final = ("rest", "arithmetic")


def example_recordings(*people: int) -> list[Path]:
    """EDF files of people at rest and in mental arithmetic: two of each person, rest first.

    They are of EEGMAT 1.0.0 (PhysioNet, doi:10.13026/C2JQ1P): 19 electrodes at 500 Hz, about three minutes of rest and
    one minute of serial subtraction. Zyma et al., Electroencephalograms during Mental Arithmetic Task Performance, Data
    2019, 4(1):14; Open Data Commons Attribution licence 1.0.

    Taken from the folder that the environment variable ``ZIPBRAIN_EEGMAT`` names, if it is set; else from the cache
    (``ZIPBRAIN_CACHE``), into which they are fetched the first time, 1 to 4 MB each, checked by SHA-256.

    Parameters
    ----------
    *people : int
        0 to 35; person 31 if none is given.

    Examples
    --------
    >>> rest, arithmetic = zipbrain.data.example_recordings(31)  # doctest: +SKIP
    """
    for person in people:
        if person not in _PEOPLE:
            raise OptionError("people", person, "EEGMAT has people 0 to 35")
    names = [f"Subject{person:02d}_{task}.edf" for person in people or (31,) for task in (1, 2)]
    given = os.environ.get(FOLDER)
    folder = Path(given) if given else cache_folder() / "eegmat"
    if given:
        if missing := [name for name in names if not (folder / name).is_file()]:
            raise DataError(f"{folder}: {missing[0]} is not there; unset {FOLDER} to have it fetched from PhysioNet")
    else:
        try:
            download("eegmat", folder, subset=names)
        except DataError as error:
            raise DataError(f"{error}. Or set {FOLDER} to a folder that holds {names[0]}") from None
    return [folder / name for name in names]


def example_windows(
    model: str = "labram", *, people: Sequence[int] = (31, 32, 33, 34, 35), seconds: float = 4.0
) -> Windows:
    """Windows of the first minute of `example_recordings`, end to end, as a model reads EEGMAT.

    Parameters
    ----------
    model : {"labram", "eegpt", "biot", "tfm", "cbramod"}
        Whose channels and rate to follow.
    people : sequence of int
        0 to 35.
    seconds : float
        Of a window.

    Returns
    -------
    windows : Windows
        16 channels in microvolts, in the order of people, recordings (rest, then arithmetic) and time.
    """
    wanted = replace(convention(model, "eegmat"), window_s=float(seconds), hop_s=float(seconds))
    count = int(_USED_S // wanted.window_s)
    cut, labels, subjects = [], [], []
    for place, path in enumerate(example_recordings(*people)):
        batches = windows(open_edf(path), wanted)
        cut.append(np.concatenate([batch.x for batch in batches])[:count])
        labels += [place % 2] * len(cut[-1])
        subjects += [path.stem[len("Subject") :][:2]] * len(cut[-1])
    return Windows.from_arrays(
        np.concatenate(cut),
        labels,
        ch_names=wanted.ch_names,
        sfreq=wanted.sfreq,
        subjects=subjects,
        classes=_CLASSES,
        name="eegmat",
    )
