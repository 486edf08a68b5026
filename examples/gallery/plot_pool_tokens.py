"""
What pooling does to one set of tokens
======================================

A window of EEG becomes a grid of tokens, one per channel and second. One source of activity reaches several electrodes
for several seconds, so many tokens say nearly the same thing. This example makes such a grid, pools it once with
:func:`zipbrain.pool`, and draws who was merged with whom.
"""

# %%
# Tokens with something to merge
# ------------------------------
# Eight channels, ten seconds, 32 features. Three equally strong sources reach three patches of the grid, strongest in
# the middle of each; every token also has content of its own.

import math

import matplotlib.pyplot as plt
import torch

import zipbrain
from zipbrain import ZIPBrain

channels = ["Fp1", "F3", "C3", "P3", "Fp2", "F4", "C4", "P4"]
seconds, features = 10, 32
generator = torch.Generator().manual_seed(1)

row = torch.arange(len(channels)).unsqueeze(1)
column = torch.arange(seconds)
grid = 0.7 * torch.randn(len(channels), seconds, features, generator=generator)
directions = torch.linalg.qr(
    torch.randn(features, 3, generator=generator)
).Q.T  # unit vectors, at right angles
for (middle_row, middle_column), direction in zip(
    ((1, 1), (6, 3), (3, 7)), directions, strict=True
):
    distance = (row - middle_row) ** 2 + (column - middle_column) ** 2
    strength = 20 * torch.exp(-distance / 3)  # (channels, seconds)
    grid += strength.unsqueeze(2) * direction

x = grid.flatten(0, 1).unsqueeze(0)  # (1, 80, 32): one window, channel by channel
x.shape

# %%
# One call
# --------
# ``x, x, x`` means that norms, redundancy and matching are all measured on the features themselves. Inside a model,
# queries, keys and values of the attention can be used too.

r, rho = 24, 0.05
pooled = zipbrain.pool(x, r=r, method=ZIPBrain("x", "x", "x", rho=rho))
print("tokens:", x.shape[1], "->", pooled.x.shape[1])

# %%
# The grouping says who went where: ``kept`` (56 tokens that stay), ``source`` (24 that go) and ``target`` (the kept
# token that each of those joins). Nothing else is needed to spread the result back over the grid.

grouping = pooled.grouping
spread = grouping.unmerge(pooled.x)  # (1, 80, 32): every token has its group's value
print(
    "kept",
    tuple(grouping.kept.shape),
    "source",
    tuple(grouping.source.shape),
    "spread",
    tuple(spread.shape),
)

# %%
# The merge map
# -------------
# Every group of two tokens or more has a colour and a number of its own; tokens that stayed alone are white.

places = grouping.places()[0]  # (80,): the group of every token
sizes = torch.bincount(places)
groups = [
    group
    for group in sizes.argsort(descending=True, stable=True).tolist()
    if sizes[group] > 1
]
is_kept = torch.zeros(x.shape[1], dtype=torch.bool).scatter(0, grouping.kept[0], True)
is_pivot = torch.zeros(x.shape[1], dtype=torch.bool)
pivots = math.ceil((x.shape[1] - r) * rho)  # step 1: as many of the largest norms
is_pivot[x[0].norm(dim=1).topk(pivots).indices] = True

# Okabe and Ito's colours stay apart for colour-blind readers.
palette = [
    "#E69F00",
    "#56B4E9",
    "#009E73",
    "#CC79A7",
    "#F0E442",
    "#D55E00",
    "#0072B2",
    "#999999",
]

figure, axes = plt.subplots(figsize=(8, 7), layout="constrained")
for token in range(x.shape[1]):
    row, column = divmod(token, seconds)
    number = groups.index(places[token]) + 1 if places[token] in groups else 0
    colour = palette[(number - 1) % len(palette)] if number else "white"
    axes.add_patch(
        plt.Rectangle(
            (column - 0.5, row - 0.5), 1, 1, facecolor=colour, edgecolor="0.7"
        )
    )
    if number and is_kept[token]:
        axes.text(column, row, str(number), ha="center", va="center", zorder=4)

rows, columns = torch.arange(x.shape[1]) // seconds, torch.arange(x.shape[1]) % seconds
joined = is_kept & (sizes[places] > 1)
look = {"edgecolors": "black", "zorder": 3}
axes.scatter(
    columns[joined],
    rows[joined],
    330,
    "white",
    label="kept, and joined by others",
    **look,
)
axes.scatter(
    columns[~is_kept],
    rows[~is_kept],
    20,
    "black",
    label="merged into its group's circle",
    **look,
)
axes.scatter(
    columns[is_pivot] + 0.37,
    rows[is_pivot] - 0.37,
    40,
    "white",
    marker="^",
    label="pivot",
    **look,
)
axes.set(
    xlim=(-0.5, seconds - 0.5), ylim=(len(channels) - 0.5, -0.5), xlabel="second", ylabel="channel",
    xticks=range(seconds), title=f"{x.shape[1]} tokens, {r} of them merged into {len(groups)} others",
)  # fmt: skip
axes.set_yticks(range(len(channels)), channels)
axes.set_aspect("equal")
axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.09), ncols=3, frameon=False)
plt.show()

# %%
# The pivots are the tokens of largest norm, here the middles of the patches. What resembles their mean is redundant and
# joins the kept token it resembles most, so the patches shrink, though the method does not know where they are. Pivots
# are never merged away, but others may join them. (Redundancy is measured against the mean of all pivots: a source that
# is stronger than the others takes more of the pivots, and more of the merging.) A token without partners is left as
# it is, bit for bit.

alone = sizes[places] == 1
assert torch.equal(spread[0, alone], x[0, alone])
print(f"{int(alone.sum())} of {x.shape[1]} tokens are unchanged")
