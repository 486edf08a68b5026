"""`Crew`: the workers that predict recordings, be it this thread, threads, processes, or the workers of a cluster."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Any, Final, Generic, TypeVar

from zipbrain.cores import free_cores
from zipbrain.edge.description import ModelFile
from zipbrain.errors import ZipbrainError
from zipbrain.jobs import run_jobs

_PATIENCE: Final = 30.0  # seconds that threads get to end

Result = TypeVar("Result")
Report = Callable[[str, float], None]  # called with a recording's name and the share of it that is done


@dataclass(frozen=True)
class Crew:
    """Workers of this machine or of a cluster, and how many threads each has."""

    backend: str  # as for `run_jobs`
    workers: int | None  # None: the cluster's own number
    address: str | None  # of the cluster's scheduler
    threads: int
    is_alone: bool  # this thread does it all

    @classmethod
    def gather(
        cls, backend: str | None, workers: int | None, address: str | None, threads: int | None, most: int
    ) -> Crew:
        """The crew for at most `most` recordings; without a backend, processes if joblib is installed."""
        if backend is None:
            several = most > 1 and workers != 1 and (workers or find_spec("joblib"))
            backend = "loky" if several else "sequential"
        here, free = backend in ("loky", "threading"), free_cores()
        side_by_side = max(1, min(workers or free, most)) if here else 1
        count = threads or (1 if backend in ("dask", "ray") else max(1, free // side_by_side))
        is_alone = backend == "sequential" or (here and side_by_side == 1)
        return cls(backend, side_by_side if here else workers, address, count, is_alone)

    @property
    def is_elsewhere(self) -> bool:
        """True for a cluster, whose workers have other current folders."""
        return self.backend in ("dask", "ray")

    @property
    def session(self) -> dict[str, Any]:
        """Keywords of `EdgeModel` in a worker."""
        return {"threads": self.threads, "spinning": self.is_alone}

    @contextmanager
    def at_work(
        self, work: Callable[..., Result], file: ModelFile, report: Report | None = None
    ) -> Iterator[Callable[..., Iterator[tuple[int, Result]]]]:
        """Within the block, a function that yields (index of a task, result) for a list of tasks as they finish.

        Workers call ``work(task)``; those of this process get the model's `file` and a `report` too. Where the block
        ends with an error, threads end first.
        """
        threads, job = _ThreadWorkers(work, file), work
        if self.is_alone:
            job = partial(work, file=file, report=report)
        elif self.backend == "threading":
            job = threads.run
        try:
            yield partial(run_jobs, job, backend=self.backend, workers=self.workers, address=self.address)
        except BaseException:
            threads.stop()
            raise


class _ThreadWorkers(Generic[Result]):
    """Thread workers that can be cancelled: Python ends no thread at interpreter exit."""

    def __init__(self, work: Callable[..., Result], file: ModelFile) -> None:
        self._work, self._file = work, file
        self._is_stopped, self._busy, self._changed = False, 0, threading.Condition()

    def run(self, task: Any) -> Result:
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
