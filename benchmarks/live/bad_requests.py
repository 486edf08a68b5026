"""1,000 requests and sockets that the page must refuse: 4xx or closed within a second, and none does anything.

python -m benchmarks.live.bad_requests [--count 1000]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import socket
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.live.made_up_session import MadeUpSession

from zipbrain.live.commands import FOLDER
from zipbrain.live.page import start

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
        with contextlib.suppress(OSError):  # it may hang up before it has read everything
            connection.sendall(content)
        try:
            answer = connection.recv(4096)
        except TimeoutError:
            return "open", time.monotonic() - begun
        except OSError:
            answer = b""
    return answer[9:12].decode("latin-1") if answer.startswith(b"HTTP/1.1 ") else "closed", time.monotonic() - begun


def attack(port: int, count: int, *, workers: int = 8, seed: int = 0) -> list[tuple[str, str, float]]:
    """Kind, result and seconds of so many bad requests, eight at a time."""
    waiting = cases(port, random.Random(seed))
    wanted = [next(waiting) for _ in range(count)]
    results: list[tuple[str, str, float]] = []

    def work(some: list[tuple[str, bytes]]) -> None:
        for kind, content in some:
            results.append((kind, *ask(port, content)))

    threads = [threading.Thread(target=work, args=(wanted[number::workers],)) for number in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def is_refused(result: str, seconds: float) -> bool:
    return (result == "closed" or result.startswith("4")) and seconds < LIMIT_S


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "bed"
        session = MadeUpSession(folder, seizures=[])
        thread = threading.Thread(target=session.run, args=(3600,), daemon=True)
        thread.start()
        with start(folder, "127.0.0.1:0") as page:
            port = int(page.url.rstrip("/").rpartition(":")[2])
            results = attack(port, given.count)
            left = list((folder / FOLDER).iterdir())
            still = ask(port, request(port=port))
        journal = (folder / "journal.jsonl").read_text()
    wrong = [(kind, result, round(seconds, 3)) for kind, result, seconds in results if not is_refused(result, seconds)]
    slowest = max(seconds for _, _, seconds in results)
    print(f"{len(results)} bad requests: {dict(Counter(result for _, result, _ in results))}")
    print(f"slowest {slowest:.2f} s; not refused: {wrong[:10] or 'none'}; commands left: {len(left)}")
    print(f"journal touched: {'someone else' in journal}; the page still answers {still[0]} in {still[1]:.3f} s")


if __name__ == "__main__":
    main()
