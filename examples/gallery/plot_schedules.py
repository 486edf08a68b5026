"""
The same share removed, early or late
=====================================

Tokens that go in the first blocks save the most time and do the most damage. A schedule says how many go where.
"""

# %%
# Four schedules
# --------------
# Each ends with about a third of the 64 tokens. The operations are those of the blocks, pooling included.

import matplotlib.pyplot as plt
import torch

import zipbrain
from zipbrain import ToMe
from zipbrain.data import example_windows, scale
from zipbrain.pretrained import example_model
from zipbrain.profiling import hand_flops

windows = example_windows("labram", people=[31, 32, 33])
model = example_model(windows.ch_names, seconds=4)
x = torch.from_numpy(scale(windows.take(slice(None)), "hundred"))
with torch.inference_mode():
    original = model(x)

schedules = {
    "early": [14, 14, 14, *[0] * 9],
    "even": [4, 3, 4, 3, 4, 3, 4, 3, 4, 3, 4, 3],
    "every third": [14, 0, 0, 14, 0, 0, 14, 0, 0, 0, 0, 0],
    "late": [*[0] * 6, 7, 7, 7, 7, 7, 7],
}
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.8), layout="constrained")
for (name, removals), colour in zip(
    schedules.items(), ("#D55E00", "#0072B2", "#009E73", "#CC79A7"), strict=True
):
    zipbrain.compress(model, ToMe(), schedule=removals)
    with zipbrain.trace(model) as seen, torch.inference_mode():
        moved = float((model(x) - original).norm() / original.norm())
    cost = hand_flops(model)
    share = cost.macs / cost.original
    print(
        f"{name:12} {seen.token_counts[-1]} tokens left, operations {share:.2f}, logits moved by {moved:.2f}"
    )
    left.plot(
        range(13), seen.token_counts, drawstyle="steps-post", color=colour, label=name
    )
    right.plot(share, moved, "o", color=colour, markersize=9)
    right.annotate(
        name, (share, moved), (8, -3), textcoords="offset points", color=colour
    )
left.set(
    xlabel="block", ylabel="tokens", ylim=(0, None), title="Tokens after each block"
)
left.legend(frameon=False)
right.set(
    xlabel="operations, of the original's",
    ylabel="change of the logits / their norm",
    title="What it costs",
)
right.margins(0.25, 0.2)
plt.show()

# %%
# The same final number of tokens, very different savings: a ratio alone says little about time. ``zipbrain.tune`` tries
# these and others, and measures (:doc:`/tutorials/plot_20_tune`).
