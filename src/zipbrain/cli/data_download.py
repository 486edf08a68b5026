"""`zipbrain data download`: fetch a public corpus, or say where to apply for one that is not."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from zipbrain.cli.options import AsJson, how_many_at_once, where_to_write, which_mirror
from zipbrain.cli.progress import show_progress
from zipbrain.cli.stopping import GOES_ON, when_stopped
from zipbrain.cli.terminal import Console
from zipbrain.errors import OptionError

if TYPE_CHECKING:
    from zipbrain.data.downloads import DownloadReport
    from zipbrain.data.file_trees import OnRequest


def register(app: typer.Typer) -> None:
    """Add the command to `zipbrain data`."""
    app.command("download")(when_stopped(f"files that have come are in {{out}}; {GOES_ON}")(download))


def download(
    corpus: Annotated[
        str,
        typer.Argument(
            help="Which corpus: eegmat, eegmmidb, chbmit, sleepedf, eareeg (tuab, tuev, isruc: where to apply)."
        ),
    ],
    out: Annotated[Path | None, where_to_write("the raw files, one corpus a folder")] = None,
    workers: Annotated[int, how_many_at_once("files", most=16)] = 4,
    base_url: Annotated[str | None, which_mirror("ZIPBRAIN_<CORPUS>_URL")] = None,
    verify: Annotated[bool, typer.Option("--verify", help="Hash every file that is there already.")] = False,
    everything: Annotated[bool, typer.Option("--everything", help="Also what zipbrain does not read.")] = False,
    as_json: AsJson = False,
) -> None:
    """Fetch a public corpus and check every file.

    It goes on where the last run stopped; running it again changes nothing. eegmat, eegmmidb, chbmit and sleepedf 1.0.0
    come from PhysioNet, checked by SHA-256; eareeg is OpenNeuro's ds005178 v1.0.0, checked by size and MD5. A file that
    lay there and is not the published one is kept as .bad.

    Example: zipbrain data download eegmat --out raw/eegmat
    """
    from zipbrain.data.corpora import find_published
    from zipbrain.data.downloads import download as fetch
    from zipbrain.data.file_trees import OnRequest

    source = find_published(corpus)
    if isinstance(source, OnRequest):
        _explain(source, out, as_json)
        raise typer.Exit(2)
    name = source.name
    if out is None:
        raise OptionError("--out", None, f"name a folder, such as --out raw/{name}")
    with show_progress(f"asking for the files of {name}") as tell:

        def show(done: int, total: int, received: int) -> None:
            tell(f"fetching {name}: {_amount(received)}", done, total)

        report = fetch(name, out, base_url=base_url, jobs=workers, progress=show, verify=verify, everything=everything)
    if as_json:
        print(json.dumps(asdict(report), indent=1))
    else:
        _show(report, verify)


def _show(report: DownloadReport, verify: bool) -> None:
    lines = [
        f"{report.corpus}: {report.files} files in {report.folder}, {report.fetched} fetched "
        f"({_amount(report.bytes)}), {report.kept} were there{' and were hashed' if verify else ''}."
    ]
    lines += [f"Kept aside, not the published file: {path}" for path in report.replaced]
    if report.size_only:
        lines.append(f"Checked by size only, no hash is published: {len(report.size_only)} files.")
    if report.fetched:
        lines.append("Checked against hashes of the same server: they show damage on the way, not a changed source.")
    lines += [f"Note: {note}." for note in report.notes]
    for line in lines:
        Console().print(Text(line), soft_wrap=True)


def _explain(corpus: OnRequest, out: Path | None, as_json: bool) -> None:
    """Say where to get a corpus that can't be fetched, and where its files have to lie."""
    tree = corpus.tree if out is None else corpus.tree.replace("DIR/", f"{out}/")
    if as_json:
        answer = {"corpus": corpus.name, "page": corpus.page, "how": corpus.how, "tree": tree.splitlines()}
        print(json.dumps(answer, indent=1))
        return
    console, rows = Console(stderr=True), [f"  {row}" for row in tree.splitlines()]
    console.print(Text(f"error: {corpus.name} can't be fetched for you.", style="bold red"), soft_wrap=True)
    for line in (corpus.how, f"See {corpus.page}", "Then put the files so:", *rows):
        console.print(Text(line), soft_wrap=True)


def _amount(count: int) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"
