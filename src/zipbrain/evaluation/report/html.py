"""A report as one HTML page that needs nothing else: pictures inside, no script, no network, light and dark."""

from __future__ import annotations

import base64
from typing import Final

from zipbrain.evaluation.report.document import Document, Picture, Section
from zipbrain.text import html_text

_TYPES: Final = {"svg": "image/svg+xml", "png": "image/png"}

_STYLE: Final = """
:root { color-scheme: light dark; --ink: #1d1d1f; --paper: #ffffff; --soft: #5d5d63; --line: #d9d9de; --note: #fff4d6;
  --link: #005a9c; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #ececf0; --paper: #17181b; --soft: #a8a8b0; --line: #3a3b41; --note: #3d3413; --link: #7cc0f5; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem 1rem 4rem; max-width: 76rem; color: var(--ink); background: var(--paper);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
h1 { font-size: 1.7rem; margin: 0 0 .5rem; } h2 { font-size: 1.35rem; margin: 2.5rem 0 .5rem;
  border-top: 1px solid var(--line); padding-top: 1.2rem; } h3 { font-size: 1.1rem; margin: 1.8rem 0 .4rem; }
h1, h2, h3, p, li, figcaption { overflow-wrap: anywhere; max-width: 56rem; }
a { color: var(--link); } nav ul { padding-left: 1.2rem; } p { margin: .4rem 0; }
.note { background: var(--note); border-left: 4px solid #e69f00; padding: .5rem .8rem; }
.wide { overflow-x: auto; margin: .8rem 0; }
table { border-collapse: separate; border-spacing: 0; font-size: .86rem; font-variant-numeric: tabular-nums; }
.soft, figcaption { color: var(--soft); font-size: .9rem; }
th, td { padding: .3rem .6rem; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }
th { vertical-align: bottom; } .word { text-align: left; } thead th { white-space: normal; min-width: 4.5rem; }
figure { margin: 1.2rem 0; }
.wide td:first-child, .wide th:first-child { position: sticky; left: 0; background: var(--paper); }
img { display: block; width: 100%; max-width: 56rem; height: auto; background: #ffffff; border: 1px solid var(--line);
  border-radius: 6px; padding: .4rem; }
@media print { body { max-width: none; } h2 { break-before: page; } figure, table { break-inside: avoid; } }
"""


def html_page(document: Document) -> str:
    """The whole page."""
    policy = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
    entries = "\n".join(
        f'<li><a href="#part-{number}">{html_text(section.title)}</a></li>'
        for number, section in enumerate(document.sections, 1)
    )
    contents = f'<nav aria-label="Contents"><ul>\n{entries}\n</ul></nav>' if len(document.sections) > 1 else ""
    parts = "\n".join(_section(section, 2, f"part-{number}") for number, section in enumerate(document.sections, 1))
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<title>{html_text(document.title)}</title>
<style>{_STYLE}</style>
</head>
<body>
<h1>{html_text(document.title)}</h1>
{_sentences(document.text, document.warnings)}
{contents}
<main>
{parts}
</main>
</body>
</html>
"""


def _section(section: Section, level: int, name: str = "") -> str:
    place = f' id="{name}"' if name else ""
    parts = [
        f"<h{level}{place}>{html_text(section.title)}</h{level}>",
        _sentences(section.text, section.warnings),
        *(table.to_html() for table in section.tables),
        *map(_picture, section.pictures),
        *(_section(part, level + 1) for part in section.inside),
    ]
    return "\n".join(filter(None, parts))


def _sentences(text: list[str], warnings: list[str]) -> str:
    plain = [f"<p>{html_text(line)}</p>" for line in text]
    return "\n".join([*plain, *(f'<p class="note">{html_text(line)}</p>' for line in warnings)])


def _picture(picture: Picture) -> str:
    content = base64.b64encode(picture.content).decode("ascii")
    source = f"data:{_TYPES[picture.kind]};base64,{content}"
    return (
        f'<figure><img src="{source}" alt="{html_text(picture.alt)}">\n'
        f"<figcaption>{html_text(picture.caption)}</figcaption></figure>"
    )
