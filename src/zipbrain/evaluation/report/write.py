"""Write a report into a folder, every file whole or not at all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from zipbrain.errors import DataError, OptionError
from zipbrain.evaluation.report.as_csv import as_csv
from zipbrain.evaluation.report.as_html import as_html
from zipbrain.evaluation.report.as_latex import as_latex
from zipbrain.evaluation.report.as_markdown import as_markdown
from zipbrain.evaluation.report.content import Picture, Report, Section, build
from zipbrain.evaluation.report.validate import usable
from zipbrain.evaluation.store import Store
from zipbrain.files import write_whole

FIGURES: Final = "figures"


@dataclass(frozen=True)
class Written:
    """What a report was written into, and what it says about itself."""

    folder: Path
    files: tuple[Path, ...]
    records: int
    warnings: tuple[str, ...]


def write_report(results: str | Path, out: str | Path, more: Sequence[Section] = ()) -> Written:
    """Write report.html, report.md with its figures, report.csv and report.tex from a folder of results.

    Parameters
    ----------
    results : path
        Folder of a `Store`.
    out : path
        Made if it is not there; an older report in it is overwritten file by file.
    more : sequence of Section
        Sections to put behind those of the records.

    Returns
    -------
    written : Written
    """
    store = Store(Path(results))
    records, left_out = usable(store.records())
    if not records:
        allowed = "it holds no results: zipbrain compare, ablate or search with --out writes them"
        allowed += f" ({'; '.join(left_out)})" * bool(left_out)
        raise OptionError("results", str(results), allowed)
    report = build(records, [*store.remarks, *left_out], more)
    folder = Path(out)
    texts = {
        "report.md": as_markdown(report, FIGURES), "report.csv": as_csv(records), "report.tex": as_latex(report),
        "report.html": as_html(report),
    }  # fmt: skip
    files = []
    try:
        (folder / FIGURES).mkdir(parents=True, exist_ok=True)
        for picture in _pictures(report.sections):
            files.append(folder / FIGURES / f"{picture.name}.{picture.kind}")
            write_whole(files[-1], picture.content)
        for name, text in texts.items():
            files.append(folder / name)
            write_whole(files[-1], text.encode())
    except OSError as error:
        raise DataError(
            f"{folder}: the report can't be written ({error.strerror or error}); choose another --out"
        ) from None
    return Written(folder, tuple(files), len(records), tuple(_warnings(report)))


def _pictures(sections: Sequence[Section]) -> list[Picture]:
    return [p for section in sections for p in (*section.pictures, *_pictures(section.inside))]


def _warnings(report: Report) -> list[str]:
    found = list(report.warnings)

    def collect(section: Section, path: str) -> None:
        found.extend(f"{path}: {line}" for line in section.warnings)
        for part in section.inside:
            collect(part, f"{path}, {part.title}")

    for section in report.sections:
        collect(section, section.title)
    return found
