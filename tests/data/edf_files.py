"""Made-up EDF files, good and broken ones, and the same files as MNE and edfio read them."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from zipbrain.edge import EDFRecording, open_edf
from zipbrain.signal.edf_header import ANNOTATIONS, Header
from zipbrain.signal.recording import MICROVOLTS

edfio = pytest.importorskip("edfio")

RATE, SECONDS = 100, 30
# where a field of the first 256 bytes stands: (offset, width)
HEADER_BYTES, RESERVED, RECORDS, RECORD_SECONDS, COUNT = (
    (184, 8), (192, 44), (236, 8), (244, 8), (252, 4),
)  # fmt: skip
LABEL, UNIT, PMIN, PMAX, DMIN, DMAX = (0, 16), (96, 8), (104, 8), (112, 8), (120, 8), (128, 8)


def eeg(rows: int = 3, n: int = RATE * SECONDS, seed: int = 0) -> np.ndarray:
    """Made-up microvolts."""
    return 20 * np.random.default_rng(seed).standard_normal((rows, n))


def write_edf(
    path: Path, x: np.ndarray, labels: Sequence[str] = (), units: Sequence[str] = (), rates: Sequence[int] = ()
) -> Path:
    """Write an EDF+ file of one-second records, with one annotation; x may be a list of rows of different lengths."""
    labels = labels or [f"EEG {name}-REF" for name in ("FP1", "C3", "T7", "T4", "O1")[: len(x)]]
    signals = [
        edfio.EdfSignal(
            row, rates[i] if rates else RATE, label=labels[i], physical_dimension=units[i] if units else "uV",
            physical_range=(-200, 200),
        )
        for i, row in enumerate(x)
    ]  # fmt: skip
    edfio.Edf(signals, annotations=[edfio.EdfAnnotation(2.5, 1.0, "blink")], data_record_duration=1).write(path)
    return path


def patch(path: Path, field: tuple[int, int], text: str, signal: int | None = None) -> Path:
    """Overwrite a header field, of the file or of one signal."""
    data = bytearray(path.read_bytes())
    offset, width = field
    if signal is not None:
        count = int(data[252:256])
        offset = 256 + offset * count + signal * width
    data[offset : offset + width] = text.ljust(width).encode("latin-1")
    path.write_bytes(data)
    return path


def discontinuous(path: Path, gap: float) -> Path:
    """Mark a file as EDF+D and move the time stamps of its last ten records."""
    write_edf(path, eeg())
    patch(path, RESERVED, "EDF+D")
    data = bytearray(path.read_bytes())
    for second in range(SECONDS - 10, SECONDS):
        old = f"+{second}\x14\x14".encode()
        new = f"+{second + gap:g}\x14\x14".encode()
        place = data.index(old, 256)
        data[place : place + 12] = new.ljust(12, b"\0")
    path.write_bytes(data)
    return path


_MNES_VOLTS = {"\u03bcV": 1.0, "\u00b5V": 1.0, "uV": 1.0, "mV": 1e3}  # microvolts in a unit; MNE takes others for volts


def assert_as_mne_reads(path: Path, encoding: str = "utf8", **options: Any) -> EDFRecording:
    """Compare names, annotations, start and every value with MNE, and with edfio where that can read the file."""
    mne = pytest.importorskip("mne")
    ours, header = open_edf(path, **options), Header.read(path)
    named = path.with_name(f"mne-{path.stem}.{header.kind}")  # MNE and edfio go by the name
    shutil.copy(path, named)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        read = mne.io.read_raw_edf if header.kind == "edf" else mne.io.read_raw_bdf
        raw = read(named, exclude=[*ours.left_out], encoding=encoding, verbose="ERROR")
    raw.drop_channels(
        [name for name, kind in zip(raw.ch_names, raw.get_channel_types(), strict=True) if kind == "stim"]
    )
    assert ours.ch_names == raw.ch_names
    assert (ours.sfreq, ours.n_times) == (raw.info["sfreq"], raw.n_times)
    found = raw.annotations
    assert ours.annotations == list(zip(found.onset, found.duration, found.description, strict=True))
    used = [signal for signal in header.signals if signal.label not in {*ours.left_out, *ANNOTATIONS}]
    factors = [
        1e6 * MICROVOLTS[(options.get("units") or signal.unit).lower()] / _MNES_VOLTS.get(signal.unit, 1e6)
        for signal in used
    ]
    values, wanted = ours.read(0, ours.n_times), raw.get_data() * np.array(factors)[:, np.newaxis]
    np.testing.assert_allclose(values, wanted, rtol=1e-12, atol=1e-12 * np.abs(wanted).max())
    if ours.start is not None and raw.info["meas_date"] is not None:
        assert abs((ours.start - raw.info["meas_date"].replace(tzinfo=None)).total_seconds()) < 1
    if (other := read_with_edfio(named)) is not None:
        kept = [signal for signal in other.signals if signal.label not in ours.left_out]
        micro = [MICROVOLTS[(options.get("units") or signal.physical_dimension).lower()] for signal in kept]
        theirs = np.array([signal.data for signal in kept]) * np.array(micro)[:, np.newaxis]
        np.testing.assert_allclose(values, theirs, rtol=1e-9, atol=1e-9 * np.abs(wanted).max())
    return ours


def read_with_edfio(path: Path) -> Any:
    """The file as edfio reads it, or None where it can't."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = (edfio.read_edf if path.suffix == ".edf" else edfio.read_bdf)(path)
            for signal in found.signals:
                assert signal.data.size
            return found
    except Exception:
        return None
