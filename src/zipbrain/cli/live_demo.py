"""`zipbrain live --demo`: the demo's model on made-up EEG with events, an electrode that falls off, and a gap."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from zipbrain.errors import DataError
from zipbrain.files import write_whole

if TYPE_CHECKING:
    from zipbrain.live.session import Session

SPEED: Final = 10.0  # times real time
SECONDS: Final = 300
LABELS: Final = "labels.csv"  # the truth, for `zipbrain live evaluate`

_MODEL: Final = "demo.onnx"
_HOP_S: Final = 1.0
_SEED: Final = 7
_EVERY_S: Final = 45.0
_FLAT: Final = (("F7", 100.0, 112.0),)
_GAP: Final = (200.0, 203.0)
_ALARM: Final = "spikes and waves"
_CLASS: Final = "SPSW"


def open_demo(out: Path, alarms: Path | None, *, threads: int | None, runtime: str, **given: Any) -> Session:
    """A session of the demo, whose model and truth are written to the folder."""
    from zipbrain.data.synthetic_recording import SyntheticRecording
    from zipbrain.edge.model import EdgeModel
    from zipbrain.live.alarm_rules import AlarmRules, Rule
    from zipbrain.live.demo_model import unpack_demo
    from zipbrain.live.session import Session
    from zipbrain.live.sources.replay import Replay

    model = EdgeModel(unpack_demo(out / _MODEL), threads=threads, runtime=runtime, spinning=False)
    classes = model.description.classes
    rule = Rule(_ALARM, (_CLASS,), on=0.7, off=0.4, min_duration_s=1.0, refractory_s=5.0, latching=False)
    rules = AlarmRules(classes, (rule,)) if alarms is None else AlarmRules.read(alarms, classes)
    recording = SyntheticRecording(SECONDS, seed=_SEED, every_s=_EVERY_S, gaps=(_GAP,), flat=_FLAT)
    _write_truth(out / LABELS, recording.happenings)
    given["hop_s"] = _HOP_S if given["hop_s"] is None else given["hop_s"]
    source = Replay(recording, speed=SPEED)
    source.name = f"made-up EEG, {SPEED:g} times real time"
    return Session(model, source, out, rules=rules, **given)


def _write_truth(path: Path, happenings: Any) -> None:
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["onset", "duration", "label"])
    table.writerows([event.start_s, round(event.stop_s - event.start_s, 3), _ALARM] for event in happenings)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_whole(path, text.getvalue().encode())
    except OSError as error:
        raise DataError(f"{path}: it can't be written ({error.strerror}); name another --out") from None
