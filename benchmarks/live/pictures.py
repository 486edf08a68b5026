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
        begun = time.monotonic()
        served = stack.enter_context(start(folders, "127.0.0.1:0"))
        keep_pace(served.pid)
        browser = stack.enter_context(sync_playwright()).chromium.launch(executable_path=found, args=FLAGS)
        pages = {}
        for name, (path, width, height, theme, _) in SHOTS.items():
            context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=theme)
            pages[name] = context.new_page()
            pages[name].goto(served.url + path)
        time.sleep(max(26 - (time.monotonic() - begun), 3))
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
