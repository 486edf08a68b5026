"""The page in headless Chromium: what a viewer sees, does, and must never believe."""

from __future__ import annotations

import gzip
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headless_browser import chromium
from zipbrain.live.chain import read_chain
from zipbrain.live.evaluate import evaluate
from zipbrain.live.page import start
from zipbrain.live.page.journal_tail import FIRST_BYTES

from .page_reading import examine, running, spread, wait_for, watch

AXE = Path(__file__).with_name("axe") / "axe.min.js.gz"
LOWER_HALF = """(() => { const c = document.querySelector('#traces');
    const half = c.getContext('2d').getImageData(0, c.height / 2, c.width, c.height / 2);
    return half.data.reduce((sum, value) => (31 * sum + value) | 0, 0); })()"""  # of the traces, without the note above
SIZES = {"desktop": (1280, 800), "tablet": (1024, 768), "phone": (390, 844)}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as found:
        yield found


@pytest.fixture
def open_page(browser):
    """Opens a page that may log no error and report no breach of its policy."""
    contexts, complaints = [], []

    def open_it(url: str, size: str = "desktop", **options: Any) -> Any:
        width, height = SIZES[size]
        context = browser.new_context(viewport={"width": width, "height": height}, **options)
        contexts.append(context)
        page = context.new_page()
        page.add_init_script("addEventListener('securitypolicyviolation', (e) => console.error('CSP', e.blockedURI));")
        page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(url)
        return page

    yield open_it
    for context in contexts:
        context.close()
    outages = re.compile("WebSocket connection to|ERR_CONNECTION_REFUSED")  # Chromium's own words while nothing answers
    assert [words for words in complaints if not outages.search(words)] == []


def text(page: Any, place: str) -> str:
    return page.inner_text(place)


def kinds(folder: Path) -> list[tuple[str, Any]]:
    lines = read_chain(folder / "journal.jsonl").lines
    return [(line["kind"], line["facts"].get("kind") or line["facts"].get("label")) for line in lines]


def test_an_alarm_appears_is_acknowledged_and_both_stand_in_the_journal(tmp_path, open_page):
    with running(tmp_path, seizures=(26.0,), seizure_s=600), start(tmp_path, "127.0.0.1:0") as served:
        page = open_page(served.url)
        wait_for(page, "document.querySelector('#pulse').dataset.kind === 'live'")
        # traces move
        first = int(page.get_attribute("#traces", "data-newest"))
        picture = page.evaluate("document.querySelector('#traces').toDataURL()")
        page.wait_for_timeout(400)
        assert int(page.get_attribute("#traces", "data-newest")) > first
        assert page.evaluate("document.querySelector('#traces').toDataURL()") != picture
        # the alarm appears, large enough to be read from afar, and can be acknowledged without a mouse
        wait_for(page, "document.querySelector('#alarm').dataset.kind === 'physiological'")
        assert "seizure" in text(page, "#alarm-title")
        assert page.evaluate("parseFloat(getComputedStyle(document.querySelector('#alarm-title')).fontSize)") >= 40
        wait_for(page, "parseInt(document.querySelector('#sure').innerText.replace('>', '')) >= 80", place="#sure")
        page.keyboard.press("a")
        wait_for(page, "document.querySelector('#alarm').dataset.kind === 'acknowledged'")
        assert "acknowledged" in text(page, "#journal li:first-child")
        # which electrode, how late
        assert "O1 flat" in text(page, "#electrode-list")
        assert re.search(r"signal \d\.\d s late", text(page, "#pulse"))
        # pause and resume; marks
        page.click("#pause")
        wait_for(page, "document.querySelector('#pause').innerText.startsWith('Resume')")
        page.keyboard.press("p")
        wait_for(page, "document.querySelector('#pause').innerText.startsWith('Pause')")
        page.keyboard.press("e")
        page.keyboard.press("f")
        wait_for(page, "document.querySelectorAll('#journal li').length >= 7")
        # no name of a person has come here
        assert "Jane" not in page.content()
        # the merge map, on request
        page.keyboard.press("m")
        wait_for(page, "document.querySelector('#merge-words').innerText.includes('230 tokens')")
    found = kinds(tmp_path)
    for line in ("raised", "acknowledged", "paused", "resumed"):
        assert ("event", line) in found
    assert ("mark", "event") in found
    assert ("mark", "false alarm") in found


def test_the_demos_page_shows_its_merge_map_and_its_marks_are_evaluated(tmp_path, open_page):
    command = [sys.executable, "-m", "zipbrain", "live", "--demo", "--page", "127.0.0.1:0", "--out", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            page = open_page(next(line for line in process.stdout if line.startswith("page ")).split()[1])
            wait_for(page, "/at \\d+ × speed/.test(document.querySelector('#pulse').innerText)", place="#pulse")
            wait_for(page, "document.querySelector('#alarm-detail').innerText.includes('last alarm')", 20)
            page.keyboard.press("f")
            wait_for(page, "document.querySelector('#journal').innerText.includes('Marked as false alarm')")
            page.keyboard.press("n")
            wait_for(page, "/Alarms · marked false\\s+\\d+ · 1/.test(document.querySelector('#numbers').innerText)")
            page.keyboard.press("Escape")
            page.keyboard.press("m")
            wait_for(page, "/\\d+ tokens, \\d+ kept/.test(document.querySelector('#merge-words').innerText)")
        finally:
            process.send_signal(signal.SIGINT)
    (score,) = evaluate(tmp_path).scores
    assert (score.alarm, score.confirmed_false) == ("spikes and waves", 1)


@pytest.mark.parametrize("size", ["desktop", "tablet"])
def test_two_whole_lines_say_how_late_the_decision_and_how_good_the_signal_is(tmp_path, open_page, size):
    with running(tmp_path), start(tmp_path, "127.0.0.1:0") as served:
        page = open_page(served.url, size, has_touch=size != "desktop")
        wait_for(page, "document.querySelector('#decision-line').innerText.includes('after its window')")
        lines = page.inner_text(".lines").splitlines()
        assert [re.sub(r"[\d.]+", "N", line) for line in lines] == [
            "Decision N s after its window ended",
            "Signal complete, N electrodes bad",
        ]
        card, side = (page.locator(place).bounding_box() for place in (".numbers", ".side"))
        assert card["y"] + card["height"] <= side["y"] + side["height"]  # in sight without scrolling
        assert card["height"] < 70  # each line in one row
        page.click("#every-number")
        assert len(page.inner_text("#numbers").splitlines()) == 24
        served.close()  # what was true a moment ago must not look true now
        wait_for(page, "document.querySelector('.lines').innerText.split('not current').length === 3", place=".lines")


def test_a_rate_over_the_session_is_not_shown_where_only_its_newest_part_is_known(tmp_path, open_page):
    with running(tmp_path) as session:
        with start(tmp_path, "127.0.0.1:0") as served:
            page = open_page(served.url)
            page.keyboard.press("n")
            wait_for(
                page, "/24 h\\s+– \\(below 1 h\\)/.test(document.querySelector('#numbers').innerText)", place="dialog"
            )
        for _ in range(FIRST_BYTES // 50_000 + 1):  # as long as hours of decisions
            session.journal.write("filler", words="x" * 50_000)
        with start(tmp_path, "127.0.0.1:0") as served:
            page = open_page(served.url)
            page.keyboard.press("n")
            wait_for(
                page,
                "/24 h\\s+– \\(only the journal/.test(document.querySelector('#numbers').innerText)",
                place="dialog",
            )
            assert re.search(r"marked false\s+at least 0 · 0", text(page, "#numbers"))


def test_marks_on_the_strip_have_times(tmp_path, open_page):
    above = """(() => { const c = document.querySelector('#strip-canvas');
        const row = c.getContext('2d').getImageData(0, 0, c.width, 15 * Math.min(devicePixelRatio, 2));
        return row.data.filter((value, at) => at % 4 === 3 && value > 100).length; })()"""  # pixels above the strip
    with running(tmp_path), start(tmp_path, "127.0.0.1:0") as served:
        page = open_page(served.url)
        wait_for(page, "document.querySelector('#pulse').dataset.kind === 'live'")
        assert page.evaluate(above) == 0
        page.keyboard.press("e")
        wait_for(page, f"{above} > 100")


def test_gain_time_base_and_the_past_by_keyboard(tmp_path, open_page):
    with running(tmp_path, past_s=100), start(tmp_path, "127.0.0.1:0") as served:
        page = open_page(served.url)
        wait_for(page, "document.querySelector('#pulse').dataset.kind === 'live'")
        page.keyboard.press("ArrowUp")
        page.keyboard.press("+")
        assert (text(page, "#gain"), text(page, "#span")) == ("70 µV", "15 s")
        page.keyboard.press("ArrowLeft")
        wait_for(page, "document.querySelector('#live').getAttribute('aria-pressed') === 'false'")
        wait_for(page, "document.querySelector('#strip').getAttribute('aria-valuetext').endsWith('ago')")
        page.wait_for_timeout(300)
        held = page.evaluate(LOWER_HALF)
        page.wait_for_timeout(400)
        assert page.evaluate(LOWER_HALF) == held  # the past stands still
        page.keyboard.press(" ")
        wait_for(page, "document.querySelector('#live').getAttribute('aria-pressed') === 'true'")


def test_gain_and_time_base_by_touch(tmp_path, open_page):
    with running(tmp_path), start(tmp_path, "127.0.0.1:0") as served:
        page = open_page(served.url, "tablet", has_touch=True)
        wait_for(page, "document.querySelector('#pulse').dataset.kind === 'live'")
        page.tap("#gain-up")
        page.tap("#span-up")
        assert (text(page, "#gain"), text(page, "#span")) == ("70 µV", "15 s")
        box = page.locator("#traces").bounding_box()
        middle = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
        spread(page, middle, (0, 40), (0, 75))
        wait_for(page, "document.querySelector('#gain').innerText === '50 µV'")  # larger
        spread(page, middle, (60, 0), (110, 0))
        wait_for(page, "document.querySelector('#span').innerText === '10 s'")  # shorter


def test_a_source_that_falls_silent_is_said_within_three_seconds_and_a_page_that_restarts_is_found(tmp_path, open_page):
    with running(tmp_path) as session:
        served = start(tmp_path, "127.0.0.1:0")
        address = served.url.removeprefix("http://").rstrip("/")
        page = open_page(served.url)
        wait_for(page, "document.querySelector('#pulse').dataset.kind === 'live'")
        session.silence.set()
        wait_for(page, "document.querySelector('#pulse').dataset.kind === 'late'", 3)
        wait_for(page, "document.querySelector('#alarm-title').innerText === 'No signal'", 3)
        wait_for(page, "document.querySelector('#sure').innerText === '–'", 4)  # what was decided last is not current
        session.silence.clear()
        wait_for(page, "document.querySelector('#alarm').dataset.kind === 'none'", 5)
        # the page's process dies: nothing on the screen may look alive
        served.close()
        wait_for(page, "document.querySelector('#alarm').dataset.kind === 'lost'", 3)
        assert "old" in text(page, "#alarm-detail")
        assert text(page, "#clock") == "--:--:--"
        with start(tmp_path, address):
            wait_for(page, "document.querySelector('#pulse').dataset.kind === 'live'", 8)


def test_a_killed_session_is_said_within_three_seconds_and_its_successor_is_shown(tmp_path, open_page):
    command = [sys.executable, "-m", "benchmarks.live.made_up_session", str(tmp_path), "--seizures", ""]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=os.environ) as process:
        process.stdout.readline()
        with start(tmp_path, "127.0.0.1:0") as served:
            page = open_page(served.url)
            wait_for(page, "document.querySelector('#pulse').dataset.kind === 'live'")
            process.send_signal(signal.SIGKILL)
            wait_for(page, "document.querySelector('#alarm-title').innerText === 'Session stopped'", 3)
            assert text(page, "#sure") == "–"
            assert page.is_disabled("#pause")
            with running(tmp_path, past_s=0):
                wait_for(page, "document.querySelector('#pulse').dataset.kind === 'live'", 6)


def test_a_page_whose_script_hangs_is_covered(tmp_path, open_page):
    with running(tmp_path), start(tmp_path, "127.0.0.1:0") as served:
        page = open_page(served.url)
        wait_for(page, "document.querySelector('#pulse').dataset.kind === 'live'")
        pictures = watch(page)
        page.wait_for_timeout(300)
        page.evaluate(
            "setTimeout(() => { const end = performance.now() + 8000; while (performance.now() < end); }, 50)"
        )
        page.wait_for_timeout(6500)
        assert min(pictures) < 0.85 * pictures[0]  # painted while the script hung
        wait_for(page, "getComputedStyle(document.querySelector('#frozen')).opacity < 0.01")


def test_the_page_is_light_and_paints_within_a_second(tmp_path, browser):
    with running(tmp_path), start(tmp_path, "127.0.0.1:0") as served:
        page = browser.new_page()
        weights: list[int] = []
        page.on("response", lambda answer: weights.append(int(answer.headers.get("content-length", 0))))
        page.goto(served.url)
        wait_for(page, "document.querySelector('#pulse').dataset.kind === 'live'")
        painted = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
        files = [weight for weight in weights if weight < 2_000_000]
        page.close()
    assert painted < 1000
    assert sum(path.stat().st_size for path in static_files()) < 250_000
    assert files


def static_files() -> list[Path]:
    import zipbrain.live.page.process as here

    return [path for path in Path(here.__file__).with_name("static").rglob("*") if path.is_file()]


def test_axe_finds_nothing_serious_and_nothing_is_wider_than_the_screen(tmp_path, open_page):
    beds = [tmp_path / "bed", tmp_path / "other"]
    axe = gzip.decompress(AXE.read_bytes()).decode()
    with running(beds[0], seizures=(22.0,), seizure_s=600), running(beds[1]), start(beds, "127.0.0.1:0") as served:
        for size, theme in (("desktop", "light"), ("desktop", "dark"), ("tablet", "dark"), ("phone", "light")):
            options = {"color_scheme": theme, "has_touch": size != "desktop", "reduced_motion": "reduce"}
            page = open_page(served.url, size, **options)
            wait_for(page, "document.querySelectorAll('.tile').length === 2", place="main")
            found = examine(page, axe)
            page.goto(served.url + "bed/0")
            wait_for(page, "document.querySelector('#alarm').dataset.kind === 'physiological'")
            found += examine(page, axe)
            page.keyboard.press("n")
            assert found + examine(page, axe) == [], (size, theme)
