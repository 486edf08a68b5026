"""`zipbrain live page` and `zipbrain live wall`: sessions' folders as web pages."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Address = Annotated[str, typer.Option(help="HOST:PORT; another host than 127.0.0.1 needs the token that is printed.")]


def page(
    folder: Annotated[Path, typer.Argument(help="What `zipbrain live --out` writes.")],
    address: Address = "127.0.0.1:8765",
) -> None:
    """Show a session in a browser: traces, trend, alarms, electrodes, journal. Ctrl-C ends the page, not the session.

    [bold]Example:[/bold] zipbrain live page night
    """
    _serve([folder], address)


def wall(
    folders: Annotated[list[Path], typer.Argument(help="Folders of sessions on this machine, at most 16.")],
    address: Address = "127.0.0.1:8765",
) -> None:
    """Show several sessions as tiles in a browser, each a link to its page.

    [bold]Example:[/bold] zipbrain live wall bed1 bed2 bed3
    """
    _serve(folders, address)


def _serve(folders: list[Path], address: str) -> None:
    from zipbrain.live.page import serve

    serve(folders, address, ready=lambda url: print(f"The page is at {url}\nCtrl-C ends it.", flush=True))
