"""The web server of the page: uvicorn on loopback, or with a token elsewhere; slow requests are cut off."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import secrets
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from zipbrain._lazy import import_extra
from zipbrain.errors import DataError, OptionError

ADDRESS: Final = "127.0.0.1:8765"
TOKEN_FILE: Final = "page-token"

_HEADERS_S: Final = 0.6  # from a request's first byte until its headers are whole
_PARTING_S: Final = 0.3  # from the close of a socket until its connection is gone, whether its viewer answers or not
_IDLE_S: Final = 5  # of a connection without a request
_LARGEST_HEADERS: Final = 16_384  # bytes
_SEND_BUFFER: Final = 2**16  # bytes of the system's for each viewer: what a slow one gets late
_MOST_CONNECTIONS: Final = 640
_NICENESS: Final = 5  # of the page's process


def serve(
    folders: Sequence[str | Path],
    address: str = ADDRESS,
    *,
    ready: Callable[[str], None] = print,
    stop: threading.Event | None = None,
) -> None:
    """Serve the page of one session's folder, or a wall of several, until it is stopped.

    Parameters
    ----------
    folders : sequence of path
        What ``zipbrain live --out`` writes, 1 to 16 of them; they may be empty still.
    address : str
        ``HOST:PORT``; port 0 takes a free one. Another host than loopback needs the token that `ready` is told.
    ready : callable, optional
        Called with the page's address when it can be opened.
    stop : threading.Event, optional
        Ends the server when it is set.
    """
    import_extra("uvicorn", "uvicorn", "live", "the page")
    import_extra("websockets", "websockets", "live", "the page")
    app_module = import_extra("zipbrain.live.page.app", "starlette", "live", "the page")
    places = [Path(folder) for folder in folders]
    for place in places:
        if not place.is_dir():
            raise DataError(f"{place}: no such folder; name what `zipbrain live --out` writes")
    listening, is_local = bind(address)
    with listening:
        token, is_fresh = ("", False) if is_local else read_token(places[0])
        app = app_module.make_app(places, token)
        host, port = listening.getsockname()[:2]
        url = f"http://{'[' + host + ']' if ':' in host else host}:{port}/"
        shown = f"{url}?token={token}" if is_fresh else url
        kept = f" (the token is in {places[0] / TOKEN_FILE})" if token and not is_fresh else ""
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(_run(app, listening, lambda: ready(shown + kept), stop or threading.Event()))


def bind(address: str) -> tuple[socket.socket, bool]:
    """A listening socket, and whether only this machine can reach it; OptionError for an address that can't be had."""
    host, colon, port = address.rpartition(":")
    host = host.strip("[]")
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise OptionError("--page", address, f"it must be like {ADDRESS}")
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(host or "127.0.0.1", int(port), type=socket.SOCK_STREAM)[
            0
        ]
        listening = socket.socket(family, kind, protocol)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
        if os.name != "nt":
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(place)
        listening.listen(512)
    except OSError as error:
        raise OptionError("--page", address, f"it can't be had ({error.strerror}); another port may be free") from None
    return listening, ipaddress.ip_address(str(place[0]).partition("%")[0]).is_loopback


def read_token(folder: Path) -> tuple[str, bool]:
    """The token of a folder's page, and whether it was made now; it lies in a file that its owner alone can read."""
    path = folder / TOKEN_FILE
    try:
        with contextlib.suppress(FileExistsError):
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            token = secrets.token_urlsafe(24)
            with os.fdopen(handle, "w") as file:
                file.write(token)
            return token, True
        if os.name != "nt" and path.stat().st_mode & 0o077:
            raise DataError(f"{path}: others can read this token; remove the file, and a new one is made")
        token = path.read_text().strip()
    except OSError as error:
        raise DataError(f"{path}: the token can't be kept there ({error.strerror})") from None
    if len(token) < 32:
        raise DataError(f"{path}: no token of zipbrain; remove the file, and a new one is made")
    return token, False


async def _run(app: Any, listening: socket.socket, ready: Callable[[], None], stop: threading.Event) -> None:
    import uvicorn

    config = uvicorn.Config(
        app,
        http=_timed_protocol(),
        ws=_brief_sockets(),
        ws_max_size=1024,
        ws_ping_interval=20,
        ws_ping_timeout=20,
        ws_per_message_deflate=False,  # noise does not get smaller
        log_config=None,
        log_level="critical",
        access_log=False,
        lifespan="on",
        limit_concurrency=_MOST_CONNECTIONS,
        timeout_keep_alive=_IDLE_S,
        timeout_graceful_shutdown=1,
        h11_max_incomplete_event_size=_LARGEST_HEADERS,
        proxy_headers=False,
        server_header=False,
    )
    server = uvicorn.Server(config)

    async def watch() -> None:
        while not server.started:
            await asyncio.sleep(0.02)
        ready()
        while not stop.is_set():
            await asyncio.sleep(0.1)
        server.should_exit = True

    watching = asyncio.create_task(watch())
    try:
        await server.serve(sockets=[listening])
    finally:
        watching.cancel()


def _brief_sockets() -> type[asyncio.Protocol]:
    """Uvicorn's sockets with a short wait for the answer to a close."""
    from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

    class Protocol(WebSocketsSansIOProtocol):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            self.close_timeout = _PARTING_S

    return Protocol


def _timed_protocol() -> type[asyncio.Protocol]:
    """Uvicorn's protocol, which hangs up when a request's headers take too long."""
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class Protocol(H11Protocol):
        deadline: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self.deadline = self.loop.call_later(_IDLE_S, self._hang_up)

        def data_received(self, data: bytes) -> None:
            is_first = self.cycle is None or self.cycle.response_complete
            super().data_received(data)
            is_waiting = self.cycle is None or self.cycle.response_complete
            if not is_waiting or self.transport.get_protocol() is not self:
                self._forget()
            elif is_first and data and (self.deadline is None or not self._is_short):
                self._forget()
                self._is_short = True
                self.deadline = self.loop.call_later(_HEADERS_S, self._hang_up)

        def connection_lost(self, exc: Exception | None) -> None:
            self._forget()
            super().connection_lost(exc)

        _is_short = False

        def _forget(self) -> None:
            self._is_short = False
            if self.deadline is not None:
                self.deadline.cancel()
                self.deadline = None

        def _hang_up(self) -> None:
            if self.cycle is None or self.cycle.response_complete:
                self.transport.close()

    return Protocol


def give_way() -> None:
    """Lower this process's priority below a session's: a page may be late, a decision may not."""
    with contextlib.suppress(OSError, AttributeError):  # Windows has no nice
        os.nice(_NICENESS)


def main(arguments: Sequence[str]) -> int:
    """``python -m zipbrain.live.page ADDRESS DIR...``: serve until standard input ends; one line says where it is."""
    stop = threading.Event()
    give_way()

    def wait_for_end() -> None:
        while os.read(sys.stdin.fileno(), 64):
            pass
        stop.set()

    threading.Thread(target=wait_for_end, daemon=True).start()
    from zipbrain.errors import ZipbrainError

    try:
        serve(arguments[1:], arguments[0], ready=lambda url: print(url, flush=True), stop=stop)
    except ZipbrainError as error:
        print(f"error: {error}", flush=True)
        return 1
    return 0
