"""Labelled windows: one split of a prepared corpus, memory-mapped, or your own arrays and epochs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from zipbrain.data.arrays import check_axes, read_classes
from zipbrain.errors import DataError, OptionError, ShapeError
from zipbrain.files import remedy
from zipbrain.signal.convention import Convention
from zipbrain.signal.plausibility import check_array
from zipbrain.signal.recording import MICROVOLTS, check_units

INDEX: Final = "index.json"
FORMAT: Final = 1
SPLITS: Final = ("train", "val", "test")


@dataclass(frozen=True)
class Shard:
    """A file of windows (n, C, T). The time of its last change tells a rewritten file from a mapped one."""

    path: Path
    changed: int


@lru_cache(maxsize=256)  # every map keeps a file open, and processes may open about a thousand
def _mapped(shard: Shard) -> NDArray[np.float32]:
    try:
        return np.asanyarray(np.load(shard.path, mmap_mode="r"))
    except (OSError, ValueError) as error:
        advice = remedy(error, "prepare the corpus again")
        raise DataError(f"{shard.path}: can't be read as windows ({error}); {advice}") from None


@dataclass(frozen=True)
class _About:
    """What all windows of a corpus have in common."""

    classes: Sequence[str]
    ch_names: Sequence[str]
    sfreq: float
    n_times: int
    name: str
    model: str | None = None
    scaling: str | None = None
    filters: str | None = None
    microvolts: float = 1.0  # in a unit of what is stored


class Windows:
    """Windows (C, T) in microvolts with their labels and subjects.

    Made by `open_prepared(folder).split(name)`, `Windows.from_arrays` or `Windows.from_epochs`.

    Attributes
    ----------
    labels : ndarray (n,) of int64
        Positions in `classes`.
    subjects : ndarray (n,) of str
    classes : tuple of str
    ch_names : tuple of str
    sfreq : float
        In Hz.
    n_chans, n_times : int
    name : str
        Of the corpus.
    model, scaling : str or None
        For whose input convention the windows were prepared, and how that model is to get them; see `scale`.
    filters : str or None
        Band and notch of prepared windows, in words; None if not known.
    """

    def __init__(
        self, parts: Sequence[tuple[Shard | NDArray[Any], int]], labels: ArrayLike, subjects: ArrayLike, about: _About
    ) -> None:
        self._parts = [part for part, _ in parts]
        self._ends = np.cumsum(np.array([size for _, size in parts], dtype=np.int64))
        self._rows = np.arange(int(self._ends[-1]) if parts else 0)
        self.labels: NDArray[np.int64] = np.asarray(labels, dtype=np.int64)
        self.subjects: NDArray[np.str_] = np.asarray(subjects, dtype=np.str_)
        self.classes, self.ch_names = tuple(about.classes), tuple(about.ch_names)
        self.sfreq, self.n_times, self.n_chans = float(about.sfreq), int(about.n_times), len(self.ch_names)
        self.model, self.name, self.scaling, self.filters = about.model, about.name, about.scaling, about.filters
        self._microvolts = about.microvolts

    @classmethod
    def from_arrays(
        cls,
        x: ArrayLike,
        y: ArrayLike,
        *,
        ch_names: Sequence[str],
        sfreq: float,
        subjects: Sequence[str] | None = None,
        classes: Sequence[str] | None = None,
        name: str = "arrays",
        units: str = "uV",
        check: bool = True,
    ) -> Windows:
        """Windows from your own arrays.

        Parameters
        ----------
        x : array (n, C, T)
            EEG in `units`. A memory-mapped array stays on disk.
        y : array (n,)
            Integers from 0, or names of classes.
        ch_names : sequence of str
            One per channel.
        sfreq : float
            Sampling rate in Hz.
        subjects : sequence of str, optional
            One per window; each window is its own subject if not given, so that nothing claims to be grouped.
        classes : sequence of str, optional
            Names of the classes. If not given: the sorted names in `y`, or ``"0"``, ``"1"``, ... for integers, each of
            which must then have a window.
        name : str
            Of the corpus.
        units : {"nV", "uV", "mV", "V"}
            Of `x`; the windows are in microvolts.
        check : bool
            Refuse amplitudes that are clearly no EEG in these units, such as volts taken for microvolts, and a channel
            in another unit than the others; warn of those that may have been scaled on purpose.
        """
        data = np.asanyarray(x)
        check_axes(data, ch_names, sfreq)
        labels, names = read_classes(y, classes)
        whose = [str(i) for i in range(len(data))] if subjects is None else [str(subject) for subject in subjects]
        for option, length in (("y", len(labels)), ("subjects", len(whose))):
            if length != len(data):
                raise ShapeError(option, f"length {length}", f"x has {len(data)} windows and needs one for each")
        check_units(units)
        channels, microvolts = [*map(str, ch_names)], MICROVOLTS[units.lower()]
        if check:
            check_array(data, channels, max(int(sfreq), 2), microvolts)
        about = _About(names, channels, sfreq, data.shape[2], name, microvolts=microvolts)
        return cls([(data, len(data))], labels, whose, about)

    @classmethod
    def from_epochs(
        cls, epochs: Any, *, subjects: Sequence[str] | None = None, name: str = "epochs", check: bool = True
    ) -> Windows:
        """Windows from an ``mne.Epochs``: its EEG channels, its event names as classes.

        Parameters
        ----------
        epochs : mne.Epochs
            Volts, as MNE has them; the classes are its `event_id`, ordered by code.
        subjects : sequence of str, optional
            One per epoch; if not given, the subject of ``epochs.info``, or each epoch its own.
        name : str
            Of the corpus.
        check : bool
            As for `from_arrays`.
        """
        epochs = epochs.copy().load_data().pick("eeg", exclude="bads")
        codes = sorted(epochs.event_id.items(), key=lambda item: item[1])
        place = {code: i for i, (_, code) in enumerate(codes)}
        whose = (epochs.info["subject_info"] or {}).get("his_id")
        if subjects is None and whose:
            subjects = [str(whose)] * len(epochs)
        x, y = epochs.get_data(copy=False) * 1e6, [place[code] for code in epochs.events[:, 2]]
        about = {"ch_names": epochs.ch_names, "sfreq": epochs.info["sfreq"], "classes": [event for event, _ in codes]}
        if check:
            advice = "mne.Epochs are in volts: convert them with epochs.apply_function"
            check_array(x, epochs.ch_names, max(int(about["sfreq"]), 2), 1.0, advice)
        return cls.from_arrays(x, y, **about, subjects=subjects, name=name, check=False)

    def __len__(self) -> int:
        return len(self._rows)

    def take(self, indices: ArrayLike | slice) -> NDArray[np.float32]:
        """Windows (m, C, T) of float32, unscaled microvolts; `indices` are integers, a boolean mask or a slice."""
        rows = self._chosen(indices)
        out = np.empty((len(rows), self.n_chans, self.n_times), dtype=np.float32)
        part = np.searchsorted(self._ends, rows, side="right")
        for number in np.unique(part):
            source = self._parts[number]
            windows = _mapped(source) if isinstance(source, Shard) else source
            here = np.flatnonzero(part == number)
            out[here] = windows[rows[here] - (self._ends[number - 1] if number else 0)]
        return out if self._microvolts == 1 else out * np.float32(self._microvolts)

    def __getitem__(self, index: int) -> tuple[NDArray[np.float32], int]:
        """One window (C, T) and its label."""
        label = int(self.labels[index])  # its IndexError ends a loop over the windows
        return self.take([index])[0], label

    def select(self, indices: ArrayLike | slice) -> Windows:
        """A subset that shares the files; for folds of a cross-validation, for example."""
        rows = self._chosen(indices)
        places = np.arange(len(self))[_index(indices)]
        subset = Windows.__new__(Windows)
        subset.__dict__.update(self.__dict__)
        subset._rows, subset.labels, subset.subjects = rows, self.labels[places], self.subjects[places]
        return subset

    def reorder(self, classes: Sequence[str]) -> Windows:
        """The same windows with their classes in this order; these windows if it is theirs or names other classes."""
        order = tuple(classes)
        if order == self.classes or sorted(order) != sorted(self.classes):
            return self
        mapped = self.select(slice(None))
        mapped.classes, mapped.labels = order, np.array([order.index(name) for name in self.classes])[self.labels]
        return mapped

    def _chosen(self, indices: ArrayLike | slice) -> NDArray[np.int64]:
        try:
            rows: NDArray[np.int64] = self._rows[_index(indices)]
        except IndexError as error:
            wish = f"they must be integers from 0 to {len(self) - 1}, a mask of {len(self)} booleans or a slice"
            raise OptionError("indices", indices, f"{wish} ({error})") from None
        if rows.ndim != 1:
            raise ShapeError("indices", rows.shape, "they must be a flat sequence")
        return rows

    def __repr__(self) -> str:
        shape = f"{len(self)} windows of {self.n_chans} channels x {self.n_times / self.sfreq:g} s at {self.sfreq:g} Hz"
        return f"<Windows {self.name}: {shape}, {len(self.classes)} classes>"


@dataclass(frozen=True)
class Prepared:
    """A folder that `prepare` wrote.

    Attributes
    ----------
    folder : Path
    name, model : str
        The corpus, and the model for whose input convention it was prepared.
    classes, ch_names, splits : tuple of str
        `splits` are those that have windows.
    sfreq : float
    info : dict
        Everything else that was written down: convention, options, counts. JSON.
    """

    folder: Path
    name: str
    model: str
    classes: tuple[str, ...]
    ch_names: tuple[str, ...]
    sfreq: float
    splits: tuple[str, ...]
    info: dict[str, Any]
    _shards: dict[str, list[dict[str, Any]]] = field(repr=False)

    @property
    def convention(self) -> Convention:
        """How the windows were made, and how they are to be scaled."""
        return Convention.from_dict(self.info["convention"])

    def split(self, name: str) -> Windows:
        """The windows of ``"train"``, ``"val"`` or ``"test"``."""
        if name not in self.splits:
            raise OptionError("split", name, f"{self.folder} has {', '.join(self.splits) or 'no windows'}")
        entries = self._shards[name]
        shards = [(_shard(self.folder / entry["shard"]), len(entry["labels"])) for entry in entries]
        labels = [label for entry in entries for label in entry["labels"]]
        subjects = [entry["subject"] for entry in entries for _ in entry["labels"]]
        whose, how = (self.name, self.model), (self.convention.scaling, self.convention.filters)
        about = _About(self.classes, self.ch_names, self.sfreq, self.info["n_times"], *whose, *how)
        return Windows(shards, labels, subjects, about)


def open_prepared(folder: str | Path) -> Prepared:
    """Open a folder that `zipbrain data prepare` wrote, as a `Prepared`."""
    folder = Path(folder)
    path = folder / INDEX
    if not path.is_file():
        started = (folder / "shards").is_dir()
        todo = "its preparation was not finished: run it again" if started else "zipbrain data prepare writes one"
        raise DataError(f"{folder}: no prepared windows ({INDEX} is missing); {todo}")
    try:
        index = json.loads(path.read_text(encoding="utf-8"))
        version = index["version"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path}: not an index of windows ({error!r}); prepare the corpus again") from None
    if version != FORMAT:
        raise DataError(f"{path}: format {version}, but this zipbrain reads format {FORMAT}; prepare the corpus again")
    shards = index.pop("splits")
    splits, names = tuple(split for split in SPLITS if shards.get(split)), (index["name"], index["model"])
    lists = tuple(index["classes"]), tuple(index["ch_names"])
    return Prepared(folder, *names, *lists, index["sfreq"], splits, index, shards)


def _shard(path: Path) -> Shard:
    try:
        return Shard(path, path.stat().st_mtime_ns)
    except OSError:
        raise DataError(f"{path}: these windows are missing; prepare the corpus again into the same folder") from None


def _index(indices: ArrayLike | slice) -> Any:
    if isinstance(indices, slice):
        return indices
    chosen = np.asarray(indices)
    return chosen if chosen.size or chosen.dtype == bool else chosen.astype(np.int64)  # [] is float for numpy
