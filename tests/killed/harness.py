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
from typing import Final

from zipbrain.cli import main
from zipbrain.cli.stopping import EXIT_CODE

from .measured import content_of, differences

_BEGUN: Final = 0.02  # seconds after which a child has begun its command
_LONGEST: Final = 300.0  # seconds that a run may take


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


def run_killed(
    command: str,
    arguments: Callable[[Path], list[str]],
    home: Path,
    *,
    kills: int,
    seed: int,
    blow: signal.Signals = signal.SIGKILL,
) -> Outcome:
    """Kill a command so many times, at moments spread evenly over its duration; each run is repeated until it ends.

    `arguments` gives the command line for an output folder. That folder and TMPDIR must then hold what they hold after
    an unbroken run, which includes a cache that torch makes. Another `blow` than SIGKILL must end a run with code 130
    and one line that says so.
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
    stopped = -signal.SIGKILL if blow == signal.SIGKILL else EXIT_CODE
    while outcome.kills < kills:
        before = outcome.kills
        while True:
            temporary.with_suffix(".log").unlink(missing_ok=True)
            child = call_in_child(partial(main, arguments(out)), temporary)
            limit = rng.uniform(_BEGUN, outcome.seconds) if outcome.kills < kills else _LONGEST
            code = wait(child, limit, blow)
            if code != stopped:
                break
            outcome.kills += 1
            if blow != signal.SIGKILL:
                outcome.faults += _speech_faults(temporary.with_suffix(".log").read_text())
        outcome.finished += 1
        outcome.most = max(outcome.most, outcome.kills - before)
        if code:
            outcome.faults.append(f"exit {code} after {outcome.kills - before} kills")
            shutil.copy(temporary.with_suffix(".log"), home / f"faulty-{outcome.finished}.log")
        outcome.faults += differences(content_of(out), expected)
        outcome.faults += [f"TMPDIR: {fault}" for fault in differences(content_of(temporary), scratch)]
        if outcome.faults:
            shutil.copytree(out, home / f"faulty-{outcome.finished}", dirs_exist_ok=True)
        shutil.rmtree(out)
        shutil.rmtree(temporary)
    return outcome


def _speech_faults(said: str) -> list[str]:
    """What is wrong with the words of a command that was stopped."""
    last = (said.strip().splitlines() or [""])[-1]
    faults = [] if last.startswith("stopped: ") else [f"its last line is {last!r}"]
    return [*faults, *["a traceback"] * ("Traceback" in said)]


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
        tempfile.tempdir = str(temporary)  # Python tries a folder by writing a file, which a kill would leave there
        code = function()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def wait(child: int, limit: float = _LONGEST, blow: signal.Signals = signal.SIGKILL) -> int:
    """Exit code of a child that gets the blow, with all its processes, after so many seconds."""
    code = _ended(child, limit)
    if code is None:
        with suppress(ProcessLookupError):  # it has no session of its own yet
            os.killpg(child, blow)
        code = _ended(child, _LONGEST)
    if code is None:
        os.kill(child, signal.SIGKILL)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return code


def _ended(child: int, limit: float) -> int | None:
    """Exit code of a child, or None if it goes on for longer than that."""
    end = time.monotonic() + limit
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.001)
    return None
