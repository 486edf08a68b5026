"""A Dask scheduler with workers of its own, which can be killed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).parents[1] / "src"


@contextmanager
def dask_cluster(workers: int = 2) -> Iterator[tuple[str, list[subprocess.Popen[bytes]]]]:
    """The scheduler's address, and workers of one thread without a nanny, which would replace a killed one."""
    here = {**os.environ, "PYTHONPATH": str(SOURCE)}
    quiet: dict[str, Any] = {"stderr": subprocess.PIPE, "text": True, "env": here}
    command = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", "0"]
    scheduler = subprocess.Popen([*command, "--no-dashboard", "--no-show"], **quiet)
    started: list[subprocess.Popen[bytes]] = []
    try:
        assert scheduler.stderr is not None
        address = next(line.split()[-1] for line in scheduler.stderr if "Scheduler at:" in line)
        command = [sys.executable, "-m", "distributed.cli.dask_worker", address, "--nworkers", "1", "--nthreads", "1"]
        started += [
            subprocess.Popen([*command, "--no-nanny", "--no-dashboard"], stderr=subprocess.DEVNULL, env=here)
            for _ in range(workers)
        ]
        yield address, started
    finally:
        for process in (*started, scheduler):
            process.kill()
            process.wait()
