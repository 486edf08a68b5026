"""Commands to print for the user: ones that work from where they stand, in the shell they came from."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path


def command_line(arguments: Sequence[str]) -> str:
    """A `zipbrain` command to type here: by name where the shell finds this one, else by its path."""
    return shlex.join([*_program(), *arguments])


def _program() -> list[str]:
    script = Path(sys.executable).parent / ("zipbrain.exe" if os.name == "nt" else "zipbrain")
    found = shutil.which("zipbrain")
    if found is not None and (not script.exists() or Path(found).resolve() == script.resolve()):
        return ["zipbrain"]
    if script.exists():
        return [_short(script)]
    return [_short(Path(sys.executable)), "-m", "zipbrain"]


def _short(path: Path) -> str:
    """The path from the current folder where it is below it."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)
