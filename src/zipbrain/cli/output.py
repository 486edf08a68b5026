"""What commands that make tables of results share: a bar for their steps, tables and notes, files in a folder."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rich.padding import Padding
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from zipbrain.cli.terminal import Console

if TYPE_CHECKING:
    from zipbrain.evaluation.tables import Tabled


@contextmanager
def steps(quiet: bool) -> Iterator[Callable[[str, int, int], None]]:
    """A bar on stderr, as a function of what is done next, the steps done and all steps."""
    console = Console(stderr=True)
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True, disable=quiet or not console.is_terminal) as bar:
        task = bar.add_task("opening", total=None)
        yield lambda what, done, total: bar.update(task, description=what, completed=done, total=total, refresh=True)


def show(result: Tabled, as_json: bool, written: list[Path]) -> None:
    """Print a result: tables, notes and where the files are, or JSON."""
    from zipbrain.files import json_ready

    if as_json:
        print(json.dumps(json_ready({**result.to_dict(), "files": [str(path) for path in written]}), indent=2))
        return
    console = Console(highlight=False)
    for table in result.tables():
        console.print(table.to_rich())
    for note in result.notes:
        console.print(Padding(note, (0, 0, 0, 2)), style="dim", markup=False)
    console.print(f"\nWritten: {', '.join(str(path) for path in written)}", soft_wrap=True, markup=False)


def write(result: Tabled, folder: Path, name: str) -> list[Path]:
    """Write name.csv, name.md and name.tex, each whole or not at all."""
    from zipbrain.errors import DataError
    from zipbrain.files import write_whole

    written = []
    for ending, text in ((".csv", result.to_csv()), (".md", result.to_markdown()), (".tex", result.to_latex())):
        path = folder / f"{name}{ending}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            write_whole(path, text.encode())
        except OSError as error:
            raise DataError(f"{path}: it can't be written ({error.strerror or error})") from None
        written.append(path)
    return written
