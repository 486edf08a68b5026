"""
1. Compress a model of your own
===============================

zipbrain needs no special model class. Here is a small EEG transformer as one writes it for a project; one line makes it
pool its tokens, another one gives it back.
"""

# %%
# A model, and real EEG
# ---------------------
# One token per electrode and second, a CLS token, torch's own encoder layers and a linear head. The weights are random:
# this is about mechanics, the next tutorial is about keeping answers.

import matplotlib.pyplot as plt
import torch
from torch import nn

import zipbrain
from zipbrain import DART, EViT, ToFu, ToMe, ZIPBrain
from zipbrain.data import example_windows, scale


class MyModel(nn.Module):
    def __init__(self, channels=16, seconds=4, rate=200, width=96, depth=6):
        super().__init__()
        self.rate = rate
        self.patch = nn.Linear(rate, width)
        self.cls_token = nn.Parameter(torch.randn(1, 1, width) * 0.02)
        self.place = nn.Parameter(torch.randn(1, 1 + channels * seconds, width) * 0.02)
        layer = nn.TransformerEncoderLayer(
            width, 6, 4 * width, batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Linear(width, 2)

    def forward(self, x):  # (B, channels, samples)
        tokens = self.patch(x.unflatten(2, (-1, self.rate)).flatten(1, 2))
        tokens = torch.cat((self.cls_token.expand(len(x), -1, -1), tokens), dim=1)
        return self.head(self.encoder(tokens + self.place)[:, 0])


torch.manual_seed(0)
model = MyModel().eval()
windows = example_windows("labram", people=[31])
x = torch.from_numpy(scale(windows.take(slice(None)), "hundred"))
with torch.inference_mode():
    before = model(x)
print(windows)

# %%
# One line
# --------
# ``ratio`` is the share of the tokens to remove over the whole network. With ``example=`` zipbrain counts the tokens and
# looks at what the head reads, so that it can warn of a head that pooling would break.

zipbrain.compress(model, ZIPBrain(), ratio=0.8, example=x[:1])
with torch.inference_mode():
    after = model(x)
print(zipbrain.summary(model))

# %%
# The summary says what was found: six encoder layers, one protected token (CLS), how many tokens are left after each, and
# what that saves. The output has the shape it had.

print(tuple(before.shape), "->", tuple(after.shape))

# %%
# Who went where
# --------------
# A trace records every block of the last forward pass. ``source_map`` follows each original token to the one it ended in.

with zipbrain.trace(model) as seen, torch.inference_mode():
    model(x)
print("tokens before the first block and after each:", seen.token_counts)
owner = seen.source_map()  # (windows, 64)
largest = [int(torch.bincount(window).max()) for window in owner[:5]]
print("the largest group of the first windows has", largest, "tokens")

# %%
# And back
# --------
# Same classes, same ``state_dict``, outputs equal bit for bit.

zipbrain.restore(model)
with torch.inference_mode():
    print("as before:", torch.equal(model(x), before))

# %%
# How many tokens are left
# ------------------------
# On the left, ZIPBrain at several ratios. On the right, the paper's maximum: ToMe and ToFu pair tokens off, so one block
# removes at most half of them.


def token_counts(method, ratio):
    """Unprotected tokens before the first block, then after each."""
    zipbrain.compress(model, method, ratio=ratio, example=x[:1])
    with zipbrain.trace(model) as seen, torch.inference_mode():
        model(x[:1])
    zipbrain.restore(model)
    return tuple(seen.token_counts)


figure, (left, right) = plt.subplots(
    1, 2, figsize=(9, 3.8), sharey=True, layout="constrained"
)
for ratio, shade in zip((0.2, 0.4, 0.6, 0.8), ("0.7", "0.5", "0.3", "0"), strict=True):
    left.plot(range(7), token_counts(ZIPBrain(), ratio), "o-", color=shade, label=ratio)
left.set(title="ZIPBrain", xlabel="block", ylabel="tokens left", ylim=(0, None))
left.legend(title="ratio", frameon=False)
methods = {"ZIPBrain": ZIPBrain(), "ToMe": ToMe(), "ToFu": ToFu()}
methods |= {"EViT": EViT(), "DART": DART()}
same: dict[tuple[int, ...], list[str]] = {}
for name, method in methods.items():
    same.setdefault(token_counts(method, "max"), []).append(name)
for (counts, names), colour in zip(same.items(), ("#0072B2", "#D55E00"), strict=False):
    right.plot(range(7), counts, "s-", color=colour, label=", ".join(names))
right.set(title='ratio="max"', xlabel="block")
right.legend(frameon=False)
plt.show()

# %%
# If your model is refused, the error says which blocks were looked for: :doc:`plot_80_add_dialect` teaches zipbrain a new
# kind. A head that flattens its tokens needs ``mass=Mass(readout=True)``; the warning says so.
