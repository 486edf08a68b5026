"""Runs commands of a page one after the other in one process, in which only some installed packages can be found.

``python page_process.py``, with the commands and all that they need as JSON on stdin. It ends with 1 at the first
command that fails, and says which one.
"""

from __future__ import annotations

import contextlib
import glob
import importlib.metadata
import itertools
import json
import os
import runpy
import shlex
import signal
import sys
import threading
import time
import urllib.error
import urllib.request
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

WRITES = ("--out", "-o", ">", "--init-alarms")  # the word behind names what must be there afterwards
TINY = (200, 2, 10, 8)  # of a LaBraM: width, blocks, heads, convolution channels


class Finder(PathFinder):
    """The ordinary finder of modules, blind to those that the environment does not bring."""

    hidden: frozenset[str] = frozenset()

    @classmethod
    def find_spec(cls, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        return None if fullname.partition(".")[0] in cls.hidden else super().find_spec(fullname, path, target)


def hide(modules: list[str], packages: list[str]) -> None:
    """Make this process one in which these were never installed."""
    Finder.hidden = frozenset(modules)
    sys.meta_path[:] = [Finder if finder is PathFinder else finder for finder in sys.meta_path]
    for name in [name for name in sys.modules if name.partition(".")[0] in Finder.hidden]:
        del sys.modules[name]
    known = importlib.metadata.Distribution.from_name

    def from_name(name: str) -> importlib.metadata.Distribution:
        if name.lower().replace("_", "-") in packages:
            raise importlib.metadata.PackageNotFoundError(name)
        return known(name)

    importlib.metadata.Distribution.from_name = staticmethod(from_name)  # type: ignore[method-assign,assignment]


def shrink() -> None:
    """Give the synthetic corpus few windows, LaBraM a size "tiny", and the demo of `live` a faster clock."""
    from zipbrain.cli import live_demo

    live_demo.SPEED = 100.0  # type: ignore[misc]
    with contextlib.suppress(ImportError):
        from zipbrain.data.synthetic import Synthetic

        sizes = {"n_subjects": 10, "windows_per_subject": 6}
        whole = Synthetic.__init__
        Synthetic.__init__ = lambda self, *task, **options: whole(self, *task, **sizes | options)  # type: ignore[method-assign]
    if "torch" not in Finder.hidden:
        from zipbrain.models.labram import SIZES

        SIZES["tiny"] = TINY


def words_of(line: str) -> list[str]:
    """A line as a shell splits it; patterns become the files that they match."""
    words = shlex.split(line, comments=True)
    return [path for word in words for path in (sorted(glob.glob(word)) if "*" in word else [word])]


def run(words: list[str]) -> int:
    """The exit code of a command of zipbrain, or of a Python module."""
    if words[0] == "zipbrain":
        from zipbrain.cli import main

        return main(words[1:])
    assert words[:2] == ["python", "-m"], words
    sys.argv[:] = words[2:]
    try:
        runpy.run_module(words[2], run_name="__main__", alter_sys=True)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0


def run_line(line: str) -> int:
    """The exit code of a line, whose output may go to a file."""
    words = words_of(line)
    if ">" not in words:
        return run(words)
    place = words.index(">")
    with Path(words[place + 1]).open("w") as file, contextlib.redirect_stdout(file):
        return run(words[:place])


def interrupt_once_served(port: int, seconds: float = 60.0) -> None:
    """Press Ctrl-C as soon as something answers there."""

    def watch() -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=5).close()
                break
            except urllib.error.HTTPError:  # a page that wants its token
                break
            except OSError:
                time.sleep(0.05)
        else:
            os._exit(99)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=watch, daemon=True).start()


if __name__ == "__main__":
    given = json.load(sys.stdin)
    sys.path[:0] = given["path"]
    hide(given["modules"], given["packages"])
    shrink()
    for line in given["lines"]:
        print(f"$ {line}", flush=True)
        if line.startswith(("zipbrain live page ", "zipbrain live wall ")):
            interrupt_once_served(given["port"])
        began = time.process_time()
        code = run_line(line)
        print(f"{code}  {time.process_time() - began:.1f} s of the processor", flush=True)
        if code:
            sys.exit(f"{line}: exit code {code}")
        words = words_of(line)
        for option, path in itertools.pairwise(words):
            if option in WRITES and not Path(path).exists():
                sys.exit(f"{line}: {path} was not written")
