"""Twins on the test subjects of the networks whose weights were kept: six, until it is run on new ones.

The methods, ratios and measures are those of `benchmarks/fidelity/twins_networks.py`, which trains networks anew.

    python -m benchmarks.fidelity.twins_kept run eyes-biot MODEL_FOLDER PACKS --out runs  # packs: shared/packing.py
    python -m benchmarks.fidelity.twins_kept run eegmat-labram MODEL_FOLDER PREPARED --out runs  # of `data prepare`
    python -m benchmarks.fidelity.twins_kept run demo-labram src/zipbrain/demo_model --out runs  # needs no folder
    python -m benchmarks.fidelity.twins_kept collect runs  # twins_kept.csv
    python -m benchmarks.fidelity.experiments_report page  # tables of docs/notes/twins.md
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.fidelity.experiments import splits_of, spread
from benchmarks.fidelity.twins_networks import LIMIT, measure, store
from benchmarks.fidelity.twins_tables import KEPT

from zipbrain.data.windows import Windows

TASKS = ("eyes", "eegmat", "demo", "events", "sleep")
NETWORKS = tuple("-".join(cell) for cell in KEPT)


def windows(task: str, model: str, data: Path | None) -> Windows:
    """Test windows as the model reads them."""
    if task == "demo":
        from zipbrain.training.window_sources import WindowSource

        return WindowSource("synthetic-events", model).split("test")
    if data is not None and (data / "index.json").exists():
        from zipbrain.data import open_prepared

        test: Windows = open_prepared(data).split("test")
        return test
    return splits_of({"task": task, "model": model, "packs": data, "fold": None})["test"]


def run(given: argparse.Namespace) -> None:
    """Compress and score one network; writes NAME.json and NAME-logits.npz."""
    import torch

    from zipbrain import from_pretrained, restore

    torch.set_num_threads(1)
    task, model = given.name.split("-")
    test = spread(windows(task, model, given.data), given.limit)
    found, logits = measure(restore(from_pretrained(given.model)), test)
    given.out.mkdir(parents=True, exist_ok=True)
    store(given.out, given.name, {"job": {"task": task, "model": model}, "experiments": found}, test, logits)


def collect(folder: Path) -> None:
    """Write the CSV: one row for each network and method, then their means."""
    from benchmarks.fidelity import experiments_intervals as intervals
    from benchmarks.fidelity.experiments_report import Run, write

    class Kept(Run):
        """A run whose task may be the demo, which has subjects of its own."""

        @property
        def draw(self) -> int:
            return 1000 + TASKS.index(self.task)

    runs, sizes = [], {}
    for name in NETWORKS:
        task, model = name.split("-")
        found = json.loads((folder / f"{name}.json").read_text())["experiments"]
        runs.append(Kept(task, model, 0, None, found, folder / f"{name}-logits.npz"))
        with np.load(runs[-1].logits) as stored:
            sizes[task, model] = {"windows": len(stored["labels"]), "subjects": len(np.unique(stored["subjects"]))}
    none: dict[str, Any] = {"windows": "", "subjects": ""}
    rows = intervals.table(runs, {"twins": "Twins 2"})
    write("twins_kept", [row | sizes.get((row["task"], row["model"]), none) for row in rows])


def main() -> None:
    """Parse and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    running = verbs.add_parser("run")
    running.add_argument("name", choices=NETWORKS)
    running.add_argument("model", type=Path)
    running.add_argument("data", type=Path, nargs="?")
    running.add_argument("--out", type=Path, default=Path("runs"))
    running.add_argument("--limit", type=int, default=LIMIT)
    verbs.add_parser("collect").add_argument("runs", type=Path)
    given = parser.parse_args()
    if given.verb == "collect":
        collect(given.runs)
    else:
        run(given)


if __name__ == "__main__":
    main()
