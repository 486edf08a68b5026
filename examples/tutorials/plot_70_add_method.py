"""
7. Add a method
===============

A method answers two questions: who goes where, and how features combine. Everything else (protected tokens, schedules, mass,
traces, export, comparison) comes with it.
"""

# %%
# The idea
# --------
# *Quietest*: the tokens of the smallest norm go, and each joins the token that is most similar to it. ``Tokens`` brings the
# features, how many shall go (``r``) and where the unprotected ones lie. ``zipbrain.pooling.steps`` has what keeps decisions
# equal on every device: rounded scores, ties to the lower index.

from dataclasses import dataclass

import matplotlib.pyplot as plt
import torch

import zipbrain
from zipbrain import ToMe, ZIPBrain
from zipbrain.data import example_windows, scale
from zipbrain.pooling import Grouping, Mean, Method
from zipbrain.pooling.registry import register
from zipbrain.pooling.spaces import Spaces
from zipbrain.pooling.steps import highest_relative, match_tokens, partition
from zipbrain.pretrained import example_model


@register("quietest")
@dataclass(frozen=True)
class Quietest(Method):
    """The tokens of the smallest norm join the ones that they resemble most."""

    title = "Quietest"

    def merge_rule(self, tokens):
        return Mean()

    def __call__(self, tokens):
        x = tokens.unprotected(tokens.x.detach(), 1)  # (B, N, D)
        stays = highest_relative(x.norm(dim=2), tokens.count - tokens.r)
        kept, source = partition(~stays, tokens.r, tokens.leading, tokens.trailing)
        unit = Spaces(tokens).unit("x")  # (B, N, D), of length 1
        own = (source - tokens.leading).unsqueeze(2).expand(-1, -1, unit.shape[2])
        column, _ = match_tokens(unit.gather(1, own), unit, ~stays)
        return Grouping(kept, source, column + tokens.leading, tokens.total)


# %%
# Try it
# ------
# ``pool`` checks what a method returns: every token is kept or goes to a kept one.

x = torch.randn(2, 40, 8, generator=torch.Generator().manual_seed(0))
pooled = zipbrain.pool(x, r=10, method=Quietest(), protected=1)
print(pooled.x.shape, "token 0 stays:", bool((pooled.grouping.kept[:, 0] == 0).all()))

# %%
# In a model, beside others
# -------------------------
# By its name, like the built-in ones; 60 windows of real EEG.

windows = example_windows("labram", people=[33, 34])
model = example_model(windows.ch_names, seconds=4)
signal = torch.from_numpy(scale(windows.take(slice(None)), "hundred"))
with torch.inference_mode():
    original = model(signal)

figure, axes = plt.subplots(figsize=(6, 3.8), layout="constrained")
ratios = (0.2, 0.5, 0.8)
for method, colour in (
    ("quietest", "#D55E00"),
    (ToMe(), "#0072B2"),
    (ZIPBrain(), "#009E73"),
):
    moved = []
    for ratio in ratios:
        zipbrain.compress(model, method, ratio=ratio)
        with torch.inference_mode():
            moved.append(float((model(signal) - original).norm() / original.norm()))
    name = method if isinstance(method, str) else method.title
    print(f"{name:10}", *(f"{one:.3f}" for one in moved))
    axes.plot(ratios, moved, "o-", color=colour, label=name)
axes.set(xlabel="ratio", ylabel="change of the logits / their norm", ylim=(0, None))
axes.legend(frameon=False)
plt.show()

# %%
# To be part of zipbrain
# ----------------------
# One file in ``pooling/methods/`` and one line in its ``__init__.py``. The property tests (partition, order, protected tokens,
# the same answer in any batch) run over every registered method. Decisions must not depend on the batch, and random draws only
# on the seed, the layer and the number of tokens.
