"""What the page weighs, when it paints first, and what axe-core finds, at three sizes in both themes.

    python -m benchmarks.live.page_load

A made-up session with an alarm, headless Chromium on loopback with an empty cache; the median and the slowest of three
loads. Bytes are all that came by HTTP until the page was live. Writes benchmarks/results/live_page_load.csv.
"""

from __future__ import annotations

import gzip
import shutil
import sys
import tempfile
import threading
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.live.made_up_session import MadeUpSession
from benchmarks.live.pictures import FLAGS
from benchmarks.live.viewers import keep_pace
from benchmarks.shared.results import ROOT, write_csv
from playwright.sync_api import sync_playwright

from zipbrain.live.page import start

AXE = ROOT / "tests" / "live" / "axe" / "axe.min.js.gz"
SIZES = {"desktop": (1280, 800), "tablet": (1024, 768), "phone": (390, 844)}
LOADS = 3
_LIVE = "document.querySelector('#pulse').dataset.kind === 'live'"
_PAINTED = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
_IMPACTS = ("critical", "serious", "moderate", "minor")


def load(browser: Any, url: str, size: tuple[int, int], theme: str, axe: str) -> tuple[int, float, Counter[str]]:
    """Bytes of one load, milliseconds to its first paint, and findings by impact."""
    options = {"viewport": {"width": size[0], "height": size[1]}, "color_scheme": theme, "reduced_motion": "reduce"}
    context = browser.new_context(**options)
    page, sizes = context.new_page(), list[int]()
    page.on("requestfinished", lambda request: sizes.append(sum_of(request)))
    page.goto(url)
    while not page.evaluate(_LIVE):
        page.wait_for_timeout(50)
    whole, painted = sum(sizes), float(page.evaluate(_PAINTED))
    page.evaluate(axe)
    report = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    context.close()
    return whole, painted, Counter(one["impact"] for one in report["violations"])


def sum_of(request: Any) -> int:
    """Bytes of an answer, its headers with it; samples of the past are no part of the page."""
    if "/samples" in request.url:
        return 0
    sizes = request.sizes()
    return int(sizes["responseBodySize"] + sizes["responseHeadersSize"])


def main() -> None:
    found = shutil.which("chromium")
    if found is None:
        sys.exit("error: no chromium on this machine (Debian: apt-get install chromium)")
    axe = gzip.decompress(AXE.read_bytes()).decode()
    rows = []
    with tempfile.TemporaryDirectory() as place, ExitStack() as stack:
        folders = [Path(place) / name for name in ("bed-1", "bed-2")]
        for folder in folders:
            session = MadeUpSession(folder, seizures=[20.0], seizure_s=3600, past_s=30)
            thread = threading.Thread(target=session.run, args=(600,), daemon=True)
            thread.start()
            stack.callback(session.close)
            stack.callback(thread.join)
            stack.callback(session.stopping.set)
        served = stack.enter_context(start(folders, "127.0.0.1:0"))
        keep_pace(served.pid)
        browser = stack.enter_context(sync_playwright()).chromium.launch(executable_path=found, args=FLAGS)
        for what, path in (("page", "bed/0"), ("wall", "")):
            for name, size in SIZES.items():
                for theme in ("light", "dark"):
                    loads = [load(browser, served.url + path, size, theme, axe) for _ in range(LOADS)]
                    findings = {f"axe_{impact}": max(one[2][impact] for one in loads) for impact in _IMPACTS}
                    facts = {"what": what, "size": name, "theme": theme, "kb": round(loads[0][0] / 1000, 1)}
                    painted = {"first_paint_ms": round(median(one[1] for one in loads))}
                    painted["slowest_ms"] = round(max(one[1] for one in loads))
                    rows.append(facts | painted | findings)
                    print(rows[-1])
        browser.close()
    print(write_csv("live_page_load", rows))


if __name__ == "__main__":
    main()
