"""A day of made-up EEG with known events, replayed as fast as it goes: the demo's model original against tuned.

    python -m benchmarks.live.day              # 24 hours, a decision every two seconds; hours on two cores
    python -m benchmarks.live.day --hours 1

Both networks get the same signal, the same rule and the same truth. Writes benchmarks/results/live_day.csv. The events
are made up, and so were those that the network was trained on: nothing here says what it does on recordings.
"""

from __future__ import annotations

import argparse
import csv
import math
import time
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


def look_always(model: EdgeModel) -> EdgeModel:
    """The same file, answering every window uncompressed."""
    once = model.look
    model.look = lambda x, margin=None, **more: once(x, math.inf, **more)  # type: ignore[method-assign]
    return model


def _rounded(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return " to ".join(f"{one:.4g}" for one in value)
    return round(value, 4) if isinstance(value, float) else value


def main() -> None:
    """Replay, score, store."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hours", type=float, default=24.0)
    parser.add_argument("--hop", type=float, default=2.0)
    parser.add_argument("--every", type=float, default=600.0, help="mean seconds between two events")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=11)
    parser.add_argument("--dry", action="store_true", help="store nothing")
    given = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with TemporaryDirectory() as home:
        path = unpack_demo(Path(home) / "demo.onnx")
        for name in ("original", "tuned"):
            model = EdgeModel(path, threads=given.threads)
            model = look_always(model) if name == "original" else model
            recording = SyntheticRecording(round(3600 * given.hours), seed=given.seed, every_s=given.every)
            truth, out = Path(home) / f"{name}.csv", Path(home) / name
            with truth.open("w", newline="") as file:
                table = csv.writer(file)
                table.writerow(["onset", "duration", "label"])
                table.writerows([one.start_s, one.stop_s - one.start_s, ALARM] for one in recording.happenings)
            rule = Rule(ALARM, (CLASS,), on=0.7, off=0.4, min_duration_s=2.0, refractory_s=10.0, latching=False)
            rules = AlarmRules(model.description.classes, (rule,))
            began = time.monotonic()
            session = Session(
                model, Replay(recording, speed=math.inf), out, rules=rules, hop_s=given.hop, has_board=False
            )
            found = session.run()
            scored = evaluate(out, truth, before_s=0.0, after_s=15.0).to_dict()
            alarm = scored["scores"][0]
            share = found.looked_twice / max(found.decided, 1)
            facts = {"network": name, "hours": given.hours, "hop_s": given.hop, "decided": found.decided}
            facts |= {"looked_twice": round(share, 4), "replay_s": round(time.monotonic() - began, 1)}
            rows.append(
                facts | {key: _rounded(value) for key, value in alarm.items() if key not in ("alarm", "classes")}
            )
            print(rows[-1], flush=True)
    if not given.dry:
        write_csv("live_day", rows)


if __name__ == "__main__":
    main()
