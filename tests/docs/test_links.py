"""Links inside the documentation lead somewhere, to a page and to a heading on it, whether the site is built or not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(path for path in DOCS.rglob("*.md") if "_build" not in path.parts)
MADE = {
    "tutorials": ROOT / "examples" / "tutorials",
    "gallery": ROOT / "examples" / "gallery",
}  # when the site is built


def text_of(page: Path) -> str:
    """A page without its code, in which brackets are no links."""
    return re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)


def source_of(target: Path) -> Path:
    """The file from which a page comes: the page itself, or the script of a gallery."""
    if target.parent in {DOCS / name for name in MADE}:
        folder = MADE[target.parent.name]
        return folder / ("GALLERY_HEADER.rst" if target.stem == "index" else f"{target.stem}.py")
    return target


def anchors(page: Path) -> set[str]:
    """The headings of a page as links name them."""
    titles = re.findall(r"^#{1,4} (.+)$", text_of(page), re.MULTILINE)
    words = (re.sub(r"[`*]|\[([^]]*)\]\([^)]*\)", r"\1", title).lower() for title in titles)
    return {re.sub(r"[^\w\- ]", "", one).strip().replace(" ", "-") for one in words}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(DOCS).as_posix())
def test_every_link_of_a_page_leads_to_a_page_and_a_heading(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", text_of(page)):
        if re.match(r"https?:|mailto:", link):
            continue
        place, _, heading = link.partition("#")
        target = source_of((page.parent / place).resolve()) if place else page
        assert target.exists(), link
        if heading and target.suffix == ".md":
            assert heading in anchors(target), link


def test_every_page_that_an_example_names_exists() -> None:
    scripts = [path for folder in MADE.values() for path in sorted(folder.glob("plot_*.py"))]
    assert len(scripts) >= 19
    for script in scripts:
        for name in re.findall(r":doc:`(?:[^<`]*<)?([^>`]+)>?`", script.read_text()):
            own = DOCS / script.parent.name
            target = source_of((DOCS / name[1:] if name.startswith("/") else own / name).with_suffix(".md"))
            found = target.exists() or target.with_suffix(".py").exists()
            assert found, f"{script.name}: {name}"


def test_every_page_is_in_a_table_of_contents() -> None:
    listed = set()
    for page in PAGES:
        for block in re.findall(r"```\{toctree\}\n(.*?)```", page.read_text(), re.DOTALL):
            entries = [line.strip() for line in block.splitlines() if line.strip() and not line.startswith(":")]
            listed |= {(page.parent / entry).with_suffix(".md").resolve() for entry in entries}
    assert [page for page in PAGES if page not in listed and page != DOCS / "index.md"] == []
