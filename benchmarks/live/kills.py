"""Kill the source and the session again and again: how soon it goes on, and what is lost.

    python -m benchmarks.live.kills              # 20 kills of each; some minutes
    python -m benchmarks.live.kills --kills 3 --dry

The source is a stream of the Lab Streaming Layer in a process of its own, the session `zipbrain live` on the demo's
model with four decisions a second. Times are from the moment at which the process was started again. Adds nothing to a
CSV that is there, but replaces it: benchmarks/results/live_kills.csv.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.shared.results import ROOT, write_csv

from zipbrain.edge import EdgeModel
from zipbrain.live.chain import JOURNAL, read_chain
from zipbrain.live.demo_model import unpack_demo
from zipbrain.live.verify import verify

NAME, HOP_S = "zipbrain-kills", 0.25
_LONGEST_S = 60.0


class Program:
    """A process whose lines of output are kept with the time at which they came."""

    def __init__(self, command: list[str]) -> None:
        self.started = time.time()
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        self.lines: list[tuple[float, str]] = []
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.lines.append((time.time(), line))

    def wait_for_line(self, number: int = 1) -> float:
        """When so many lines had come."""
        end = time.time() + _LONGEST_S
        while len(self.lines) < number and time.time() < end:
            time.sleep(0.01)
        return self.lines[number - 1][0]

    def kill(self) -> float:
        """Kill it with SIGKILL; the time of that."""
        self._process.kill()
        self._process.wait()
        return time.time()


def journal(out: Path) -> list[dict[str, Any]]:
    """The journal's lines with the wall time of each in seconds."""
    rows = read_chain(out / JOURNAL).lines
    return [{**row, "wall": datetime.fromisoformat(row["time"]).replace(tzinfo=UTC).timestamp()} for row in rows]


def wait_for(out: Path, kind: str, after: float, /, **facts: Any) -> float:
    """Wall time of the journal's first line of a kind after a moment; the longest wait if there is none."""
    end = time.time() + _LONGEST_S
    while time.time() < end:
        for row in journal(out):
            is_one = row["kind"] == kind and row["wall"] > after
            if is_one and all(row["facts"].get(name) == value for name, value in facts.items()):
                return float(row["wall"])
        time.sleep(0.05)
    return end


def main() -> None:
    """Kill, measure, store."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dry", action="store_true", help="store nothing")
    given = parser.parse_args()
    rng, rows = random.Random(given.seed), []
    with TemporaryDirectory() as home:
        out, model = Path(home) / "bed", unpack_demo(Path(home) / "demo.onnx")
        names = ",".join(EdgeModel(model, threads=1).description.convention.ch_names)
        streaming = [sys.executable, "tests/live/lsl_stream.py", NAME, names, "200", "86400"]
        session = [sys.executable, "-m", "zipbrain", "live", "--model", str(model), "--source", f"lsl:{NAME}"]
        session += ["--out", str(out), "--hop", str(HOP_S), "--threads", "1", "--json", "--format", "none"]
        source, bed = Program(streaming), None
        source.wait_for_line()
        try:
            bed = Program(session)
            bed.wait_for_line(8)
            for number in range(given.kills):
                killed = source.kill()
                alarm = wait_for(out, "event", killed, alarm="source", kind="raised") - killed
                time.sleep(rng.uniform(0, 3))
                source = Program(streaming)
                ready = source.wait_for_line()
                back = wait_for(out, "source", ready, state="live") - ready
                rows.append({"killed": "source", "number": number, "alarm_s": alarm, "resumed_s": back})
                print(rows[-1], flush=True)
                time.sleep(rng.uniform(1, 8))
            for number in range(given.kills):
                time.sleep(rng.uniform(1, 8))
                killed = bed.kill()
                time.sleep(0.2)
                shown = [json.loads(line) for _, line in bed.lines if '"decision"' in line]
                kept = journal(out)
                last = kept[-1]["wall"]
                missing = [one for one in shown if not any(one["stop_s"] == row["facts"].get("stop_s") for row in kept)]
                intact = verify(out).is_intact
                bed = Program(session)
                live = wait_for(out, "source", killed, state="live") - bed.started
                first = bed.wait_for_line() - bed.started
                facts = {"resumed_s": live, "first_decision_s": first, "silent_s": killed - last}
                facts |= {"lost_decisions": len(missing), "intact": intact, "shown": len(shown)}
                rows.append({"killed": "session", "number": number, **facts})
                print(rows[-1], flush=True)
        finally:
            source.kill()
            if bed is not None:
                bed.kill()
    names_of_all = list(dict.fromkeys(name for row in rows for name in row))
    rounded = [{name: _rounded(row.get(name, "")) for name in names_of_all} for row in rows]
    if not given.dry:
        write_csv("live_kills", rounded)


def _rounded(value: Any) -> Any:
    return round(value, 3) if isinstance(value, float) else value


if __name__ == "__main__":
    main()
