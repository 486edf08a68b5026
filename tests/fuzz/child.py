"""The child process of the harness: uses one file after the other and tells on its first output what came of it."""

from __future__ import annotations

import json
import os
import resource
import sys
import tempfile
import time
import traceback
import warnings
from pathlib import Path
from typing import Any

from tests.fuzz.harness import Target, load

from zipbrain.errors import ZipbrainError

_LONGEST_LINE = 4000  # characters of an error


def main() -> None:
    """Run the job that the file in the first argument describes."""
    job = json.loads(Path(sys.argv[1]).read_text())
    with os.fdopen(os.dup(1), "w", buffering=1) as answers:
        os.dup2(2, 1)  # what the library prints is no answer

        def tell(report: dict[str, Any]) -> None:
            answers.write(json.dumps(report) + "\n")

        target = load(job["place"])
        fate = try_case(target, target.sample(), job["folder"])
        if fate["refused"] or fate["finding"]:
            print(f"{job['name']}: the sample was not accepted: {fate}", file=sys.stderr)
            sys.exit(1)
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        if size := _status("VmSize"):
            resource.setrlimit(resource.RLIMIT_AS, (size + job["memory"], hard))
        tell({"ready": True})
        for place, case in enumerate(job["cases"]):
            tell({"begin": place})
            mutant = isinstance(case, int)
            content = target.build(job["name"], job["seed"], case) if mutant else Path(case).read_bytes()
            tell(try_case(target, content, job["folder"]))


def try_case(target: Target, content: bytes, folder: str) -> dict[str, Any]:
    """Whether a file was refused, what is wrong with that (None if nothing), seconds, and bytes over the baseline."""
    with tempfile.TemporaryDirectory(dir=folder) as own, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", RuntimeWarning)  # numpy's, which a user would see without knowing why
        path = Path(own) / f"case{target.ending}"
        path.write_bytes(content)
        refused, finding = False, None
        before, began = _reset_peak(), time.process_time()
        try:
            target.use(path)
        except ZipbrainError as error:
            refused, finding = True, _bad_words(str(error))
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            words = " ".join(str(error).split())[:300]
            finding = f"{type(error).__name__}: {words} ({Path(place.filename).name}:{place.lineno})"
        seconds, peak = time.process_time() - began, _peak() - before
    return {"refused": refused, "finding": finding, "seconds": seconds, "peak": max(peak, 0)}


def _bad_words(text: str) -> str | None:
    """What is wrong with the text of an error."""
    if not text.strip() or "\n" in text or not text.isprintable():
        return f"an error that is not one readable line: {text[:300]!r}"
    return f"an error of {len(text)} characters: {text[:300]!r}" if len(text) > _LONGEST_LINE else None


def _status(field: str) -> int:
    """Bytes that Linux reports for this process; 0 where there is no such report."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return 0
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith(f"{field}:")), 0)


def _reset_peak() -> int:
    """Bytes in memory now; the peak is counted from here."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return _peak()
    return _status("VmRSS")


def _peak() -> int:
    unit = 1 if sys.platform == "darwin" else 1024
    return _status("VmHWM") or unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


if __name__ == "__main__":
    main()
