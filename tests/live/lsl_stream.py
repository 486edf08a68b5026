"""A stream of the Lab Streaming Layer in a process of its own: ``python lsl_stream.py NAME CHANNELS RATE SECONDS``."""

from __future__ import annotations

import sys
import time

import numpy as np
import pylsl


def main(name: str, channels: str, rate: float, seconds: float, unit: str = "microvolts") -> None:
    """Push samples in chunks of a tenth of a second, whose values are the sample's number and the channel's."""
    names = channels.split(",")
    info = pylsl.StreamInfo(name, "EEG", len(names), rate, pylsl.cf_float32, f"{name}-id")
    description = info.desc().append_child("channels")
    for label in names:
        channel = description.append_child("channel")
        for field, value in (("label", label), ("unit", unit), ("type", "EEG")):
            channel.append_child_value(field, value)
    outlet = pylsl.StreamOutlet(info, chunk_size=0, max_buffered=60)
    rng, began, sent = np.random.default_rng(0), pylsl.local_clock(), 0
    print("ready", flush=True)
    while sent < seconds * rate:
        time.sleep(0.05)
        due = int((pylsl.local_clock() - began) * rate)
        if due > sent:
            rows = 20 * rng.standard_normal((due - sent, len(names))).astype(np.float32)
            outlet.push_chunk(rows, began + due / rate)
            sent = due


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]), float(sys.argv[4]), *sys.argv[5:])
