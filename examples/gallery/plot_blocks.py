"""
Block by block: fewer tokens, larger groups
===========================================

``zipbrain.trace`` records every block of a forward pass. Here it follows 30 windows of real EEG through a LaBraM.
"""

# %%
# Trace a forward pass
# --------------------

import matplotlib.pyplot as plt
import torch

import zipbrain
from zipbrain import ZIPBrain
from zipbrain.data import example_windows, scale
from zipbrain.pooling import compose
from zipbrain.pretrained import example_model

windows = example_windows("labram", people=[31])
model = example_model(windows.ch_names, seconds=4)
x = torch.from_numpy(scale(windows.take(slice(None)), "hundred"))  # (30, 16, 800)

zipbrain.compress(model, ZIPBrain(), ratio=0.8)
with zipbrain.trace(model) as seen, torch.inference_mode():
    model(x)
print("tokens before the first block and after each:", seen.token_counts)

# %%
# Sizes of the groups
# -------------------
# ``compose`` joins the groupings of the first blocks into one: from there, the size of every group after each block.

sizes = []
for block in range(1, len(seen.layers) + 1):
    grouping = compose(layer.grouping for layer in seen.layers[:block])
    counts = [torch.bincount(window)[1:] for window in grouping.places()]  # without CLS
    sizes.append(torch.cat([count[count > 0] for count in counts]).float())

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.8), layout="constrained")
left.plot(range(len(seen.token_counts)), seen.token_counts, "o-", color="#0072B2")
left.set(
    xlabel="block", ylabel="tokens", ylim=(0, None), title="Tokens after each block"
)
blocks = range(1, len(sizes) + 1)
right.plot(
    blocks, [size.max() for size in sizes], "^-", color="#D55E00", label="largest"
)
right.plot(
    blocks,
    [size.quantile(0.9) for size in sizes],
    "s-",
    color="#E69F00",
    label="nine of ten are at most",
)
right.plot(
    blocks, [size.median() for size in sizes], "o-", color="#0072B2", label="median"
)
right.set(
    xlabel="block", ylabel="original tokens in a group", title="Size of the groups"
)
right.legend(frameon=False)
plt.show()

# %%
# Half of the tokens that are left stand for themselves alone, while a few stand for many others. A plain mean over tokens
# counts both kinds alike; :doc:`plot_mass` shows what changes if a token knows its mass.
