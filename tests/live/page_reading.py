"""A made-up session that runs, and what a test asks a page in a browser."""

from __future__ import annotations

import base64
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from benchmarks.live.made_up_session import MadeUpSession


@contextmanager
def running(folder: Path, *, seizures: tuple[float, ...] = (), past_s: float = 30, **options: Any) -> Iterator[Any]:
    """A made-up session that runs in a thread."""
    session = MadeUpSession(folder, seizures=list(seizures), past_s=past_s, **options)
    thread = threading.Thread(target=session.run, args=(120,), daemon=True)
    thread.start()
    try:
        yield session
    finally:
        session.stopping.set()
        thread.join()
        session.close()


def wait_for(page: Any, script: str, seconds: float = 30, place: str = "#alarm") -> None:
    """Poll from outside: the page's policy lets nothing in it evaluate a text."""
    end = time.monotonic() + seconds
    while not page.evaluate(script):
        assert time.monotonic() < end, f"not within {seconds} s: {script}; the page says {page.inner_text(place)!r}"
        page.wait_for_timeout(50)


def spread(page: Any, middle: tuple[float, float], begin: tuple[float, float], end: tuple[float, float]) -> None:
    """Two fingers that move away from each other."""
    session = page.context.new_cdp_session(page)

    def touch(kind: str, away: tuple[float, float]) -> None:
        points = [{"x": middle[0] + s * away[0], "y": middle[1] + s * away[1], "id": 2 + s} for s in (-1, 1)]
        session.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points if kind != "touchEnd" else []})

    touch("touchStart", begin)
    for step in range(1, 9):
        touch("touchMove", tuple(a + (b - a) * step / 8 for a, b in zip(begin, end, strict=True)))
    touch("touchEnd", end)


def watch(page: Any) -> list[float]:
    """The mean brightness of every picture that the compositor shows from now on; it needs no script of the page."""
    session, found = page.context.new_cdp_session(page), []

    def take(event: dict[str, Any]) -> None:
        picture = plt.imread(BytesIO(base64.b64decode(event["data"])), format="jpg")
        found.append(float(picture.mean()))
        session.send("Page.screencastFrameAck", {"sessionId": event["sessionId"]})

    session.on("Page.screencastFrame", take)
    session.send("Page.startScreencast", {"format": "jpeg", "quality": 20})
    return found


def examine(page: Any, axe: str) -> list[Any]:
    """Serious findings of axe-core; a page that scrolls sideways is one."""
    page.evaluate(axe)
    # The cover of a page that hangs fades in where axe itself holds the page up for seconds.
    shown = "{include: document, exclude: '#frozen'}"
    report = page.evaluate(f"axe.run({shown}, {{resultTypes: ['violations']}})")
    serious = [one for one in report["violations"] if one["impact"] in ("serious", "critical")]
    wide = [] if page.evaluate("document.documentElement.scrollWidth <= innerWidth") else ["wider than the screen"]
    return wide + [(one["id"], [node["target"] for node in one["nodes"]]) for one in serious]
