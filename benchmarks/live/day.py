"""A day of made-up EEG with known events, replayed as fast as it goes: the demo's model original against tuned.

    python -m benchmarks.live.day              # 24 hours, a decision every four seconds; ten minutes on two idle cores
    python -m benchmarks.live.day --hours 1

Spikes and waves are events; eye movements, artefacts and periodic discharges come as often as they and are none. Both
networks get the same signal, the same rule and the same truth. Writes benchmarks/results/live_day.csv. The events are
made up, and so were those that the network was trained on: nothing here says what it does on recordings.
"""

from __future__ import annotations

import argparse
import csv
import math
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.shared.results import write_csv

from zipbrain.data.synthetic_recording import SyntheticRecording
from zipbrain.edge import EdgeModel
from zipbrain.live.alarm_rules import AlarmRules, Rule
from zipbrain.live.demo_model import unpack_demo
from zipbrain.live.evaluate import evaluate
from zipbrain.live.session import Session
from zipbrain.live.sources.replay import Replay

CLASS, ALARM = "SPSW", "spikes and waves"
NETWORKS = ("original", "tuned")
LABELS = (CLASS, "EYEM", "ARTF", "GPED")  # what is drawn; only the first is an event


def look_always(model: EdgeModel) -> EdgeModel:
    """The same file, answering every window uncompressed."""
    once = model.look
    model.look = lambda x, margin=None, **more: once(x, math.inf, **more)  # type: ignore[method-assign]
    return model


def _rounded(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return " to ".join(f"{one:.4g}" for one in value)
    return round(value, 4) if isinstance(value, float) else value


def replay(name: str, given: argparse.Namespace) -> dict[str, Any]:
    """The row of a network: a day of its decisions, scored."""
    with TemporaryDirectory() as home:
        model = EdgeModel(unpack_demo(Path(home) / "demo.onnx"), threads=given.threads)
        model = look_always(model) if name == "original" else model
        seconds, every_s = round(3600 * given.hours), given.every / len(LABELS)
        recording = SyntheticRecording(seconds, seed=given.seed, every_s=every_s, labels=LABELS)
        events = [one for one in recording.happenings if one.label == CLASS]
        truth, out = Path(home) / "truth.csv", Path(home) / "bed"
        with truth.open("w", newline="") as file:
            table = csv.writer(file)
            table.writerow(["onset", "duration", "label"])
            table.writerows([one.start_s, one.stop_s - one.start_s, ALARM] for one in events)
        rule = Rule(ALARM, (CLASS,), on=0.7, off=0.4, min_duration_s=2.0, refractory_s=10.0, latching=False)
        rules = AlarmRules(model.description.classes, (rule,))
        began = time.monotonic()
        source = Replay(recording, speed=math.inf)
        found = Session(model, source, out, rules=rules, hop_s=given.hop, has_board=False).run()
        alarm = evaluate(out, truth, before_s=0.0, after_s=15.0).to_dict()["scores"][0]
        facts = {"network": name, "hours": given.hours, "hop_s": given.hop, "others": len(recording.happenings)}
        facts |= {"decided": found.decided, "looked_twice": round(found.looked_twice / max(found.decided, 1), 4)}
        facts |= {"replay_s": round(time.monotonic() - began, 1)}
    facts["others"] -= len(events)
    return facts | {key: _rounded(value) for key, value in alarm.items() if key not in ("alarm", "classes")}


def main() -> None:
    """Replay, score, store."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hours", type=float, default=24.0)
    parser.add_argument("--hop", type=float, default=4.0)
    parser.add_argument("--every", type=float, default=600.0, help="mean seconds between two events")
    parser.add_argument("--threads", type=int, default=1, help="of each network; both run at the same time")
    parser.add_argument("--seed", type=int, default=11)
    parser.add_argument("--dry", action="store_true", help="store nothing")
    given = parser.parse_args()
    with ProcessPoolExecutor(len(NETWORKS), get_context("spawn")) as pool:
        rows = list(pool.map(replay, NETWORKS, [given] * len(NETWORKS)))
    for row in rows:
        print(row)
    if not given.dry:
        write_csv("live_day", rows)


if __name__ == "__main__":
    main()
