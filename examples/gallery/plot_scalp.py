"""
Which electrodes keep their tokens
==================================

Over many windows one can ask where on the head tokens survive, and whether two methods agree about it.
"""

# %%
# Two methods, 75 windows
# -----------------------
# The mean number of blocks that an electrode's tokens leave as themselves, over five people in mental arithmetic.

import numpy as np

import zipbrain
from zipbrain import ToMe, ZIPBrain
from zipbrain.data import example_windows
from zipbrain.evaluation.plots import survival_topography
from zipbrain.evaluation.token_fates import fates
from zipbrain.pretrained import example_model

windows = example_windows("labram")
windows = windows.select(np.flatnonzero(windows.labels == 1))
model = example_model(windows.ch_names, seconds=4)

zipbrain.compress(model, ZIPBrain(), ratio=0.8)
seen = fates(model, windows, device="cpu")
figure = survival_topography(seen, title="ZIPBrain")

# %%
# ToMe pairs tokens off by their keys, and keeps others.

zipbrain.compress(model, ToMe(), ratio=0.8)
other = fates(model, windows, device="cpu")
figure = survival_topography(other, title="ToMe")

# %%
# How far they agree, electrode by electrode:

means = [one.blocks.mean((0, 2)) for one in (seen, other)]
print(f"correlation over the electrodes: {np.corrcoef(*means)[0, 1]:.2f}")
for name, first, second in zip(windows.ch_names, *means, strict=True):
    print(f"{name:4} {first:5.1f} {second:5.1f}")
