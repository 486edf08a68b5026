"""Kill a tuning at random moments, start it again until it is done, compare with an unbroken one.

python -m tests.tuning.kills --kills 20
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

import pytest
import torch
from tests.tuning.conftest import Small, balanced, make_windows, times_by_tokens

from zipbrain.tuning import tune
from zipbrain.tuning.times import NAME, Times
from zipbrain.tuning.tune import WORK

RESULTS: Final = ("recipe.json", "tuned.json", "options.csv")


def run(out: Path) -> None:
    """One tuning, in this process."""
    x, groups = make_windows(24, 40)
    options = {"backend": "sequential", "threads": 1, "methods": ["twins", "zipbrain"]}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Times, "_measure", times_by_tokens)
        found = tune(balanced(Small), x, groups=groups, agree=0.95, out=out, **options)
    assert found.chosen.removes
    found.save(out)


def start(out: Path) -> int:
    """The process number of a child that tunes."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            run(out)
            code = 0
        finally:
            os._exit(code)
    return child


def kill_until_done(home: Path, kills: int, seed: int = 0) -> list[str]:
    """Faults that were found: results that differ from those of an unbroken run, files left over."""
    torch.set_num_threads(1)
    draws, faults, done = random.Random(seed), [], 0
    whole = home / "whole"
    run(whole)  # its times are what all others find
    began = time.monotonic()
    reference = home / "reference"
    _seed_times(whole, reference)
    run(reference)
    seconds = time.monotonic() - began
    number = 0
    while done < kills:
        number += 1
        out = home / f"run {number}"
        _seed_times(whole, out)
        while True:
            child = start(out)
            if done < kills:
                time.sleep(draws.random() * seconds)
                os.kill(child, signal.SIGKILL)
            status = os.waitpid(child, 0)[1]
            if not os.WIFSIGNALED(status):
                faults += [f"{out.name}: exit code {os.WEXITSTATUS(status)}"] * (os.WEXITSTATUS(status) != 0)
                break
            done += 1
        for name in RESULTS:
            if (out / name).read_bytes() != (reference / name).read_bytes():
                faults.append(f"{out.name}: {name} differs")
        faults += [f"{out.name}: {path.name} left over" for path in out.rglob("*.part")]
    return faults


def _seed_times(source: Path, out: Path) -> None:
    (out / WORK).mkdir(parents=True)
    shutil.copy(source / WORK / NAME, out / WORK / NAME)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        faults = kill_until_done(Path(home), given.kills, given.seed)
    print(f"{given.kills} kills, {len(faults)} faults", *faults, sep="\n")
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
