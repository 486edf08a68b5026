"""Made-up EDF files, good and broken ones."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

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
