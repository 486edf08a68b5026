"""Every table of the documentation is the one that its script makes from the stored figures."""

from __future__ import annotations

import csv
import itertools
import re
from pathlib import Path

import pytest
from benchmarks.edge import archive, combinations, exported, second_look
from benchmarks.fidelity import calibrated, experiments_report, experiments_tables, half_precision, purity, tofu, twins
from benchmarks.shared.results import DOCS, RESULTS, ROOT, fill, read_csv, tables_of
from benchmarks.speed import gpu_report, tail
from benchmarks.training import real_data

from conftest import SHARED
from zipbrain.data import Convention, convention
from zipbrain.data.corpora import CORPORA

_COLUMNS = "task model split seed test_windows test_subjects metric kappa kappa_low kappa_high balanced_accuracy"


def page(name: str) -> str:
    return (DOCS / f"{name}.md").read_text()


@pytest.mark.parametrize("name", experiments_report.PAGES)
def test_the_tables_of_experiments_are_made_from_the_stored_figures(name: str) -> None:
    shown, wanted = tables_of((DOCS / name).read_text()), experiments_report.PAGES[name]
    assert set(shown) == set(wanted)
    for title, make in wanted.items():
        assert shown[title] == make(), f"{title}: run `python -m benchmarks.fidelity.experiments_report page`"


def test_the_tables_of_the_method_are_made_from_the_stored_figures() -> None:
    assert tables_of(page("method")) == {"half precision": half_precision.table(), "tofu": tofu.table()}


def test_the_tables_of_the_notes_are_made_from_the_stored_figures() -> None:
    assert tables_of(page("notes")) == {"calibrated": calibrated.table()}


def test_the_tables_of_a_second_look_are_made_from_the_stored_figures() -> None:
    assert tables_of(page("export")) == {name: make() for name, make in second_look.TABLES.items()}


def test_the_table_of_archives_is_made_by_its_script() -> None:
    assert tables_of(page("archives")) == {"a million hours": archive.table()}


def test_filling_a_page_replaces_old_tables_and_nothing_else(tmp_path: Path) -> None:
    text, copy = page("experiments"), tmp_path / "page.md"
    spoiled = re.sub(r"(?m)^\| Twins \|.*$", "| Twins | wrong |", text)
    assert spoiled != text
    copy.write_text(spoiled)
    fill(copy, experiments_tables.TABLES)
    assert copy.read_text() == text
    copy.write_text(text.replace("<!-- table: search -->", ""))
    with pytest.raises(SystemExit, match="no place for the table search"):
        fill(copy, experiments_tables.TABLES)


def test_the_tables_of_the_gpu_are_made_from_the_stored_figures() -> None:
    shown = tables_of(page("speed"))
    assert set(shown) == set(gpu_report.TABLES)
    for name, make in gpu_report.TABLES.items():
        assert shown[name] == make(), f"{name}: run `python -m benchmarks.speed.gpu_report`"


def test_bold_ratios_are_those_beyond_their_bars() -> None:
    held, count = gpu_report.count_bars()
    table = tables_of(page("speed"))["overhead"]
    assert len(re.findall(r"\*\*\d\.\d{3}\*\*", table)) == count - held
    assert len(re.findall(r"\d\.\d{3}", table)) == count


def test_the_table_of_exported_models_is_made_from_the_stored_figures() -> None:
    assert tables_of(page("edge_speed"))["edge"] == exported.table(RESULTS)


def test_the_table_of_the_tail_is_made_from_the_stored_figures() -> None:
    assert tables_of(page("seams"))["tail"] == tail.table(), "run `python -m benchmarks.speed.tail --table`"


def test_the_tables_of_combinations_are_made_from_the_stored_figures() -> None:
    stored = RESULTS / "combinations.csv"
    assert tables_of(page("edge_speed"))["combinations"] == combinations.table(stored), "run combinations --table"
    rows = combinations.read(stored)
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
    assert tables in page("results"), "run `python -m benchmarks.training.real_data report`"


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
    assert tables in page("report"), "run `python -m benchmarks.fidelity.purity table`"


def test_the_table_of_twins_is_the_stored_one() -> None:
    assert twins.table() in page("twins")


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


@pytest.mark.parametrize("text", ["README.md", "docs/benchmarks.md"])
def test_the_table_of_overhead_holds_the_stored_figures(text: str) -> None:
    rows = {(row["encoder"], row["batch"], row["method"]): row for row in read_csv("overhead")}
    shown = (ROOT / text).read_text()
    for method in ("original", "ZIPBrain", "ToMe", "ToFu", "EViT", "DART"):
        line = re.search(rf"^\| {re.escape(method)} \|(.*)\|$", shown, re.MULTILINE)
        assert line, method
        cells = [cell.strip() for cell in line[1].split("|")]
        columns = [("LaBraM", "1"), ("LaBraM", "32"), ("BIOT", "1"), ("BIOT", "32")]
        for cell, (encoder, batch) in zip(cells, columns, strict=True):
            found = rows[encoder, batch, method]
            assert cell == f"{float(found['to_slicing']):.2f} ({float(found['to_original']):.2f})"


def test_the_table_of_conventions_is_the_code_s() -> None:
    assert "\n".join(conventions()) in page("data")


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
    return "none" if used.band is None else f"{used.band[0]:g}-{used.band[1]:g}, {used.notch:g}"
