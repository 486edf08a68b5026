"""Run a search in child processes that are killed at random moments; a program of its own, since it forks.

    python killing.py CHECKPOINT DATA OUT KILLS SEED

Prints JSON: how many children were killed, and what the last run, which nobody killed, found.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import scipy.special  # noqa: F401 - children inherit what is imported here
import sklearn.metrics  # noqa: F401
import torch

from zipbrain.search import search

_MOST = 12  # results that a child may add before it is killed: 20 children together stay below 277


def lines(out: Path) -> int:
    path = out / "results.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def main(checkpoint: str, data: str, out: Path, kills: int, seed: int) -> None:
    torch.set_num_threads(1)
    rng = random.Random(seed)
    killed = 0
    for _ in range(kills):
        enough = lines(out) + rng.randint(0, _MOST)
        child = os.fork()
        if child == 0:
            try:
                search(checkpoint, data, out=out, backend="sequential", device="cpu")
            finally:
                os._exit(0)
        end = time.monotonic() + 60
        while lines(out) < enough and time.monotonic() < end:
            time.sleep(0.002)
        time.sleep(rng.uniform(0, 0.04))  # about what one result takes: anywhere within it
        os.kill(child, signal.SIGKILL)
        killed += os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    before = lines(out)
    result = search(checkpoint, data, out=out, backend="sequential", device="cpu")
    assert result.best is not None
    rows = [[row["z1"], row["z2"], row["z3"], row["rho"], row["auroc"]] for row in result.rows()]
    print(json.dumps({"killed": killed, "before": before, "evaluated": result.evaluated, "complete": result.complete,
                      "best": result.best.to_dict(), "rows": rows}))  # fmt: skip


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5]))
