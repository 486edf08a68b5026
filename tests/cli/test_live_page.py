"""`zipbrain live page` and `zipbrain live wall`: what they print, to people and to machines."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")


@contextmanager
def serving(*arguments: object) -> Iterator[Any]:
    """The process of a page and its first line; it is ended with Ctrl-C, and has nothing more to say."""
    command = [sys.executable, "-m", "zipbrain", "live", *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout
        finally:
            process.send_signal(signal.SIGINT)
    assert process.returncode == 0


@pytest.mark.parametrize(("command", "beds"), [("page", ["bed"]), ("wall", ["bed-1", "bed-2"])])
def test_json_is_one_line_with_the_address(tmp_path: Path, command: str, beds: list[str]) -> None:
    folders = [tmp_path / name for name in beds]
    for folder in folders:
        folder.mkdir()
    with serving(command, *folders, "--address", "127.0.0.1:0", "--json") as stdout:
        said = json.loads(stdout.readline())
        assert said.keys() == {"line", "url", "token_file", "folders"}
        assert (said["line"], said["token_file"], said["folders"]) == ("page", None, list(map(str, folders)))
        with urllib.request.urlopen(said["url"]) as answer:
            assert answer.status == 200


def test_json_names_the_token_of_a_page_that_other_machines_reach(tmp_path: Path) -> None:
    seen = []
    for _ in range(2):
        with serving("page", tmp_path, "--address", "0.0.0.0:0", "--json") as stdout:
            seen.append(json.loads(stdout.readline()))
    token = (tmp_path / "page-token").read_text()
    assert seen[0]["url"].endswith(f"/?token={token}")
    assert token not in seen[1]["url"]  # printed once
    assert {one["token_file"] for one in seen} == {str(tmp_path / "page-token")}


def test_people_get_the_address_and_how_to_end_the_page(tmp_path: Path) -> None:
    with serving("page", tmp_path, "--address", "127.0.0.1:0") as stdout:
        assert stdout.readline().startswith("The page is at http://127.0.0.1:")
        assert stdout.readline() == "Ctrl-C ends it.\n"
