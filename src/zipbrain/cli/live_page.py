"""Sessions' folders as web pages: `zipbrain live page`, `zipbrain live wall`, and `--page` of a session."""

from __future__ import annotations

import json
import os
import sys
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.text import Text

from zipbrain.cli.app import Group
from zipbrain.cli.options import AsJson
from zipbrain.cli.terminal import Console, say
from zipbrain.errors import OptionError

ADDRESS: Final = "127.0.0.1:8765"

Address = Annotated[
    str, typer.Option(help="Where the page is served: HOST:PORT; another host than 127.0.0.1 needs the printed token.")
]


class LiveGroup(Group):
    """`zipbrain live`, whose option ``--page`` may stand without an address."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse arguments, a bare ``--page`` with the usual address."""
        given = zip(args, [*args[1:], "-"], strict=False)
        args = [f"--page={ADDRESS}" if arg == "--page" and after.startswith("-") else arg for arg, after in given]
        return super().parse_args(ctx, args)


def page(
    folder: Annotated[Path, typer.Argument(help="What `zipbrain live --out` writes.")],
    address: Address = ADDRESS,
    as_json: AsJson = False,
) -> None:
    """Show a session in a browser.

    With traces, trend, alarms, electrodes and journal. Ctrl-C ends the page, not the session.

    Example: zipbrain live page night
    """
    _serve([folder], address, as_json)


def wall(
    folders: Annotated[list[Path], typer.Argument(help="Folders of sessions on this machine, at most 16.")],
    address: Address = ADDRESS,
    as_json: AsJson = False,
) -> None:
    """Show several sessions as tiles in a browser.

    Each is a link to its page.

    Example: zipbrain live wall bed1 bed2 bed3
    """
    _serve(folders, address, as_json)


@contextmanager
def served(address: str | None, out: Path, *, has_board: bool, is_opened: bool, as_json: bool) -> Iterator[None]:
    """The page of a session in a process of its own, where one was asked for; opened in a browser if wanted."""
    if address is None:
        yield
        return
    if not has_board:
        raise OptionError("--page", address, "the page shows the board: leave out --no-board")
    from zipbrain.live.page import start

    out.mkdir(mode=0o700, parents=True, exist_ok=True)
    with start(out, address) as shown:
        Console(stderr=as_json, highlight=False).print(Text(f"page  {shown.url}"), soft_wrap=True)
        if is_opened and has_screen():
            with suppress(webbrowser.Error):
                webbrowser.open(shown.url.partition(" ")[0])  # a note on the token may follow
        yield


def has_screen() -> bool:
    """True where a browser would open in a window of its own, not in this terminal."""
    if not sys.stdout.isatty():
        return False
    return sys.platform in ("win32", "darwin") or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def _serve(folders: list[Path], address: str, as_json: bool) -> None:
    from zipbrain.live.page import serve
    from zipbrain.live.page.server import TOKEN_FILE, give_way

    def show(shown: str) -> None:
        if not as_json:
            say(f"The page is at {shown}\nCtrl-C ends it.")
            return
        url, _, note = shown.partition(" ")  # a note on the token may follow
        token_file = str(folders[0] / TOKEN_FILE) if note or "?token=" in url else None
        content = {"line": "page", "url": url, "token_file": token_file, "folders": list(map(str, folders))}
        print(json.dumps(content), flush=True)  # at once: the command goes on

    give_way()
    serve(folders, address, ready=show)
