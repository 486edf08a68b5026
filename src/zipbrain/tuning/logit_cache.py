"""`LogitCache`: logits of recipes, computed once by workers of this machine or a cluster and kept in a folder."""

from __future__ import annotations

import copy
import hashlib
import io
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from zipbrain import __version__
from zipbrain._lazy import import_extra
from zipbrain.errors import DataError, OptionError, ZipbrainError
from zipbrain.files import remedy, write_whole
from zipbrain.jobs import run_jobs
from zipbrain.profiling.machine import torch_threads
from zipbrain.progress import Progress
from zipbrain.recipe import Recipe
from zipbrain.seams import compress, restore
from zipbrain.seams.second_look import check_logits

TOGETHER: Final = 32  # windows per call: the same everywhere, so that logits are the same to the last bit

_PART: Final = 4 * TOGETHER  # windows of one job
_THREADS: Final = 1  # of a worker, for the same reason as above
_MODEL: Final = "network.pickle"
_WINDOWS: Final = "windows.npy"

Logits = NDArray[np.float32]


def run_network(model: nn.Module, x: NDArray[np.float32], together: int = TOGETHER) -> Logits:
    """Logits (n, K) of scaled windows, a few at a time."""
    found = []
    with torch.inference_mode():
        for start in range(0, len(x), together):
            answer = model(torch.from_numpy(np.ascontiguousarray(x[start : start + together])))
            found.append(check_logits(answer).float().numpy())
    return np.concatenate(found)


@dataclass(frozen=True, eq=False)
class LogitCache:
    """Logits of one network on the same windows, by recipe; those that the folder holds are not computed again.

    `jobs` are the options of `zipbrain.jobs.run_jobs`; `token` is a hash of weights and windows.
    """

    model: nn.Module  # not compressed, in evaluation mode, on the CPU
    x: NDArray[np.float32]
    folder: Path
    token: str
    jobs: dict[str, Any]
    tell: Progress
    _known: dict[str, Logits] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._write(_WINDOWS, _array_bytes(self.x))
        if self._is_remote:
            # Loky's own pickler also takes classes that were written in a notebook.
            where = "joblib.externals.loky.backend.reduction"
            pickler = import_extra(where, "joblib", "report", "tuning with several workers")
            self._write(_MODEL, bytes(pickler.dumps(self.model)))

    @property
    def _is_remote(self) -> bool:
        """True if other processes run the network."""
        here = self.jobs["backend"] == "sequential" or self.jobs.get("workers") == 1
        return not here or self.jobs["backend"] in ("dask", "ray")

    def of(self, recipes: Sequence[Recipe | None], rows: NDArray[np.intp], what: str) -> list[Logits]:
        """Logits of every recipe (None: the original) on some rows, in this order."""
        folder, parts = str(self.folder.resolve()), np.split(rows, range(_PART, len(rows), _PART))
        work = [[LogitJob(folder, self.token, recipe, part) for part in parts] for recipe in recipes]
        missing = {}
        for one in chain.from_iterable(work):
            if one.name not in self._known and (stored := self._read(one)) is not None:
                self._known[one.name] = stored
            if one.name not in self._known:
                missing[one.name] = one
        todo = list(missing.values())
        self.tell(what, 0, len(todo))
        for done, (number, logits) in enumerate(self._computed(todo), 1):
            self._known[todo[number].name] = logits
            self._write(f"{todo[number].name}.npy", _array_bytes(logits))
            self.tell(what, done, len(todo))
        return [np.concatenate([self._known[one.name] for one in parts]) for parts in work]

    def _computed(self, todo: Sequence[LogitJob]) -> Iterator[tuple[int, Logits]]:
        if not todo:
            return
        if not self._is_remote:
            keep_open(self.token, self.model, self.x)
        try:
            yield from run_jobs(compute_logits, todo, **self.jobs)
        finally:
            keep_open("", None, None)

    def _read(self, work: LogitJob) -> Logits | None:
        """Stored logits; None where they are missing, damaged or not finite, and have to be computed."""
        try:
            found = np.load(self.folder / f"{work.name}.npy", allow_pickle=False)
        except (OSError, ValueError, EOFError):
            return None
        outputs = next((known.shape[1] for known in self._known.values()), None)
        good = found.dtype == np.float32 and found.ndim == 2 and len(found) == len(work.rows)
        return found if good and outputs in (None, found.shape[1]) and np.isfinite(found).all() else None

    def _write(self, name: str, content: bytes) -> None:
        path = self.folder / name
        try:
            if not path.exists() or path.stat().st_size != len(content) or path.read_bytes() != content:
                path.parent.mkdir(parents=True, exist_ok=True)
                write_whole(path, content)
        except OSError as error:
            raise DataError(
                f"{path}: it can't be written ({error.strerror or error}); {remedy(error, 'make room')}"
            ) from None


@dataclass(frozen=True, eq=False)
class LogitJob:
    """What one call of a worker computes: the logits of a recipe on some windows of a folder."""

    folder: str
    token: str
    recipe: Recipe | None
    rows: NDArray[np.intp]

    @property
    def name(self) -> str:
        """Stem of the file with its logits: a hash of all that they depend on."""
        key = "original" if self.recipe is None else self.recipe.key()
        digest = hashlib.sha256(f"{__version__} {self.token} {key} ".encode())
        digest.update(self.rows.astype(np.int64).tobytes())
        return digest.hexdigest()[:32]


class _Opened(threading.local):
    """The network and the windows that this thread opened last: compressing changes a network, so none is shared."""

    token = ""
    model: nn.Module | None = None
    x: NDArray[np.float32] | None = None


_opened = _Opened()


def keep_open(token: str, model: nn.Module | None, x: NDArray[np.float32] | None) -> None:
    """Keep a network and its windows open for the `compute_logits` of this thread."""
    _opened.token, _opened.model, _opened.x = token, None if model is None else copy.deepcopy(model), x


def compute_logits(work: LogitJob) -> Logits:
    """The logits of a job; workers call it."""
    if _opened.token not in (work.token, place := f"{work.folder} {work.token}"):
        keep_open("", None, None)
        folder = Path(work.folder)
        try:
            content, x = (folder / _MODEL).read_bytes(), np.load(folder / _WINDOWS, mmap_mode="r")
        except OSError as error:
            raise ZipbrainError(
                f"{folder}: a worker can't read it ({error}); all machines need the same folder"
            ) from None
        _opened.token, _opened.model, _opened.x = place, _unpickle(content), x
    model, x = _opened.model, _opened.x
    assert model is not None
    assert x is not None
    with torch_threads(_THREADS):
        try:
            if work.recipe is not None:
                compress(model, work.recipe)
            return run_network(model, np.asarray(x[work.rows]))
        except OptionError as error:
            raise OptionError("model", type(model).__name__, f"it can't be tuned: {error}") from None
        finally:
            restore(model)


def _unpickle(content: bytes) -> nn.Module:
    """A network that this process, or the one that started it, has pickled itself."""
    import pickle

    model = pickle.loads(content)
    assert isinstance(model, nn.Module)
    return model


def _array_bytes(values: NDArray[Any]) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, values)
    return buffer.getvalue()
