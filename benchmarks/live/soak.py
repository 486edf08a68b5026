"""Hours at the bed: LaBraM on 23 channels at 256 Hz in real time, one bed or several as processes of their own.

    python -m benchmarks.live.soak --seconds 3600                         # one bed, two threads, a decision a second
    python -m benchmarks.live.soak --seconds 1200 --beds 8 --threads 1    # as many as a machine of two cores shall bear
    python -m benchmarks.live.soak --seconds 60 --name trial --dry        # does it run? stores nothing

Adds a row per bed to benchmarks/results/live_soak.csv. The network has random weights and the signal is made up: what
they cost does not depend on either. Journal, CSV, EDF+ and board are written. The amplifier gives samples with stamps
at its own pace, whether they are read or not; a decision is missed if it comes later than the next one is due, or is
left out.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from benchmarks.shared.results import RESULTS, cpu_name

from zipbrain.edge import EdgeModel
from zipbrain.live.outputs import choose_outputs
from zipbrain.live.session import Session
from zipbrain.live.source import Chunk

CHANNELS, SFREQ = 23, 256.0
BAND, NOTCH = (0.1, 75.0), 50.0
_CHUNK_S = 0.1
_SETTLED_S = 60.0  # after which memory must not grow


class Amplifier:
    """Made-up EEG with stamps, at its own pace."""

    limits, is_live, name, sfreq = None, True, "amplifier", SFREQ

    def __init__(self, ch_names: tuple[str, ...]) -> None:
        rng = np.random.default_rng(0)
        waves = np.cumsum(rng.standard_normal((len(ch_names), round(60 * SFREQ))), axis=1)
        self._loop = 20 * (waves - np.linspace(0, 1, waves.shape[1]) * waves[:, -1:]) / waves.std(axis=1, keepdims=True)
        self.ch_names, self._began, self._sent = ch_names, time.monotonic(), 0

    def read(self, timeout_s: float) -> Chunk | None:
        """What an amplifier would have sent by now."""
        wait = self._began + self._sent / SFREQ + _CHUNK_S - time.monotonic()
        if wait > 0:
            time.sleep(min(wait, timeout_s))
        n = int((time.monotonic() - self._began) * SFREQ) - self._sent
        if n < 1:
            return None
        places = np.arange(self._sent, self._sent + n)
        self._sent += n
        return Chunk(self._loop[:, places % self._loop.shape[1]], 1000.0 + places / SFREQ)

    def close(self) -> None:
        """Nothing is held."""


def make_model(path: Path, ratio: float) -> Path:
    """Export LaBraM for ten seconds of 23 channels, whole or with a share of its tokens removed."""
    from dataclasses import replace

    import torch

    from zipbrain.data import Windows, convention
    from zipbrain.evaluation.trial import recipe_for
    from zipbrain.export import export
    from zipbrain.models import create
    from zipbrain.pooling import ZIPBrain

    how = replace(convention("labram", "tuab"), band=BAND, notch=NOTCH)
    torch.manual_seed(0)
    model = create("labram", n_outputs=2, n_times=how.n_times, ch_names=list(how.ch_names)).eval()
    x = 20 * np.random.default_rng(0).standard_normal((8, len(how.ch_names), how.n_times)).astype(np.float32)
    facts: dict[str, Any] = {"ch_names": how.ch_names, "sfreq": how.sfreq, "classes": ("normal", "abnormal")}
    windows = Windows.from_arrays(x, np.arange(8) % 2, subjects=[f"s{i}" for i in range(8)], name="tuab", **facts)
    recipe = recipe_for(model, ZIPBrain(), ratio=ratio) if ratio else None
    export(model, windows, path, convention=how, recipe=recipe, classes=("normal", "abnormal"))
    return path


def run_bed(model: Path, out: Path, seconds: float, hop_s: float, threads: int) -> dict[str, Any]:
    """One bed in this process, and what it cost."""
    ready = EdgeModel(model, threads=threads, spinning=False)
    electrodes = {name for entry in ready.description.convention.montage for name in _pair(entry)}
    outputs = choose_outputs(["csv", "edf"])
    session = Session(ready, Amplifier(tuple(sorted(electrodes))), out, outputs=outputs, hop_s=hop_s)
    memory: list[tuple[float, float]] = []
    began = time.monotonic()

    def watch(state: Any, news: Any) -> None:
        if not memory or time.monotonic() - began - memory[-1][0] > 5:
            memory.append((time.monotonic() - began, anonymous_mb()))
            if len(memory) % 12 == 1:
                counts, delay = state["counters"], state["delay_s"]
                print(*(round(value, 3) for value in memory[-1]), counts, delay, file=sys.stderr, flush=True)

    found = session.run(seconds, watch)
    used = os.times()
    settled = [size for at, size in memory if at >= min(_SETTLED_S, seconds / 2)]
    return {
        "seconds": round(found.seconds),
        "decided": found.decided,
        "late": found.late_decisions,
        "skipped": found.skipped,
        "undecided": found.undecided,
        "filter_s": round(found.delay_s["filter"], 3),
        **{name: round(found.delay_s[name], 4) for name in ("compute_p50", "compute_p95", "compute_max")},
        "memory_settled_mb": round(settled[0], 1),
        "memory_most_mb": round(max(settled), 1),
        "memory_end_mb": round(settled[-1], 1),
        "cores": round((used.user + used.system) / found.seconds, 3),
        "samples_lost": found.samples.get("dropped", 0) + found.samples["overflow"],
        "alarms": found.events.get("raised", 0),
    }


def _pair(entry: Any) -> tuple[str, ...]:
    return (entry,) if isinstance(entry, str) else tuple(entry)


def anonymous_mb() -> float:
    """Memory of this process that no file backs, in MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("RssAnon"))


def main() -> None:
    """Run beds side by side and add their rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--beds", type=int, default=1)
    parser.add_argument("--hop", type=float, default=1.0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--ratio", type=float, default=0.0, help="share of the tokens removed")
    parser.add_argument("--model", type=Path, help="an exported file, in place of LaBraM with random weights")
    parser.add_argument("--name", default="", help="of the run, in the table")
    parser.add_argument("--note", default="", help="what else the machine was doing")
    parser.add_argument("--dry", action="store_true", help="store nothing")
    parser.add_argument("--bed", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.bed is not None:
        print(json.dumps(run_bed(given.model, given.bed, given.seconds, given.hop, given.threads)))
        return
    with TemporaryDirectory() as home:
        model = given.model or make_model(Path(home) / "labram.onnx", given.ratio)
        options = ["--seconds", given.seconds, "--hop", given.hop, "--threads", given.threads, "--model", model]
        command = [sys.executable, "-m", "benchmarks.live.soak", *map(str, options), "--bed"]
        before = os.getloadavg()[2]
        beds = [
            subprocess.Popen([*command, str(Path(home) / f"bed-{number}")], stdout=subprocess.PIPE, text=True)
            for number in range(given.beds)
        ]
        rows = [json.loads(bed.communicate()[0].splitlines()[-1]) for bed in beds]
    about = {"run": given.name or f"{given.beds} beds", "ratio": given.ratio, "hop_s": given.hop}
    about |= {"beds": given.beds, "threads": given.threads}
    load = {"load_before": round(before, 2), "load_after": round(os.getloadavg()[2], 2), "machine": cpu_name()}
    rows = [{**about, "bed": number, **row, **load, "note": given.note} for number, row in enumerate(rows)]
    print(json.dumps(rows, indent=1))
    if not given.dry:
        path = RESULTS / "live_soak.csv"
        is_new = not path.exists()
        with path.open("a", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
            if is_new:
                writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    main()
