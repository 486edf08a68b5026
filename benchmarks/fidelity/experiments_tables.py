"""The tables of the experiments, made from the CSVs of benchmarks/results; `fill` writes them into the page."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from statistics import mean

from benchmarks.fidelity.experiments_intervals import FAMILIES, FIXED
from benchmarks.fidelity.experiments_values import (
    GROUPS,
    METHODS,
    MODELS,
    RATIOS,
    SHOWN,
    TASKS,
    VARIANTS,
    Row,
    compared,
    found,
    intervals,
    over_cells,
    run_of,
    stored,
    sweep_values,
)  # fmt: skip


def error(value: float) -> str:
    """A logit error: four digits behind the point while it is small."""
    return f"{value:.4f}" if value < 0.1 else f"{value:.2f}"


def triple(row: dict[str, float] | Row | None) -> str:
    """Change / agreement / logit error."""
    if row is None:
        return ""
    change, agreement, wrong = (float(row[name]) for name in ("change", "agreement", "logit_error"))
    return f"{change:+.3f} / {agreement:.3f} / {error(wrong)}"


def between(row: Row, name: str, form: Callable[[float], str]) -> str:
    """A value and its interval."""
    value, low, high = (form(float(row[f"{name}{end}"])) for end in ("", "_low", "_high"))
    return f"{value} [{low} to {high}]"


def markdown(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    rows = [f"| {' | '.join(head)} |", f"|---{'|---' * (len(head) - 1)}|"]
    return "\n".join(rows + [f"| {' | '.join(line)} |" for line in lines])


def runs_table() -> str:
    """Scores of the uncompressed networks."""
    lines = []
    facts = [row for row in stored("experiments") if row["kind"] == "original"]
    for task, title in (*TASKS.items(), (FIXED, "EEGMAT, the paper's split (AUROC)")):
        line = [title]
        for model in MODELS:
            own = [row for row in facts if (row["task"], row["model"]) == (task, model)]
            if not own:
                line.append("")
                continue
            scores = [float(row["original"]) for row in own]
            spread = f" ({min(scores):.2f} to {max(scores):.2f})" if len(own) > 1 else ""
            line.append(f"{mean(scores):.3f}{spread}; {sum(run_of(row) in compared() for row in own)} of {len(own)}")
        lines.append(line)
    return markdown(["", *MODELS.values()], lines)


def overall(ratio: str) -> str:
    """All methods that every run has, mean over cells, with intervals."""
    lines = []
    twins = found("overall", "all", "Twins", ratio)
    assert twins
    for method in METHODS:
        every, softmax, linear = (found("overall", group, method, ratio) for group in ("all", *GROUPS))
        if every and softmax and linear and every["runs"] == twins["runs"]:
            lines.append([
                method, between(every, "change", "{:+.4f}".format),
                between(softmax, "agreement", "{:.3f}".format), between(linear, "agreement", "{:.3f}".format),
                between(every, "logit_error", error),
            ])  # fmt: skip
    head = ["change of score", "same decisions (softmax)", "same decisions (linear)", "logit error"]
    return markdown([f"{SHOWN[ratio]} removed", *head], lines)


def against(reference: str, ratio: str) -> str:
    """A method less each other on the same runs; what excludes "no difference" is in bold."""
    prefix, lines = reference.lower(), []
    for method in METHODS:
        rows = [found("overall", group, method, ratio) for group in ("all", *GROUPS)]
        if method == reference or None in rows:
            continue
        every, softmax, linear = (row for row in rows if row)
        lines.append([method, every["runs"], *differences(every, softmax, linear, prefix)])
    head = ["runs", "change of score", *(f"same decisions ({group})" for group in GROUPS)]
    head += [f"its logit error / that of {reference} ({group})" for group in GROUPS]
    return markdown([f"{reference} against, {SHOWN[ratio]}", *head], lines)


def differences(every: Row, softmax: Row, linear: Row, prefix: str) -> list[str]:
    """Cells of a row of `against`."""
    return [
        _difference(every, f"{prefix}_change", 4),
        *(_difference(row, f"{prefix}_agreement", 3) for row in (softmax, linear)),
        *(_times(row, f"{prefix}_log_error") for row in (softmax, linear)),
    ]


def _difference(row: Row, name: str, digits: int) -> str:
    clear = float(row[f"{name}_low"]) > 0 or float(row[f"{name}_high"]) < 0
    value = between(row, name, lambda number: f"{number:+.{digits}f}")
    return f"**{value}**" if clear else value


def _times(row: Row, name: str) -> str:
    """How many times as large the other's error is, as geometric mean over cells."""
    value, high, low = (math.exp(-float(row[f"{name}{end}"])) for end in ("", "_low", "_high"))
    text = f"{value:.2f} [{low:.2f} to {high:.2f}]"
    return f"**{text}**" if low > 1 or high < 1 else text


def by_model(ratio: str) -> str:
    """Mean over the tasks of each model."""
    lines = []
    for method in METHODS:
        line = [method]
        for model in MODELS:
            cells = [row for task in TASKS if (row := found(task, model, method, ratio))]
            names = ("change", "agreement", "logit_error")
            line.append(triple({name: mean(float(row[name]) for row in cells) for name in names}))
        lines.append(line)
    return markdown([f"mean over tasks, {SHOWN[ratio]}", *MODELS.values()], lines)


def sweep(family: str) -> str:
    """Every ratio, mean over cells."""
    lines = []
    for method, (kind, label, mass) in METHODS.items():
        if kind == "compare" and (family, label, mass, "0.2") in sweep_values():
            lines.append([method, *(triple(sweep_values()[family, label, mass, ratio]) for ratio in RATIOS)])
    return markdown([f"{family} attention", "20 %", "40 %", "60 %", "80 %", "maximum"], lines)


def ablation(setting: str) -> str:
    """The paper's variants at 80 %; random ones with the spread of ten seeds in one network."""
    lines = []
    for variant in VARIANTS:
        line = [variant]
        rows = [
            row for row in stored("experiments")
            if (row["kind"], row["label"]) == ("ablate", f"{setting}: {variant}")
        ]  # fmt: skip
        for group in GROUPS:
            own = [row for row in rows if FAMILIES[row["model"]] == group]
            names = ["change", "agreement", "logit_error"]
            value = over_cells(own, names)
            cells = [f"{value['change']:+.3f}", f"{value['agreement']:.3f}", error(value["logit_error"])]
            if variant.startswith("random"):
                spread = over_cells(own, [f"{name}_sd" for name in names])
                forms = (f"{spread['change_sd']:.3f}", f"{spread['agreement_sd']:.3f}", error(spread["logit_error_sd"]))
                cells = [f"{cell} ± {form}" for cell, form in zip(cells, forms, strict=True)]
            line.append(" / ".join(cells))
        lines.append(line)
    return markdown([f"ZIPBrain, {setting} setting", *(f"{group} attention" for group in GROUPS)], lines)


def search() -> str:
    """What the validation score promised and what the test subjects gave."""
    lines = []
    for ratio in SHOWN:
        for model in (*MODELS, "all"):
            rows = [
                row for row in stored("experiments_search")
                if row["ratio"] == ratio and model in (row["model"], "all")
            ]  # fmt: skip
            if not rows:
                continue
            test = [float(row["test_winner"]) - float(row["test_default"]) for row in rows]
            better, worse = sum(value > 0 for value in test), sum(value < 0 for value in test)
            gains = [
                f"{mean(float(row[f'{split}_winner']) - float(row[f'{split}_{other}']) for row in rows):+.3f}"
                for split in ("val", "test")
                for other in ("original", "default")
            ]
            name = MODELS.get(model, "all")
            lines.append([f"{SHOWN[ratio]}, {name}", str(len(rows)), *gains,
                          f"{better} / {len(rows) - better - worse} / {worse}"])  # fmt: skip
    head = "runs, validation: winner - original, winner - default, test: winner - original, winner - default"
    return markdown(["", *head.split(", "), "test: better / equal / worse than default"], lines)


def layers() -> str:
    """Which blocks reduce, on runs in which the comparison is complete too; all blocks at 40 % to compare with."""
    saved = {(row["model"], row["blocks"], row["ratio"]): row["saved"] for row in stored("experiments_flops")}
    lines = []
    for method in ("ZIPBrain", "Twins"):
        for blocks, ratio in (
            ("all blocks", "0.8"), ("first half", "0.8"), ("every second", "0.8"), ("second half", "0.8"),
            ("all blocks", "0.4"),
        ):  # fmt: skip
            wanted = ("compare", method) if blocks == "all blocks" else ("layers", f"{method}, {blocks}")
            rows = [
                row for row in stored("experiments")
                if (row["kind"], row["label"], row["ratio"], row["mass"]) == (*wanted, ratio, "0")
                and run_of(row) in compared()
            ]  # fmt: skip
            values = [
                over_cells(
                    (row for row in rows if FAMILIES[row["model"]] == group), ("change", "agreement", "logit_error")
                )
                for group in GROUPS
            ]
            shares = " / ".join(f"{100 * float(saved[model, blocks, ratio]):.0f}" for model in MODELS)
            lines.append([f"{method}, {blocks}, {float(ratio):.0%}".replace("%", " %"), shares, *map(triple, values)])
    head = ["", "FLOPs saved, % (LaBraM / EEGPT / BIOT / TFM)"]
    return markdown([*head, *(f"{group} attention" for group in GROUPS)], lines)


def relatives() -> str:
    """Validation windows: the ten with the smallest errors, Twins, and those without pairs; runs that were compared."""
    own: dict[str, list[Row]] = defaultdict(list)
    for row in stored("experiments"):
        if row["kind"] == "candidate" and run_of(row) in compared():
            own[row["label"]].append(row)
    scored = []
    for label, rows in own.items():
        families = [[row for row in rows if FAMILIES[row["model"]] == group] for group in GROUPS]
        values = [over_cells(family, ("agreement", "logit_error")) for family in families]
        cells: dict[tuple[str, str], list[float]] = defaultdict(list)
        for row in rows:
            if row["task"] != FIXED:
                cells[row["task"], row["model"]].append(float(row["logit_error"]))
        typical = math.exp(mean(math.log(mean(cell)) for cell in cells.values()))
        numbers = [f"{value['agreement']:.3f} / {error(value['logit_error'])}" for value in values]
        scored.append((typical, [f"`{label}`", *numbers, error(typical)]))
    scored.sort(key=lambda pair: pair[0])
    twins, simple = "`q k v / x / mean_norm`", ("`random", "`lightest", "`pivots", "`ZIPBrain", "`ToMe")
    lines = [
        [line[0] + " (Twins)" * (line[0] == twins), *line[1:]]
        for place, (_, line) in enumerate(scored)
        if place < 10 or line[0] == twins or line[0].startswith(simple)
    ]
    return markdown(
        ["pairs in / match in / merge", *(f"{group} attention" for group in GROUPS), "typical error"], lines
    )


def beside_the_paper() -> str:
    """EEGMAT, the paper's split, maximum compression: AUROC with intervals, and the paper's value."""
    from zipbrain.evaluation.paper_results import reported

    models = [model for model in MODELS if found(FIXED, model, "Twins", "max")]
    lines = []
    for method, printed in (
        ("uncompressed", "original"), ("ZIPBrain, the paper's setting", "zipbrain"), ("ZIPBrain, searched", ""),
        ("ToMe", "tome"), ("ToFu", "tofu"), ("EViT", "evit"), ("DART", "dart"), ("Twins", ""),
    ):  # fmt: skip
        line = [method]
        for model in models:
            if method == "uncompressed":
                row = intervals().get((FIXED, model, "original", "original", "", 0))
            elif "paper" in method:
                row = intervals().get((FIXED, model, "compare", "ZIPBrain (paper)", "max", 0))
            else:  # EEGPT's maximum is its 80 %
                row = found(FIXED, model, method, "max") or found(FIXED, model, method, "0.8")
            paper = reported(MODELS[model], "EEGMAT", printed, "max").get("auroc")
            line += [between(row, "score", "{:.3f}".format) if row else "", f"{paper.value:.3f}" if paper else ""]
        lines.append(line)
    return markdown(["AUROC", *(text for model in models for text in (MODELS[model], "paper"))], lines)


def goal(row_of: Callable[[str], Row | None] = lambda group: found("overall", group, "Twins", "0.8")) -> str:
    """What we wanted of Twins at 80 %, and what it has, given its overall rows by group."""
    lines = []
    for title, group, name, bound, upward, form in (
        ("change of score", "all", "change", -0.002, True, "{:+.4f}"),
        ("same decisions, softmax", "softmax", "agreement", 0.99, True, "{:.3f}"),
        ("same decisions, linear", "linear", "agreement", 0.98, True, "{:.3f}"),
        ("logit error", "all", "logit_error", 0.01, False, "{:.4f}"),
    ):
        row = row_of(group)
        assert row
        met = float(row[name]) >= bound if upward else float(row[name]) <= bound
        wanted = f"{'at least' if upward else 'at most'} {bound}"
        lines.append([title, wanted, between(row, name, form.format), "met" if met else "missed"])
    return markdown(["80 % removed", "goal", "Twins", ""], lines)


TABLES: dict[str, Callable[[], str]] = {
    "runs": runs_table,
    **{f"overall {ratio}": partial(overall, ratio) for ratio in SHOWN},
    **{f"{method} against 0.8": partial(against, method, "0.8") for method in ("Twins", "ZIPBrain")},
    "models": partial(by_model, "0.8"),
    **{f"sweep {family}": partial(sweep, family) for family in GROUPS},
    "ablation default": partial(ablation, "default"),
    "search": search,
    "layers": layers,
    "relatives": relatives,
    "paper": beside_the_paper,
}
