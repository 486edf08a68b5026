"""`example_recordings`: a few real recordings to try things on, from a folder, the cache or PhysioNet."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from zipbrain.data.downloads import download
from zipbrain.errors import DataError, OptionError
from zipbrain.transfer import cache_folder

FOLDER: Final = "ZIPBRAIN_EEGMAT"  # environment: folder that holds files of EEGMAT already

_PEOPLE: Final = range(36)


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
