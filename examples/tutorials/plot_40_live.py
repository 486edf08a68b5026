"""
4. Live: a stream instead of a file
===================================

``zipbrain live`` decides window after window while samples come in, raises alarms by rules, and keeps a journal. Here a
recording is replayed as if it came from an amplifier. zipbrain is no medical device.
"""

# %%
# A stream with events
# --------------------
# Two and a half minutes of made-up EEG: runs of spikes and waves, an electrode that falls off, a gap. The model is the file
# that ``zipbrain live --demo`` takes.

import json
import math
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from zipbrain.data.synthetic_recording import SyntheticRecording
from zipbrain.edge import EdgeModel
from zipbrain.live import AlarmRules, Rule, Session
from zipbrain.live.demo_model import unpack_demo
from zipbrain.live.sources.replay import Replay
from zipbrain.live.verify import verify

folder = Path(tempfile.mkdtemp())
model = EdgeModel(unpack_demo(folder / "demo.onnx"), threads=1)
recording = SyntheticRecording(
    150, seed=7, every_s=45.0, gaps=[(110.0, 113.0)], flat=[("F7", 70.0, 80.0)]
)
for event in recording.happenings:
    print(f"an event from {event.start_s:.0f} to {event.stop_s:.0f} s")

# %%
# Rules and a session
# -------------------
# An alarm begins when the probability of spikes and waves stays above 0.7, and ends below 0.4. ``speed=math.inf`` replays as
# fast as the model follows; an amplifier or a Lab Streaming Layer source takes the place of ``Replay`` in real life.

rule = Rule(
    "spikes and waves", ("SPSW",), on=0.7, off=0.4, min_duration_s=1, latching=False
)
session = Session(
    model,
    Replay(recording, speed=math.inf),
    folder / "bed-3",
    rules=AlarmRules(model.description.classes, (rule,)),
    hop_s=1.0,
    has_board=False,
)
summary = session.run()
print(summary)

# %%
# What the journal holds
# ----------------------
# A line for every decision, alarm and gap, each with a hash of the line before.

text = (folder / "bed-3" / "journal.jsonl").read_text()
lines = [json.loads(line) for line in text.splitlines()]
decisions = [line["facts"] for line in lines if line["kind"] == "decision"]
events = [line["facts"] for line in lines if line["kind"] == "event"]
for event in events[:6]:
    print(f"{event['time_s']:6.1f} s  {event['kind']:8} {event['alarm']}")
print("the journal is", verify(folder / "bed-3").verdict)

# %%
# The session as a picture
# ------------------------

place = model.description.classes.index("SPSW")
times = [one["stop_s"] for one in decisions]
trend = [one["probabilities"][place] for one in decisions]
trend = np.array([np.nan if one is None else one for one in trend])

figure, axes = plt.subplots(figsize=(9, 3.4), layout="constrained")
for event in recording.happenings:
    axes.axvspan(event.start_s, event.stop_s, color="#E69F00", alpha=0.35, lw=0)
for one, flag in zip(times, (one["note"] for one in decisions), strict=True):
    if flag:
        axes.axvspan(one - 1, one, color="0.85", lw=0)
axes.plot(times, trend, ".-", color="#0072B2")
for event in events:
    if event["alarm"] == "spikes and waves" and event["kind"] == "raised":
        axes.axvline(event["time_s"], color="#D55E00")
axes.set(xlabel="seconds", ylabel="probability of spikes and waves", ylim=(0, 1))
axes.set_title(
    "orange: events; red: alarms; grey: no decision", loc="left", fontsize=10
)
plt.show()

# %%
# Windows with a gap or a flat electrode get no decision: the trend has a hole there instead of a guess. Replayed, a file gives
# the decisions of ``zipbrain predict`` to the last bit. :doc:`plot_90_live_page` shows a session in a browser.
