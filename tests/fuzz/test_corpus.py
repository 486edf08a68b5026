"""Past findings, replayed: files that once took too long, too much memory, or raised what is no refusal."""

from __future__ import annotations

import pytest
from tests.fuzz.harness import CORPUS, run
from tests.fuzz.targets import TARGETS


@pytest.mark.parametrize("name", TARGETS)
def test_past_findings_are_refused_in_one_line_or_read(name: str) -> None:
    files = sorted((CORPUS / name).glob("*"))
    if not files:
        pytest.skip(f"no past findings in {CORPUS.name}/{name}")
    summary = run(name, TARGETS[name], files)
    assert summary.cases == len(files)
    assert {files[finding.case].name: finding.what for finding in summary.findings} == {}
