"""
Eight methods on one real window
================================

All methods remove the same number of tokens here. They differ in whom they merge or drop, and in how far the answer moves.
"""

# %%
# The same window for all
# -----------------------

import matplotlib.pyplot as plt
import numpy as np
import torch

import zipbrain
from zipbrain.data import example_windows, scale
from zipbrain.evaluation.plots.merging import group_numbers
from zipbrain.evaluation.token_fates import fates
from zipbrain.pooling import as_method
from zipbrain.pretrained import example_model

windows = example_windows("labram", people=[31, 32], seconds=5)
model = example_model(windows.ch_names, seconds=5)
x = torch.from_numpy(scale(windows.take(slice(None)), "hundred"))
with torch.inference_mode():
    original = model(x)

# %%
# Groups are coloured by size, the largest first; white tokens stayed alone, crosses were dropped.

names = ("zipbrain", "tome", "tofu", "evit", "dart", "pitome", "local_merging", "twins")
colours = plt.cm.tab20.colors
figure, panels = plt.subplots(
    2, 4, figsize=(10, 6.4), sharex=True, sharey=True, layout="constrained"
)
for name, axes in zip(names, panels.flat, strict=True):
    method = as_method(name)
    zipbrain.compress(model, method, ratio=0.6)
    seen = fates(model, windows.select([20]), device="cpu")
    with torch.inference_mode():
        logits = model(x)
    for (row, column), number in np.ndenumerate(group_numbers(seen.owner[0])):
        face = colours[(number - 1) % 20] if number > 0 else "white"
        axes.add_patch(
            plt.Rectangle((column, row - 0.5), 1, 1, facecolor=face, edgecolor="0.8")
        )
        if number < 0:
            axes.plot(column + 0.5, row, "x", color="0.4", markersize=4)
    kept = float((logits.argmax(1) == original.argmax(1)).float().mean())
    moved = float((logits - original).norm() / original.norm())
    print(
        f"{method.title:14} {kept:6.1%} of {len(x)} decisions unchanged, logits moved by {moved:.2f}"
    )
    axes.set(xlim=(0, 5), ylim=(15.5, -0.5), title=method.title)
    axes.set_yticks(range(16), windows.ch_names, fontsize=7)
for axes in panels[1]:
    axes.set_xlabel("seconds")
plt.show()

# %%
# A few windows of two people say nothing about which method is best: :doc:`/tutorials/plot_60_compare` does that with
# intervals, and with time beside it.
