"""
From an EDF file to windows
===========================

zipbrain reads EDF and BDF by itself, finds the electrodes, filters, resamples and cuts, with numpy alone. The same code runs
on a device and before training.
"""

# %%
# Open a recording
# ----------------

from dataclasses import replace

import matplotlib.pyplot as plt
import numpy as np

from zipbrain.data import convention, example_recordings
from zipbrain.signal.cutting import windows
from zipbrain.signal.edf import open_edf

rest, arithmetic = example_recordings(33)
recording = open_edf(rest)
print(recording.ch_names)
print(f"{recording.sfreq:g} Hz, {recording.n_times / recording.sfreq:g} s")

# %%
# What a model wants
# ------------------
# A convention says which channels in which order, rate, window, hop and filters. This is LaBraM's for a folder of your own
# recordings, with six channels and a window every second.

wanted = replace(
    convention("labram", "folder"),
    montage=("Fp1", "Fp2", "C3", "C4", "O1", "O2"),
    band=(0.5, 40.0),
    hop_s=1.0,
)
batches = list(windows(recording, wanted))
x = np.concatenate([batch.x for batch in batches])
print(x.shape, "windows x channels x samples, in microvolts")

# %%
# Three windows, as the model would see them:

figure, panels = plt.subplots(
    1, 3, figsize=(10, 3.6), sharey=True, layout="constrained"
)
for axes, place in zip(panels, (0, 20, 40), strict=True):
    for row, trace in enumerate(x[place]):
        axes.plot(
            np.arange(len(trace)) / wanted.sfreq + place,
            trace - 100 * row,
            color="#0072B2",
            linewidth=0.6,
        )
    axes.set(
        xlabel="seconds",
        yticks=-100 * np.arange(6),
        yticklabels=("Fp1", "Fp2", "C3", "C4", "O1", "O2"),
    )
    axes.spines[["top", "right", "left"]].set_visible(False)
figure.suptitle("100 µV from line to line")
plt.show()

# %%
# A window that holds a gap, a flat or a saturated electrode carries a flag and gets no decision:

flags = [flag for batch in batches for flag in batch.flags]
print(
    f"{sum(not flag for flag in flags)} of {len(flags)} windows are good",
    set(flags) - {""} or "",
)
