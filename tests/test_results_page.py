"""The pages on data, training and results stay true: their Python runs, commands exist, tables are the stored ones."""

from __future__ import annotations

import csv
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer

from conftest import SHARED
from zipbrain.cli import app
from zipbrain.data import Convention, convention
from zipbrain.data.corpora import CORPORA

ROOT = Path(__file__).resolve().parents[1]
PAGES = {name: (ROOT / "docs" / f"{name}.md").read_text() for name in ("data", "training", "results")}
README = (ROOT / "README.md").read_text()
_COLUMNS = "task model split seed test_windows test_subjects metric kappa kappa_low kappa_high balanced_accuracy"


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


@pytest.fixture
def real_data(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The script that made the figures."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import real_data

    return real_data


def test_the_tables_of_the_results_are_made_from_the_stored_figures(real_data: Any) -> None:
    tables = real_data.markdown(ROOT / "benchmarks" / "results" / "real_data.csv")
    assert tables.count("### ") >= 3
    assert tables in PAGES["results"], "docs/results.md needs the tables that `benchmarks/real_data.py report` prints"


def test_a_table_has_the_mean_over_seeds_and_the_interval_of_the_first(real_data: Any, tmp_path: Path) -> None:
    rows = [
        ["imagery", "biot", "fixed", "1", "1200", "24", "kappa", "0.3", "0.1", "0.2", "0.5"],
        ["imagery", "biot", "fixed", "0", "1200", "24", "kappa", "-0.1", "-0.2", "0.4", "0.25"],
    ]
    with (tmp_path / "some.csv").open("w", newline="") as out:
        csv.writer(out).writerows([_COLUMNS.split(), *rows])
    lines = real_data.markdown(tmp_path / "some.csv").splitlines()
    assert lines[0] == "### Imagined movement (EEGMMIDB), fixed split"
    assert lines[2] == "Tested on 1,200 windows of 24 subjects; 2 seeds."
    assert lines[-1] == "| BIOT | 0.100 [-0.100 to 0.300] | -0.200 to 0.400 | 0.375 [0.250 to 0.500] |"


def test_the_tables_of_purity_are_made_from_the_stored_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import purity

    tables = purity.table()
    assert tables.count("ZIPBrain") == 2
    assert tables in (ROOT / "docs" / "report.md").read_text(), "docs/report.md needs what `purity.py table` prints"


def test_the_papers_figures_are_the_papers(real_data: Any) -> None:
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


def test_the_table_of_conventions_is_the_code_s() -> None:
    assert "\n".join(conventions()) in PAGES["data"]


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


@pytest.mark.parametrize("page", ["data", "training"])
def test_the_python_of_the_new_pages_runs_and_prints_what_its_comments_say(
    page: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = "\n".join(blocks(PAGES[page], "python"))
    exec(compile(code, page, "exec"), {"__name__": page})
    printed = capsys.readouterr().out
    said = re.findall(r"^print\(.*\)  # (.+)$", code, re.MULTILINE)
    assert said
    for words in said:
        assert words in printed


def test_every_zipbrain_command_of_the_pages_has_the_options_it_is_given() -> None:
    shown = "\n".join(blocks("\n".join([README, *PAGES.values()]), "bash"))
    commands = re.findall(r"^(zipbrain .*)$", shown, re.MULTILINE)
    assert len(commands) > 10
    for line in commands:
        words, command = shlex.split(line, comments=True)[1:], typer.main.get_command(app)
        while hasattr(command, "commands"):
            command = command.commands[words.pop(0)]
        command.make_context(line, words)


def test_every_script_of_the_pages_exists() -> None:
    scripts = set(re.findall(r"benchmarks/[a-z_/]+\.(?:py|csv)", "".join(PAGES.values())))
    assert scripts
    for script in scripts:
        assert (ROOT / script).is_file(), script


def test_every_page_is_in_the_table_of_contents() -> None:
    contents = (ROOT / "docs" / "index.md").read_text()
    for page in PAGES:
        assert f"]({page}.md)" in contents
        assert re.search(rf"^{page}$", contents, re.MULTILINE), page


def test_the_table_of_twins_is_the_stored_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import twins

    assert twins.table() in (ROOT / "docs" / "twins.md").read_text()
