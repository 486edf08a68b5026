"""The page's server: who may ask, what a slow viewer costs, and what may be seen without a name."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks.live.bad_requests import ask, attack, command, is_refused, request, upgrade
from benchmarks.live.made_up_session import MadeUpSession
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from zipbrain.errors import DataError, OptionError
from zipbrain.live.board import Board
from zipbrain.live.commands import FOLDER
from zipbrain.live.page import start
from zipbrain.live.page.app import Viewers
from zipbrain.live.page.bed_messages import MOST_WAITING
from zipbrain.live.page.server import TOKEN_FILE, bind, read_token

from .page_message import read_message


@pytest.fixture(scope="module")
def bed(tmp_path_factory) -> Iterator[Any]:
    """A session that runs, and its page."""
    folder = tmp_path_factory.mktemp("live") / "bed"
    session = MadeUpSession(folder, seizures=[], past_s=60)
    thread = threading.Thread(target=session.run, args=(120,), daemon=True)
    thread.start()
    with start(folder, "127.0.0.1:0") as page:
        yield folder, page, int(page.url.rstrip("/").rpartition(":")[2])
    session.stopping.set()
    thread.join()
    session.close()


def listen(port: int, path: str = "/bed/0/live", **options: Any) -> Any:
    return connect(f"ws://127.0.0.1:{port}{path}", origin=f"http://127.0.0.1:{port}", max_size=None, **options)


def test_a_viewer_gets_every_sample_in_order(bed):
    with listen(bed[2]) as viewer:
        hello = json.loads(viewer.recv())
        assert (len(hello["channels"]), hello["rate"]) == (23, 256.0)
        messages = [read_message(viewer.recv()) for _ in range(12)]
    ends = [header["first"] + len(rows) for header, rows in messages]
    assert [header["first"] for header, _ in messages[1:]] == ends[:-1]
    assert [header["number"] for header, _ in messages] == list(range(hello["number"] + 1, hello["number"] + 13))


def test_what_viewers_get_holds_no_name(bed):
    with listen(bed[2]) as viewer:
        heard = viewer.recv() + "".join(str(read_message(viewer.recv())[0]) for _ in range(5))
    assert "seizure" in heard
    assert "Jane" not in heard


def test_every_kind_of_bad_request_is_refused_within_a_second_and_changes_nothing(bed):
    folder, _, port = bed
    results = attack(port, 45)
    assert [result for result in results if not is_refused(*result[1:])] == []
    assert list((folder / FOLDER).iterdir()) == []
    assert "someone else" not in (folder / "journal.jsonl").read_text()
    assert ask(port, request(port=port))[0] == "200"


def test_a_good_command_reaches_the_journal_and_a_flood_of_them_is_refused(bed):
    folder, _, port = bed
    mark = {"command": "mark", "time_s": 3, "stop_s": 4, "label": "event", "by": "a test"}
    results = [ask(port, command(mark, port=port))[0] for _ in range(40)]
    assert results[0] == "200"
    assert results[-1] == "429"
    end = time.monotonic() + 5
    while '"by":"a test"' not in (folder / "journal.jsonl").read_text():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_answers_forbid_scripts_of_others_frames_and_caching(bed):
    connection = http.client.HTTPConnection("127.0.0.1", bed[2])
    for path in ("/", "/static/js/bed.js", "/nowhere"):
        connection.request("GET", path)
        answer = connection.getresponse()
        answer.read()
        policy = answer.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["Cache-Control"] == "no-store"
        assert "Access-Control-Allow-Origin" not in answer.headers


def test_viewers_that_do_not_read_hold_up_no_other(bed):
    port = bed[2]
    with ExitStack() as stack:
        for _ in range(3):
            slow = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            slow.sendall(upgrade(port=port))  # and never reads
        viewer = stack.enter_context(listen(port))
        viewer.recv()
        late = []
        for _ in range(40):
            header, _ = read_message(viewer.recv())
            late.append(time.monotonic() - header["sent"])
    assert np.quantile(late, 0.95) < 0.1


def test_a_slow_viewer_is_counted_and_then_gets_the_newest_message(tmp_path):
    class Stuck:
        """A viewer whose line takes nothing after the third message until it is freed."""

        def __init__(self) -> None:
            self.free, self.numbers = asyncio.Event(), []

        async def send_text(self, _: str) -> None: ...

        async def send_bytes(self, message: bytes) -> None:
            self.numbers.append(read_message(message)[0]["number"])
            if len(self.numbers) == 3:
                await self.free.wait()

    async def show() -> tuple[int, Stuck, dict[str, int]]:
        viewers, stuck = Viewers([tmp_path]), Stuck()
        tasks = [asyncio.create_task(viewers.run()), asyncio.create_task(viewers.show(stuck, viewers.beds[0]))]
        await asyncio.sleep(3)
        slow = viewers.counts["slow"]
        stuck.free.set()
        await asyncio.sleep(0.3)
        for task in tasks:
            task.cancel()
        return slow, stuck, viewers.counts

    slow, stuck, counts = asyncio.run(show())
    third, fourth = stuck.numbers[2:4]
    assert slow == 1
    assert fourth - third > MOST_WAITING
    assert counts["missed"] == fourth - third - 1


def test_another_address_needs_the_token_that_is_printed_once_and_kept_privately(tmp_path):
    folder = tmp_path / "bed"
    Board(folder, ["C3"], 100, seconds=1).close()
    with start(folder, "0.0.0.0:0") as page:
        url, token = page.url.split("?token=")
        port = int(url.rstrip("/").rpartition(":")[2])
        path = folder / TOKEN_FILE
        assert path.read_text() == token
        assert path.stat().st_mode & 0o777 == 0o600
        for given in ("", "x" * len(token), token[:-1]):
            assert ask(port, request(path=f"/?token={given}", port=port))[0] == "401"
        for asked in (request(port=port), request(path="/static/js/bed.js", port=port), command(port=port)):
            assert ask(port, asked)[0] == "401"
        with pytest.raises(InvalidStatus, match="401"):
            listen(port)
        bearer = f"Authorization: Bearer {token}\n"
        assert ask(port, request(more=bearer, port=port))[0] == "200"
        assert ask(port, request(path=f"/?token={token}", port=port))[0] == "303"
        with listen(port, additional_headers={"Cookie": f"zipbrain_page={token}"}) as viewer:
            assert json.loads(viewer.recv())["label"] == "bed"
    with start(folder, "0.0.0.0:0") as page:
        assert token not in page.url  # said once
        assert str(path) in page.url
    path.chmod(0o644)
    with pytest.raises(DataError, match="others can read"):
        read_token(folder)


@pytest.mark.parametrize(
    "address", ["", "8765", "127.0.0.1:", "127.0.0.1:99999", "127.0.0.1:x", "no.such.host.invalid:80"]
)
def test_a_wrong_address_is_refused_in_one_line(address):
    with pytest.raises(OptionError, match="--page"):
        bind(address)


def test_an_address_in_use_a_missing_folder_and_too_many_are_refused_in_one_line(bed, tmp_path):
    with pytest.raises(DataError, match="can't be had"):
        start(bed[0], f"127.0.0.1:{bed[2]}")
    with pytest.raises(DataError, match="no such folder"):
        start(tmp_path / "nowhere", "127.0.0.1:0")
    with pytest.raises(DataError, match="1 to 16"):
        start([tmp_path] * 17, "127.0.0.1:0")


def test_the_page_ends_with_the_process_that_started_it(tmp_path):
    Board(tmp_path, ["C3"], 100, seconds=1).close()
    code = (
        "import sys, time; from pathlib import Path; from zipbrain.live.page import start\n"
        "print(start(Path(sys.argv[1]), '127.0.0.1:0').url, flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True) as parent:
        port = int(parent.stdout.readline().strip().rstrip("/").rpartition(":")[2])
        assert ask(port, request(port=port))[0] == "200"
        parent.kill()
    end = time.monotonic() + 5
    while socket.socket().connect_ex(("127.0.0.1", port)) == 0:
        assert time.monotonic() < end
        time.sleep(0.1)


def test_nothing_of_the_page_is_imported_unless_it_is_asked_for():
    code = "import sys, zipbrain.live.journal, zipbrain.live.board, zipbrain.live.page; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"starlette", "uvicorn", "websockets", "torch"} & set(loaded)


def test_a_folder_without_a_session_and_the_wall_are_served(tmp_path, bed):
    (tmp_path / "empty").mkdir()
    with start([tmp_path / "empty", bed[0]], "127.0.0.1:0") as page:
        port = int(page.url.rstrip("/").rpartition(":")[2])
        with listen(port, "/live") as viewer:
            beds = json.loads(viewer.recv())["beds"]
    assert [(one["label"], one["alive"]) for one in beds] == [("empty", False), ("bed", True)]
    assert beds[1]["bad"] == {"O1": "flat", "T8": "noisy"}


def test_every_file_of_the_page_comes_with_the_package():
    import tomllib

    root = Path(__file__).parents[2]
    patterns = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["zipbrain"]
    package = root / "src" / "zipbrain"
    packed = {path for pattern in patterns for path in package.glob(pattern) if path.is_file()}
    assert {path for path in (package / "live" / "page" / "static").rglob("*") if path.is_file()} <= packed
