"""The pictures of docs/guides/live_page.md: the page of a made-up session, and a wall of six, in headless Chromium.

python -m benchmarks.live.pictures [--out benchmarks/results]
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from io import BytesIO
from pathlib import Path
from typing import Any

from benchmarks.live.made_up_session import MadeUpSession
from benchmarks.live.viewers import keep_pace
from PIL import Image
from playwright.sync_api import sync_playwright

from zipbrain.live.page import start

FLAGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-sync"]
SHOTS = {  # name: path, width, height, theme, key that is pressed first
    "live_page_desktop": ("bed/0", 1280, 800, "light", ""),
    "live_page_tablet": ("bed/1", 1024, 768, "dark", ""),
    "live_page_phone": ("bed/0", 390, 844, "dark", ""),
    "live_page_merges": ("bed/1", 1280, 800, "light", "m"),
    "live_wall": ("", 1280, 560, "light", ""),
}

WITH_ALARM = ("live_page_desktop", "live_page_phone", "live_wall")  # pages that show the bed whose alarm is on
HAS_ALARM = "document.querySelector('[data-kind=physiological]') !== null"
LONGEST_WAIT_S = 120.0  # for the alarm, half a minute after its session began


def wait_for_alarm(page: Any) -> None:
    """Return when a page shows an alarm; asked from outside, since the page's policy lets no script wait in it."""
    end = time.monotonic() + LONGEST_WAIT_S
    while not page.evaluate(HAS_ALARM):
        if time.monotonic() > end:
            sys.exit(f"error: {page.url} shows no alarm within {LONGEST_WAIT_S:g} s")
        page.wait_for_timeout(100)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    given = parser.parse_args()
    found = shutil.which("chromium")
    if found is None:
        sys.exit("error: no chromium on this machine (Debian: apt-get install chromium)")
    with tempfile.TemporaryDirectory() as place, ExitStack() as stack:
        folders = [Path(place) / f"bed-{number}" for number in range(1, 7)]
        past = 1500.0
        seizures = {0: [700.0, past + 28], 1: [600.0], 3: [past - 60]}
        for number, folder in enumerate(folders):
            kept = past if number < 2 or number == 3 else 90.0
            session = MadeUpSession(folder, seizures=seizures.get(number, []), past_s=kept, audit=True)
            thread = threading.Thread(target=session.run, args=(300,), daemon=True)
            thread.start()
            stack.callback(session.close)
            stack.callback(thread.join)
            stack.callback(session.stopping.set)
            if number == 1:
                session.alarm["state"] = "off"
            if number == 2:
                session.silence.set()
        served = stack.enter_context(start(folders, "127.0.0.1:0"))
        keep_pace(served.pid)
        browser = stack.enter_context(sync_playwright()).chromium.launch(executable_path=found, args=FLAGS)
        pages = {}
        for name, (path, width, height, theme, _) in SHOTS.items():
            context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=theme)
            pages[name] = context.new_page()
            pages[name].goto(served.url + path)
        for name in WITH_ALARM:
            wait_for_alarm(pages[name])
        pages["live_page_desktop"].wait_for_timeout(2000)  # the trend shows the seizure too
        given.out.mkdir(parents=True, exist_ok=True)
        for name, page in pages.items():
            if SHOTS[name][-1]:
                page.keyboard.press(SHOTS[name][-1])
            page.wait_for_timeout(200)
            picture = Image.open(BytesIO(page.screenshot())).convert("RGB")
            picture.quantize(64, method=Image.Quantize.FASTOCTREE).save(given.out / f"{name}.png", optimize=True)
            print(f"{given.out / name}.png: {(given.out / name).with_suffix('.png').stat().st_size // 1024} kB")
        browser.close()


if __name__ == "__main__":
    main()
