"""What `zipbrain predict --format parquet` says of an archive."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

from rich.text import Text

from zipbrain.cli.terminal import Console

if TYPE_CHECKING:
    from zipbrain.edge.archive import ArchiveReport

_MOST_REASONS = 20


def show_archive(report: ArchiveReport) -> None:
    """Print what became of the recordings, failures by reason."""
    console = Console(highlight=False)
    before = f", {report.skipped:,} of them finished before" if report.skipped else ""
    console.print(f"{report.done:,} recordings, {report.hours:,.1f} hours of EEG{before}", markup=False)
    undecided = f"{report.no_decision / report.windows:.1%} without a decision" if report.windows else "none"
    console.print(f"{report.windows:,} windows, {undecided}", markup=False)
    if report.done > report.skipped:
        speed = f"{report.hours_per_second:.3g} hours of EEG a second in this run of {report.seconds:,.0f} s"
        console.print(speed, markup=False)
    for path in (report.dataset, report.table):
        console.print(Text(f"written  {path}"), soft_wrap=True)
    for line in report.folders:
        console.print(Text(f"folder   {line}", style="bold red"), soft_wrap=True)
    if report.unreadable > len(report.folders):
        console.print(f"  and {report.unreadable - len(report.folders):,} more folders", style="bold red")
    for reason, count, example in report.reasons[:_MOST_REASONS]:
        console.print(Text(f"failed   {count:,} x {reason}; such as {example}", style="bold red"), soft_wrap=True)
    if len(report.reasons) > _MOST_REASONS:
        console.print(f"  and {len(report.reasons) - _MOST_REASONS:,} more reasons", style="bold red")
    if report.failed:
        total = report.done + report.failed
        words = f"{report.failed:,} of {total:,} recordings failed; all are in {report.table}."
        console.print(Text(words, style="bold red"), soft_wrap=True)


def archive_json(report: ArchiveReport, promised: float | None) -> str:
    """The report for machines."""
    plain = {name: value for name, value in asdict(report).items() if name != "audit"}
    plain |= {"dataset": str(report.dataset), "table": str(report.table)}
    plain["reasons"] = [{"reason": one, "count": count, "example": line} for one, count, line in report.reasons]
    if report.audit is not None:
        plain["audit"] = {**report.audit.to_dict(), "promised": promised}
    return json.dumps(plain, indent=2)
