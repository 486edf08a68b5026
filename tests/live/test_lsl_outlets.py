"""LSL outlets, read by a second program with pylsl's own inlets."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime

import numpy as np
import pytest

from zipbrain.live.alarms import Event
from zipbrain.live.decision import Decision
from zipbrain.live.outputs import OUTPUTS, SessionFacts

pytest.importorskip("pylsl")

READER = """
import json, sys, pylsl
inlets = [pylsl.StreamInlet(pylsl.resolve_byprop("name", f"{sys.argv[1]} {what}", timeout=20)[0])
          for what in ("markers", "probabilities")]
for inlet in inlets: inlet.open_stream(10)
print("ready", flush=True)
pulled = [inlet.pull_sample(timeout=20) for inlet in (inlets[0], inlets[0], inlets[1], inlets[1])]
described = inlets[1].info().desc().child("channels").child("channel")
labels = [described.child_value("label"), described.next_sibling().child_value("label")]
print(json.dumps({"samples": [one for one, _ in pulled], "stamps": [at for _, at in pulled], "labels": labels,
                  "types": [inlet.info().type() for inlet in inlets], "now": pylsl.local_clock()}))
"""


def test_another_program_reads_alarms_and_probabilities(tmp_path):
    name = f"bed {tmp_path.name}"
    outlets = OUTPUTS["lsl"]()
    outlets.open(SessionFacts(("C3",), 128.0, ("rest", "seizure"), 1.0, 4.0, datetime.now(UTC), name, tmp_path))
    reader = subprocess.Popen([sys.executable, "-c", READER, name], stdout=subprocess.PIPE, text=True)
    try:
        assert reader.stdout.readline() == "ready\n"
        outlets.tell(Event(4.0, "raised", "seizure", "physiological"))
        outlets.tell(Event(5.0, "paused", "", "technical"))
        outlets.decide(Decision(0, 4, np.float32([0.25, 0.75]), 1))
        outlets.decide(Decision(1, 5, np.float32([0.25, 0.75]), -1, "gap"))
        found = json.loads(reader.communicate(timeout=60)[0])
    finally:
        reader.kill()
        reader.wait()
        outlets.close()
    assert found["samples"][:3] == [["raised/seizure"], ["paused"], [0.25, 0.75]]
    assert np.isnan(found["samples"][3]).all()
    assert found["labels"] == ["rest", "seizure"]
    assert found["types"] == ["Markers", "Probabilities"]
    assert all(0 <= found["now"] - stamp < 60 for stamp in found["stamps"])
    assert outlets.failure == ""
