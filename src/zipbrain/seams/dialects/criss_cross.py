"""Criss-cross blocks on a grid of channels and time steps, CBraMod's: whole channels are pooled, or whole time steps.

A token is a channel with its time steps side by side, so that what is left is a smaller grid.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zipbrain.errors import OptionError, ShapeError
from zipbrain.pooling.flops import GridShape
from zipbrain.pooling.tokens import Branch
from zipbrain.seams.dialects.attention import join_heads, softmax_attention, split_heads
from zipbrain.seams.dialects.base import Attended, Dialect, refuse_arguments, register_dialect
from zipbrain.seams.dialects.recognition import NO_MATCH, Recognition, match_forward, near_miss, original_class
from zipbrain.seams.dialects.timm_like import AttentionParts, TimmLike

if TYPE_CHECKING:
    from zipbrain.seams.forward import Site

_NAMES = (("spatial", "temporal", "mlp"), ("self_attn_s", "self_attn_t", "linear1"))  # ours; the official ones


@register_dialect
class CrissCross(Dialect):
    """``x += (over channels | over time steps)(norm1(x))``, half of the features each; then a feed-forward.

    Mass enters where tokens attend to each other; inside a token all stay.
    """

    name = "criss-cross"
    looks_like = "norm1, norm2, self_attn_s and self_attn_t on a grid (B, channels, time steps, D), linear1, linear2"
    units, cells = "channels", "time steps"
    place: ClassVar[int] = 1  # of the tokens among the axes of a grid

    @classmethod
    def along(cls, axis: str | None) -> type[Dialect]:
        if axis not in (None, "channels", "time"):
            raise OptionError("axis", axis, "it must be 'channels' or 'time'")
        return CrissCrossTime if axis == "time" else CrissCross

    @classmethod
    def recognise(cls, block: nn.Module) -> Recognition:
        parts: dict[str, Any] = dict(block.named_children())
        names = next((names for names in _NAMES if {*names, "norm1", "norm2"} <= {*parts}), None)
        if names is None:
            return NO_MATCH
        for attn in (parts[name] for name in names[:2]):
            if isinstance(attn, nn.MultiheadAttention):
                if not attn._qkv_same_embed_dim or attn.bias_k is not None or attn.add_zero_attn:
                    return near_miss("its attention has separate key or value widths, key biases or a zero key")
            elif not isinstance(getattr(attn, "qkv", None), nn.Linear):
                return NO_MATCH

        def own_forward(x: Tensor) -> Tensor:
            result: Tensor = original_class(block).forward(block, _split(block, x))
            return result.flatten(2)

        return match_forward(cls, block, _first_layer(block).weight, own_forward, cells_per_token=2)

    @classmethod
    def attend(cls, block: Any, x: Tensor, bias: Tensor | None, need_map: bool) -> Attended:
        grid = block.norm1(_split(block, x))  # (B, T, S, D): tokens and the cells in each
        cells = grid.shape[2]
        first, second = _attentions(block)
        halves = grid.chunk(2, dim=3)
        if cls.place == 2:
            first, second, halves = second, first, halves[::-1]
        # The same tokens are keys in every cell, so all cells are biased alike: (B S, T).
        biases = None if bias is None else bias.unsqueeze(1).expand(-1, cells, -1).flatten(0, 1)
        over = _attention(first, halves[0].transpose(1, 2).flatten(0, 1), biases, need_map)
        inside = _attention(second, halves[1].flatten(0, 1), None, False).output
        mixed = _unfold(over.output, cells).transpose(1, 2), _unfold(inside, grid.shape[1])
        output = torch.cat(mixed if cls.place == 1 else mixed[::-1], dim=3)
        if isinstance(drop := getattr(block, "dropout1", None), nn.Module):
            output = drop(output)
        q, k, v = (_side_by_side(heads, cells) for heads in (over.q, over.k, over.v))
        seen = None if over.attention is None else _unfold(over.attention, cells).mean(1)
        return Attended(x, q, k, v, over.scale, attention=seen, branch=Branch(output.flatten(2)))

    @classmethod
    def feed_forward(cls, block: Any, x: Tensor) -> Tensor:
        grid = _split(block, x)
        normed = block.norm2(grid)
        fed: Tensor = block.drop(block.mlp(normed)) if hasattr(block, "mlp") else block._ff_block(normed)
        return (grid + fed).flatten(2)

    @classmethod
    def shape(cls, block: Any) -> GridShape:
        heads, dim = int(_attentions(block)[0].num_heads), int(block.norm1.normalized_shape[0])
        return GridShape(dim, heads, dim // 2 // heads, _first_layer(block).out_features)

    @classmethod
    def run(cls, host: Any, site: Site, x: Tensor, *args: Any, **kwargs: Any) -> Any:
        refuse_arguments(host, args, kwargs)
        width = int(host.norm1.normalized_shape[0])
        if x.dim() != 4 or x.shape[3] != width:
            wanted = f"its grid can't be told: criss-cross blocks need (B, channels, time steps, {width})"
            raise ShapeError("x", tuple(x.shape), wanted)
        tokens = x.transpose(1, cls.place).flatten(2)  # no change where channels are the tokens
        return _split(host, site.plan.block(site.index, host, tokens)).transpose(1, cls.place)

    @classmethod
    def token_axis(cls, host: nn.Module, x: Tensor) -> int:
        return cls.place


class CrissCrossTime(CrissCross):
    """The same with time steps as tokens, each with its channels side by side."""

    units, cells, axis = "time steps", "channels", "time"
    place = 2


def _attentions(block: Any) -> tuple[Any, Any]:
    """Attention over channels, and over time steps."""
    return (block.spatial, block.temporal) if hasattr(block, "spatial") else (block.self_attn_s, block.self_attn_t)


def _first_layer(block: Any) -> Any:
    """The first linear layer of the feed-forward."""
    return block.mlp.fc1 if hasattr(block, "mlp") else block.linear1


def _split(block: Any, x: Tensor) -> Tensor:
    """Tokens (B, T, S D) as a grid (B, T, S, D)."""
    return x.reshape(*x.shape[:2], -1, int(block.norm1.normalized_shape[0]))


def _side_by_side(heads: Tensor, cells: int) -> Tensor:
    """(B S, H, T, d) -> (B, H, T, S d)"""
    return _unfold(heads, cells).permute(0, 2, 3, 1, 4).flatten(3)


def _unfold(values: Tensor, count: int) -> Tensor:
    """(B n, ...) -> (B, n, ...)"""
    return values.reshape(-1, count, *values.shape[1:])


def _attention(attn: Any, x: Tensor, bias: Tensor | None, need_map: bool) -> AttentionParts:
    """An attention module on its normed input (B, T, D)."""
    if not isinstance(attn, nn.MultiheadAttention):
        return TimmLike.attention(attn, x, bias, need_map)
    q, k, v = F.linear(x, attn.in_proj_weight, attn.in_proj_bias).chunk(3, dim=2)
    q, k, v = (split_heads(part, attn.num_heads) for part in (q, k, v))
    dropout = attn.dropout if attn.training else 0.0
    mixed, attention = softmax_attention(q, k, v, q.shape[3] ** -0.5, bias, dropout, need_map)
    return AttentionParts(attn.out_proj(join_heads(mixed)), q, k, v, q.shape[3] ** -0.5, False, attention)
