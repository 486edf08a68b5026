"""Runs of a command in forked children that are killed at random moments."""

from __future__ import annotations

import os
import random
import shutil
import signal
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from zipbrain.cli import main

from .measured import content_of, differences


@dataclass
class Outcome:
    """What became of a command that was killed again and again."""

    command: str
    seconds: float  # of an unbroken run
    kills: int = 0
    finished: int = 0  # runs that came to their end after kills and were compared
    most: int = 0  # kills of one such run
    faults: list[str] = field(default_factory=list)  # exit codes, differences, leftovers

    def line(self) -> str:
        """A row of the table in the docs."""
        state = "; ".join(dict.fromkeys(self.faults)) or "none"
        return f"| {self.command} | {self.kills} | {self.finished} | {self.most} | {self.seconds:.1f} | {state} |"


def run_killed(command: str, arguments: Callable[[Path], list[str]], home: Path, *, kills: int, seed: int) -> Outcome:
    """Kill a command so many times, at moments spread evenly over its duration; each run is repeated until it ends.

    `arguments` gives the command line for an output folder. That folder and TMPDIR must then hold what they hold after
    an unbroken run, which includes a cache that torch makes.
    """
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    out, temporary = home / "out", home / "tmp"
    start = time.monotonic()
    code = wait(call_in_child(partial(main, arguments(out)), temporary))
    outcome = Outcome(command, time.monotonic() - start)
    if code:
        outcome.faults.append(f"the unbroken run ended with {code}")
        return outcome
    expected, scratch, rng = content_of(out), content_of(temporary), random.Random(seed)
    shutil.move(out, home / "unbroken")
    while outcome.kills < kills:
        before = outcome.kills
        while True:
            child = call_in_child(partial(main, arguments(out)), temporary)
            limit = rng.uniform(0, outcome.seconds) if outcome.kills < kills else 600.0
            code = wait(child, limit)
            if code != -signal.SIGKILL:
                break
            outcome.kills += 1
        outcome.finished += 1
        outcome.most = max(outcome.most, outcome.kills - before)
        if code:
            outcome.faults.append(f"exit {code} after {outcome.kills - before} kills")
        outcome.faults += differences(content_of(out), expected)
        outcome.faults += [f"TMPDIR: {fault}" for fault in differences(content_of(temporary), scratch)]
        if outcome.faults:
            shutil.copytree(out, home / f"faulty-{outcome.finished}", dirs_exist_ok=True)
        shutil.rmtree(out)
        shutil.rmtree(temporary)
    return outcome


def call_in_child(function: Callable[[], int], temporary: Path) -> int:
    """Start a function in a child of this process, which has imported everything already; returns the child's id."""
    temporary.mkdir(parents=True, exist_ok=True)
    child = os.fork()
    if child:
        return child
    code = 70
    try:
        os.setsid()
        log = os.open(temporary.with_suffix(".log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.environ["TMPDIR"] = str(temporary)
        tempfile.tempdir = None
        code = function()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def wait(child: int, limit: float = 600.0) -> int:
    """Exit code of a child that is killed, with all its processes, after so many seconds."""
    end = time.monotonic() + limit
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.001)
    with suppress(ProcessLookupError):  # it has no session of its own yet
        os.killpg(child, signal.SIGKILL)
    os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
