"""The pages on speed stay true: their tables are made from the stored figures, and so are the figures in the text."""

from __future__ import annotations

import importlib.util
import itertools
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


def benchmark(name: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A script whose name may be that of a package, by its path."""
    spec = importlib.util.spec_from_file_location(f"{name}_benchmark", ROOT / "benchmarks" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, f"{name}_benchmark", script)  # where its dataclasses look
    spec.loader.exec_module(script)
    return script


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
    assert f"{held} of the {count} are within their bars" in PAGE


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
    edge = benchmark("edge", monkeypatch)
    shown = scripts.report.tables_of((ROOT / "docs" / "edge_speed.md").read_text())
    assert shown["edge"] == edge.table(ROOT / "benchmarks" / "results")


def test_the_tables_of_combinations_are_made_from_the_stored_figures(
    scripts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = benchmark("combinations", monkeypatch)
    page = (ROOT / "docs" / "edge_speed.md").read_text()
    stored = ROOT / "benchmarks" / "results" / "combinations.csv"
    assert scripts.report.tables_of(page)["combinations"] == script.table(stored), "run combinations.py --table"
    rows = script.read(stored)
    whole, brief = (
        {*itertools.product(script.POOLING, *parts)} for parts in ((script.PRUNING, script.PRECISION), script.BRIEF)
    )
    for network in {row["network"] for row in rows}:
        own = [(row["pooling"], row["pruning"], row["precision"]) for row in rows if row["network"] == network]
        assert len(own) == len({*own})
        assert {*own} in (whole, brief)
    for row in rows:
        assert float(row["change_low"]) <= float(row["change_high"])
        assert 0 < int(row["same_decisions"]) <= int(row["windows"])
        busy = float(row["load"]) > int(row["threads"]) + 0.3
        assert busy == (f"**{row['network']}**" in page and "other work ran beside it" in line_of(page, row["network"]))


def line_of(page: str, network: str) -> str:
    """What stands above the table of a network."""
    return next(line for line in page.splitlines() if line.startswith(f"**{network}**"))
