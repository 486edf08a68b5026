"""`zipbrain demo`: a trained model made faster by every method on made-up EEG, with a table, a picture and a report."""

from __future__ import annotations

import json
import shlex
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.padding import Padding

from zipbrain.cli.loaders import need_torch, split_names
from zipbrain.cli.options import Agree, AsJson, Ratios, Rounds, Threads, TimeBudget, where_to_write
from zipbrain.cli.program import command_line
from zipbrain.cli.progress import show_progress
from zipbrain.cli.terminal import Console
from zipbrain.defaults import KEPT_AGREEMENT
from zipbrain.errors import MissingExtra

if TYPE_CHECKING:
    from zipbrain.evaluation.demo import Demonstration

_NEEDED = {"sklearn": "scikit-learn", "scipy": "scipy", "matplotlib": "matplotlib", "mne": "mne"}


def demo(
    out: Annotated[Path, where_to_write("the report, its pictures and the model")] = Path("zipbrain-demo"),
    ratios: Ratios = "0.4,0.8",
    limit: Annotated[int, typer.Option(min=2, help="At most so many windows: there are 300.")] = 120,
    rounds: Rounds = 8,
    time_budget: TimeBudget = 120.0,
    threads: Threads = None,
    agree: Agree = KEPT_AGREEMENT,
    as_json: AsJson = False,
) -> None:
    """Make one trained model faster, by every method, on this CPU.

    It takes a minute or two. The model, a LaBraM, comes with zipbrain and was trained on synthetic EEG events; the
    windows are synthetic too, of other made-up people. So the table shows how methods compare, not what any of them
    reaches on recordings.

    Example: zipbrain demo --ratio 0.6,max --limit 300 --out my-demo
    """
    need_torch()
    for module, package in _NEEDED.items():
        if find_spec(module) is None:
            raise MissingExtra(package, "report", "zipbrain demo")
    from zipbrain.evaluation.demo import demonstrate

    chosen = split_names(ratios)
    timed: dict[str, Any] = {"rounds": rounds, "threads": threads, "time_budget": time_budget, "agree": agree}
    with show_progress() as progress:
        found = demonstrate(out, windows=limit, ratios=chosen, progress=progress, **timed)
    if as_json:
        _print_json(found, out)
    else:
        _show(found, out)


def next_commands(model: Path, out: Path) -> list[str]:
    """Commands to try after the demo, on its model; each takes minutes on a CPU."""
    from zipbrain.evaluation.demo import RECIPE

    data = "--data synthetic-events"
    commands = {
        "compare": f"{{model}} {data} --recipe {{recipe}} --ratios 0.6,max --limit 60",
        "search": f"{{model}} {data} --ratio max --limit 30",
        "finetune": f"--model labram {data} --init {{model}} --limit 120 --epochs 2",
    }
    paths = {"model": shlex.quote(str(model)), "recipe": shlex.quote(str(model / RECIPE))}
    return [
        command_line([name, *shlex.split(options.format(**paths)), "--out", str(out / name)])
        for name, options in commands.items()
    ]


def _print_json(found: Demonstration, out: Path) -> None:
    from zipbrain.evaluation.demo import headline
    from zipbrain.files import json_ready

    content = {**found.comparison.to_dict(), "headline": headline(found.comparison)}
    content |= {"model": str(found.model), "report": str(found.report), "merge_map": str(found.picture)}
    content |= {"files": [str(path) for path in found.files], "threads": found.threads, "seconds": found.seconds}
    content["next"] = next_commands(found.model, out)
    print(json.dumps(json_ready(content), indent=2))


def _show(found: Demonstration, out: Path) -> None:
    from zipbrain.evaluation.demo import headline, notes, sentence, table

    console = Console(highlight=False)
    console.print(table(found.comparison).to_rich())
    for line in (sentence(found.comparison), found.comparison.recommendation):
        console.print(line, style="bold green", markup=False)
    for note in notes(found.comparison):
        console.print(Padding(note, (0, 0, 0, 2)), style="dim", markup=False)
    console.print(f"\nMeasured just now, in {found.seconds:.0f} s, on made-up EEG: no word about real recordings.")
    for name, path in (("report", found.report), ("merge map", found.picture), ("model", found.model)):
        console.print(f"{name:<10}{path}", soft_wrap=True, markup=False)
    console.print("\nNext:")
    for command in next_commands(found.model, out):
        console.print(f"  {command}", soft_wrap=True, markup=False)
    if headline(found.comparison):
        console.print(f"\n{headline(found.comparison)}", style="bold green", markup=False)
