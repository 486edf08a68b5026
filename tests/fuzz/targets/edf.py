"""EDF and BDF files: fields of the header, files cut off, what stands in the annotations."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from tests.fuzz.harness import ROOT, Target
from tests.fuzz.mutations import NUMBERS, change_bytes, flip_bits, move_piece, set_bytes

from zipbrain.data.recording import open_recording
from zipbrain.signal.convention import Convention
from zipbrain.signal.cutting import windows
from zipbrain.signal.edf import open_edf

SHARED = Path(os.environ.get("ZIPBRAIN_SHARED", ROOT.parent / "shared")) / "data" / "eegmat"

_SIGNALS, _RATE, _RECORDS = 3, 100, 12  # records of a second
_MARKS = 120  # bytes of annotations in a record
_WIDTHS = (16, 80, 8, 8, 8, 8, 8, 80, 8, 32)
_FIRST = ((0, 8), (8, 80), (88, 80), (168, 8), (176, 8), (184, 8), (192, 44), (236, 8), (244, 8), (252, 4))
_TELLING = ((184, 8), (192, 44), (236, 8), (244, 8), (252, 4))  # sizes, kind, records, record length, signals

_CONVENTIONS = tuple(
    Convention("labram", "own", ("C3", "C4"), ("C3", "C4"), band, notch, cut, 200.0, 4.0, 4.0, "none", resampling)
    for band, notch, cut, resampling in (
        ((0.1, 75.0), 50.0, 200.0, "polyphase"),
        (None, None, 200.0, "polyphase"),
        ((0.1, 75.0), 50.0, 200.0, "fft"),
        ((0.5, 30.0), None, None, "polyphase"),
    )
)


@cache
def write(kind: str = "edf", reserved: str = "", *, marks: bytes | None = None) -> bytes:
    """A small recording: three channels at 100 Hz and, in EDF+, annotations; `marks` are those of every record."""
    size = 2 if kind == "edf" else 3
    has_marks = bool(reserved)
    labels = ["C3", "EEG C4-REF", "O1", f"{kind.upper()} Annotations"][: _SIGNALS + has_marks]
    room = _MARKS if marks is None else len(marks) + len(marks) % size
    room += -room % size
    count, limit = len(labels), 2 ** (8 * size - 1)
    columns: list[list[Any]] = [
        labels, ["electrode"] * count, ["uV"] * _SIGNALS + [""], [-500] * count, [500] * count,
        [-limit if size == 2 else 1 - limit] * count, [limit - 1] * count, [""] * count,
        [_RATE] * _SIGNALS + [room // size], [""] * count,
    ]  # fmt: skip
    start = b"0".ljust(8) if kind == "edf" else b"\xffBIOSEMI"
    fields = ("X X X X", "Startdate 02-MAR-2015 X X X", "02.03.15", "12.30.15", 256 * (count + 1), reserved, _RECORDS)
    for text, (_, width) in zip((*fields, 1, count), _FIRST[1:], strict=True):
        start += str(text).encode().ljust(width)
    for column, width in zip(columns, _WIDTHS, strict=True):
        start += b"".join(str(text).encode().ljust(width) for text in column[:count])
    rng = np.random.default_rng(7)
    x = 30 * rng.standard_normal((_RECORDS, _SIGNALS, _RATE)) * limit / 500
    values = x.astype("<i4")[..., np.newaxis].view(np.uint8)[..., :size]  # (records, signals, samples, bytes)
    parts = [start]
    for record, samples in enumerate(values):
        parts.append(samples.tobytes())
        if has_marks:
            own = f"+{record}\x14\x14\0+{record}.25\x150.5\x14blink\x14\0".encode() if marks is None else marks
            parts.append(own.ljust(room, b"\0"))
    return b"".join(parts)


def _any_file(rng: Random) -> bytes:
    """One of the small files, now and then a real one where that is there."""
    real = sorted(SHARED.glob("*.edf"))
    if real and rng.random() < 0.05:
        return real[rng.randrange(len(real))].read_bytes()
    return write(*rng.choice((("edf",), ("edf", "EDF+C"), ("edf", "EDF+D"), ("bdf",), ("bdf", "BDF+C"))))


def mutate_header(rng: Random) -> bytes:
    """Numbers, texts and bytes of the header changed, once or a few times."""
    content = _any_file(rng)
    size = min(int(content[184:192]), len(content))
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        way = rng.random()
        head, body = content[:size], content[size:]
        if way < 0.65:
            offset, width = _field(head, rng)
            text = _number(rng, width).encode("latin-1")[:width].ljust(width)
            head = head[:offset] + text + head[offset + width :]
        elif way < 0.75:
            head = flip_bits(head, rng, rng.choice((1, 2, 8)))
        elif way < 0.9:
            head = set_bytes(head, rng, rng.choice((1, 2, 8, 64)))
        else:
            head = move_piece(head, rng)
        content = head + body
    return content


def _field(head: bytes, rng: Random) -> tuple[int, int]:
    """Offset and width of a field, of the file or of a signal."""
    if rng.random() < 0.5:
        return rng.choice(_TELLING if rng.random() < 0.7 else _FIRST)
    count = max(len(head) // 256 - 1, 1)
    place = rng.randrange(len(_WIDTHS))
    return 256 + count * sum(_WIDTHS[:place]) + rng.randrange(count) * _WIDTHS[place], _WIDTHS[place]


def _number(rng: Random, width: int) -> str:
    way = rng.random()
    if way < 0.5:
        return rng.choice(NUMBERS)
    if way < 0.7:
        return f"{10 ** (rng.uniform(-9, 9) if way < 0.6 else rng.uniform(-3, 2)):.{max(width - 5, 1)}g}"
    if way < 0.85:
        return str(rng.randrange(10 ** rng.randrange(1, 9)))
    return rng.choice(("EDF+D", "EDF+C", "BDF+D", "EDF Annotations", "C3", "mV", "V", "%", "99.99.99", "\xff" * width))


def cut_off(rng: Random) -> bytes:
    """A file that ends early, half of them in or near the header."""
    content = _any_file(rng)
    size = int(content[184:192])
    end = rng.randrange(2 * size) if rng.random() < 0.5 else rng.randrange(len(content) + 1)
    return content[:end]


def mutate_annotations(rng: Random) -> bytes:
    """Other annotations in the same recording: endless digits, separators without end, stamps of all times."""
    kind = rng.choice(("edf", "edf", "bdf"))
    reserved = kind.upper() + rng.choice(("+C", "+C", "+D"))
    pieces = (
        b"+1\x14", b"+1\x15", b"\x14", b"\x15", b"\0", b"+", b"-1", b"+0\x14\x14\0", b"+2.5\x151\x14blink\x14\0", b"1",
        b"+9999999999999\x14\x14\0", b"+1e5\x14a\x14\0", b"+1.\x14\xff\xfe\x14\0", b"+1" + b"0" * 400 + b"\x14x\x14\0",
        b"@@C3", b"+1\x15" + b"9" * 400 + b"\x14x\x14\0", b"a\x14", b"\x1b[31m", b"\n",
    )  # fmt: skip
    length = rng.choice((40, 400, 4000, 32_000))
    if rng.random() < 0.5:
        few = [rng.choice(pieces) for _ in range(rng.choice((1, 2, 3)))]
        body = b"".join(few) * (length // sum(map(len, few)) + 1)
    else:
        body = b"".join(rng.choice(pieces) for _ in range(length // 4))
    body = rng.choice((b"", b"+0\x14\x14\0")) + body[:length] + rng.choice((b"", b"\x14", b"\x14\0", b"x"))
    content = write.__wrapped__(kind, reserved, marks=body)
    return change_bytes(content, rng) if rng.random() < 0.1 else content


def use(path: Path) -> None:
    """Open a recording as `predict` and as `prepare` do, read all of it and cut it for several models."""
    recording = open_edf(path)
    assert 0 < recording.sfreq < np.inf
    assert recording.n_times > 0
    assert repr(recording)
    assert all(note.strip() and "\n" not in note for note in recording.notes)
    for onset, duration, text in recording.annotations:
        assert np.isfinite([onset, duration]).all()
        assert isinstance(text, str)
    assert recording.start is None or 1700 < recording.start.year < 2600
    assert np.isfinite(recording.limits).all()
    place = sum(path.read_bytes()[236:252]) % len(_CONVENTIONS)  # one of them for every case, the same each time
    for batch in windows(recording, _CONVENTIONS[place]):
        n, channels, n_times = batch.x.shape
        assert (channels, n_times) == (2, 800)
        assert len(batch.flags) == n == len(batch.starts)
        good = batch.x[[not flag for flag in batch.flags]]
        assert np.isfinite(good).all()
    assert open_recording(path, format="edf").n_times == recording.n_times


def _sample() -> bytes:
    return write("edf", "EDF+C")


HEADER = Target(_sample, mutate_header, use, 20_000, ".edf")
TRUNCATED = Target(_sample, cut_off, use, 5_000, ".edf")
ANNOTATIONS = Target(_sample, mutate_annotations, use, 5_000, ".edf")
