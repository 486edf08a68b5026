"""Past findings, replayed: files that once took too long, too much memory, or raised what is no refusal."""

from __future__ import annotations

import pytest
from benchmarks.shared.results import read_csv, shown_table
from tests.fuzz.__main__ import CSV, table
from tests.fuzz.harness import CORPUS, MEMORY, SECONDS, run
from tests.fuzz.targets import TARGETS


@pytest.mark.parametrize("name", TARGETS)
def test_past_findings_are_refused_in_one_line_or_read(name: str) -> None:
    cases = sorted((CORPUS / name).glob("*")) or range(20)  # mutations where there was no finding yet
    summary = run(name, TARGETS[name], cases)
    assert summary.cases == len(cases)
    assert {str(cases[finding.case]): finding.what for finding in summary.findings} == {}


def test_the_documentation_shows_the_stored_figures_within_the_limits() -> None:
    assert shown_table("fuzz") == table()
    for row in read_csv(CSV):
        assert int(row["findings"]) == 0, row
        assert float(row["longest_s"]) <= SECONDS, row
        assert 1e6 * float(row["peak_mb"]) <= MEMORY, row
