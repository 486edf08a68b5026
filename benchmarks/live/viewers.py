"""What 100 viewers cost: how late their updates are, what the session notices, and the page's memory.

    python -m benchmarks.live.viewers [--viewers 100] [--slow 10] [--seconds 60] [--csv FILE]

A made-up session runs in a process of its own, first without viewers, then with them; slow ones read a byte a second.
The session's own lateness is that of its loop: how long after its due time a chunk of samples is on the board.
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import json
import multiprocessing
import re
import socket
import struct
import tempfile
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
from benchmarks.live.bad_requests import upgrade
from benchmarks.live.made_up_session import SFREQ, MadeUpSession
from websockets.asyncio.client import connect

from zipbrain.live.page import start

CHUNK_S = 0.1
_SENT = re.compile(rb'"sent":([0-9.]+)')
_NUMBER = re.compile(rb'"number":([0-9]+)')


def write(folder: Path, pipe: Connection) -> None:
    """A session that says, whenever it is asked, how late its chunks were since the last time."""
    session = MadeUpSession(folder, seizures=[])
    begun, late, count = time.monotonic(), [], 0
    pipe.send("ready")
    while True:
        count += 1
        due = begun + count * CHUNK_S
        time.sleep(max(due - time.monotonic(), 0))
        session.read(int(SFREQ * CHUNK_S))
        session.publish()
        session.obey()
        late.append(time.monotonic() - due)
        if pipe.poll():
            pipe.recv()
            pipe.send(late)
            late = []


async def view(port: int, seconds: float) -> tuple[list[float], int]:
    """How late every update of one viewer came, and how many were left out."""
    url, origin = f"ws://127.0.0.1:{port}/bed/0/live", f"http://127.0.0.1:{port}"
    late, missed, before = [], 0, None
    async with connect(url, origin=origin, max_size=None, compression=None) as viewer:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            message = await viewer.recv()
            if isinstance(message, bytes):
                head = message[8 : 8 + struct.unpack("<I", message[:4])[0]]
                late.append(time.monotonic() - float(_SENT.search(head)[1]))
                number = int(_NUMBER.search(head)[1])
                missed += number - before - 1 if before is not None else 0
                before = number
    return late[10:], missed  # the first ones come with the connection


def dawdle(port: int, seconds: float) -> None:
    """Read a byte a second."""
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)  # or the system reads ahead for it
        connection.connect(("127.0.0.1", port))
        connection.sendall(upgrade(port=port))
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(1)
            try:
                connection.recv(1)
            except OSError:
                return


def memory_mb(process: int) -> float:
    """Private memory of a process; the board, which is mapped, is not its own."""
    text = Path(f"/proc/{process}/smaps_rollup").read_text()
    return sum(int(found) for found in re.findall(r"Private_\w+:\s+(\d+)", text)) / 1024


def measure(viewers: int, slow: int, seconds: float) -> dict[str, float]:
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "bed"
        near, far = context.Pipe()
        writer = context.Process(target=write, args=(folder, far), daemon=True)
        writer.start()
        near.recv()

        def lateness() -> list[float]:
            near.send("how late?")
            found: list[float] = near.recv()
            return found

        with start(folder, "127.0.0.1:0") as page:
            port = int(page.url.rstrip("/").rpartition(":")[2])
            time.sleep(3)
            lateness()
            time.sleep(seconds / 2)
            alone = lateness()
            threads = [threading.Thread(target=dawdle, args=(port, seconds + 3), daemon=True) for _ in range(slow)]
            for thread in threads:
                thread.start()

            async def all_viewers() -> list[tuple[list[float], int]]:
                return await asyncio.gather(*(view(port, seconds) for _ in range(viewers - slow)))

            memory: list[float] = []
            watching = threading.Event()

            def watch() -> None:
                while not watching.wait(seconds / 12):
                    memory.append(memory_mb(page.pid))

            watcher = threading.Thread(target=watch)
            watcher.start()
            found = asyncio.run(all_viewers())
            with_counts = asyncio.run(_counts(port))
            watching.set()
            watcher.join()
            watched = lateness()
        decisions = [json.loads(row) for row in (folder / "journal.jsonl").read_text().splitlines()]
        stops = [row["facts"]["stop_s"] for row in decisions if row["kind"] == "decision"]
        writer.kill()
    late = np.concatenate([entries for entries, _ in found])
    return {
        "viewers": viewers,
        "slow": slow,
        "seconds": seconds,
        "updates": len(late),
        "p50_ms": 1000 * float(np.quantile(late, 0.5)),
        "p99_ms": 1000 * float(np.quantile(late, 0.99)),
        "max_ms": 1000 * float(late.max()),
        "left_out": sum(missed for _, missed in found),
        "slow_counted": with_counts["slow"],
        "session_alone_p50_ms": 1000 * float(np.quantile(alone, 0.5)),
        "session_watched_p50_ms": 1000 * float(np.quantile(watched, 0.5)),
        "session_alone_p99_ms": 1000 * float(np.quantile(alone, 0.99)),
        "session_watched_p99_ms": 1000 * float(np.quantile(watched, 0.99)),
        "decisions_missed": int(np.sum(np.round(np.diff(stops)) - 1)),
        "page_mb_first": memory[1],
        "page_mb_last": memory[-1],
    }


async def _counts(port: int) -> dict[str, int]:
    origin = f"http://127.0.0.1:{port}"
    async with connect(f"ws://127.0.0.1:{port}/live", origin=origin, max_size=None) as viewer:
        counts: dict[str, int] = json.loads(await viewer.recv())["counts"]
        return counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--viewers", type=int, default=100)
    parser.add_argument("--slow", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--csv", type=Path)
    given = parser.parse_args()
    found = measure(given.viewers, given.slow, given.seconds)
    for name, value in found.items():
        print(f"{name:>24} {value:.6g}")
    if given.csv:
        with given.csv.open("w", newline="") as file:
            table = csv.DictWriter(file, found, lineterminator="\n")
            table.writeheader()
            table.writerow({name: round(value, 3) for name, value in found.items()})


if __name__ == "__main__":
    main()
