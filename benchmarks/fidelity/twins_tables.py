"""The tables of the notes about Twins, from what `twins_networks.py` collected."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from benchmarks.fidelity.experiments_tables import between, differences, error, goal, markdown, triple
from benchmarks.fidelity.experiments_values import GROUPS, MODELS, RESULTS, SHOWN, TASKS, Row, intervals, stored

FILE = "twins_networks_intervals"
TITLES = TASKS | {"eegmat": "EEGMAT, three folds (AUROC)"}
# label and mass of every method, as a reader sees them
METHODS = {
    "ZIPBrain": ("ZIPBrain", 0), "ZIPBrain + mass": ("ZIPBrain", 1), "random grouping": ("random grouping", 0),
    "random grouping + mass": ("random grouping", 1), "ToMe + mass": ("ToMe", 1),
    "Twins, first version": ("Twins 1", 0),
    "Twins, mean norm everywhere": ("Twins 2, mean norm", 0), "Twins, plain mean everywhere": ("Twins 2, mean", 0),
    "Twins": ("Twins 2", 0),
}  # fmt: skip


def found(task: str, model: str, method: str, ratio: str) -> Row | None:
    """The row of one method as a reader names it."""
    label, mass = METHODS[method]
    return intervals(FILE).get((task, model, "compare", label, ratio, mass))


def overall(ratio: str) -> str:
    """All methods, mean over models and tasks, with intervals."""
    lines = []
    for method in METHODS:
        every, softmax, linear = (found("overall", group, method, ratio) for group in ("all", *GROUPS))
        assert every
        assert softmax
        assert linear
        lines.append([
            method, between(every, "change", "{:+.4f}".format), between(softmax, "agreement", "{:.3f}".format),
            between(linear, "agreement", "{:.3f}".format), between(every, "logit_error", error),
        ])  # fmt: skip
    head = ["change of score", "same decisions (softmax)", "same decisions (linear)", "logit error"]
    return markdown([f"{SHOWN[ratio]} removed", *head], lines)


def against(ratio: str) -> str:
    """Twins less each other on the same networks."""
    lines = []
    for method in METHODS:
        every, softmax, linear = (found("overall", group, method, ratio) for group in ("all", *GROUPS))
        if method != "Twins" and every and softmax and linear:
            lines.append([method, *differences(every, softmax, linear, "twins")])
    head = ["change of score", *(f"same decisions ({group})" for group in GROUPS)]
    head += [f"its logit error / that of Twins ({group})" for group in GROUPS]
    return markdown([f"Twins against, {SHOWN[ratio]}", *head], lines)


def pairs(ratio: str) -> str:
    """Change / agreement / logit error of Twins on every task and model, and the number of networks."""
    lines = []
    for task, title in TITLES.items():
        rows = [found(task, model, "Twins", ratio) for model in MODELS]
        lines.append([title, *(f"{triple(row)} ({row['runs']})" if row else "" for row in rows)])
    return markdown([f"Twins, {SHOWN[ratio]}", *MODELS.values()], lines)


def scores() -> str:
    """Scores of the uncompressed networks on test windows."""
    lines = []
    for task, title in TITLES.items():
        line = [title]
        for model in MODELS:
            own = [
                float(row["original"]) for row in stored("twins_networks")
                if (row["kind"], row["task"], row["model"]) == ("original", task, model)
            ]  # fmt: skip
            line.append(f"{sum(own) / len(own):.3f} ({len(own)})" if own else "")
        lines.append(line)
    return markdown(["", *MODELS.values()], lines)


NEW_TWINS: dict[str, Callable[[], str]] = {}
if (RESULTS / f"{FILE}.csv").exists():
    NEW_TWINS = {
        "new goal": partial(goal, lambda group: found("overall", group, "Twins", "0.8")),
        **{f"new {ratio}": partial(overall, ratio) for ratio in SHOWN},
        "new against": partial(against, "0.8"), "new pairs": partial(pairs, "0.8"), "new scores": scores,
    }  # fmt: skip
