"""
3. From an EDF file to decisions
================================

An exported file knows its channels, filters and windows. So a recording goes in as it is, and decisions come out, on a
machine without torch and without MNE.
"""

# %%
# A file for these electrodes
# ---------------------------
# The model that comes with zipbrain tells six kinds of made-up events apart. Here it gets 16 electrodes and windows of four
# seconds, and is written as one file together with its recipe. (What it says about real people is no finding.)

import tempfile
from dataclasses import replace
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import zipbrain
from zipbrain import ToMe
from zipbrain.data import Windows, convention, example_recordings, example_windows
from zipbrain.edge import EdgeModel, predict
from zipbrain.export import export
from zipbrain.pretrained import example_model

windows = example_windows("labram")
model = example_model(windows.ch_names, seconds=4)
zipbrain.compress(model, ToMe(), ratio=0.6)
classes = model.trained_for.classes

folder = Path(tempfile.mkdtemp())
check = Windows.from_arrays(
    windows.take(np.arange(0, 150, 10)),
    [place % 6 for place in range(15)],
    ch_names=windows.ch_names,
    sfreq=200,
    classes=classes,
)
found = export(
    model,
    check,
    folder / "events.onnx",
    convention=replace(convention("labram", "eegmat"), hop_s=1.0),
    classes=classes,
)
print(found.parity)

# %%
# Predict
# -------
# In the shell this is ``zipbrain predict recordings --model events.onnx --out results``.

edge = EdgeModel(folder / "events.onnx", threads=1)
rest, arithmetic = example_recordings(31)
result = predict(arithmetic, edge, folder / "results", formats=["csv", "edf"])
print(f"{len(result.starts)} windows, one a second, in {result.seconds:.1f} s")
print(*result.notes, sep="\n")

# %%
# What it says over time
# ----------------------

figure, axes = plt.subplots(figsize=(9, 3.6), layout="constrained")
order = np.argsort(-np.nanmean(result.probabilities, axis=0))
axes.stackplot(
    result.starts,
    result.probabilities[:, order].T,
    labels=[classes[place] for place in order],
    colors=("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#F0E442"),
)
axes.set(xlabel="seconds", ylabel="probability", ylim=(0, 1), xlim=(0, None))
axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=6, frameon=False)
plt.show()

# %%
# Files
# -----
# A table, EDF+ annotations that any viewer shows beside the signal, and a summary.

for path in sorted((folder / "results").iterdir()):
    print(f"{path.stat().st_size:8,} bytes  {path.name}")
print(
    *(folder / "results" / "Subject31_2_zipbrain.csv").read_text().splitlines()[:4],
    sep="\n",
)
