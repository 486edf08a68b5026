"""
Compress a transformer in one line
==================================

:func:`zipbrain.compress` opens the blocks of a model between attention and feed-forward and lets a method shrink the
token set there. Here the model is a plain ``torch.nn.TransformerEncoder`` with random weights.
"""

# %%
# One line
# --------

import matplotlib.pyplot as plt
import torch

import zipbrain
from zipbrain import DART, EViT, ToFu, ToMe, ZIPBrain

torch.manual_seed(0)
layer = torch.nn.TransformerEncoderLayer(64, nhead=4, dim_feedforward=256, batch_first=True, norm_first=True)
model = torch.nn.TransformerEncoder(layer, num_layers=6, enable_nested_tensor=False).eval()
x = torch.randn(2, 96, 64)  # two windows, 96 tokens, 64 features
with torch.no_grad():
    before = model(x)

zipbrain.compress(model, ZIPBrain(), ratio=0.8, example=x)
with torch.no_grad():
    after = model(x)
print(tuple(before.shape), "->", tuple(after.shape))

# %%
# The model is the same object with the same weights. The summary says what was found and what is saved; the operations
# are counted by hand and leave out what pooling itself costs.

print(zipbrain.summary(model))

# %%
# Who went where
# --------------
# A trace records every block of the last forward. ``source_map`` follows each original token to the one it ended in.

with zipbrain.trace(model) as seen, torch.no_grad():
    model(x)
print("tokens before the first block and after each:", seen.token_counts)
owner = seen.source_map()  # (2, 96)
largest = [int(torch.bincount(window).max()) for window in owner]
print("the largest group of each window has", largest, "original tokens")

# %%
# And back
# --------
# ``restore`` undoes it all: the outputs are equal bit for bit.

zipbrain.restore(model)
with torch.no_grad():
    print("as before:", torch.equal(model(x), before))

# %%
# How many tokens are left
# ------------------------
# ``ratio`` is the share of the original tokens removed over the whole network, the same number in every block, rounded.
# On the right, the paper's maximum, ``ratio="max"``: ToMe and ToFu pair tokens off, so one block can remove at most
# half of them, and they end with more tokens than the others.


def token_counts(method, ratio):
    """Unprotected tokens before the first block, then after each."""
    zipbrain.compress(model, method, ratio=ratio, tokens=96)
    with zipbrain.trace(model) as seen, torch.no_grad():
        model(x)
    zipbrain.restore(model)
    return tuple(seen.token_counts)


figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.4), sharey=True, layout="constrained")
ratios = (0.2, 0.4, 0.6, 0.8)
for ratio, shade in zip(ratios, plt.cm.cividis(torch.linspace(0.0, 0.65, len(ratios)).numpy()), strict=True):
    counts = token_counts(ZIPBrain(), ratio)
    left.plot(range(7), counts, "o-", color=shade)
    left.annotate(f"ratio {ratio}", (6, counts[-1]), (7, 0), textcoords="offset points", va="center", color=shade)
left.set(
    title="ZIPBrain at several ratios",
    xlabel="after block (0: before the first)",
    ylabel="tokens left",
    xticks=range(7),
    ylim=(0, 100),
)
left.set_xlim(-0.3, 7.3)  # room for the labels

same: dict[tuple[int, ...], list[str]] = {}
for name, method in {"ZIPBrain": ZIPBrain(), "ToMe": ToMe(), "ToFu": ToFu(), "EViT": EViT(), "DART": DART()}.items():
    same.setdefault(token_counts(method, "max"), []).append(name)
for (counts, names), colour, style in zip(same.items(), ("#0072B2", "#D55E00"), ("o-", "s--"), strict=True):
    right.plot(range(7), counts, style, color=colour, label=f"{', '.join(names)}: {counts[-1]} left")
right.set(title="All methods at the maximum", xlabel="after block (0: before the first)", xticks=range(7))
right.legend(frameon=False)
for axes in (left, right):
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.3)
plt.show()
