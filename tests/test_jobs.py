"""Jobs: every backend gives the same results, and a worker or cluster that dies is one clear line."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import joblib
import pytest

from zipbrain import jobs
from zipbrain.errors import OptionError
from zipbrain.jobs import JobsFailed, run_jobs

SQUARES = [(index, index * index) for index in range(20)]


def square(number: int) -> int:
    return number * number


def slow_square(number: int) -> int:
    time.sleep(0.05)
    return number * number


def refuse_seven(number: int) -> int:
    if number == 7:
        raise OptionError("number", number, "seven is not wanted")
    return number


def divide(number: int) -> float:
    return 1 / number


def die(number: int) -> int:
    if number == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def log_pid(folder: Path) -> int:
    (folder / f"{os.getpid()}.pid").touch()
    time.sleep(60)
    return 0


@pytest.mark.parametrize("backend", ["sequential", "threading", "loky"])
def test_every_item_comes_back_once_with_its_index(backend: str) -> None:
    assert sorted(run_jobs(square, range(20), backend=backend, workers=2)) == SQUARES


def test_waves_serve_backends_that_hand_over_only_whole_calls() -> None:
    calls = [joblib.delayed(jobs._call)(None, square, index, item) for index, item in enumerate(range(20))]
    answers = jobs._in_waves(calls, "multiprocessing", 2, 3)
    assert sorted((index, result) for index, result, _ in answers) == SQUARES


def test_results_come_as_they_finish() -> None:
    arrived = []
    for _ in run_jobs(slow_square, range(6), backend="threading", workers=2):
        arrived.append(time.monotonic())
    assert arrived[-1] - arrived[0] > 0.05  # not all at the end


@pytest.mark.parametrize("backend", ["sequential", "threading", "loky"])
def test_what_a_job_raises_is_raised_as_it_is(backend: str) -> None:
    with pytest.raises(OptionError, match="seven is not wanted"):
        list(run_jobs(refuse_seven, range(20), backend=backend, workers=2))
    with pytest.raises(ZeroDivisionError):
        list(run_jobs(divide, [0, 1], backend=backend, workers=2))


def test_a_killed_worker_is_one_line() -> None:
    with pytest.raises(JobsFailed, match="a worker process died") as caught:
        list(run_jobs(die, range(20), backend="loky", workers=2))
    assert "\n" not in str(caught.value)


def test_workers_end_with_a_killed_parent(tmp_path: Path) -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "from pathlib import Path\nfrom test_jobs import log_pid\nfrom zipbrain.jobs import run_jobs\n"
        f"list(run_jobs(log_pid, [Path({str(tmp_path)!r})] * 2, backend='loky', workers=2))"
    )
    parent = subprocess.Popen([sys.executable, "-c", code])
    try:
        _until(lambda: len(list(tmp_path.glob("*.pid"))) == 2)
    finally:
        parent.kill()
        parent.wait()
    pids = [int(path.stem) for path in tmp_path.glob("*.pid")]
    _until(lambda: not any(_alive(pid) for pid in pids))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"backend": "cloud"}, "loky, threading, dask, ray, sequential"),
        ({"workers": 0}, "at least one"),
        ({"backend": "loky", "address": "tcp://127.0.0.1:1"}, "runs on this machine"),
        ({"backend": "dask"}, "its scheduler's address"),
    ],
)
def test_a_wrong_option_is_refused_before_anything_runs(options: dict[str, object], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        run_jobs(square, range(3), **options)  # type: ignore[arg-type]


def test_ray_that_is_not_installed_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(OptionError, match="pip install ray"):
        list(run_jobs(square, range(3), backend="ray"))


def test_a_cluster_that_is_not_there_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("distributed", reason="Dask is not installed")
    monkeypatch.setattr(jobs, "_CONNECT", 1.0)
    with pytest.raises(JobsFailed, match=r"no Dask scheduler answers at tcp://127\.0\.0\.1:9") as caught:
        list(run_jobs(square, range(3), backend="dask", address="tcp://127.0.0.1:9"))
    assert "\n" not in str(caught.value)


@pytest.fixture
def scheduler() -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """A scheduler in a process of its own, so that it can be killed."""
    pytest.importorskip("distributed", reason="Dask is not installed")
    command = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", "0"]
    process = subprocess.Popen([*command, "--no-dashboard"], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    address = next(line.split()[-1] for line in process.stderr if "Scheduler at:" in line)
    threading.Thread(target=process.stderr.read, daemon=True).start()
    yield address, process
    process.kill()
    process.wait()


def test_a_scheduler_without_workers_and_one_that_dies(
    scheduler: tuple[str, subprocess.Popen[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    address, process = scheduler
    monkeypatch.setattr(jobs, "_CONNECT", 1.0)
    with pytest.raises(JobsFailed, match="has no workers"):
        list(run_jobs(square, range(3), backend="dask", address=address))
    monkeypatch.setattr(jobs, "_CONNECT", 30.0)
    monkeypatch.setattr(jobs, "_PATIENCE", 1.0)
    command = [sys.executable, "-m", "distributed.cli.dask_worker", address, "--nworkers", "1", "--nthreads", "1"]
    here = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    worker = subprocess.Popen([*command, "--no-nanny", "--no-dashboard"], stderr=subprocess.DEVNULL, env=here)
    got: list[tuple[int, int]] = []

    def gather() -> None:
        for pair in run_jobs(slow_square, range(400), backend="dask", address=address):
            got.append(pair)
            if len(got) == 5:
                process.kill()

    try:
        with pytest.raises(JobsFailed, match=r"the Dask cluster at tcp://.* failed") as caught:
            gather()
    finally:
        worker.kill()
        worker.wait()
    assert "\n" not in str(caught.value)
    assert 5 <= len(got) < 400
    assert all(result == index * index for index, result in got)


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except OSError:
        return False


def _until(condition: object, seconds: float = 30) -> None:
    assert callable(condition)
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.1)


def test_an_error_says_nothing_of_the_tasks_that_it_cancels(recwarn: pytest.WarningsRecorder) -> None:
    with pytest.raises(OptionError):
        list(run_jobs(refuse_seven, [7, *range(100, 120)], workers=2))
    assert not [str(one.message) for one in recwarn if "tasks" in str(one.message)]


INTERRUPTED = """
import time
from zipbrain.jobs import run_jobs
if __name__ == "__main__":
    print("begun", flush=True)
    try:
        list(run_jobs(time.sleep, [30, 30], workers=2))
    except KeyboardInterrupt:
        print("stopped", flush=True)
"""


@pytest.mark.parametrize("delay", [0.05, 0.4, 2.0])  # while workers start, while they import, while they work
def test_ctrl_c_ends_workers_without_a_word_of_theirs(delay: float) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    time.sleep(delay)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: parent and workers
    said, complaints = process.communicate(timeout=60)
    assert said == "stopped\n"
    assert "Traceback" not in complaints
