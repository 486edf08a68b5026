"""
Why a token should know its mass
================================

After pooling one token may stand for one original token or for fifty. The paper treats all alike; with ``mass=True`` a
token remembers its number, in attention, in the merge and in the readout. This example asks how far a compressed model
moves away from the uncompressed one, with and without.
"""

# %%
# A model and tokens
# ------------------
# A small random encoder with a mean over tokens before its head, and tokens with something in common: six sources per
# window, each spread over neighbouring channels and changing slowly, plus noise.

import matplotlib.pyplot as plt
import torch

import zipbrain
from zipbrain import Mass, ZIPBrain
from zipbrain.models import TokenEncoder

windows, channels, seconds, features, sources = 64, 16, 8, 64, 6
generator = torch.Generator().manual_seed(0)

place = torch.rand(
    windows, sources, 1, generator=generator
)  # where each source is strongest
spread = torch.exp(-(((torch.linspace(0, 1, channels) - place) / 0.15) ** 2))
phase = 2 * torch.pi * torch.rand(windows, sources, 1, generator=generator)
course = 1 + torch.sin(0.2 * torch.pi * torch.arange(seconds) + phase)
content = torch.randn(windows, sources, features, generator=generator)
x = torch.einsum("wsc,wst,wsd->wctd", spread, course, content).flatten(1, 2)
x = x + 0.3 * torch.randn(x.shape, generator=generator)  # (64, 128, 64)

torch.manual_seed(0)
model = TokenEncoder(dim=features, depth=6, heads=4, outputs=4).eval()
with torch.no_grad():
    original = model(x)

# %%
# How far the logits move
# -----------------------
# The distance is relative to the size of the logits; the agreement is the share of windows whose largest logit stays
# the same.

choices = {
    "no mass (the paper)": (False, "#0072B2", "o-"),
    "attention and merge": (Mass(attention=True, merge=True), "#E69F00", "^:"),
    "readout only": (Mass(readout=True), "#009E73", "s--"),
    "all three": (True, "#D55E00", "D-"),
}
ratios = [0.1, 0.3, 0.5, 0.7, 0.9]

figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.4), layout="constrained")
for name, (mass, colour, style) in choices.items():
    moved, agree = [], []
    for ratio in ratios:
        zipbrain.compress(model, ZIPBrain(), ratio=ratio, mass=mass)
        with torch.no_grad():
            logits = model(x)
        moved.append(float((logits - original).norm() / original.norm()))
        agree.append(float((logits.argmax(1) == original.argmax(1)).float().mean()))
    print(
        f"{name:20}  moved {moved[-1]:.2f}, agreement {agree[-1]:.2f} at ratio {ratios[-1]}"
    )
    left.plot(ratios, moved, style, color=colour, label=name)
    right.plot(ratios, agree, style, color=colour)
zipbrain.restore(model)

left.set(
    title="Change of the logits",
    ylabel="norm of the change / norm of the logits",
    ylim=(0, None),
)
right.set(title="Same largest logit", ylabel="share of windows", ylim=(0, 1.03))
left.legend(frameon=False)
for axes in (left, right):
    axes.set(xlabel="ratio (share of tokens removed)", xticks=ratios)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.3)
plt.show()

# %%
# What this shows, and what it can't
# ----------------------------------
# A plain mean over what is left counts a token that stands for fifty as one, so it moves away from the mean over all
# tokens as groups become uneven. Weighting by mass takes that part of the error away; most of the gain here comes from
# the readout. At small ratios groups are small, and there is little to gain.
#
# The weights are random and nothing was learned, so this is no statement about accuracy. A trained head may not care
# about this distance, and a head that was trained behind a compressed network has learned to live with the plain mean.
# Try both on your own validation data; ``mass=False`` is the default because the paper's results were made without.
