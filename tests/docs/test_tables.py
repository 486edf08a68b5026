"""Every table of the documentation is the one that its script makes from the stored figures."""

from __future__ import annotations

import csv
import itertools
import re
from pathlib import Path

import pytest
from benchmarks.edge import archive, combinations, exported, second_look, throughput
from benchmarks.fidelity import (
    calibrated,
    equal_time,
    experiments_report,
    half_precision,
    purity,
    tofu,
    tune_cost,
    tuned,
)
from benchmarks.live import live_report, page_report
from benchmarks.shared.results import DOCS, RESULTS, fill, read_csv, shown_table
from benchmarks.speed import frontier, gpu_report, grids, reve, tail
from benchmarks.study import pictures
from benchmarks.study import report as study_report
from benchmarks.training import cbramod, real_data

from conftest import SHARED
from zipbrain.data import Convention, convention
from zipbrain.data.corpora import CORPORA

_COLUMNS = "task model split seed test_windows test_subjects metric kappa kappa_low kappa_high balanced_accuracy"


def page(name: str) -> str:
    return (DOCS / f"{name}.md").read_text()


TABLES = {
    **experiments_report.ALL_TABLES,
    **gpu_report.TABLES,
    **live_report.TABLES,
    **page_report.TABLES,
    **second_look.TABLES,
    **study_report.tables(),
    "a million hours": throughput.table,
    "archive": archive.table,
    "grids": grids.table,
    "calibrated": calibrated.table,
    "cbramod": cbramod.table,
    "combinations": lambda: combinations.table(RESULTS / "combinations.csv"),
    "front": frontier.front_table,
    "frontier": frontier.table,
    "edge": lambda: exported.table(RESULTS),
    "equal_time": equal_time.table,
    "faster": pictures.table,
    "half precision": half_precision.table,
    "reve": reve.table,
    "tail": tail.table,
    "tofu": tofu.table,
    "tune_cost": tune_cost.table,
    "tuned": tuned.table,
}


@pytest.mark.parametrize("name", TABLES)
def test_a_table_is_made_from_the_stored_figures(name: str) -> None:
    assert shown_table(name) == TABLES[name](), "run the command that benchmarks/README.md names for this table"


def test_filling_a_page_replaces_old_tables_and_nothing_else(tmp_path: Path) -> None:
    text, copy = page("notes/experiments"), tmp_path / "page.md"
    shown = {name: table for name, table in experiments_report.ALL_TABLES.items() if f"<!-- table: {name} -->" in text}
    spoiled = re.sub(r"(?m)^\| Twins \|.*$", "| Twins | wrong |", text)
    assert spoiled != text
    copy.write_text(spoiled)
    fill(shown, tmp_path)
    assert copy.read_text() == text
    copy.write_text(text.replace("<!-- table: search -->", ""))
    with pytest.raises(SystemExit, match="table search has a place on 0 pages"):
        fill(shown, tmp_path)


def test_combinations_are_stored_whole() -> None:
    rows = combinations.read(RESULTS / "combinations.csv")
    whole, brief = (
        {*itertools.product(combinations.POOLING, *parts)}
        for parts in ((combinations.PRUNING, combinations.PRECISION), combinations.BRIEF)
    )
    for network in {row["network"] for row in rows}:
        own = [(row["pooling"], row["pruning"], row["precision"]) for row in rows if row["network"] == network]
        assert len(own) == len({*own})
        assert {*own} in (whole, brief)
    for row in rows:
        assert float(row["change_low"]) <= float(row["change_high"])
        assert 0 < int(row["same_decisions"]) <= int(row["windows"])


def test_the_tables_of_real_data_are_made_from_the_stored_figures() -> None:
    tables = real_data.markdown(RESULTS / "real_data.csv")
    assert tables.count("### ") >= 3
    assert tables in page("benchmarks/real_eeg"), "run `python -m benchmarks.training.real_data report`"


def test_a_table_has_the_mean_over_seeds_and_the_interval_of_the_first(tmp_path: Path) -> None:
    rows = [
        ["imagery", "biot", "fixed", "1", "1200", "24", "kappa", "0.3", "0.1", "0.2", "0.5"],
        ["imagery", "biot", "fixed", "0", "1200", "24", "kappa", "-0.1", "-0.2", "0.4", "0.25"],
    ]
    with (tmp_path / "some.csv").open("w", newline="") as out:
        csv.writer(out).writerows([_COLUMNS.split(), *rows])
    lines = real_data.markdown(tmp_path / "some.csv").splitlines()
    assert lines[2] == "Tested on 1,200 windows of 24 subjects; 2 seeds."
    assert lines[-1] == "| BIOT | 0.100 [-0.100 to 0.300] | -0.200 to 0.400 | 0.375 [0.250 to 0.500] |"


def test_the_table_of_purity_is_made_from_the_stored_figures() -> None:
    tables = purity.table()
    assert tables.count("ZIPBrain") == 2
    assert tables in page("guides/report"), "run `python -m benchmarks.fidelity.purity table`"


def test_the_papers_figures_are_the_papers() -> None:
    stored = SHARED / "spec" / "tables" / "max_compression.csv"
    if not stored.exists():
        pytest.skip(f"the tables of the paper are not at {stored}")
    with stored.open() as lines:
        found = {
            row["model"].lower(): float(row["value"])
            for row in csv.DictReader(lines)
            if (row["dataset"], row["method"], row["metric"]) == ("EEGMAT", "Original", "AUROC")
        }
    assert found == real_data.PAPER


def test_the_table_of_overhead_holds_the_stored_figures() -> None:
    rows = {(row["encoder"], row["batch"], row["method"]): row for row in read_csv("overhead")}
    shown = page("benchmarks/cpu")
    for method in ("original", "ZIPBrain", "ToMe", "ToFu", "EViT", "DART"):
        line = re.search(rf"^\| {re.escape(method)} \|(.*)\|$", shown, re.MULTILINE)
        assert line, method
        cells = [cell.strip() for cell in line[1].split("|")]
        columns = [("LaBraM", "1"), ("LaBraM", "32"), ("BIOT", "1"), ("BIOT", "32")]
        for cell, (encoder, batch) in zip(cells, columns, strict=True):
            found = rows[encoder, batch, method]
            assert cell == f"{float(found['to_slicing']):.2f} ({float(found['to_original']):.2f})"


def test_the_table_of_conventions_is_the_code_s() -> None:
    assert "\n".join(conventions()) in page("guides/data")


def conventions() -> list[str]:
    """The lines of the table of conventions, from the code."""
    lines = []
    for name in CORPORA:
        labram, eegpt, biot, tfm = (convention(model, name) for model in ("labram", "eegpt", "biot", "tfm"))
        assert (labram.montage, biot.montage) == (eegpt.montage, tfm.montage)
        assert (labram.band, labram.notch) == (eegpt.band, eegpt.notch) == (tfm.band, tfm.notch)
        assert {(one.sfreq, one.scaling) for one in (biot, tfm)} == {(200, "q95")}
        assert (labram.sfreq, labram.scaling) == (200, "hundred")
        filters = _filters(labram)
        if _filters(biot) != filters:
            filters += f"; BIOT {_filters(biot)}"
        times = f"{labram.window_s:g} s | {labram.hop_s:g} s"
        reads = f"{eegpt.sfreq:g} Hz, `{eegpt.scaling}`"
        lines.append(f"| `{name}` | {times} | {_channels(labram)} | {_channels(biot)} | {filters} | {reads} |")
    return lines


def _channels(used: Convention) -> str:
    kind = "pairs" if used.montage and isinstance(used.montage[0], tuple) else "electrodes"
    return f"{len(used.montage)} {kind}" if used.montage else "from the file"


def _filters(used: Convention) -> str:
    return "none" if used.band is None else f"{used.band[0]:g}-{used.band[1]:g}, {used.notch or 'none'}"
