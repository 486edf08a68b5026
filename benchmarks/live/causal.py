"""How far answers move when a stream is filtered with minimum phase instead of zero phase.

The demo's model, which was trained without a filter, on half an hour of made-up EEG with events:

python -m benchmarks.live.causal

Writes benchmarks/results/live_causal.csv.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import numpy as np
from benchmarks.shared.results import write_csv

from zipbrain.data.synthetic_recording import SyntheticRecording
from zipbrain.edge.model import EdgeModel
from zipbrain.live.demo_model import unpack_demo
from zipbrain.signal.convention import Convention
from zipbrain.signal.window_stream import StreamWindow, WindowStream

SECONDS: Final = 1800
HOP_S: Final = 2.0
FILTERS: Final = (((0.1, 75.0), 50.0), ((0.5, 75.0), None), ((1.0, 40.0), None))


def main() -> None:
    """Store a row for each filter: agreement of decisions, correlation of windows, delay."""
    recording = SyntheticRecording(SECONDS, seed=11, every_s=20.0)
    with TemporaryDirectory() as home:
        model = EdgeModel(unpack_demo(Path(home) / "demo.onnx"), threads=1)
    rows = []
    for band, notch in FILTERS:
        used = replace(model.description.convention, band=band, notch=notch)
        (zero, reach_s, _), (causal, left_s, delay_s) = (cut(recording, used, is_causal) for is_causal in (False, True))
        good = [pair for pair in zip(zero, causal, strict=True) if not (pair[0].flag or pair[1].flag)]
        x = np.stack([[window.x for window in pair] for pair in good], axis=1)  # (2, m, C, T)
        one, other = (model.probabilities(windows).argmax(axis=1) for windows in x)
        centred = x - x.mean(axis=-1, keepdims=True)
        sizes = np.sqrt((centred**2).sum(axis=-1)).prod(axis=0)
        alike = np.median(centred.prod(axis=0).sum(axis=-1) / sizes)
        rows.append({"filter": used.filters, "windows": len(good), "same_decisions": int((one == other).sum())})
        rows[-1] |= {"correlation": round(float(alike), 3), "zero_phase_s": round(reach_s, 2)}
        rows[-1] |= {"causal_waits_s": round(left_s, 3), "causal_delays_s": round(delay_s, 3)}
        print(rows[-1], flush=True)
    write_csv("live_causal", rows)


def cut(recording: SyntheticRecording, used: Convention, is_causal: bool) -> tuple[list[StreamWindow], float, float]:
    """All windows of a recording as a stream, seconds for which they wait for the future, and the filter's delay."""
    stream = WindowStream(recording.ch_names, recording.sfreq, used, hop_s=HOP_S, is_causal=is_causal)
    second = round(recording.sfreq)
    found: list[StreamWindow] = []
    for start in range(0, recording.n_times, second):
        found += stream.push(recording.read(start, min(start + second, recording.n_times)))
    return found + stream.finish(), stream.reach_s + stream.late_s, stream.delay_s


if __name__ == "__main__":
    main()
