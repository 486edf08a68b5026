"""What commands that make tables of results share: tables and notes on stdout, files in a folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from rich.padding import Padding

from zipbrain.cli.terminal import Console

if TYPE_CHECKING:
    from zipbrain.evaluation.tables import Tabled


def show(result: Tabled, as_json: bool, written: list[Path], go_on: str = "") -> None:
    """Print a result: tables, notes, where the files are and the command that goes on with it, if any; or JSON."""
    from zipbrain.files import json_ready

    if as_json:
        more = {"files": [str(path) for path in written], **({"go_on": go_on} if go_on else {})}
        print(json.dumps(json_ready({**result.to_dict(), **more}), indent=2))
        return
    console = Console(highlight=False)
    for table in result.tables():
        console.print(table.to_rich())
    for note in result.notes:
        console.print(Padding(note, (0, 0, 0, 2)), style="dim", markup=False)
    console.print(f"\nWritten: {', '.join(str(path) for path in written)}", soft_wrap=True, markup=False)
    if go_on:
        console.print(f"Go on:   {go_on}", soft_wrap=True, markup=False)


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
