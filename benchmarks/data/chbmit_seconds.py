"""CHB-MIT from files of one second: stretches put together again, their unit checked, windows by case for the studies.

The files are those of CHBMIT_1s_0.5OW in the public repository of Vision Nystromformer (anirudh2019, GitHub): gzipped
arrays (21, 256), ``chb01/seizure/chb01_03_1_129.npy.gz`` being recording 03, first seizure, sample 129 of it, and
``chb01/nonseizure/chb01_03_257.npy.gz`` sample 257 of the recording. Seconds of a seizure overlap by half, and the last
file of each repeats the one before; those without follow one another. What lies together is one stretch.

    python -m benchmarks.data.chbmit_seconds check FOLDER          # lengths, unit and amplitudes of every case, as CSV
    python -m benchmarks.data.chbmit_seconds windows FOLDER OUT    # OUT/chbmit/{train,val,test}.npy and .npz

The second writes what `benchmarks.shared.tasks.load(OUT, "chbmit")` reads, the case being the subject (chb21 is the
child of chb01). Seconds without a seizure come from the beginning of each case's first recordings with one, so that
class and recording are confounded, and stretches of a seizure are short, so that a filter sees their ends more often.
"""

from __future__ import annotations

import argparse
import gzip
import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.shared.results import RESULTS, write_csv
from numpy.typing import NDArray

from zipbrain.data import convention
from zipbrain.data.corpora.base import BIPOLAR
from zipbrain.data.corpora.chbmit import BETWEEN, CLASSES, person_of, split_of
from zipbrain.data.windows import SPLITS
from zipbrain.signal.montage import derive, parse_montage
from zipbrain.signal.processing import Processing

_NAMES = """
FP1-F7 F7-T7 P7-O1 FP1-F3 F3-C3 C3-P3 P3-O1 FZ-CZ CZ-PZ FP2-F4 F4-C4 C4-P4 P4-O2 FP2-F8 F8-T8 T8-P8 P8-O2 P7-T7 T7-FT9
FT9-FT10 FT10-T8
"""
CHANNELS = tuple(_NAMES.split())
RATE, STEP = 256, {"seizure": 128, "nonseizure": 256}
_MOST = 100  # microvolts of the values whose counts are looked at
_NAME = re.compile(r"(chb\d\d[a-z]?_\d\d\+?)(?:_(\d+))?_(\d+)\.npy\.gz")
# Left and right, the way along the side of the head from front to back and the one above it.
_CHAINS = (
    ("FP1-F7 F7-T7 -P7-T7 P7-O1", "FP1-F3 F3-C3 C3-P3 P3-O1"),
    ("FP2-F8 F8-T8 T8-P8 P8-O2", "FP2-F4 F4-C4 C4-P4 P4-O2"),
)


@dataclass(frozen=True)
class Stretch:
    """Contiguous microvolts of one class."""

    case: int
    recording: str
    label: int  # position in CLASSES
    start: int  # first sample, counted from the beginning of the seizure or of the recording
    x: NDArray[np.int16]  # (21, n)

    @property
    def seconds(self) -> float:
        """Its length."""
        return self.x.shape[1] / RATE


def read_stretches(folder: Path, case: int) -> list[Stretch]:
    """All stretches of a case; files that overlap must agree in every sample."""
    found = []
    for label, kind in enumerate(("nonseizure", "seizure")):
        groups: dict[tuple[str, str], dict[int, NDArray[np.int16]]] = {}
        for path in sorted((folder / f"chb{case:02d}" / kind).iterdir()):
            match = _NAME.fullmatch(path.name)
            if match is None or (match[2] is not None) != bool(label):
                raise SystemExit(f"{path}: is not named as a second of CHBMIT_1s_0.5OW")
            groups.setdefault((match[1], match[2] or ""), {})[int(match[3]) - 1] = _read_second(path)
        for (recording, _), seconds in sorted(groups.items()):
            for run in _runs(sorted(seconds), STEP[kind]):
                x = _put_together([seconds[start] for start in run], STEP[kind], f"{folder}: chb{case:02d} {recording}")
                found.append(Stretch(case, recording, label, run[0], x))
    return found


def _read_second(path: Path) -> NDArray[np.int16]:
    x = np.load(io.BytesIO(gzip.decompress(path.read_bytes())), allow_pickle=False)
    if x.shape != (len(CHANNELS), RATE) or not np.array_equal(x, x.astype(np.int16)):
        raise SystemExit(f"{path}: holds {x.dtype} {x.shape}, not whole numbers of 21 channels and 256 samples")
    return np.asarray(x, np.int16)


def _runs(starts: Sequence[int], step: int) -> Iterator[Sequence[int]]:
    """Starts that follow one another, `step` samples apart."""
    cuts = [0, *(i + 1 for i, (a, b) in enumerate(pairwise(starts)) if b - a != step), len(starts)]
    yield from (starts[a:b] for a, b in pairwise(cuts))


def _put_together(seconds: Sequence[NDArray[np.int16]], step: int, what: str) -> NDArray[np.int16]:
    """Seconds `step` samples apart -> (21, n)"""
    if step == RATE:
        return np.concatenate(seconds, axis=1)
    whole = np.concatenate([seconds[0], *(second[:, step:] for second in seconds[1:-1])], axis=1)
    for before, after in pairwise(seconds[:-1]):
        if not np.array_equal(before[:, step:], after[:, :step]):
            raise SystemExit(f"{what}: seconds that overlap differ")
    if not np.array_equal(seconds[-1], whole[:, -RATE:]):
        raise SystemExit(f"{what}: its last second does not repeat the one before")
    return whole


def codes_per_unit(x: NDArray[np.int16]) -> float:
    """Steps of the converter in one unit of the numbers, from how often each whole number occurs: the median channel's.

    A converter of 12 bits has 4095 steps over its range: 2.5594 in a microvolt where that is 1600 microvolts, 1.7063
    over 2400, 1.0238 over 4000. Values are cut off towards zero, so that two or three steps become one whole number, in
    a pattern that tells the ratio. Numbers that were steps themselves would all be about as frequent.
    """
    densities, patterns = _patterns()
    found = np.stack([_relative(_counts(row)) for row in x])
    errors = np.stack([((patterns - row) ** 2).mean(1) for row in found])
    return float(np.median(densities[errors.argmin(1)]))


@cache
def _patterns() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Densities (m,), and how often each whole number would occur (m, K) by the mean of its neighbourhood."""
    densities, steps = np.arange(1.0, 4.0, 5e-4), np.arange(-4 * _MOST, 4 * _MOST) + 0.5
    return densities, np.stack([_relative(_counts(np.trunc(steps / density))) for density in densities])


def _counts(x: NDArray[Any]) -> NDArray[np.int64]:
    whole = x[np.abs(x.astype(np.int64)) <= _MOST].astype(np.int64)
    return np.bincount(whole + _MOST, minlength=2 * _MOST + 1)


def _relative(counts: NDArray[np.int64]) -> NDArray[np.float64]:
    around = np.convolve(counts, np.ones(21) / 21, mode="same")
    distance = np.abs(np.arange(-_MOST, _MOST + 1))
    keep = (distance > 3) & (distance < _MOST - 10)  # flat seconds are zero
    return counts[keep] / np.maximum(around[keep], 1e-9)


def chain_residual(x: NDArray[np.int16]) -> float:
    """How far two ways over the same side of the head differ, in microvolts: the larger standard deviation."""
    rows = dict(zip(CHANNELS, x.astype(float), strict=True))

    def along(names: str) -> Any:
        return sum(-rows[name[1:]] if name.startswith("-") else rows[name] for name in names.split())

    return max(float(np.std(along(one) - along(other))) for one, other in _CHAINS)


def describe(case: int, stretches: Sequence[Stretch]) -> dict[str, Any]:
    """A row: how much there is of each class, in pieces of which length, and whether the numbers are microvolts."""
    row: dict[str, Any] = {"case": f"chb{case:02d}", "child": person_of(case), "split": split_of(case)}
    for label, name in enumerate(CLASSES):
        lengths = [stretch.seconds for stretch in stretches if stretch.label == label]
        row |= {f"{name}_s": round(sum(lengths)), f"{name}_stretches": len(lengths)}
        row |= {f"{name}_shortest_s": round(min(lengths)), f"{name}_longest_s": round(max(lengths))}
        x = np.concatenate([stretch.x for stretch in stretches if stretch.label == label], axis=1)
        row[f"{name}_median_sd_uv"] = round(float(np.median(_sd_of_seconds(x))), 1)
    everything = np.concatenate([stretch.x for stretch in stretches], axis=1)
    row["codes_per_unit"] = round(codes_per_unit(everything), 4)
    row["chain_residual_uv"] = round(chain_residual(everything), 2)
    return row


def _sd_of_seconds(x: NDArray[np.int16]) -> NDArray[np.float64]:
    return x[:, : x.shape[1] // RATE * RATE].reshape(len(x), -1, RATE).astype(float).std(2)


def cut(stretches: Sequence[Stretch], window_s: float, hop_s: float) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Windows (n, 16, T) of BIOT's pairs in microvolts, filtered and resampled as LaBraM's; labels (n,).

    Windows of a seizure begin `hop_s` apart, those without one follow one another.
    """
    wanted = convention("labram", "chbmit")
    names = ["T7-P7" if name == "P7-T7" else name for name in CHANNELS]
    sign = np.array([-1 if name == "P7-T7" else 1 for name in CHANNELS])[:, np.newaxis]
    derivation = derive(parse_montage(BIPOLAR), names)
    processing = Processing.design(RATE, wanted.sfreq, wanted.band, wanted.notch)
    length = round(window_s * wanted.sfreq)
    x, labels = [np.empty((0, len(BIPOLAR), length), np.float32)], []
    for stretch in stretches:
        step = round((hop_s if stretch.label else window_s) * wanted.sfreq)
        y = processing.whole(derivation.apply((sign * stretch.x)[list(derivation.picks)]))
        starts = range(0, y.shape[1] - length + 1, step)
        x += [y[np.newaxis, :, start : start + length].astype(np.float32) for start in starts]
        labels += [stretch.label] * len(starts)
    return np.concatenate(x), np.array(labels, np.int64)


def write_windows(folder: Path, out: Path, window_s: float, hop_s: float) -> list[dict[str, Any]]:
    """Write the splits as `benchmarks.shared.packing.laid_out` reads them; returns a row for each."""
    parts: dict[str, list[tuple[NDArray[np.float32], NDArray[np.int64], str]]] = {split: [] for split in SPLITS}
    for case in range(1, 25):
        parts[str(split_of(case))].append((*cut(read_stretches(folder, case), window_s, hop_s), person_of(case)))
    place = out / "chbmit"
    place.mkdir(parents=True, exist_ok=True)
    rows = []
    for split, cases in parts.items():
        labels = np.concatenate([labels for _, labels, _ in cases])
        subjects = np.concatenate([np.full(len(labels), who) for _, labels, who in cases])
        np.save(place / f"{split}.npy", np.concatenate([x for x, _, _ in cases]))
        about = {"ch_names": np.array(BETWEEN), "classes": np.array(CLASSES), "name": np.array("chbmit")}
        np.savez(place / f"{split}.npz", labels=labels, subjects=subjects, **about)
        counts = {name: int((labels == label).sum()) for label, name in enumerate(CLASSES)}
        rows.append({"split": split, "children": len(set(subjects.tolist())), **counts})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    check = commands.add_parser("check")
    check.add_argument("folder", type=Path)
    check.add_argument("--out", type=Path, default=RESULTS)
    windows = commands.add_parser("windows")
    windows.add_argument("folder", type=Path)
    windows.add_argument("out", type=Path)
    windows.add_argument("--window", type=float, default=10.0, help="seconds")
    windows.add_argument("--hop", type=float, default=5.0, help="seconds between windows of a seizure")
    given = parser.parse_args()
    if not (given.folder / "chb01" / "seizure").is_dir():
        raise SystemExit(f"{given.folder}: has no chb01/seizure; give the folder CHBMIT_1s_0.5OW")
    if given.command == "check":
        rows = [describe(case, read_stretches(given.folder, case)) for case in range(1, 25)]
        print(write_csv("chbmit_seconds", rows, given.out))
    else:
        rows = write_windows(given.folder, given.out, given.window, given.hop)
    for row in rows:
        print("  ".join(f"{name} {value}" for name, value in row.items()))


if __name__ == "__main__":
    main()
