"""Mutated files through zipbrain, many in one child process, each under a limit of time and of memory.

A target makes the bytes of a file from a random generator and hands the file to the library. Its cases end in one of
two good ways: accepted (plausible output, checked by the target) or refused (a `ZipbrainError` of one line). Anything
else is a finding: another exception, a numpy warning, too much time or memory, a dead process.
"""

from __future__ import annotations

import importlib
import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
CORPUS = Path(__file__).with_name("corpus")  # past findings: a folder per target, a file per case

SECONDS = 5.0  # of processor time that a case may take
MEMORY = 500 * 10**6  # bytes by which a case may raise the resident memory of its process
PATIENCE = 60.0  # seconds until a case without an answer is stopped: other work may fill the machine
_WARM_UP = 120.0  # seconds until a child process has imported its target and used the sample


@dataclass(frozen=True)
class Target:
    """One kind of file from outside.

    Attributes
    ----------
    sample : callable
        Bytes of a good file. It must be accepted, else nothing would be tried; memory is counted from what it leaves.
    mutate : callable
        Bytes of a case, from a random generator and nothing else.
    use : callable
        Uses the file at a path, which lies alone in a folder of its own, and asserts that the output is plausible.
    cases : int
        Of a full run.
    ending : str
        Of the file's name.
    """

    sample: Callable[[], bytes]
    mutate: Callable[[Random], bytes]
    use: Callable[[Path], None]
    cases: int
    ending: str = ""

    def build(self, name: str, seed: int, case: int) -> bytes:
        """Bytes of one case, whatever ran before it."""
        return self.mutate(Random(f"{name} {seed} {case}"))


@dataclass(frozen=True)
class Finding:
    """A case that ended badly, and how."""

    case: int
    what: str


@dataclass
class Summary:
    """What became of the cases of one target."""

    target: str
    seed: int
    cases: int = 0
    refused: int = 0
    accepted: int = 0
    longest: float = 0.0  # seconds of processor time
    peak: int = 0  # bytes over the baseline
    seconds: float = 0.0  # of all cases and child processes
    findings: list[Finding] = field(default_factory=list)

    def __str__(self) -> str:
        return (
            f"{self.target}: {self.cases:,} cases (seed {self.seed}), {self.refused:,} refused, {self.accepted:,} "
            f"accepted, {len(self.findings)} findings; longest {self.longest:.2f} s, peak {self.peak / 1e6:.0f} MB "
            f"over the baseline, {self.seconds:.0f} s in all"
        )


def load(place: str) -> Target:
    """The target at ``"module:attribute"``."""
    module, _, attribute = place.partition(":")
    target: Target = getattr(importlib.import_module(module), attribute)
    return target


def run(
    name: str,
    place: str,
    cases: Sequence[int] | Sequence[Path],
    *,
    seed: int = 0,
    seconds: float = SECONDS,
    memory: int = MEMORY,
    patience: float = PATIENCE,
    progress: Callable[[Summary], None] | None = None,
) -> Summary:
    """Try cases of a target: numbers of mutations, or files as they are.

    A case that ends its child process, or that has to be stopped, is a finding; another child goes on with the next.
    """
    summary, began = Summary(name, seed), time.perf_counter()
    left = list(cases)
    while left:
        started, alive = None, False
        for report in _child(name, place, left, seed, patience):
            if "ready" in report:
                alive = True
            elif "begin" in report:
                started = report["begin"]
            else:
                _count(summary, report, seconds, memory)
                started, left = None, left[1:]
                if progress is not None:
                    progress(summary)
        if not alive:
            summary.findings.append(Finding(-1, "the unchanged sample was not accepted, or the target can't be loaded"))
            break
        if started is not None:
            summary.cases += 1
            words = f"no answer in {patience:g} s, or its process died"
            summary.findings.append(Finding(summary.cases - 1, words))
            left = left[1:]
        elif left:
            summary.findings.append(Finding(-1, "its process died between two cases"))
            break
    summary.seconds = time.perf_counter() - began
    return summary


def _count(summary: Summary, report: dict[str, Any], seconds: float, memory: int) -> None:
    case, what = summary.cases, report["finding"]
    summary.cases += 1
    summary.longest = max(summary.longest, report["seconds"])
    summary.peak = max(summary.peak, report["peak"])
    if what is None and report["seconds"] > seconds:
        what = f"took {report['seconds']:.1f} s"
    if what is None and report["peak"] > memory:
        what = f"took {report['peak'] / 1e6:.0f} MB"
    if what is not None:
        summary.findings.append(Finding(case, what))
    elif report["refused"]:
        summary.refused += 1
    else:
        summary.accepted += 1


def _child(name: str, place: str, left: Sequence[Any], seed: int, patience: float) -> Iterator[dict[str, Any]]:
    """Reports of one child process, until it is done, dies, or is killed because a case took too long."""
    with tempfile.TemporaryDirectory(prefix="zipbrain-fuzz-") as folder:
        job = {"name": name, "place": place, "seed": seed, "folder": folder, "memory": 2 * MEMORY}
        job["cases"] = [str(case) if isinstance(case, Path) else case for case in left]
        (Path(folder) / "job.json").write_text(json.dumps(job))
        command = [sys.executable, "-m", "tests.fuzz.child", f"{folder}/job.json"]
        quiet = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        child = subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, env={**os.environ, **quiet}
        )
        assert child.stdout is not None
        try:
            limit, rest = _WARM_UP, b""
            while select.select([child.stdout], [], [], limit)[0]:
                if not (found := os.read(child.stdout.fileno(), 1 << 16)):
                    return
                *lines, rest = (rest + found).split(b"\n")
                yield from map(json.loads, lines)
                limit = patience
        finally:
            child.kill()
            child.wait()
            child.stdout.close()
