"""
Made-up EEG with known truth
============================

:class:`zipbrain.data.Synthetic` draws labelled windows from a seed, in seconds, without data or network. It also knows
which second of which channel carries the event, which no clinical corpus can tell so exactly: that is what one needs to
ask whether pooling keeps the tokens that matter. It is synthetic: a model that does well here has learned the rules of
a generator, not EEG.
"""

# %%
# Six events
# ----------
# The classes of TUEV on LaBraM's 23 channels: spike-and-wave, generalised and lateralised periodic discharges, eye
# movements, artefacts, background. Every subject has traits of their own, so the splits are by subject.

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import ListedColormap

from zipbrain.data import Synthetic

corpus = Synthetic("events", n_subjects=5, windows_per_subject=12, seed=1)
windows, truth = corpus.split("test"), corpus.truth("test")
print(corpus)
print(windows)
print("truth:", truth.shape, truth.dtype)

# %%
# Traces of one window of each class; shaded is what carries the event. Now and then a channel is dead (a flat line) or
# saturated (grey, cut off): those carry nothing.

BLUE, ORANGE, GREY = "#0072B2", "#E69F00", "#999999"


def draw(axes, x, carries, names, step):
    """Stacked traces (C, T), the first channel on top, over shaded seconds (C, seconds)."""
    seconds = carries.shape[1]
    time = np.arange(x.shape[1]) / corpus.sfreq
    heights = -step * np.arange(len(names))
    shade = np.ma.masked_equal(carries, False)
    edges = np.append(heights + step / 2, heights[-1] - step / 2)
    axes.pcolormesh(
        np.arange(seconds + 1), edges, shade, cmap=ListedColormap([ORANGE]), alpha=0.4
    )
    for trace, height in zip(x, heights, strict=True):
        if np.abs(trace).max() < 1000:
            axes.plot(time, trace + height, color=BLUE, linewidth=0.5)
        else:
            axes.plot(
                time,
                np.clip(trace, -0.4 * step, 0.4 * step) + height,
                color=GREY,
                linewidth=0.4,
            )
    axes.set(
        xlim=(0, seconds),
        ylim=(heights[-1] - 1.5 * step, 1.5 * step),
        yticks=heights,
        yticklabels=names,
    )
    axes.tick_params(axis="y", length=0, labelsize=7)
    axes.spines[["top", "right", "left"]].set_visible(False)


figure, panels = plt.subplots(
    2, 3, figsize=(11, 10), sharex=True, sharey=True, layout="constrained"
)
for label, axes in enumerate(panels.flat):
    chosen = np.flatnonzero(windows.labels == label)[0]
    x, _ = windows[chosen]
    draw(axes, x, truth[chosen], windows.ch_names, step=70)
    axes.set_title(windows.classes[label])
for axes in panels[1]:
    axes.set_xlabel("seconds")
figure.suptitle("synthetic-events: one window of each class, 70 µV from line to line")
plt.show()

# %%
# Five stages of sleep
# --------------------
# Thirty seconds on the six derivations of ISRUC. Shaded here: runs of alpha and blinks in W, theta and vertex waves in
# N1, spindles and K-complexes in N2, slow waves in N3, rapid eye movements and sawtooth waves in REM.

sleep = Synthetic("sleep", n_subjects=3, windows_per_subject=5, seed=1)
nights, carries = sleep.split("test"), sleep.truth("test")

figure, panels = plt.subplots(5, 1, figsize=(11, 11), sharex=True, layout="constrained")
for label, axes in enumerate(panels):
    chosen = np.flatnonzero(nights.labels == label)[0]
    x, _ = nights[chosen]
    draw(axes, x, carries[chosen], nights.ch_names, step=120)
    axes.set_title(nights.classes[label], loc="left")
panels[-1].set_xlabel("seconds")
figure.suptitle("synthetic-sleep: one window of each stage, 120 µV from line to line")
plt.show()

# %%
# How much of a window matters
# ----------------------------
# LaBraM reads one token per channel and second. In most windows few of them carry the event, so one can count how many
# of those a method keeps to themselves, and how many it merges with tokens that carry nothing.

for row, name in enumerate(windows.classes):
    share = truth[windows.labels == row].mean()
    print(f"{name}: {share:5.1%} of the tokens carry the event")
