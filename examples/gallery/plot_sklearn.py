"""
A foundation model in scikit-learn
==================================

:class:`zipbrain.training.EEGClassifier` is a classifier as scikit-learn knows them: it takes arrays or ``mne.Epochs``, and
``ratio=`` compresses what it has learned.
"""

# %%
# Epochs in, labels out
# ---------------------
# One person, rest against mental arithmetic, two-second epochs. The network is tiny and trained for two minutes of EEG: this
# shows the interface, not what a pretrained model reaches.

import matplotlib.pyplot as plt
import mne
import numpy as np
from sklearn.model_selection import StratifiedKFold, cross_val_predict

from zipbrain.data import example_windows
from zipbrain.training import EEGClassifier

windows = example_windows("biot", people=[35], seconds=2)
info = mne.create_info(list(windows.ch_names), windows.sfreq, "eeg")
epochs = mne.EpochsArray(
    1e-6 * windows.take(slice(None)), info, verbose="error"
)  # MNE's unit is volt
y = np.array(windows.classes)[windows.labels]
print(epochs)

# %%
# Cross-validation, without and with compression
# ----------------------------------------------

folds = StratifiedKFold(3, shuffle=True, random_state=0)
tiny = {"options": {"dim": 32, "depth": 2}}
for ratio in (None, 0.5):
    classifier = EEGClassifier(
        "biot", epochs=6, overrides=tiny, ratio=ratio, device="cpu", random_state=0
    )
    found = cross_val_predict(classifier, epochs, y, cv=folds)
    print(f"ratio {ratio}: {np.mean(found == y):.2f} of {len(y)} epochs right")

# %%
# Epochs in volts and windows in microvolts give the same, because units are checked and converted. Here is one of each
# class:

figure, panels = plt.subplots(1, 2, figsize=(9, 4), sharey=True, layout="constrained")
for axes, label in zip(panels, windows.classes, strict=True):
    one = windows.take([int(np.flatnonzero(y == label)[4])])[0]
    axes.plot(
        np.arange(one.shape[1]) / windows.sfreq,
        (one - 60 * np.arange(16)[:, None]).T,
        color="#0072B2",
        linewidth=0.5,
    )
    axes.set(
        title=label,
        xlabel="seconds",
        yticks=-60 * np.arange(16),
        yticklabels=windows.ch_names,
    )
plt.show()
