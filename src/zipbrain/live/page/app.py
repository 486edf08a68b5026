"""The page's addresses: files, the sockets that viewers listen to, stretches of the past, and commands."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Final

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route, WebSocketRoute
from starlette.staticfiles import StaticFiles
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from zipbrain.errors import DataError, OptionError
from zipbrain.files import encode_nan, parse_json
from zipbrain.live.commands import send_command
from zipbrain.live.page.bed_messages import MOST_WAITING, TICK_S, BedMessages
from zipbrain.live.page.guard import Guard

MOST_BEDS: Final = 16
MOST_VIEWERS: Final = 256

_STATIC: Final = Path(__file__).with_name("static")
_BODY_S: Final = 0.6  # until a command's body must be there
_WALL_S: Final = 1.0


class Viewers:
    """The messages of every bed and their viewers; a slow viewer holds up no bed and no other viewer."""

    def __init__(self, folders: Sequence[Path]) -> None:
        labels = [folder.resolve().name for folder in folders]
        self.beds = [BedMessages(folder, label) for folder, label in zip(folders, labels, strict=True)]
        self.counts = {"viewers": 0, "slow": 0, "missed": 0}  # connected; lagging; messages that lagging ones missed
        self._wall = (-_WALL_S, "")  # when the wall's text was made, and the text
        self._tick = asyncio.Event()
        self._sent: dict[WebSocket, tuple[BedMessages, int]] = {}  # the newest message that every viewer took

    async def run(self) -> None:
        """Advance every bed ten times a second."""
        clock = asyncio.get_running_loop().time
        due = clock()
        while True:
            for bed in self.beds:
                bed.advance(self.counts)
                await asyncio.sleep(0)
            self.counts["slow"] = sum(bed.number - number > MOST_WAITING for bed, number in self._sent.values())
            tick, self._tick = self._tick, asyncio.Event()
            tick.set()
            due = max(due + TICK_S, clock())
            await asyncio.sleep(due - clock())

    async def show(self, socket: WebSocket, bed: BedMessages) -> None:
        """Send a viewer every message, or the newest one where it lagged behind."""
        try:
            await socket.send_text(bed.hello())
            number = bed.number
            while True:
                self._sent[socket] = bed, number
                while number == bed.number:
                    await self._tick.wait()
                behind = bed.number - number
                if behind > MOST_WAITING:
                    self.counts["missed"] += behind - 1
                    behind = 1
                number = bed.number - behind + 1
                await socket.send_bytes(bed.messages[-behind])
        finally:
            self._sent.pop(socket, None)

    async def show_wall(self, socket: WebSocket) -> None:
        """Send the newest state of every bed, once a second."""
        while True:
            await socket.send_text(self._wall_text())
            await asyncio.sleep(_WALL_S)

    def _wall_text(self) -> str:
        """The state of every bed, made twice a second however many look at it."""
        now = time.monotonic()
        if now - self._wall[0] > _WALL_S / 2:
            beds = [encode_nan(bed.summary()) for bed in self.beds]
            content = {"beds": beds, "wall": time.time(), "counts": self.counts}
            self._wall = now, json.dumps(content, separators=(",", ":"))
        return self._wall[1]


def make_app(folders: Sequence[Path], token: str = "") -> Starlette:
    """The page of one session's folder, or of several with a wall of tiles, at most 16."""
    if not 1 <= len(folders) <= MOST_BEDS:
        raise OptionError("folders", len(folders), f"a wall has 1 to {MOST_BEDS} sessions")
    viewers = Viewers(folders)

    @contextlib.asynccontextmanager
    async def run_beds(_: Starlette) -> AsyncIterator[None]:
        task = asyncio.create_task(viewers.run())
        yield
        task.cancel()

    async def show_home(_: Request) -> Response:
        return FileResponse(_STATIC / ("bed.html" if len(folders) == 1 else "wall.html"))

    async def show_bed(request: Request) -> Response:
        find(request.path_params["bed"])
        return FileResponse(_STATIC / "bed.html")

    async def count_beds(_: Request) -> Response:
        return JSONResponse({"beds": len(folders)})

    def find(number: int) -> BedMessages:
        if number >= len(viewers.beds):
            raise _Refusal(404, "there is no such session")
        return viewers.beds[number]

    async def samples(request: Request) -> Response:
        bed = find(request.path_params["bed"])
        try:
            start, stop = (float(request.query_params[name]) for name in ("start", "stop"))
            content = bed.fetch(start, stop)
        except (KeyError, ValueError, OverflowError):
            raise _Refusal(400, "start and stop are seconds of the session") from None
        return Response(content, media_type="application/octet-stream")

    async def merges(request: Request) -> Response:
        bed = find(request.path_params["bed"])
        if bed.merges is None:
            raise _Refusal(404, "no window with groups was decided yet (zipbrain export --groups)")
        return JSONResponse({"session": bed.board.session, "map": bed.merges})

    async def command(request: Request) -> Response:
        bed = find(request.path_params["bed"])
        if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
            raise _Refusal(415, "a command is JSON")
        try:
            async with asyncio.timeout(_BODY_S):
                body = await request.body()
        except TimeoutError:
            raise _Refusal(408, "the command did not arrive") from None
        if not bed.board.has_writer():
            raise _Refusal(409, "no session is running: the command was not given")
        try:
            send_command(bed.folder, parse_json(body))
        except DataError:
            raise _Refusal(503, "the session does not read commands") from None
        except ValueError as error:  # an OptionError too
            raise _Refusal(400, str(error)) from None
        return JSONResponse({"sent": True})

    async def listen(socket: WebSocket) -> None:
        number = socket.path_params.get("bed")
        if viewers.counts["viewers"] >= MOST_VIEWERS or (number is not None and number >= len(viewers.beds)):
            await socket.send_denial_response(PlainTextResponse("no place", 404 if number is not None else 503))
            return
        await socket.accept()
        viewers.counts["viewers"] += 1
        talk = viewers.show_wall(socket) if number is None else viewers.show(socket, viewers.beds[number])
        sending = asyncio.create_task(talk)
        hearing = asyncio.create_task(_hear_end(socket))
        try:
            await asyncio.wait((sending, hearing), return_when=asyncio.FIRST_COMPLETED)
        finally:
            viewers.counts["viewers"] -= 1
            for task in (sending, hearing):
                task.cancel()
            await asyncio.gather(sending, hearing, return_exceptions=True)
            if WebSocketState.DISCONNECTED not in (socket.client_state, socket.application_state):
                with contextlib.suppress(RuntimeError, WebSocketDisconnect):
                    await socket.close(1008)

    async def refuse(_: Request, error: Exception) -> Response:
        assert isinstance(error, _Refusal)
        return PlainTextResponse(str(error), error.status, {"Connection": "close"})

    routes = [
        Route("/", show_home, methods=["GET"]),
        Route("/beds", count_beds, methods=["GET"]),
        Route("/bed/{bed:int}", show_bed, methods=["GET"]),
        Route("/bed/{bed:int}/samples", samples, methods=["GET"]),
        Route("/bed/{bed:int}/merges", merges, methods=["GET"]),
        Route("/bed/{bed:int}/command", command, methods=["POST"]),
        WebSocketRoute("/bed/{bed:int}/live", listen),
        WebSocketRoute("/live", listen),
        Mount("/static", StaticFiles(directory=_STATIC)),
    ]
    guard = Middleware(Guard, token=token)
    return Starlette(routes=routes, middleware=[guard], lifespan=run_beds, exception_handlers={_Refusal: refuse})


class _Refusal(Exception):
    """An answer of 4xx or 5xx with its words."""

    def __init__(self, status: int, words: str) -> None:
        super().__init__(words)
        self.status = status


async def _hear_end(socket: WebSocket) -> None:
    """Return when a viewer leaves or sends anything: viewers only listen."""
    await socket.receive()
