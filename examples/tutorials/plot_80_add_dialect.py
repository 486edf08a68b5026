"""
8. Add a dialect
================

zipbrain cuts a block open between attention and feed-forward. How a block is built differs from library to library; a
*dialect* says where the cut is. Nine are built in, and another one is a class with four methods.
"""

# %%
# A block that zipbrain does not know
# -----------------------------------
# Like CLIP's: ``ln_1``, ``attn``, ``ln_2``, ``mlp``.

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
from torch import nn

import zipbrain
from zipbrain import ZIPBrain
from zipbrain.data import example_windows, scale
from zipbrain.pooling.flops import BlockShape
from zipbrain.seams import (
    MATCH,
    NO_MATCH,
    Attended,
    Dialect,
    near_miss,
    register_dialect,
)
from zipbrain.seams.dialects.attention import join_heads, softmax_attention, split_heads


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = nn.MultiheadAttention(width, heads, batch_first=True)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x):
        normed = self.ln_1(x)
        x = x + self.attn(normed, normed, normed, need_weights=False)[0]
        return x + self.mlp(self.ln_2(x))


class Model(nn.Module):
    def __init__(self, width=64, depth=6):
        super().__init__()
        self.patch = nn.Linear(200, width)
        self.blocks = nn.ModuleList(Block(width, 4) for _ in range(depth))
        self.head = nn.Linear(width, 2)

    def forward(self, x):  # (B, channels, samples)
        x = self.patch(x.unflatten(2, (-1, 200)).flatten(1, 2))
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(1))


torch.manual_seed(0)
model = Model().eval()
windows = example_windows("labram", people=[34])
x = torch.from_numpy(scale(windows.take(slice(None)), "hundred"))
with torch.inference_mode():
    before = model(x)

try:
    zipbrain.compress(model, ZIPBrain(), ratio=0.5)
except zipbrain.UnsupportedModel as error:
    print(error)

# %%
# The dialect
# -----------
# ``recognise`` says whether a block is of it, ``attend`` runs it up to the cut, ``feed_forward`` runs the rest, ``shape``
# tells its sizes for counting operations.


@register_dialect
class ClipLike(Dialect):
    name = "CLIP-like"
    looks_like = "ln_1, attn (torch.nn.MultiheadAttention), ln_2, mlp"

    @classmethod
    def recognise(cls, block):
        parts = dict(block.named_children())
        if set(parts) != {"ln_1", "attn", "ln_2", "mlp"}:
            return NO_MATCH
        if not isinstance(parts["attn"], nn.MultiheadAttention):
            return NO_MATCH
        is_fit = parts["attn"].batch_first
        return MATCH if is_fit else near_miss("its attention is not batch first")

    @classmethod
    def attend(cls, block, x, bias, need_map):
        attn = block.attn
        qkv = F.linear(block.ln_1(x), attn.in_proj_weight, attn.in_proj_bias)
        q, k, v = (split_heads(part, attn.num_heads) for part in qkv.chunk(3, dim=2))
        scale = q.shape[3] ** -0.5
        mixed, seen = softmax_attention(q, k, v, scale, bias, 0.0, need_map)
        after = x + attn.out_proj(join_heads(mixed))
        return Attended(after, q, k, v, scale, attention=seen)

    @classmethod
    def feed_forward(cls, block, x):
        return x + block.mlp(block.ln_2(x))

    @classmethod
    def shape(cls, block):
        attn = block.attn
        return BlockShape(
            attn.embed_dim, attn.num_heads, attn.head_dim, block.mlp[0].out_features
        )


# %%
# See that it is right
# --------------------
# With nothing removed, the compressed model must equal the original. (zipbrain tries every block on three tokens itself, and
# refuses a dialect that gives something else.)

zipbrain.compress(model, ZIPBrain(), r=0)
with torch.inference_mode():
    print(f"largest difference: {float((model(x) - before).abs().max()):.1e}")

# %%
# Use it
# ------

figure, axes = plt.subplots(figsize=(6, 3.6), layout="constrained")
for ratio, colour in ((0.4, "#0072B2"), (0.8, "#D55E00")):
    zipbrain.compress(model, ZIPBrain(), ratio=ratio, example=x[:1])
    with zipbrain.trace(model) as seen, torch.inference_mode():
        model(x)
    axes.plot(range(7), seen.token_counts, "o-", color=colour, label=f"ratio {ratio}")
axes.set(xlabel="block", ylabel="tokens", ylim=(0, None))
axes.legend(frameon=False)
plt.show()
print(zipbrain.summary(model))

# %%
# :doc:`/explanation/seams` says what else a dialect may do: several blocks run by one loop, positions, grids, and the lossless
# tail of models whose head reads CLS alone.
