"""A report says what the store holds, what it lacks, and who chose a recipe; nothing in it runs or loads anything."""

from __future__ import annotations

import base64
import csv
import io
import json
import re
import subprocess
import sys
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from zipbrain.data.windows import Windows
from zipbrain.errors import DataError, OptionError
from zipbrain.evaluation.report import Section, build, write_report
from zipbrain.evaluation.report.example import example_sections
from zipbrain.evaluation.report.merge_records import merged, tasks_of
from zipbrain.evaluation.report.sections import chosen_on
from zipbrain.evaluation.result import Result, results_of
from zipbrain.evaluation.store import Store
from zipbrain.models import create

EVIL = '<script>alert("x")</script> | & % $ _ \\'


def record(label: str, ratio: float | str | None, auroc: float, kind: str = "compare", **more: Any) -> dict[str, Any]:
    """A stored result of one task; `task` and `recipe` in `more` change single entries."""
    task = {
        "model": "LaBraM", "dataset": "EEGMAT", "split": "test", "windows": 20, "subjects": 4, "checkpoint": "runs/x",
        "classes": ["rest", "task"], "weights_sha256": "a" * 64, "data_sha256": "b" * 64,
    }  # fmt: skip
    recipe = None
    if ratio is not None:
        schedule = {"name": "maximum"} if ratio == "max" else {"name": "ratio", "ratio": ratio}
        recipe = {"format": 1, "method": {"name": label.lower()}, "schedule": schedule}
        recipe |= more.pop("recipe", {})
    removed = 0.0 if ratio is None else 0.9 if ratio == "max" else float(ratio)
    found = {
        "key": f"{kind}:{label}:{ratio}:{more}", "kind": kind, "label": label, "ratio": ratio,
        "task": task | more.pop("task", {}), "recipe": recipe, "scores": {"auroc": auroc, "kappa": 0.1},
        "intervals": {"auroc": [auroc - 0.1, auroc + 0.1]}, "confusion": [[8, 2], [3, 7]], "removed": removed,
        "token_counts": [10, 8, round(10 * (1 - removed))], "agreement": 0.9, "logit_error": 0.02, "seconds": 1.0,
    }  # fmt: skip
    return found | more


RECORDS = [
    record("Original", None, 0.62),
    record("ZIPBrain", 0.4, 0.61), record("ZIPBrain", "max", 0.60), record("ToMe", 0.4, 0.58),
    record("full", "max", 0.60, "ablate"), record("pruning", "max", 0.57, "ablate"),
]  # fmt: skip


def store(folder: Path, records: list[dict[str, Any]]) -> Path:
    kept = Store(folder)
    for one in records:
        kept.add(one)
    return folder


class Page(HTMLParser):
    """Tags and attributes of a page, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.words += data


def test_all_four_forms_are_written_and_tell_the_same_numbers(tmp_path: Path) -> None:
    written = write_report(store(tmp_path / "results", RECORDS), tmp_path / "out")
    assert {path.name for path in written.files} >= {"report.html", "report.md", "report.csv", "report.tex"}
    for name in ("report.html", "report.md", "report.csv", "report.tex"):
        text = (tmp_path / "out" / name).read_text(encoding="utf-8")
        assert "0.61" in text
        assert "ZIPBrain" in text
    rows = list(csv.DictReader(io.StringIO((tmp_path / "out" / "report.csv").read_text())))
    assert len(rows) == written.records == len(RECORDS)
    assert [float(row["auroc"]) for row in rows] == [one["scores"]["auroc"] for one in RECORDS]
    assert rows[2]["paper"] == "0.6477"  # the paper's LaBraM on EEGMAT at maximum compression


def test_the_page_is_self_contained(tmp_path: Path) -> None:
    write_report(store(tmp_path / "results", RECORDS), tmp_path / "out")
    text = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    page = Page(text)
    assert {tag for tag, _ in page.tags}.isdisjoint({"link", "iframe", "object"})
    assert [attributes for tag, attributes in page.tags if tag == "script"] == [{}]  # our own, inside
    script = base64.b64encode(sha256(text.split("<script>")[1].split("</script>")[0].encode()).digest()).decode()
    assert f"script-src 'sha256-{script}'" in text
    images = [attributes for tag, attributes in page.tags if tag == "img"]
    assert len(images) >= 5
    for image in images:
        kind, _, content = str(image["src"]).partition(";base64,")
        assert kind in ("data:image/svg+xml", "data:image/png")
        assert base64.b64decode(content, validate=True)
        assert image["alt"]
    links = [str(attributes.get("href")) for tag, attributes in page.tags if tag == "a"]
    assert all(link.startswith("#part-") for link in links)
    assert "url(" not in text
    assert "prefers-color-scheme: dark" in text
    assert 'name="viewport"' in text


def test_markdown_names_the_figures_that_were_written(tmp_path: Path) -> None:
    write_report(store(tmp_path / "results", RECORDS), tmp_path / "out")
    text = (tmp_path / "out" / "report.md").read_text(encoding="utf-8")
    figures = re.findall(r"!\[[^\]]+\]\((figures/[^)]+)\)", text)
    assert {tmp_path / "out" / name for name in figures} == {*(tmp_path / "out" / "figures").iterdir()}


def test_the_same_results_give_the_same_bytes(tmp_path: Path) -> None:
    folder = store(tmp_path / "results", RECORDS)
    for name in ("one", "two"):
        write_report(folder, tmp_path / name)
    for path in (tmp_path / "one").rglob("*.*"):
        assert path.read_bytes() == (tmp_path / "two" / path.relative_to(tmp_path / "one")).read_bytes()


def test_names_from_outside_are_escaped_everywhere(tmp_path: Path) -> None:
    task = {"dataset": EVIL, "checkpoint": EVIL, "classes": [EVIL, "b"]}
    records = [record("Original", None, 0.6, task=task), record(f"{EVIL}", 0.4, 0.5, task=task)]
    records.append(record("=cmd()", 0.4, 0.5, task=task))
    write_report(store(tmp_path / "results", records), tmp_path / "out")
    page = Page((tmp_path / "out" / "report.html").read_text(encoding="utf-8"))
    assert [tag for tag, _ in page.tags].count("script") == 1
    assert EVIL in page.words
    latex = (tmp_path / "out" / "report.tex").read_text(encoding="utf-8")
    assert r"\& \% \$ \_ \textbackslash{}" in latex
    assert "<script>" not in (tmp_path / "out" / "report.md").read_text(encoding="utf-8")
    assert "'=cmd()" in (tmp_path / "out" / "report.csv").read_text(encoding="utf-8")


def titles(section: Section) -> list[str]:
    return [part.title for part in section.inside]


def test_sections_without_results_are_left_out_and_partial_ones_say_so() -> None:
    (whole,) = build(RECORDS).sections
    assert titles(whole) == ["Scores", "Confusion matrices", "Ablation at maximum"]
    assert whole.inside[0].warnings == ["Partial: ToMe lacks maximum."]
    (bare,) = build(RECORDS[1:2]).sections
    assert titles(bare) == ["Scores"]
    assert bare.warnings[0] == "Partial: the uncompressed model's result is missing."
    assert bare.warnings[1].startswith("Few windows: 20.")
    assert len(bare.warnings) == 2
    (alone,) = build(RECORDS[:1]).sections
    assert titles(alone) == ["Scores"]
    assert not alone.inside[0].pictures
    (short,) = build([RECORDS[0], RECORDS[4]]).sections
    assert "fewer than two variants" in short.inside[1].warnings[0]


def test_an_ablation_says_what_it_lacks() -> None:
    seeds = [
        record("random grouping", "max", 0.5, "ablate", extra={"seed": i}, recipe={"tokens": i + 1}) for i in (0, 1)
    ]
    other = record("random matching", "max", 0.5, "ablate", extra={"seed": 0})
    (section,) = build([RECORDS[0], *seeds, other]).sections
    told = section.inside[-1].warnings
    assert "the full method is not scored, so differences are to random grouping" in told[0]
    assert "random grouping 2, random matching 1" in told[1]


def chosen(stored: dict[str, Any]) -> str:
    return chosen_on(Result.of(stored))


def test_who_chose_a_recipe_is_always_told() -> None:
    on_val = record("ZIPBrain", 0.4, 0.6, recipe={"dataset": "EEGMAT", "split": "val"})
    on_test = record("ZIPBrain", 0.8, 0.6, recipe={"dataset": "EEGMAT", "split": "test"})
    assert chosen(on_val) == "chosen on EEGMAT, val split"
    assert chosen(RECORDS[0]) == "-"
    assert chosen(RECORDS[1]) == "the defaults"
    assert chosen(record("ToMe", 0.4, 0.6)) == "the defaults"
    assert chosen(record("DART", 0.4, 0.6, recipe={"method": {"name": "dart", "pivots": 3}})) == "unknown"
    unreadable = record("ZIPBrain", 0.4, 0.6, recipe={"schedule": {"name": "ratio", "ratio": "much"}})
    assert chosen(unreadable) == "unknown"
    other_merge = {"name": "zipbrain", "merge": {"name": "mean"}}
    assert chosen(record("ZIPBrain", 0.4, 0.6, recipe={"method": other_merge})) == "unknown"
    method = {"name": "zipbrain", "z1": "x", "z2": "q", "z3": "x", "rho": 0.3}
    assert chosen(record("ZIPBrain", 0.4, 0.6, recipe={"method": method})) == "the paper's"
    method = method | {"rho": 0.9}
    assert chosen(record("ZIPBrain", 0.4, 0.6, recipe={"method": method})) == "unknown"
    (section,) = build([RECORDS[0], on_val, on_test]).sections
    assert section.warnings[0] == (
        "Chosen on the very split that scores them, so better here than elsewhere: ZIPBrain at 80 %."
    )
    table = section.inside[0].tables[1]
    column = table.columns.index("options")
    assert [row[column] for row in table.rows] == ["-", "chosen on EEGMAT, val split", "chosen on EEGMAT, test split"]


def test_a_search_and_its_winner_on_another_split() -> None:
    chosen = {"dataset": "EEGMAT", "split": "val"}
    tried = [
        record("ZIPBrain", "max", 0.5 + i / 100, "search", task={"split": "val"},
               recipe={**chosen, "method": {"name": "zipbrain", "rho": i / 20}}) for i in range(12)
    ]  # fmt: skip
    won = record("ZIPBrain", "max", 0.6, "search", recipe=chosen)
    report = build([*tried, RECORDS[0], won])
    search, test = report.sections
    assert titles(search) == ["Search"]
    rows = search.inside[0].tables[0].rows
    assert len(rows) == 10
    assert rows[0][0] == "zipbrain(rho=0.55)"
    mass = {"attention": True, "merge": True, "readout": False}
    heavy = record("ZIPBrain", "max", 0.9, "search", task={"split": "val"}, recipe={**chosen, "mass": mass})
    assert build([*tried, heavy]).sections[0].inside[0].tables[0].rows[0][0] == "zipbrain() + mass"
    assert "12 recipes were scored on the val split" in search.inside[0].text[0]
    table = test.inside[0].tables[0]
    assert table.rows[1][0] == "ZIPBrain (found by search)"
    more = test.inside[0].tables[1]
    assert more.rows[1][more.columns.index("options")] == "chosen on EEGMAT, val split"


def test_costs_are_joined_to_scores_and_doubles_are_left_out() -> None:
    timed = RECORDS[1] | {"key": "l", "kind": "latency", "extra": {"latency": {"to_original": 0.7}}}
    counted = [RECORDS[i] | {"key": f"f{i}", "kind": "flops", "extra": {"macs": macs}} for i, macs in ((0, 10), (1, 6))]
    for one in (timed, *counted):
        for name in ("scores", "intervals"):
            one.pop(name)
    again = record("uncompressed", None, 0.62, "ablate", intervals={})
    massive = record("ZIPBrain", 0.4, 0.6, extra={"mass": True}, recipe={"mass": {"merge": True}})
    found = merged([Result.of(one) for one in (again, *RECORDS[:2], timed, *counted, massive)])
    assert [one.label for one in found] == ["Original", "ZIPBrain", "ZIPBrain + mass"]
    assert found[0].intervals
    assert found[1].extra == {"latency_ratio": 0.7, "macs": 6}
    assert found[0].extra["macs"] == 10
    (section,) = build([*RECORDS[:2], timed, *counted]).sections
    table = section.inside[0].tables[0]
    assert table.columns[:5] == ("method", "asked", "times as fast", "multiply-adds", "token load")
    assert table.rows[1][1:4] == ("40 %", "1.43", "60 %")
    known = [one | {"operations": 0.65} for one in RECORDS[:2]]
    (section,) = build([*known, timed]).sections
    table = section.inside[0].tables[0]
    heads = ("method", "asked", "times as fast", "operations", "decisions unchanged")  # no stand-in for them
    assert table.columns[:5] == heads
    assert table.rows[1][1:5] == ("40 %", "1.43", "65 %", "90.0 %")
    names = [picture.name for picture in section.inside[0].pictures]
    assert names == ["pareto-latency-1", "pareto-operations-1", "curves-1", "tokens-1"]


def test_a_cost_that_some_records_lack_is_a_dash_and_no_reason_to_hide_it() -> None:
    timed = {"key": "l", "kind": "latency", "extra": {"latency": {"to_original": 0.7}}}
    (section,) = build([*RECORDS[:4], RECORDS[1] | timed]).sections
    table = section.inside[0].tables[0]
    column = table.columns.index("times as fast")
    assert [row[column] for row in table.rows] == ["1.00", "1.43", "-", "-"]
    assert "Where times were measured is not recorded" in table.title
    captions = [picture.caption for picture in section.inside[0].pictures if "against times" in picture.caption]
    assert "2 results without times are left out" in captions[0]


def test_latencies_of_one_machine_and_batch_stand_in_a_table() -> None:
    def timed(number: int, ratio: float, device: str, batch: int = 8) -> dict[str, Any]:
        timing = {"device": device, "threads": 2, "batch": batch, "rounds": 10, "torch": "2.0"}
        extra = {"latency": {"to_original": ratio}, "timing": timing}
        return RECORDS[number] | {"key": f"{number} {timing}", "kind": "latency", "extra": extra}

    def shown(*times: dict[str, Any]) -> tuple[list[str], str]:
        table = build([*RECORDS[:4], *times]).sections[0].inside[0].tables[0]
        return [row[table.columns.index("times as fast")] for row in table.rows[1:]], table.title

    slow = [timed(1, 0.7, "slow"), timed(2, 0.8, "slow")]  # the rows are sorted: ZIPBrain 0.4, ToMe 0.4, ZIPBrain max
    cells, caption = shown(*slow, timed(3, 0.1, "fast"))
    assert cells == ["1.43", "-", "1.25"]
    assert "measured on slow, threads 2, batch 8, torch 2.0" in caption
    cells, caption = shown(*slow, timed(1, 0.5, "slow", 32), timed(2, 0.6, "slow", 32))  # as many: the newest
    assert cells == ["2.00", "-", "1.67"]
    assert "batch 32" in caption


def test_ablations_of_two_settings_are_no_seeds_of_one() -> None:
    rows = []
    for of, step in (("one", 0.0), ("two", 0.1)):
        for label, auroc in (("full", 0.7), ("pruning", 0.6)):
            rows.append(record(label, "max", auroc + step, "ablate", extra={"of": of}))
    (section,) = build([RECORDS[0], *rows, *RECORDS[4:]]).sections
    parts = [part for part in section.inside if part.title.startswith("Ablation")]
    titles = ["Ablation at maximum", "Ablation at maximum (2)", "Ablation at maximum (3)"]
    assert [part.title for part in parts] == titles
    places = [parts[0].tables[0].columns.index(name) for name in ("AUROC", "records")]
    assert [part.tables[0].rows[1][places[0]] for part in parts] == ["0.6000", "0.7000", "0.5700"]
    assert {row[places[1]] for part in parts for row in part.tables[0].rows} == {"1"}
    counted = build([RECORDS[0], *(row | {"operations": 0.5} for row in rows[:2])]).sections[0].inside[-1].tables[0]
    assert counted.columns[:2] == ("variant", "operations")
    assert [row[1] for row in counted.rows] == ["50 %", "50 %"]
    assert parts[0].text == ["Full method: full()."]


def test_the_page_opens_with_what_was_gained_and_kept(tmp_path: Path) -> None:
    timed = RECORDS[1] | {"key": "l", "kind": "latency", "extra": {"latency": {"to_original": 0.625}}}
    kept = RECORDS[1] | {"agreement": 0.95}
    original = RECORDS[0] | {"scores": {"auroc": 0.9, "kappa": 0.5}}
    write_report(store(tmp_path / "results", [original, kept, timed]), tmp_path / "out")
    sentence = "ZIPBrain at 40 %: 1.60 times as fast with 95.0 % of the decisions unchanged (19 of 20 windows)."
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert page.index(f'<p class="headline">{sentence}</p>') < page.index("<main>")
    assert f"**{sentence}**" in (tmp_path / "out" / "report.md").read_text(encoding="utf-8")
    assert not build(RECORDS).headline


def test_times_that_are_none_are_dashes() -> None:
    timed = RECORDS[1] | {"key": "l", "kind": "latency", "extra": {"latency": {"to_original": 0.0}}}
    (section,) = build([*RECORDS[:2], timed]).sections
    assert "times as fast" not in section.inside[0].tables[0].columns


def test_tasks_are_kept_apart() -> None:
    other = record("Original", None, 0.7, task={"weights_sha256": "c" * 64})
    assert [title for title, _ in tasks_of([Result.of(one) for one in (*RECORDS, other)])] == [
        "LaBraM on EEGMAT, test split", "LaBraM on EEGMAT, test split (2)",
    ]  # fmt: skip


def test_undefined_scores_and_missing_fields_are_dashes() -> None:
    undefined = record("ToMe", 0.4, float("nan"), logit_error=float("nan"))
    (section,) = build([RECORDS[0], undefined]).sections
    table = section.inside[0].tables[0]
    assert table.rows[1][table.columns.index("AUROC")] == "-"
    more = section.inside[0].tables[1]
    assert more.rows[1][more.columns.index("logit error")] == "-"
    bare = {"key": "k", "kind": "compare", "label": "x", "ratio": None, "recipe": None, "scores": {"kappa": 0.1}}
    assert build([bare]).sections


def test_an_empty_or_damaged_store_is_told(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="no results"):
        write_report(tmp_path / "nothing", tmp_path / "out")
    assert not (tmp_path / "out").exists()
    folder = store(tmp_path / "results", RECORDS)
    with open(folder / "results.jsonl", "a") as file:
        file.write('{"key": "half')
    written = write_report(folder, tmp_path / "out")
    assert "half-written" in written.warnings[0]
    assert "half-written" in (tmp_path / "out" / "report.md").read_text(encoding="utf-8")
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="can't be written"):
        write_report(folder, tmp_path / "file")


def test_odd_lines_of_a_store_are_left_out_and_told(tmp_path: Path) -> None:
    odd: list[Any] = [1, "x", True, [1], [[1, 2]], {"a": "b"}]
    lines: list[dict[str, Any]] = [{"key": "alone"}, {"kind": "latency", "label": "x"}, {"kind": "flops", "label": "x"}]
    for value in odd:
        for name in ("task", "recipe", "label", "scores", "intervals", "confusion", "token_counts", "removed", "extra"):
            lines += [{**RECORDS[1], "kind": kind, name: value} for kind in ("compare", "latency")]
        lines += [{**RECORDS[1], "task": RECORDS[1]["task"] | {name: value}} for name in ("subjects", "classes")]
        lines += [{**RECORDS[1], "recipe": RECORDS[1]["recipe"] | {name: value}} for name in ("method", "mass")]
        lines += [{**RECORDS[1], "extra": {name: value}} for name in ("latency", "timing", "macs", "latency_ratio")]
    lines = [
        {"format": 1, **line, "key": line["key"] if number == 0 else f"odd {number}"}
        for number, line in enumerate(lines)
    ]
    folder = store(tmp_path / "results", RECORDS)
    with open(folder / "results.jsonl", "a") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)
    written = write_report(folder, tmp_path / "out")
    assert any("'alone' is left out: its label is missing" in warning for warning in written.warnings)
    assert "is left out" in (tmp_path / "out" / "report.md").read_text(encoding="utf-8")
    assert written.records >= len(RECORDS)
    assert results_of(RECORDS) == ([Result.of(one) for one in RECORDS], [])


def test_costs_without_scores_are_told() -> None:
    counted = {"key": "f", "kind": "flops", "label": "x", "recipe": None, "extra": {"macs": 3}}
    report = build([counted])
    assert not report.sections
    assert "only costs are stored" in report.warnings[0]


@pytest.mark.parametrize("name", ["a$b$", "$\\frac$", "100$", "$^$"])
def test_dollars_in_names_are_no_formulas(name: str, tmp_path: Path) -> None:
    task = {"dataset": name, "classes": [name, "b"]}
    records = [record("Original", None, 0.6, task=task), record(name, 0.4, 0.5, task=task)]
    records += [record(label, "max", 0.5, "ablate", task=task) for label in ("full", name)]
    assert write_report(store(tmp_path / "results", records), tmp_path / "out").records == 4


def test_a_report_of_stored_results_needs_no_torch(tmp_path: Path) -> None:
    folder = store(tmp_path / "results", RECORDS)
    code = (
        "import sys; from zipbrain.evaluation.report import write_report; write_report(sys.argv[1], sys.argv[2]); "
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code, str(folder), str(tmp_path / "out")], check=True)


def test_example_sections_draw_the_recipe_of_the_records() -> None:
    torch.manual_seed(0)
    model = create("biot", n_outputs=1, n_chans=6, n_times=600, dim=16, heads=2, depth=2).eval()
    x = np.random.default_rng(0).normal(0, 30, (5, 6, 600)).astype(np.float32)
    names = ["C3", "C4", "O1", "O2", "F3", "F4"]
    windows = Windows.from_arrays(x, [0, 1, 0, 1, 0], ch_names=names, sfreq=200, classes=["a", "b"], name="mine")
    records = [record("ToMe", 0.8, 0.6, task={"model": "BIOT"}), record("ZIPBrain", 0.4, 0.6, task={"model": "BIOT"})]
    (section,) = example_sections(model, windows, json.loads(json.dumps(records)), window=1, device="cpu")
    assert [picture.name for picture in section.pictures] == ["attention-1", "attention-2", "merge-map", "survival"]
    assert "window 1 (b); ZIPBrain" in section.text[0]
    windows.ch_names = ("ear",) * 6
    (section,) = example_sections(model, windows, device="cpu")
    assert [picture.name for picture in section.pictures] == ["attention-1", "attention-2", "merge-map"]
    assert "No topography" in section.text[1]
    with pytest.raises(OptionError, match="--example"):
        example_sections(model, windows, window=5)
