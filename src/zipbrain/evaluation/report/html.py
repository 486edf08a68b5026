"""A report as one HTML page that needs nothing else: pictures and a sorting script inside, no network, two themes."""

from __future__ import annotations

import base64
from hashlib import sha256
from typing import Final

from zipbrain.evaluation.report.document import Document, Picture, Section
from zipbrain.evaluation.tables import Table
from zipbrain.evaluation.wording import head_text
from zipbrain.text import html_text

_TYPES: Final = {"svg": "image/svg+xml", "png": "image/png"}

_STYLE: Final = """
:root { color-scheme: light dark; --ink: #1d1d1f; --paper: #ffffff; --soft: #5d5d63; --line: #d9d9de; --note: #fff4d6;
  --link: #005a9c; --card: #f4f5f8; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #ececf0; --paper: #17181b; --soft: #a8a8b0; --line: #3a3b41; --note: #3d3413; --link: #7cc0f5;
    --card: #212328; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem 1rem 4rem; max-width: 78rem; color: var(--ink); background: var(--paper);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
h1 { font-size: 1rem; margin: 0; color: var(--soft); font-weight: 600; }
.headline { font-size: 1.6rem; line-height: 1.3; font-weight: 650; margin: .3rem 0 1rem; max-width: 60rem; }
h2 { font-size: 1.35rem; margin: 2.5rem 0 .5rem; border-top: 1px solid var(--line); padding-top: 1.2rem; }
h3 { font-size: 1.1rem; margin: 1.8rem 0 .4rem; }
h1, h2, h3, p, li, figcaption { overflow-wrap: anywhere; } p, li { max-width: 60rem; }
a { color: var(--link); } nav ul { padding-left: 1.2rem; } p { margin: .4rem 0; }
.note { background: var(--note); border-left: 4px solid #e69f00; padding: .5rem .8rem; }
.soft, figcaption { color: var(--soft); font-size: .9rem; }
.wide { overflow-x: auto; margin: .8rem 0; }
table { border-collapse: separate; border-spacing: 0; font-size: .88rem; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .6rem; text-align: right; border-bottom: 1px solid var(--line); }
td { white-space: nowrap; } td.word:last-child { white-space: normal; }
th { vertical-align: bottom; min-width: 4.2rem; } .word { text-align: left; }
th button { all: unset; cursor: pointer; } th button:focus-visible { outline: 2px solid var(--link); }
th[aria-sort] button { text-decoration: underline; }
th[aria-sort="ascending"] button::after { content: " \\25b2"; }
th[aria-sort="descending"] button::after { content: " \\25bc"; }
.sort { display: none; color: var(--soft); font-size: .9rem; } .sort select { font: inherit; max-width: 12rem; }
.pictures { display: grid; gap: 1.2rem; margin: 1.2rem 0; align-items: start;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 27rem), 1fr)); }
.pictures.small { grid-template-columns: repeat(auto-fit, minmax(min(100%, 20rem), 1fr)); }
figure { margin: 0; } summary { cursor: pointer; color: var(--link); margin: .8rem 0; }
img { display: block; width: 100%; max-width: 46rem; height: auto; background: #ffffff; border: 1px solid var(--line);
  border-radius: 6px; padding: .4rem; }
@media (max-width: 40rem) {
  .headline { font-size: 1.25rem; } .sort { display: block; }
  thead { display: none; } table, tbody { display: block; }
  tr { display: grid; grid-template-columns: repeat(3, 1fr); gap: .3rem .8rem; background: var(--card);
    border-radius: 8px; padding: .5rem .7rem; margin: .5rem 0; }
  td { border: 0; padding: 0; text-align: left; white-space: normal; overflow-wrap: anywhere; }
  td::before { content: attr(data-head); display: block; color: var(--soft); font-size: .75rem; line-height: 1.2; }
  td:first-child { grid-column: 1 / -1; font-weight: 650; font-size: 1rem; } td:first-child::before { content: none; } }
@media print { body { max-width: none; } figure, tr { break-inside: avoid; } .sort { display: none; } }
"""

# Sorts the rows of a table by the head that is chosen: numbers by value, words by name, dashes last.
_SCRIPT: Final = """
for (const table of document.querySelectorAll("table")) {
  const body = table.tBodies[0], rows = [...body.rows], heads = [...table.tHead.rows[0].cells];
  if (rows.length < 3) continue;
  const value = (row, place) => {
    const words = row.cells[place].textContent.trim(), number = parseFloat(words);
    return words === "-" ? null : isNaN(number) ? words.toLowerCase() : number;
  };
  const sort = (place, falls) => {
    heads.forEach((head) => head.removeAttribute("aria-sort"));
    heads[place].setAttribute("aria-sort", falls ? "descending" : "ascending");
    const order = (a, b) => {
      const [x, y] = [value(a, place), value(b, place)];
      if (x === null || y === null) return (x === null) - (y === null);
      const kind = typeof x !== typeof y;
      const less = kind ? typeof x === "number" : x < y, more = kind ? typeof y === "number" : x > y;
      return (more - less) * (falls ? -1 : 1);
    };
    body.append(...[...rows].sort(order));
  };
  const label = document.createElement("label"), choice = document.createElement("select");
  heads.forEach((head, place) => {
    const button = document.createElement("button");
    button.type = "button";
    button.title = "sort by this column";
    button.append(...head.childNodes);
    head.append(button);
    choice.add(new Option(button.textContent, place));
    button.addEventListener("click", () => {
      const now = head.getAttribute("aria-sort");
      sort(place, now ? now === "ascending" : !head.classList.contains("word"));
    });
  });
  choice.add(new Option("as stored", -1, true, true), 0);
  choice.addEventListener("change", () => {
    const place = Number(choice.value);
    if (place < 0) body.append(...rows); else sort(place, !heads[place].classList.contains("word"));
  });
  label.className = "sort";
  label.append("sorted by ", choice);
  table.parentElement.before(label);
}
"""


def html_page(document: Document) -> str:
    """The whole page."""
    script = base64.b64encode(sha256(_SCRIPT.encode()).digest()).decode()
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{script}'"
    entries = "\n".join(
        f'<li><a href="#part-{number}">{html_text(section.title)}</a></li>'
        for number, section in enumerate(document.sections, 1)
    )
    contents = f'<nav aria-label="Contents"><ul>\n{entries}\n</ul></nav>' if len(document.sections) > 1 else ""
    parts = "\n".join(_section(section, 2, f"part-{number}") for number, section in enumerate(document.sections, 1))
    headline = "\n".join(f'<p class="headline">{html_text(line)}</p>' for line in document.headline)
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
{headline}
{_sentences(document.text, document.warnings)}
{contents}
<main>
{parts}
</main>
<script>{_SCRIPT}</script>
</body>
</html>
"""


def _section(section: Section, level: int, name: str = "") -> str:
    place = f' id="{name}"' if name else ""
    parts = [
        f"<h{level}{place}>{html_text(section.title)}</h{level}>",
        _sentences(section.text, section.warnings),
        _tables(section.tables),
        _pictures(section.pictures),
        *(_section(part, level + 1) for part in section.inside),
    ]
    return "\n".join(filter(None, parts))


def _sentences(text: list[str], warnings: list[str]) -> str:
    plain = [f"<p>{html_text(line)}</p>" for line in text]
    return "\n".join([*plain, *(f'<p class="note">{html_text(line)}</p>' for line in warnings)])


def _tables(tables: list[Table]) -> str:
    """The first table; further ones open at a click."""
    more = "\n".join(map(_table, tables[1:]))
    closed = f"<details><summary>More columns</summary>\n{more}\n</details>" if more else ""
    return "\n".join(filter(None, [*map(_table, tables[:1]), closed]))


def _table(table: Table) -> str:
    """A table with its title underneath; on a narrow page its rows become cards."""
    heads = [html_text(head_text(name)) for name in table.columns]

    def words(place: int) -> str:
        last = place == len(heads) - 1 and any(not _is_number(row[place]) for row in table.rows)
        return ' class="word"' if place < table.words or last else ""

    head = "".join(f'<th{words(place)} scope="col">{name}</th>' for place, name in enumerate(heads))
    rows = "\n".join(
        "<tr>"
        + "".join(f'<td{words(i)} data-head="{heads[i]}">{html_text(value)}</td>' for i, value in enumerate(row))
        + "</tr>"
        for row in table.rows
    )
    title = html_text(table.title)
    return (
        f'<div class="wide" tabindex="0"><table aria-label="{title}">\n<thead><tr>{head}</tr></thead>\n'
        f'<tbody>\n{rows}\n</tbody></table></div>\n<p class="soft">{title}</p>'
    )


def _is_number(cell: str) -> bool:
    return cell[:1] in "-.[" or cell[:1].isdigit()


def _pictures(pictures: list[Picture]) -> str:
    """Small pictures in a row of their own, then the others."""
    found = ""
    for is_small in (True, False):
        own = [picture for picture in pictures if picture.is_small is is_small]
        if own:
            found += f'<div class="pictures{" small" * is_small}">\n' + "\n".join(map(_picture, own)) + "\n</div>\n"
    return found


def _picture(picture: Picture) -> str:
    content = base64.b64encode(picture.content).decode("ascii")
    source = f"data:{_TYPES[picture.kind]};base64,{content}"
    return (
        f'<figure><img src="{source}" alt="{html_text(picture.alt)}">\n'
        f"<figcaption>{html_text(picture.caption)}</figcaption></figure>"
    )
