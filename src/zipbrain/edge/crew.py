"""Who predicts recordings: this thread, threads, processes, or the workers of a cluster."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Final, Generic, TypeVar

from zipbrain.cores import free_cores
from zipbrain.edge.description import ModelFile
from zipbrain.errors import ZipbrainError

_PATIENCE: Final = 30.0  # seconds that threads get to end

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Crew:
    """Who predicts: workers of this machine or of a cluster, and how many threads each has."""

    backend: str
    workers: int | None  # None: the cluster's own number
    threads: int
    is_alone: bool  # this thread does it all

    @classmethod
    def gather(cls, backend: str | None, workers: int | None, threads: int | None, most: int) -> Crew:
        """Processes for several of at most `most` recordings where joblib is installed, if no backend is given."""
        if backend is None:
            several = most > 1 and workers != 1 and (workers or find_spec("joblib"))
            backend = "loky" if several else "sequential"
        here, free = backend in ("loky", "threading"), free_cores()
        side_by_side = max(1, min(workers or free, most)) if here else 1
        count = threads or (1 if backend in ("dask", "ray") else max(1, free // side_by_side))
        is_alone = backend == "sequential" or (here and side_by_side == 1)
        return cls(backend, side_by_side if here else workers, count, is_alone)

    @property
    def is_elsewhere(self) -> bool:
        """True for a cluster, whose workers have other current folders."""
        return self.backend in ("dask", "ray")

    @property
    def session(self) -> dict[str, Any]:
        """Keywords of `EdgeModel` in a worker."""
        return {"threads": self.threads, "spinning": self.is_alone}


class Threads(Generic[Answer]):
    """Workers that are threads of this process, which ends none of them by itself when the run is stopped."""

    def __init__(self, file: ModelFile, work: Callable[..., Answer]) -> None:
        self._file, self._work = file, work
        self._is_stopped, self._busy, self._changed = False, 0, threading.Condition()

    def run(self, task: Any) -> Answer:
        """Predict one recording, unless the run was stopped."""
        with self._changed:
            self._busy += 1
        try:
            return self._work(task, file=self._file, report=self._check)
        finally:
            with self._changed:
                self._busy -= 1
                self._changed.notify_all()

    def _check(self, name: str, share: float) -> None:
        if self._is_stopped:
            raise ZipbrainError("stopped")

    def stop(self) -> None:
        """Let all end after the windows they are at, and wait for them: at exit they would be torn down."""
        self._is_stopped = True
        with self._changed:
            self._changed.wait_for(lambda: not self._busy, timeout=_PATIENCE)
