"""The pages on speed stay true: their tables are made from the stored figures, and so are the figures in the text."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "speed.md").read_text()


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The scripts that made the page."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import experiments_report
    import gpu_report

    return SimpleNamespace(gpu=gpu_report, report=experiments_report)


def test_every_table_is_made_from_the_stored_figures(scripts: Any) -> None:
    shown = scripts.report.tables_of(PAGE)
    assert set(shown) == set(scripts.gpu.TABLES)
    for name, make in scripts.gpu.TABLES.items():
        assert shown[name] == make(), f"table {name}: run `python benchmarks/gpu_report.py`"


def test_bold_ratios_are_those_beyond_their_bars(scripts: Any) -> None:
    held, count = scripts.gpu.count_bars()
    table = scripts.report.tables_of(PAGE)["overhead"]
    assert len(re.findall(r"\*\*\d\.\d{3}\*\*", table)) == count - held
    assert len(re.findall(r"\d\.\d{3}", table)) == count


def test_every_rival_is_slower_than_zipbrain_at_batch_256_by_what_the_page_says(scripts: Any) -> None:
    ratios = []
    for dtype in scripts.gpu.DTYPES:
        ours = [
            float(scripts.gpu.captured("LaBraM", n, "256", dtype, "15")["ms"]) for n in scripts.gpu.settings("LaBraM")
        ]
        for rival in ("ToMe", "ToFu", "EViT", "DART"):
            theirs = float(scripts.gpu.captured("LaBraM", rival, "256", dtype, "15")["ms"])
            ratios += [theirs / one for one in ours]
    found = re.search(r"by (\d+) to (\d+) % at batch 256", PAGE)
    assert found is not None
    assert (round(100 * (min(ratios) - 1)), int(found[2])) == (
        int(found[1]),
        pytest.approx(100 * (max(ratios) - 1), abs=10),
    )


def test_the_pictures_are_there(scripts: Any) -> None:
    for name in re.findall(r"\]\(\.\./(benchmarks/results/\S+\.png)\)", PAGE):
        assert (ROOT / name).stat().st_size > 10_000


def test_the_table_of_exported_models_is_made_from_the_stored_figures(
    scripts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = importlib.util.spec_from_file_location("edge_benchmark", ROOT / "benchmarks" / "edge.py")
    assert spec is not None
    assert spec.loader is not None
    edge = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "edge_benchmark", edge)  # where its dataclass looks
    spec.loader.exec_module(edge)
    shown = scripts.report.tables_of((ROOT / "docs" / "edge_speed.md").read_text())
    assert shown["edge"] == edge.table(ROOT / "benchmarks" / "results")
