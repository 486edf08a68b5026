"""CSVs, tables and the figure of the study, from what its two other commands wrote.

python -m benchmarks.study.report collect STUDY     # benchmarks/results/study_*.csv, logits with --logits
python -m benchmarks.study.report page              # tables of docs/notes/study.md and study.png, from the CSVs
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.shared.results import RESULTS, fill, read_csv, write_csv
from benchmarks.study.recipes import OURS, TIMES

from zipbrain.binomial import share_bounds
from zipbrain.metrics import main_metric
from zipbrain.recipe import Recipe

ONE_CLASS = 0.95  # share of the answers beyond which agreement says nothing
DRAWS = 10_000
Row = dict[str, Any]


def collect(study: Path, folder: Path = RESULTS, logits: bool = False) -> None:
    """Write the CSVs; with `logits`, the compressed logits too."""
    networks: list[Row] = []
    promises: list[Row] = []
    curves: list[Row] = []
    for path in sorted((study / "runs").glob("*/tested.json")):
        name, facts = path.parent.name, json.loads(path.read_text())
        task, model, seed = name.rsplit("-", 2)
        about = {"task": task, "model": model, "seed": seed}
        steps = {one.stem: json.loads(one.read_text()) for one in path.parent.glob("*.json")}
        rows = {stem: one.get("recipes", []) for stem, one in steps.items()}
        metric = main_metric(2 if len(facts["answers"]) <= 2 else len(facts["answers"]))
        tokens = next((one["tokens"] for group in rows.values() for one in group), "")
        refusals = [one["refused"] for one in steps.values() if "refused" in one]
        networks.append(
            {
                **about,
                "tokens": tokens,
                "windows": facts["windows"],
                "subjects": facts["subjects"],
                "metric": metric,
                "score": round(facts["scores"][metric], 4),
                "right": facts["right"],
                "usual": facts["usual"],
                "most_answered": round(max(facts["answers"]) / sum(facts["answers"]), 4),
                "apart": _apart(facts, refusals),
                "weights": facts["weights"][:16],
            }
        )
        for stem, group in sorted(rows.items()):
            for one in group:
                found = facts["results"][Recipe.from_dict(one["recipe"]).key()]
                if "refused" in found:
                    continue
                row = {
                    **about,
                    "runtime": facts["runtime"],
                    "batch": facts["batch"],
                    "tokens": tokens,
                    "method": one["method"],
                    "schedule": one["schedule"],
                    "time": round(one["time"], 4),
                    "operations": round(found["operations"], 4),
                    "looked": "" if np.isnan(found["looked"]) else round(found["looked"], 4),
                    "agreement": round(found["agreement"], 4),
                    "change": round(found["scores"][metric] - facts["scores"][metric], 4),
                    "sha256": found["sha256"][:16],
                }
                if stem.startswith("promise"):
                    kept = found["upper"] >= one["promised"]
                    promises.append(
                        {
                            **row,
                            "asked": one["agree"],
                            "promised": round(one["promised"], 4),
                            "is_promise": one["is_promise"],
                            "upper": round(found["upper"], 4),
                            "kept": kept,
                        }
                    )
                else:
                    curves.append({**row, "title": stem.removeprefix("curve "), "target": one["target"]})
        if logits:
            (folder / "study_logits").mkdir(parents=True, exist_ok=True)
            shutil.copy(path.with_name("logits.npz"), folder / "study_logits" / f"{name}.npz")
    rivals = list(against(curves, networks))
    files = {"networks": networks, "promises": promises, "curves": curves, "rivals": rivals}
    for title, found in files.items():
        if found:
            write_csv(f"study_{title}", found, folder)


def _apart(facts: Mapping[str, Any], refusals: Sequence[str]) -> str:
    """Why a network is listed apart; empty if it is not."""
    if max(facts["answers"]) > ONE_CLASS * sum(facts["answers"]):
        return "one class"
    if share_bounds(facts["right"], facts["windows"])[0] <= facts["usual"] / facts["windows"]:
        return "at chance"
    return "refused" if any("answers one class" in one for one in refusals) else ""


def counted(rows: Iterable[Mapping[str, Any]], networks: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Rows of networks that are not listed apart."""
    good = {_name(one) for one in networks if not one["apart"]}
    return [row for row in rows if _name(row) in good]


def _name(row: Mapping[str, Any]) -> tuple[str, str, str]:
    return row["task"], row["model"], row["seed"]


def against(curves: Sequence[Mapping[str, Any]], networks: Sequence[Mapping[str, Any]]) -> Iterable[Row]:
    """Decisions kept at equal time, ours less each rival's: mean over networks, with its 95 % interval over networks.

    A method that does not reach a time on a network stands there with its nearest recipe, which is slower.
    """
    rows = counted(curves, networks)
    kept = {(_name(row), row["title"], float(row["target"])): row for row in rows}
    for target in TIMES:
        for title in dict.fromkeys(row["title"] for row in rows):
            pairs = [
                (kept[name, OURS, target], kept[name, title, target])
                for name in dict.fromkeys(_name(row) for row in rows)
                if (name, OURS, target) in kept and (name, title, target) in kept
            ]
            if not pairs:
                continue
            gaps = np.array([float(ours["agreement"]) - float(theirs["agreement"]) for ours, theirs in pairs])
            draws = np.random.default_rng(0).integers(0, len(gaps), (DRAWS, len(gaps)))
            low, high = np.quantile(gaps[draws].mean(1), (0.025, 0.975))
            yield {
                "target": target,
                "title": title,
                "networks": len(gaps),
                "agreement": round(float(np.mean([float(theirs["agreement"]) for _, theirs in pairs])), 4),
                "time": round(float(np.mean([float(theirs["time"]) for _, theirs in pairs])), 4),
                "operations": round(float(np.mean([float(theirs["operations"]) for _, theirs in pairs])), 4),
                "ahead": round(float(gaps.mean()), 4),
                "low": round(float(low), 4),
                "high": round(float(high), 4),
            }


# -- tables ------------------------------------------------------------------------------------------------------------


def promises_table() -> str:
    """A line for every promise, model and runtime: what was promised, and what test subjects showed."""
    rows = counted(read_csv("study_promises"), read_csv("study_networks"))
    names = "model", "tokens", "runtime", "asked", "networks", *_SHOWN
    lines = [f"| {' | '.join(names)} |", "|" + "---|" * len(names)]
    kinds = [(row["asked"], row["model"], f"{row['runtime']}, batch {row['batch']}") for row in rows]
    for kind in sorted(dict.fromkeys(kinds), key=lambda kind: (-float(kind[0]), kind[1:])):
        asked, model, runtime = kind
        own = [row for row, other in zip(rows, kinds, strict=True) if other == kind]
        mean = {name: np.mean([float(row[name]) for row in own]) for name in _MEANS}
        kept = sum(row["kept"] == "True" for row in own)
        tokens = " and ".join(sorted({row["tokens"] for row in own}, key=int))
        lines.append(
            f"| {model} | {tokens} | {runtime} | {asked} | {len(own)} | {mean['promised']:.3f} | "
            f"{mean['agreement']:.3f} | {kept} of {len(own)} | {mean['change']:+.4f} | "
            f"{mean['operations']:.2f} | {mean['time']:.2f} |"
        )
    return "\n".join(lines)


_SHOWN = ("promised", "same decisions", "kept", "change of score", "operations", "time")
_MEANS = ("promised", "agreement", "change", "operations", "time")


def rivals_table() -> str:
    """A line for every method: decisions kept at each time, and how far `zipbrain tune` is ahead."""
    rows = read_csv("study_rivals")
    targets = list(dict.fromkeys(row["target"] for row in rows))
    lines = ["| same decisions at a time of | " + " | ".join(targets) + " |", "|" + "---|" * (len(targets) + 1)]
    for title in dict.fromkeys(row["title"] for row in rows):
        cells = []
        for target in targets:
            row = next((one for one in rows if (one["title"], one["target"]) == (title, target)), None)
            if row is None:
                cells.append("")
                continue
            ahead = f" ({float(row['ahead']):+.3f} [{float(row['low']):+.3f} to {float(row['high']):+.3f}])"
            cells.append(f"{float(row['agreement']):.3f}{ahead * (title != OURS)}")
        lines.append(f"| {title} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def networks_table() -> str:
    """A line for every network: what it is, its score, and why it is listed apart."""
    names = "task", "model", "seed", "tokens", "test windows", "subjects", "score", "listed apart"
    lines = [f"| {' | '.join(names)} |", "|" + "---|" * len(names)]
    for row in read_csv("study_networks"):
        line = "| {task} | {model} | {seed} | {tokens} | {windows} | {subjects} | {score} {metric} | {apart} |"
        lines.append(line.format(**row))
    return "\n".join(lines)


def tables() -> dict[str, Callable[[], str]]:
    """The tables whose CSV is there."""
    made = {"promises": promises_table, "rivals": rivals_table, "networks": networks_table}
    return {f"study {name}": make for name, make in made.items() if (RESULTS / f"study_{name}.csv").exists()}


def figure(path: Path) -> None:
    """Same decisions against time, a line for every method: mean over networks."""
    import matplotlib.pyplot as plt

    rows = read_csv("study_rivals")
    shown, axes = plt.subplots(figsize=(7, 4.2), constrained_layout=True)
    for title in dict.fromkeys(row["title"] for row in rows):
        own = [row for row in rows if row["title"] == title]
        style = {"color": "black", "linewidth": 2.5, "zorder": 3} if title == OURS else {"linewidth": 1.2}
        axes.plot(
            [float(one["time"]) for one in own], [float(one["agreement"]) for one in own], "o-", label=title, **style
        )
    axes.set(xlabel="time relative to the original", ylabel="same decisions, test subjects")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
    shown.savefig(path, dpi=150)
    plt.close(shown)


def main() -> None:
    """Parse and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    collecting = verbs.add_parser("collect")
    collecting.add_argument("study", type=Path)
    collecting.add_argument("--results", type=Path, default=RESULTS, help="folder of the CSVs")
    collecting.add_argument("--logits", action="store_true", help="store the compressed logits beside the CSVs")
    verbs.add_parser("page")
    given = parser.parse_args()
    if given.verb == "collect":
        collect(given.study, given.results, given.logits)
    else:
        fill(tables())
        if "study rivals" in tables():
            figure(RESULTS / "study.png")


if __name__ == "__main__":
    main()
