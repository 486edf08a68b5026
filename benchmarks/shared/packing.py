"""Carry prepared windows to a machine without MNE: 16-bit integers, differences in time, LZMA.

EEGMAT and EEGMMIDB use the same 16 electrodes for all models, so one pack of LaBraM's prepared folder serves all four:
bipolar channels are differences of electrodes, EEGPT's 256 Hz are the nearest of the 200 Hz samples. A folder prepared
with a band that ends at 40 Hz can be packed at half the rate; unpacking doubles it again.

    python -m benchmarks.shared.packing PREPARED_FOLDER PACK.npz [--half] [--step 1]
"""

from __future__ import annotations

import argparse
import lzma
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from zipbrain.data import convention
from zipbrain.data.windows import Windows
from zipbrain.signal.convention import Convention

STEP = 0.25  # microvolt; EEGMMIDB itself was recorded in steps of 1, EEGMAT of about 0.1
SPLITS = ("train", "val", "test")


def pack(folder: Path, file: Path, half_rate: bool = False, step: float = STEP) -> None:
    """Write all splits of a folder prepared for LaBraM into one file."""
    from zipbrain.data import open_prepared

    prepared = open_prepared(folder)
    parts: dict[str, NDArray[np.generic]] = {
        "name": np.array(prepared.name), "classes": np.array(prepared.classes), "ch_names": np.array(prepared.ch_names),
        "half_rate": np.array(half_rate), "step": np.array(step, np.float32),
    }  # fmt: skip
    for split in SPLITS:
        windows = prepared.split(split)
        values = windows.take(np.arange(len(windows)))[:, :, :: 2 if half_rate else 1]
        x = np.clip(np.rint(values / step), -32768, 32767).astype(np.int16)
        overlap = convention("labram", prepared.name).hop_s < convention("labram", prepared.name).window_s
        parts[f"{split}_overlap"] = np.array(overlap)
        half = x.shape[2] // 2
        fresh = np.ones(len(x), bool)  # whose first half is not the second half of the window before
        if overlap:
            fresh[1:] = [not np.array_equal(x[i, :, :half], x[i - 1, :, half:]) for i in range(1, len(x))]
            stream = [x[i] if fresh[i] else x[i, :, half:] for i in range(len(x))]
        else:
            stream = list(x)
        whole = np.concatenate(stream, axis=1)
        parts[f"{split}_fresh"] = fresh
        parts[f"{split}_signal"] = _squeeze(whole)
        parts[f"{split}_shape"] = np.array([len(x), *x.shape[1:], whole.shape[1]])
        parts[f"{split}_labels"] = windows.labels.astype(np.int8)
        parts[f"{split}_subjects"] = windows.subjects
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("wb") as out:
        np.savez(out, **parts)


def unpack(file: Path) -> dict[str, Windows]:
    """Read a pack and return the splits as LaBraM takes them."""
    stored = np.load(file)
    splits = {}
    for split in SPLITS:
        x = _windows(stored, split)
        if stored["half_rate"]:
            from scipy.signal import resample_poly

            x = resample_poly(x, 2, 1, axis=2, padtype="line").astype(np.float32)
        splits[split] = Windows.from_arrays(
            x, stored[f"{split}_labels"].astype(np.int64), ch_names=stored["ch_names"].tolist(), sfreq=200.0,
            subjects=stored[f"{split}_subjects"], classes=stored["classes"].tolist(), name=str(stored["name"]),
        )  # fmt: skip
    return splits


def lay_out(file: Path, folder: Path) -> None:
    """Unpack once for many processes: plain arrays that can be mapped; the folder is there when all of it is."""
    part = folder.with_suffix(".part")
    part.mkdir(parents=True, exist_ok=True)
    for split, windows in unpack(file).items():
        np.save(part / f"{split}.npy", windows.take(np.arange(len(windows))))
        np.savez(
            part / f"{split}.npz", labels=windows.labels, subjects=windows.subjects, ch_names=windows.ch_names,
            classes=windows.classes, name=windows.name,
        )  # fmt: skip
    part.rename(folder)


def laid_out(folder: Path) -> dict[str, Windows]:
    """What `lay_out` wrote."""
    splits = {}
    for split in SPLITS:
        with np.load(folder / f"{split}.npz") as stored:
            splits[split] = Windows.from_arrays(
                np.load(folder / f"{split}.npy", mmap_mode="r"), stored["labels"], ch_names=stored["ch_names"].tolist(),
                sfreq=200.0, subjects=stored["subjects"], classes=stored["classes"].tolist(), name=str(stored["name"]),
            )  # fmt: skip
    return splits


def for_model(windows: Windows, model: str) -> Windows:
    """The same windows in a model's montage and rate."""
    how = convention(model, windows.name)
    x = windows.take(np.arange(len(windows)))
    if how.montage == convention("labram", windows.name).montage:  # CHB-MIT was recorded in pairs
        return _at_rate(x, windows, how)
    names = [name.upper() for name in windows.ch_names]
    twins = {"T3": "T7", "T4": "T8", "T5": "P7", "T6": "P8"}
    rows = {name: row for row, name in enumerate(names)}
    rows |= {old: rows[new] for old, new in twins.items() if new in rows}
    rows |= {new: rows[old] for old, new in twins.items() if old in rows}
    signals = [
        x[:, rows[entry]] if isinstance(entry, str) else x[:, rows[entry[0]]] - x[:, rows[entry[1]]]
        for entry in how.montage
    ]
    return _at_rate(np.stack(signals, axis=1), windows, how)


def _at_rate(x: NDArray[np.float32], windows: Windows, how: Convention) -> Windows:
    """Windows (n, C, T) of a model's channels at its rate: the nearest samples, as EEGPT takes them."""
    n_times = round(x.shape[2] * how.sfreq / windows.sfreq)
    if n_times != x.shape[2]:
        x = x[:, :, np.arange(n_times) * x.shape[2] // n_times]
    return Windows.from_arrays(
        np.ascontiguousarray(x), windows.labels, ch_names=how.ch_names, sfreq=how.sfreq, subjects=windows.subjects,
        classes=windows.classes, name=windows.name,
    )  # fmt: skip


def _squeeze(whole: NDArray[np.int16]) -> NDArray[np.uint8]:
    steps = np.diff(whole, axis=1, prepend=np.zeros((len(whole), 1), np.int16))  # wraps around, and back
    planes = steps.astype("<i2").reshape(-1).view(np.uint8).reshape(-1, 2)
    payload = np.ascontiguousarray(planes.T).tobytes()
    return np.frombuffer(lzma.compress(payload, preset=1), np.uint8)


def _windows(file: object, split: str) -> NDArray[np.float32]:
    count, channels, length, total = (int(value) for value in file[f"{split}_shape"])  # type: ignore[index]
    payload = np.frombuffer(lzma.decompress(file[f"{split}_signal"].tobytes()), np.uint8)  # type: ignore[index]
    steps = np.ascontiguousarray(payload.reshape(2, -1).T).view("<i2").reshape(channels, total)
    whole = np.cumsum(steps, axis=1, dtype=np.int16)
    fresh = file[f"{split}_fresh"]  # type: ignore[index]
    out = np.empty((count, channels, length), np.float32)
    half, place = length // 2, 0
    for index in range(count):
        if fresh[index]:
            out[index], place = whole[:, place : place + length], place + length
        else:
            out[index, :, :half] = whole[:, place - half : place]
            out[index, :, half:], place = whole[:, place : place + half], place + half
    return out * file["step"]  # type: ignore[index,no-any-return]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("pack", type=Path)
    parser.add_argument("--half", action="store_true", help="half the rate; prepare with a band up to 40 Hz first")
    parser.add_argument("--step", type=float, default=STEP, help="microvolt")
    given = parser.parse_args()
    pack(given.folder, given.pack, given.half, given.step)
