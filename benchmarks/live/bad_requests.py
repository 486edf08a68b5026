"""1,000 requests and sockets that the page must refuse: 4xx or closed within a second, and none does anything.

    python -m benchmarks.live.bad_requests [--count 1000] [--csv FILE]

A session with the demo's model decides meanwhile; two pages show it, one on loopback and one that needs its token.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import json
import multiprocessing
import os
import random
import socket
import struct
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from zipbrain.live.chain import JOURNAL, read_chain
from zipbrain.live.commands import FOLDER
from zipbrain.live.page import start
from zipbrain.live.verify import verify

GOOD = {"command": "acknowledge", "alarm": "", "by": "someone else"}
LIMIT_S = 1.0


def request(
    method: str = "GET", path: str = "/", *, host: str | None = None, body: bytes = b"", more: str = "", port: int = 0
) -> bytes:
    """A request as it goes over the wire; `host` "" leaves the header out."""
    lines = [f"{method} {path} HTTP/1.1"]
    if host != "":
        lines.append(f"Host: {host or f'127.0.0.1:{port}'}")
    lines += [line for line in more.split("\n") if line]
    if body and "ength" not in more and "ncoding" not in more:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


def command(
    content: object = GOOD, *, more: str = "", path: str = "/bed/0/command", port: int, **options: str
) -> bytes:
    """A command, right but for what is given."""
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    own = f"Origin: http://127.0.0.1:{port}\n" if "Origin" not in more else ""
    kind = "Content-Type: application/json\n" if "Content-Type" not in more else ""
    return request("POST", path, body=body, more=own + kind + more.replace("Origin: -", ""), port=port, **options)


def upgrade(
    path: str = "/bed/0/live", *, more: str = "", port: int, origin: str | None = None, key: bool = True
) -> bytes:
    """A socket's first request, right but for what is given."""
    shown = f"Origin: {origin or f'http://127.0.0.1:{port}'}\n" if origin != "" else ""
    keyed = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\n" if key else ""
    version = "Sec-WebSocket-Version: 13\n" if "Version" not in more else ""
    return request(path=path, more=f"Upgrade: websocket\nConnection: Upgrade\n{keyed}{version}{shown}{more}", port=port)


def frame(content: bytes) -> bytes:
    """A text that a viewer sends through its socket."""
    length = struct.pack(">H", len(content)) if len(content) > 125 else b""
    return bytes([0x81, 0x80 | (126 if length else len(content))]) + length + bytes(4) + content


def token_cases(port: int, chance: random.Random) -> Iterator[tuple[str, bytes]]:
    """Kinds of what is refused where a token is needed, in turn and without end."""
    word = lambda: "".join(chance.choices("abcdefghijklmnopqrstuvwxyzABCDEFGH-_0123456789", k=32))  # noqa: E731
    while True:
        yield "token: none", request(port=port)
        yield "token: another", request(path=f"/?token={word()}", port=port)
        yield "token: short", request(path=f"/?token={word()[:3]}", port=port)
        yield "token: another cookie", request(more=f"Cookie: zipbrain_page={word()}", port=port)
        yield "token: another bearer", command(more=f"Authorization: Bearer {word()}\n", port=port)
        yield "token: none with a command", command(port=port)
        yield "token: none for a file", request(path="/static/js/bed.js", port=port)
        yield "token: none for samples", request(path="/bed/0/samples?start=0&stop=5", port=port)
        yield "token: none for a socket", upgrade(port=port)


def cases(port: int, chance: random.Random) -> Iterator[tuple[str, bytes]]:
    """Kinds of what is refused, in turn and without end, each a little different every time."""
    word = lambda: "".join(chance.choices("abcdefghijklmnopqrstuvwxyz", k=8))  # noqa: E731
    makers: dict[str, Callable[[], bytes]] = {
        "host: a name": lambda: request(host=f"{word()}.example:{port}", port=port),
        "host: missing": lambda: request(host="", port=port),
        "host: two": lambda: request(more=f"Host: {word()}.example", port=port),
        "host: odd": lambda: request(
            host=chance.choice(["[", "127.0.0.1.example", "127.0.0.1@evil", ":", "local host"]), port=port
        ),
        "origin: another": lambda: command(more=f"Origin: http://{word()}.example\n", port=port),
        "origin: null": lambda: command(more="Origin: null\n", port=port),
        "origin: missing": lambda: command(more="Origin: -\n", port=port),
        "origin: another port": lambda: command(more=f"Origin: http://127.0.0.1:{port - 1}\n", port=port),
        "site: another": lambda: command(more="Sec-Fetch-Site: cross-site\n", port=port),
        "method": lambda: request(
            chance.choice(["PUT", "DELETE", "PATCH", "TRACE", "OPTIONS", "CONNECT", word().upper()]), port=port
        ),
        "method: not here": lambda: request("POST", more=f"Origin: http://127.0.0.1:{port}", body=b"{}", port=port),
        "path: unknown": lambda: request(path=f"/{word()}", port=port),
        "path: out": lambda: request(
            path=chance.choice(
                [
                    "/static/../app.py",
                    "/static/%2e%2e/app.py",
                    "/static/..%2f..%2fboard.py",
                    "/static//etc/passwd",
                    "//etc/passwd",
                ]
            ),
            port=port,
        ),
        "path: no bed": lambda: request(path=f"/bed/{chance.randrange(1, 10**9)}", port=port),
        "path: long": lambda: request(path="/" + "a" * chance.randrange(1100, 9000), port=port),
        "query": lambda: request(
            path="/bed/0/samples?start=" + chance.choice(["", "x", "nan", "1e400", "-inf"]), port=port
        ),
        "body: no JSON": lambda: command(word().encode(), port=port),
        "body: no command": lambda: command({"command": word()}, port=port),
        "body: wrong values": lambda: command(
            {"command": "pause", "seconds": chance.choice([0, -1, 1e9, "60", None, True])}, port=port
        ),
        "body: more fields": lambda: command(GOOD | {word(): 1}, port=port),
        "body: deep": lambda: command(b"[" * 1000 + b"]" * 1000, port=port),
        "body: long": lambda: command(b" " * 5000, port=port),
        "body: of a GET": lambda: request(body=b"x" * 100, port=port),
        "body: another type": lambda: command(more="Content-Type: text/plain\n", port=port),
        "length: none": lambda: command(more="Transfer-Encoding: chunked\n", port=port),
        "length: odd": lambda: command(
            more=f"Content-Length: {chance.choice(['-1', 'x', '1e3', '9' * 30])}\n", port=port
        ),
        "length: two": lambda: command(more="Content-Length: 5\nContent-Length: 6\n", port=port),
        "length: never comes": lambda: command(b"", more="Content-Length: 500\n", port=port),
        "upgrade: origin": lambda: upgrade(origin=f"http://{word()}.example", port=port),
        "upgrade: no origin": lambda: upgrade(origin="", port=port),
        "upgrade: host": lambda: upgrade(port=port).replace(b"Host: 127.0.0.1", f"Host: {word()}.example".encode()),
        "upgrade: no key": lambda: upgrade(key=False, port=port),
        "upgrade: version": lambda: upgrade(more="Sec-WebSocket-Version: 8\n", port=port),
        "upgrade: no bed": lambda: upgrade(f"/bed/{chance.randrange(1, 99)}/live", port=port),
        "upgrade: path": lambda: upgrade(f"/{word()}", port=port),
        "socket: says something": lambda: upgrade(port=port) + frame(word().encode()),
        "socket: a long text": lambda: upgrade(port=port) + frame(b"a" * chance.randrange(2000, 60_000)),
        "socket: no frame": lambda: upgrade(port=port) + b"\xff" * 40,
        "upgrade: another protocol": lambda: request(more="Upgrade: h2c\nConnection: Upgrade", port=port),
        "headers: 10 MB": lambda: request(more="X-Long: " + "a" * 10_000_000, port=port),
        "headers: many": lambda: request(more="\n".join(f"X-{n}: {word()}" for n in range(2000)), port=port),
        "headers: never end": lambda: f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nX: ".encode(),
        "nonsense": lambda: chance.randbytes(200) + b"\r\n\r\n",
        "TLS": lambda: b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + chance.randbytes(200),
    }
    while True:
        for kind, make in makers.items():
            yield kind, make()


def ask(port: int, content: bytes) -> tuple[str, float]:
    """What became of a request: its status, or "closed", or "open"; and the seconds until then."""
    begun = time.monotonic()
    with socket.create_connection(("127.0.0.1", port), 5) as connection:
        connection.settimeout(3 * LIMIT_S)
        head, frames = content, b""
        if b"Upgrade: websocket" in content:
            head, end, frames = content.partition(b"\r\n\r\n")
            head += end
        with contextlib.suppress(OSError):  # it may hang up before it has read everything
            connection.sendall(head)
        try:
            answer = connection.recv(4096)
            if frames:
                connection.sendall(frames)
            while answer.startswith(b"HTTP/1.1 101") and time.monotonic() - begun < 3 * LIMIT_S:
                if not connection.recv(65_536):
                    answer = b""
        except TimeoutError:
            return "open", time.monotonic() - begun
        except OSError:
            answer = b""
    return answer[9:12].decode("latin-1") if answer.startswith(b"HTTP/1.1 ") else "closed", time.monotonic() - begun


def attack(
    port: int, count: int, *, token_port: int | None = None, workers: int = 8, seed: int = 0
) -> list[tuple[str, str, float]]:
    """Kind, result and seconds of so many bad requests, eight at a time; every fifth to the page with a token."""
    chance = random.Random(seed)
    waiting, guarded = cases(port, chance), token_cases(token_port or port, chance)
    wanted = [
        (token_port, *next(guarded)) if token_port and number % 5 == 4 else (port, *next(waiting))
        for number in range(count)
    ]
    results: list[tuple[str, str, float]] = []

    def work(some: list[tuple[int, str, bytes]]) -> None:
        for place, kind, content in some:
            results.append((kind, *ask(place, content)))

    threads = [threading.Thread(target=work, args=(wanted[number::workers],)) for number in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def is_refused(result: str, seconds: float) -> bool:
    return (result == "closed" or result.startswith("4")) and seconds < LIMIT_S


def rows_of(results: list[tuple[str, str, float]]) -> list[dict[str, object]]:
    """A row for every group of kinds, and one for all."""
    groups: dict[str, list[tuple[str, float]]] = {}
    for kind, result, seconds in results:
        groups.setdefault(kind.partition(":")[0], []).append((result, seconds))
    groups["all"] = [(result, seconds) for _, result, seconds in results]
    return [
        {
            "what": what,
            "requests": len(found),
            "refused": sum(result.startswith("4") for result, _ in found),
            "closed": sum(result == "closed" for result, _ in found),
            "neither": sum(not is_refused(*one) for one in found),
            "slowest_s": round(max(seconds for _, seconds in found), 3),
        }
        for what, found in sorted(groups.items(), key=lambda group: (group[0] == "all", group[0].lower()))
    ]


def main() -> None:
    from benchmarks.live.viewers import decide, keep_pace

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--csv", type=Path)
    given = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    near, far = context.Pipe()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "bed"
        session = context.Process(target=decide, args=(folder, far), daemon=True)
        session.start()
        near.recv()
        os.nice(5)  # who asks sits elsewhere: the session goes first, as it does before the page
        with start(folder, "127.0.0.1:0") as page, start(folder, "0.0.0.0:0") as guarded:
            port = int(page.url.rstrip("/").rpartition(":")[2])
            token_port = int(guarded.url.partition("/?")[0].rpartition(":")[2])
            for process in (page.pid, guarded.pid):
                keep_pace(process)
            time.sleep(15)
            begun = time.monotonic()
            results = attack(port, given.count, token_port=token_port)
            ended = time.monotonic()
            time.sleep(15)
            left = list((folder / FOLDER).iterdir())
            still = ask(port, request(port=port))
        near.send("stop")
        decisions, missed = near.recv()
        session.join()
        lines = read_chain(folder / JOURNAL).lines
        is_whole = verify(folder).verdict == "whole"
    kinds = Counter(line["kind"] for line in lines)
    during = [delay for at, delay, _, twice in decisions if begun <= at <= ended and not twice]
    around = [delay for at, delay, _, twice in decisions if not begun <= at <= ended and not twice]
    rows = rows_of(results)
    for row in rows:
        print("  ".join(f"{name} {value}" for name, value in row.items()))
    print([one for one in results if not is_refused(*one[1:])][:10])
    print(f"commands left: {len(left)}; marks: {kinds['mark']}; the journal is whole: {is_whole}; {dict(kinds)}")
    print(f"decisions missed: {missed} of {len(decisions)}; the page still answers {still[0]} in {still[1]:.3f} s")
    print(f"median latency of a decision: {np.median(around):.3f} s, meanwhile {np.median(during):.3f} s")
    if given.csv:
        with given.csv.open("w", newline="") as file:
            table = csv.DictWriter(file, rows[0], lineterminator="\n")
            table.writeheader()
            table.writerows(rows)


if __name__ == "__main__":
    main()
