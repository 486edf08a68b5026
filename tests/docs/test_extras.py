"""The install page lists every extra with the packages that it brings."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def packages(requirements: list[str]) -> set[str]:
    """Names of packages; of zipbrain itself, the extras that are asked for."""
    found = set()
    for one in requirements:
        own = re.fullmatch(r"zipbrain\[(.+)\]", one)
        found |= set(own[1].split(",")) if own else {re.split(r"[<>=!~\[ ;]", one)[0]}
    return found


def test_the_install_page_lists_every_extra_and_what_it_brings() -> None:
    page = (ROOT / "docs" / "install.md").read_text()
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    listed = {}
    for name, brings in re.findall(r"^\| `(\w+)` \| ([^|]+) \|", page, re.MULTILINE):
        listed[name] = {word.strip(" `") for word in re.split(r", with|,", brings)}
    wanted = {name: packages(found) for name, found in extras.items() if name not in ("all", "dev", "docs")}
    assert listed == wanted
