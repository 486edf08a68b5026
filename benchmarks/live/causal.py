"""How far answers move when a stream is filtered with minimum phase instead of zero phase.

The demo's model, which was trained without a filter, on half an hour of made-up EEG with events:

python -m benchmarks.live.causal
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import numpy as np

from zipbrain.data.synthetic_recording import SyntheticRecording
from zipbrain.edge.model import EdgeModel
from zipbrain.live.demo_model import unpack_demo
from zipbrain.signal.convention import Convention
from zipbrain.signal.window_stream import StreamWindow, WindowStream

SECONDS: Final = 1800
HOP_S: Final = 2.0
FILTERS: Final = (((0.1, 75.0), 50.0), ((0.5, 75.0), None), ((1.0, 40.0), None))


def main() -> None:
    """Print a line for each filter: agreement of decisions, correlation of windows, delay."""
    recording = SyntheticRecording(SECONDS, seed=11, every_s=20.0)
    with TemporaryDirectory() as home:
        model = EdgeModel(unpack_demo(Path(home) / "demo.onnx"), threads=1)
    print(f"{'filter':36} {'windows':>7} {'same decision':>13} {'correlation':>11} {'delay':>6}")
    for band, notch in FILTERS:
        used = replace(model.description.convention, band=band, notch=notch)
        (zero, _), (causal, delay_s) = (cut(recording, used, is_causal) for is_causal in (False, True))
        good = [pair for pair in zip(zero, causal, strict=True) if not (pair[0].flag or pair[1].flag)]
        x = np.stack([[window.x for window in pair] for pair in good], axis=1)  # (2, m, C, T)
        one, other = (model.probabilities(windows).argmax(axis=1) for windows in x)
        centred = x - x.mean(axis=-1, keepdims=True)
        sizes = np.sqrt((centred**2).sum(axis=-1)).prod(axis=0)
        alike = np.median(centred.prod(axis=0).sum(axis=-1) / sizes)
        words = f"{len(good):7} {(one == other).mean():13.1%} {alike:11.2f} {1000 * delay_s:3.0f} ms"
        print(f"{used.filters:36} {words}")


def cut(recording: SyntheticRecording, used: Convention, is_causal: bool) -> tuple[list[StreamWindow], float]:
    """All windows of a recording as a stream, and the filter's delay."""
    stream = WindowStream(recording.ch_names, recording.sfreq, used, hop_s=HOP_S, is_causal=is_causal)
    second = round(recording.sfreq)
    found: list[StreamWindow] = []
    for start in range(0, recording.n_times, second):
        found += stream.push(recording.read(start, min(start + second, recording.n_times)))
    return found + stream.finish(), stream.delay_s


if __name__ == "__main__":
    main()
