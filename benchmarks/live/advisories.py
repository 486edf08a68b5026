"""Known advisories of what the page is served with: the pinned versions, looked up at PyPI.

python -m benchmarks.live.advisories

PyPI shows, for the newest version of a project, the advisories of the OSV database; a pin that is not the newest is
asked for by its own address. Writes benchmarks/results/live_advisories.csv; needs the network.
"""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from datetime import UTC, datetime
from importlib.metadata import requires
from typing import Any

from benchmarks.shared.results import ROOT, write_csv

SERVERS = ("h11", "starlette", "uvicorn", "websockets")
ADDRESS = "https://pypi.org/pypi/{}/json"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def pins() -> dict[str, str]:
    """Every pinned version by its project's name."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pairs = (line.split(";")[0].strip().split("==") for line in lines if "==" in line)
    return {normal(pair[0]): pair[1] for pair in pairs}


def needed() -> list[str]:
    """The projects that serve the page, and those that they need, as installed here."""
    found, waiting = set[str](), list(SERVERS)
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found.add(name)
        waiting += [normal(_NAME.match(line)[0]) for line in requires(name) or () if ";" not in line]  # type: ignore[index]
    return sorted(found)


def ask(place: str) -> dict[str, Any] | None:
    try:
        with urllib.request.urlopen(ADDRESS.format(place), timeout=30) as answer:
            content: dict[str, Any] = json.load(answer)
            return content
    except urllib.error.HTTPError:
        return None


def look_up(name: str, version: str) -> dict[str, str]:
    """What PyPI knows of one pinned version."""
    newest = ask(name)
    own = newest if newest and newest["info"]["version"] == version else ask(f"{name}/{version}")
    known = [found["id"] for found in own["vulnerabilities"] if not found.get("withdrawn")] if own else None
    return {
        "package": name,
        "pinned": version,
        "newest": newest["info"]["version"] if newest else "",
        "advisories": "not known" if known is None else " ".join(known) or "none",
        "looked_up": f"{ADDRESS.format(name)} {datetime.now(UTC):%Y-%m-%d}",
    }


def main() -> None:
    versions = pins()
    rows = [look_up(name, versions[name]) for name in needed()]
    for row in rows:
        print("  ".join(row.values()))
    print(write_csv("live_advisories", rows))


if __name__ == "__main__":
    main()
