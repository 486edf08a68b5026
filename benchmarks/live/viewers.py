"""What 100 viewers cost: how late their updates are, what the session notices, and the page's memory.

    python -m benchmarks.live.viewers [--viewers 100] [--slow 10] [--seconds 60] [--rounds 2] [--csv FILE]

A session with the demo's model (23 channels at 256 Hz, a decision every half second) runs in a process of its own; its
page is looked at for a minute, then by no viewer for half a minute, in turn. Slow viewers read a byte a second. The
session's latency is that of its decisions, from a window's last sample on, but for windows that it looked at twice.
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import json
import multiprocessing
import os
import re
import socket
import struct
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.live.bad_requests import upgrade
from benchmarks.live.soak import Amplifier
from benchmarks.shared.results import cpu_name
from websockets.asyncio.client import connect

from zipbrain.edge import EdgeModel
from zipbrain.live.decision import Decision
from zipbrain.live.demo_model import unpack_demo
from zipbrain.live.page import start
from zipbrain.live.session import Session

HOP_S = 0.5
_SETTLING_S = 5.0
_SENT = re.compile(rb'"sent":([0-9.]+)')
_NUMBER = re.compile(rb'"number":([0-9]+)')


def decide(folder: Path, pipe: Connection) -> None:
    """A session until something is asked; then its decisions with the time of each, and how many it missed."""
    model = EdgeModel(unpack_demo(folder / "demo.onnx"), threads=1, spinning=False)
    session = Session(model, Amplifier(model.description.convention.ch_names), folder, hop_s=HOP_S)
    found: list[tuple[float, float, float, bool]] = []

    def watch(_: Any, news: Any) -> None:
        now = time.monotonic()
        fresh = [(now, item.delay_s, item.compute_s, item.looked_twice) for item in news if isinstance(item, Decision)]
        if fresh and not found:
            pipe.send("ready")
        found.extend(fresh)
        if pipe.poll():
            session.stop()

    summary = session.run(watch=watch)
    pipe.send((found, summary.skipped + summary.late_decisions))


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


def keep_pace(process: int) -> None:
    """Give another process group the priority of this one, where Linux schedules groups (autogroup)."""
    own, other = Path("/proc/self/autogroup"), Path(f"/proc/{process}/autogroup")
    if own.exists() and (found := re.search(r"nice (-?\d+)", own.read_text())):
        with suppress(OSError):  # others than root may not raise it
            other.write_text(found[1])


@contextmanager
def watched(process: int, every_s: float) -> Iterator[list[tuple[float, float]]]:
    """Memory of a process in MB, taken again and again, each with its time."""
    memory, is_over = list[tuple[float, float]](), threading.Event()

    def watch() -> None:
        while not is_over.wait(every_s):
            memory.append((time.monotonic(), memory_mb(process)))

    thread = threading.Thread(target=watch)
    thread.start()
    yield memory
    is_over.set()
    thread.join()


def look(port: int, viewers: int, slow: int, seconds: float) -> tuple[list[tuple[list[float], int]], dict[str, int]]:
    """What so many viewers saw in so many seconds, and how the page counted them meanwhile."""
    threads = [threading.Thread(target=dawdle, args=(port, seconds + 1), daemon=True) for _ in range(slow)]
    for thread in threads:
        thread.start()

    async def all_viewers() -> tuple[list[tuple[list[float], int]], dict[str, int]]:
        views = asyncio.gather(*(view(port, seconds) for _ in range(viewers - slow)))
        await asyncio.sleep(seconds - 1)
        counts = await _counts(port)
        return await views, counts

    found = asyncio.run(all_viewers())
    for thread in threads:
        thread.join()
    return found


def measure(viewers: int, slow: int, seconds: float, rounds: int) -> dict[str, Any]:
    context = multiprocessing.get_context("spawn")
    seen: list[tuple[list[float], int]] = []
    periods: dict[str, list[tuple[float, float]]] = {"alone": [], "watched": []}
    counts: dict[str, int] = {}

    @contextmanager
    def period(kind: str) -> Iterator[None]:
        time.sleep(_SETTLING_S)
        begun = time.monotonic()
        yield
        periods[kind].append((begun, time.monotonic()))

    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "bed"
        near, far = context.Pipe()
        session = context.Process(target=decide, args=(folder, far), daemon=True)
        session.start()
        near.recv()
        os.nice(4)  # viewers sit elsewhere: they give way to the session, as the page does
        with start(folder, "127.0.0.1:0") as page, watched(page.pid, 2.0) as memory:
            keep_pace(page.pid)
            port = int(page.url.rstrip("/").rpartition(":")[2])
            for number in range(2 * rounds + 1):
                if number % 2 == 0:
                    with period("alone"):
                        time.sleep(seconds / 2)
                    continue
                with period("watched"):
                    found, counts = look(port, viewers, slow, seconds)
                seen += found
        near.send("stop")
        decisions, missed = near.recv()
        session.join()
    late = 1000 * np.concatenate([entries for entries, _ in seen])

    def of_session(kind: str, which: int) -> np.ndarray:
        """Milliseconds of the decisions while there were viewers, or none."""
        times = periods[kind]
        inside = [one for one in decisions if not one[3] and any(begun <= one[0] <= ended for begun, ended in times)]
        return 1000 * np.array([one[which] for one in inside])

    def of_memory(begun: float, ended: float) -> float:
        return float(np.median([size for at, size in memory if begun <= at <= ended]))

    (first, _), (_, last) = periods["watched"][0], periods["watched"][-1]
    whole = {f"session_{kind}_p50_ms": float(np.median(of_session(kind, 1))) for kind in periods}
    whole |= {f"session_{kind}_p90_ms": float(np.quantile(of_session(kind, 1), 0.9)) for kind in periods}
    whole |= {f"model_{kind}_p50_ms": float(np.median(of_session(kind, 2))) for kind in periods}

    return {
        "cpu": cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "viewers": viewers,
        "slow": slow,
        "seconds": seconds,
        "rounds": rounds,
        "updates": len(late),
        "p50_ms": float(np.quantile(late, 0.5)),
        "p99_ms": float(np.quantile(late, 0.99)),
        "max_ms": float(late.max()),
        "left_out": sum(missed for _, missed in seen),
        "slow_counted": counts["slow"],
        **whole,
        "decisions": len(decisions),
        "decisions_missed": missed,
        "page_mb_first": of_memory(first + 5, first + 20),
        "page_mb_last": of_memory(last - 15, last),
        "load": round(os.getloadavg()[0], 1),
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
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--csv", type=Path)
    given = parser.parse_args()
    found = measure(given.viewers, given.slow, given.seconds, given.rounds)
    for name, value in found.items():
        print(f"{name:>24} {value if isinstance(value, str) else format(value, '.6g')}")
    if given.csv:
        with given.csv.open("w", newline="") as file:
            table = csv.DictWriter(file, found, lineterminator="\n")
            table.writeheader()
            table.writerow(
                {name: round(value, 3) if isinstance(value, float) else value for name, value in found.items()}
            )


if __name__ == "__main__":
    main()
