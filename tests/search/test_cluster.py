"""The search on a real Dask cluster of two worker processes, one of which is killed on the way."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from search import small
from zipbrain.search import scorer, search
from zipbrain.search.space import Point

pytest.importorskip("distributed", reason="Dask is not installed")

FEW = [Point(z1, z2, "x", rho) for z1, z2 in (("x", "q"), ("kh", "vh")) for rho in (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)]


@pytest.fixture
def cluster() -> Iterator[tuple[str, list[subprocess.Popen[str]]]]:
    """A scheduler and two workers on loopback, each a process of its own."""
    command = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", "0"]
    scheduler = subprocess.Popen([*command, "--no-dashboard"], stderr=subprocess.PIPE, text=True)
    processes = [scheduler]
    try:
        assert scheduler.stderr is not None
        address = next(line.split()[-1] for line in scheduler.stderr if "Scheduler at:" in line)
        threading.Thread(target=scheduler.stderr.read, daemon=True).start()
        command = [sys.executable, "-m", "distributed.cli.dask_worker", address, "--nworkers", "1", "--nthreads", "1"]
        for _ in range(2):
            options = {"stderr": subprocess.DEVNULL, "text": True}
            processes.append(subprocess.Popen([*command, "--no-nanny", "--no-dashboard"], **options))
        yield address, processes[1:]
    finally:
        for process in processes:
            process.kill()
            process.wait()


@pytest.mark.slow
def test_a_cluster_that_loses_a_worker_gives_the_local_result(
    cluster: tuple[str, list[subprocess.Popen[str]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from distributed import Client

    address, workers = cluster
    monkeypatch.setattr(scorer, "stage_1", lambda: list(FEW))
    model, data = small.checkpoint(tmp_path / "model"), small.prepared(tmp_path / "data")
    local = search(model, data, out=tmp_path / "local", backend="sequential", device="cpu")
    with Client(address, set_as_default=False) as client:
        client.wait_for_workers(2, timeout=60)

    def kill_one(what: str, done: int, total: int) -> None:
        if done == 4:
            workers[0].kill()

    options = {"backend": "dask", "address": address, "device": "cpu", "progress": kill_one}
    remote = search(model, data, out=tmp_path / "remote", **options)
    assert workers[0].wait(10) != 0
    assert workers[1].poll() is None
    assert remote.complete
    assert [(e.point, e.score, e.result.key) for e in remote.ranking] == [
        (e.point, e.score, e.result.key) for e in local.ranking
    ]
    assert remote.best == local.best
    assert remote.evaluated == local.evaluated
