"""Independent jobs, run one after another, by processes or threads of this machine, or on a Dask or Ray cluster."""

from __future__ import annotations

import os
import queue
import signal
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from typing import Any, Final, TypeVar

from zipbrain._lazy import import_extra
from zipbrain.cores import free_cores
from zipbrain.errors import OptionError, ZipbrainError

BACKENDS: Final = ("loky", "threading", "dask", "ray", "sequential")

_CONNECT: Final = 10.0  # seconds to wait for a scheduler and its first worker
_PATIENCE: Final = 20.0  # seconds to wait for workers or a scheduler that went away
_LOOK: Final = 0.5  # seconds between two looks at the cluster

Item = TypeVar("Item")
Result = TypeVar("Result")
Answer = tuple[int, Any, Exception | None]  # index of an item, its result, what the function raised instead
Answers = Generator[Answer, None, None]


class JobsFailed(ZipbrainError):
    """Workers or a cluster that are not there or went away; results handed over before stay good."""


def run_jobs(
    function: Callable[[Item], Result],
    items: Iterable[Item],
    *,
    backend: str = "loky",
    workers: int | None = None,
    address: str | None = None,
) -> Iterator[tuple[int, Result]]:
    """Call a function on every item and yield (index of the item, result) as they finish, in any order.

    Parameters
    ----------
    function : callable
        A function of a module, so that other processes can import it.
    items : iterable
        What to call it with; picklable.
    backend : {"loky", "threading", "dask", "ray", "sequential"}
        Processes, threads, a Dask cluster, a Ray cluster, or this thread alone.
    workers : int, optional
        Processes or threads at the same time; as many as cores are free if not given. A cluster has its own number.
    address : str, optional
        Where a cluster's scheduler listens, such as ``tcp://10.0.0.5:8786``.

    Raises
    ------
    JobsFailed
        A worker died, or the cluster is not there. What the function itself raises is raised as it is.
    """
    if backend not in BACKENDS:
        raise OptionError("backend", backend, f"it must be one of {', '.join(BACKENDS)}")
    if workers is not None and workers < 1:
        raise OptionError("workers", workers, "at least one is needed")
    if address is not None and backend not in ("dask", "ray"):
        raise OptionError("address", address, f"backend {backend!r} runs on this machine: take dask or ray")
    if backend == "dask" and address is None:
        raise OptionError("address", None, "dask needs its scheduler's address, such as tcp://10.0.0.5:8786")
    work = list(items)
    if backend in ("loky", "threading"):
        workers = workers or free_cores()
    if backend == "sequential" or (backend in ("loky", "threading") and workers == 1):
        return ((index, function(item)) for index, item in enumerate(work))
    return _side_by_side(function, work, backend, workers or -1, address)


def _side_by_side(
    function: Callable[[Item], Result], work: Sequence[Item], backend: str, workers: int, address: str | None
) -> Iterator[tuple[int, Result]]:
    parent = os.getpid() if backend == "loky" else None
    delayed = _joblib().delayed(_call)
    calls = [delayed(parent, function, index, item) for index, item in enumerate(work)]
    if backend == "dask":
        answers = _on_dask(calls, str(address))
    else:
        answers = _on_ray(calls, workers, address) if backend == "ray" else _locally(calls, backend, workers)
    try:
        for index, result, error in answers:
            if error is not None:
                raise error
            yield index, result
    finally:  # workers and clients end with an error, not with its traceback
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # joblib's advice on tasks that a stop or an error cancels
            answers.close()


def _locally(calls: Sequence[Any], backend: str, workers: int) -> Answers:
    from joblib.externals.loky.process_executor import BrokenProcessPool

    try:
        with _interrupts_held():
            answers = _parallel(backend, workers, return_as="generator_unordered")(calls)
        yield from answers
    except BrokenProcessPool as error:
        first = str(error).split(".")[0]
        advice = "if memory ran out, take fewer workers"
        raise JobsFailed(f"a worker process died ({first}); {advice}, then run the same again") from None


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Ctrl-C waits for the end of the block; processes started in it never see it: their parent ends them.

    Where signals can't be held (Windows), workers may print a traceback of their own.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    from multiprocessing import resource_tracker

    resource_tracker.ensure_running()  # started in the block, it would let the signal through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _on_ray(calls: Sequence[Any], workers: int, address: str | None) -> Answers:
    try:
        ray, register_ray = import_module("ray"), import_module("ray.util.joblib").register_ray
    except ModuleNotFoundError:
        raise OptionError("backend", "ray", "ray is not installed: pip install ray") from None
    try:
        if not ray.is_initialized():
            ray.init(address=address, log_to_driver=False)
        places = int(ray.cluster_resources().get("CPU", 1))
    except Exception as error:
        raise JobsFailed(f"no Ray cluster at {address or 'this machine'}: {_first_line(error)}") from None
    register_ray()
    yield from _in_waves(calls, "ray", workers, 2 * (places if workers < 0 else workers))


def _in_waves(calls: Sequence[Any], backend: str, workers: int, wave: int) -> Answers:
    """For backends that hand results over only when a whole wave of calls is done."""
    with _parallel(backend, workers) as parallel:  # the same workers for all waves
        for start in range(0, len(calls), wave):
            try:
                answers = parallel(calls[start : start + wave])
            except Exception as error:  # what the function raises comes back as an answer, so this is the cluster's
                raise JobsFailed(f"backend {backend!r} failed: {_first_line(error)}; run the same again") from error
            yield from answers


def _on_dask(calls: Sequence[Any], address: str) -> Answers:
    new_client = import_extra("distributed", "distributed", "cluster", "backend 'dask'").Client
    try:
        client = new_client(address, timeout=_CONNECT, set_as_default=False)
    except (OSError, ValueError) as error:  # a time-out is an OSError
        start = "`dask scheduler` starts one, `dask worker ADDRESS` gives it workers"
        raise JobsFailed(f"no Dask scheduler answers at {address} ({_first_line(error)}): {start}") from None
    try:
        try:
            client.wait_for_workers(1, timeout=_CONNECT)
        except OSError:
            start = f"start some with `dask worker {address}`"
            raise JobsFailed(f"the Dask scheduler at {address} has no workers: {start}") from None
        yield from _watched(client, calls, address)
    finally:
        client.close(timeout=2)


def _watched(client: Any, calls: Sequence[Any], address: str) -> Answers:
    """Hand over what joblib gets from the cluster, and look after the cluster while nothing comes.

    joblib waits for ever for jobs that a dead cluster lost, so it waits in a thread of its own.
    """
    answers: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def collect() -> None:
        try:
            for answer in _parallel(_dask_backend(client), -1, return_as="generator_unordered")(calls):
                answers.put(answer)
        except BaseException as error:
            answers.put(error)

    threading.Thread(target=collect, daemon=True).start()
    missing_since: float | None = None
    left = len(calls)
    while left:
        try:
            answer = answers.get(timeout=_LOOK)
        except queue.Empty:
            trouble = _trouble(client)
            now = time.monotonic()
            missing_since = None if trouble is None else missing_since or now
            if trouble is None or (client.status != "closed" and now - float(missing_since or now) < _PATIENCE):
                continue
            answer = JobsFailed(trouble)
        if not isinstance(answer, tuple):
            what = str(answer) if isinstance(answer, JobsFailed) else _first_line(answer)
            raise JobsFailed(f"the Dask cluster at {address} failed ({what}); run the same again to go on") from None
        missing_since = None
        left -= 1
        yield answer


def _dask_backend(client: Any) -> Any:
    from joblib._dask import DaskDistributedBackend

    class Backend(DaskDistributedBackend):  # type: ignore[misc]
        def effective_n_jobs(self, n_jobs: int) -> int:
            # With one worker, joblib would run the jobs here and not on the cluster.
            return max(2, int(super().effective_n_jobs(n_jobs)))

    return Backend(client=client)


def _trouble(client: Any) -> str | None:
    """What is wrong with the cluster, if anything."""
    if client.status != "running":
        return "its scheduler went away"
    if any(state.status in ("error", "lost", "cancelled") for state in list(client.futures.values())):
        return "workers died again and again, or its scheduler was restarted"
    return None if client.scheduler_info()["workers"] else "its workers are gone"


def _call(parent: int | None, function: Callable[[Item], Result], index: int, item: Item) -> Answer:
    """Run one job in a worker. What the function raises is an answer too: it is no failure of the worker."""
    if parent is not None:
        _end_with(parent)
    try:
        return index, function(item), None
    except Exception as error:
        if not isinstance(error, ZipbrainError):
            error.add_note(f"in a worker:\n{traceback.format_exc()}")
        return index, None, error


@cache
def _end_with(parent: int) -> None:
    """End this worker soon after its parent; one whose parent is killed would go on for minutes."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _parallel(backend: Any, workers: int, **options: Any) -> Any:
    # One job a batch, so that a result is handed over as soon as it is there.
    return _joblib().Parallel(n_jobs=workers, backend=backend, batch_size=1, max_nbytes=None, **options)


def _joblib() -> Any:
    return import_extra("joblib", "joblib", "cluster", "running jobs side by side")


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
