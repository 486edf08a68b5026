"""ZIPBrain in as few ONNX operators as it takes, for graphs that `torch.onnx` exports.

Small graphs run at the speed of their operators' overhead: the plain steps become about 150 operators per block, these
about 55. They rely on what ONNX promises and torch does not: equal values leave TopK and ArgMax with the lower index
first. So they are never run by torch itself; `steps` and `merges` are the reference, and tests compare the two in ONNX
Runtime.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import torch
from torch import Tensor, nn

from zipbrain.pooling.grouping import Grouping
from zipbrain.pooling.merges import VANISHED, LargestNorm
from zipbrain.pooling.methods.base import Method
from zipbrain.pooling.methods.zipbrain import ZIPBrain
from zipbrain.pooling.pooled import Pooled
from zipbrain.pooling.steps import RESOLUTION
from zipbrain.pooling.tokens import Tokens

NAME: Final = "ONNX operators"
_TINY: Final = 1e-18
# A float32 from 8 to 16 is a multiple of 2**-20: adding one of these rounds a score as `steps.rank` does, in one
# operator. Keys of pivots end below all others, so that pivots are never chosen as redundant.
_PIVOT, _PROTECTED, _OPEN = -9.0, 9.0, 14.0


def refusal(tokens: Tokens, method: Method) -> str:
    """Why these operators can't pool the tokens of a graph that is being exported; "" if they can."""
    if not isinstance(method, ZIPBrain) or type(method.merge) is not LargestNorm or tokens.mass is not None:
        return "the short form knows ZIPBrain with its own merge rule, without mass"
    if not torch.compiler.is_exporting() or not hasattr(torch.onnx, "ops"):
        return "the short form needs torch.export and torch.onnx.ops"
    if tokens.x.requires_grad and torch.is_grad_enabled():
        return "the short form has no gradient"
    read = [getattr(tokens, name) for name in {"x", *(space[0] for space in method.spaces)}]
    if not all(value is not None and value.dtype == torch.float32 for value in read):
        return "the short form takes float32 tensors"
    return "" if 0 < tokens.r < tokens.count else "nothing goes"


def forward(tokens: Tokens, method: Method, weigh: bool, norm: nn.LayerNorm | None) -> Pooled:
    """Group and merge by the largest norm."""
    assert isinstance(method, ZIPBrain)
    z1, z2, z3 = method.spaces
    pivots = method.pivot_count(tokens)
    x, r, stays = tokens.x, tokens.r, tokens.total - tokens.r
    lengths = _lengths(tokens, z1)  # (B, T, 1); protected tokens take part in everything and are closed by constants
    redundant = _scores(tokens, lengths, z2, pivots).topk(r, dim=1, sorted=False).indices  # (B, r, 1)
    kept = _others(tokens, redundant)  # (B, T - r, 1), ascending
    kept_x, source_x = _rows(x, kept), _rows(x, redundant)  # (B, T - r, D), (B, r, D)
    kept_norm = lengths.gather(1, kept) if z1 == "x" else _norms(kept_x) if z3 == "x" else None
    source_norm = lengths.gather(1, redundant) if z1 == "x" else _norms(source_x)
    if kept_norm is not None and z3 == "x":  # cosines times the source's norm
        cosine = torch.matmul(source_x, kept_x.transpose(1, 2)) / kept_norm.transpose(1, 2)
        step = source_norm * RESOLUTION
    else:
        unit = _unit_rows(tokens, z3)
        cosine = torch.matmul(_rows(unit, redundant), _rows(unit, kept).transpose(1, 2))  # (B, r, T - r)
        step = torch.tensor(RESOLUTION)
    if tokens.leading or tokens.trailing:
        cosine = cosine + _at_ends(tokens, stays, -torch.inf, 0.0).squeeze(1).repeat(r, 1)
    # All cosines within 2**-20 of the best become equal, and the first of them is taken.
    nearly = cosine.amax(2, keepdim=True) - step
    place = torch.minimum(cosine, nearly).argmax(2, keepdim=True)  # (B, r, 1), in the output
    same = (place == place.transpose(1, 2)).to(x.dtype)  # (B, r, r): joined the same token
    target_x = _rows(kept_x, place)
    total = torch.matmul(same, source_x) + target_x
    if kept_norm is None:
        target_norm = _norms(target_x)
        longest = (same * source_norm.transpose(1, 2)).amax(2, keepdim=True)
        length = torch.maximum(longest, target_norm)  # (B, r, 1)
    else:
        target_norm = kept_norm.gather(1, place)
        length = kept_norm.scatter_reduce(1, place, source_norm, "amax").gather(1, place)
    total_norm = torch.linalg.vector_norm(total, dim=2, keepdim=True)
    lost = total_norm < length * (1 / VANISHED)
    merged = torch.where(lost, target_x, total) * (length / torch.where(lost, target_norm, total_norm))
    # Sources of one group have made the same row: whichever is written last, it is that one.
    window = torch.arange(x.shape[0])[:, None, None].expand(-1, r, 1)
    pooled = _operator("ScatterND", (kept_x, torch.cat((window, place), dim=2), merged), kept_x)
    return Pooled(pooled, partial(_grouping, tokens, kept, redundant, place))


def _others(tokens: Tokens, chosen: Tensor) -> Tensor:
    """Ascending indices (B, T - r, 1) of the tokens that are not among the chosen ones (B, r, 1).

    Every token finds its place by counting the others up to it, and writes its index there. A chosen token gets the
    place of the last other one before it, whose index is lower and stays. A TopK of almost all tokens takes as long in
    ONNX Runtime at batch 1, and many times as long in OpenVINO.
    """
    batch, r, total = chosen.shape[0], tokens.r, tokens.total
    # Places start at 0 if the first token is known to stay; else at 1, and 0 is for chosen ones before all others.
    empty = 0 if tokens.leading else 1
    steps = torch.tensor([empty] + [1] * (total - 1))[None, :, None].expand(batch, -1, -1)
    place = steps.scatter_reduce(1, chosen, torch.tensor(-1).expand(batch, r, 1), "sum").cumsum(1)
    index = torch.arange(total)[None, :, None].expand(batch, -1, -1)
    others = torch.tensor(total - 1).expand(batch, empty + total - r, 1).scatter_reduce(1, place, index, "amin")
    return others[:, 1:] if empty else others


def _grouping(tokens: Tokens, kept: Tensor, redundant: Tensor, place: Tensor) -> Grouping:
    """The groups in ascending order; operators of the graph only where they are read."""
    stay = kept.squeeze(2)
    source, order = redundant.squeeze(2).sort(dim=1)
    target = stay.gather(1, place.squeeze(2)).gather(1, order)
    return Grouping(stay, source, target, tokens.total)


def _scores(tokens: Tokens, lengths: Tensor, z2: str, count: int) -> Tensor:
    """Steps 1 and 2: the r highest of these are the redundant tokens. (B, T, 1)"""
    ends = tokens.leading + tokens.trailing
    own = torch.minimum(lengths, _at_ends(tokens, tokens.total, 0.0, torch.inf)) if ends else lengths
    share = own / own.amax(1, keepdim=True)
    key = _at_ends(tokens, tokens.total, 0.0, _PIVOT) - share
    lowest, pivots = key.topk(count, dim=1, largest=False, sorted=False)
    if count == tokens.count - tokens.r:  # nothing is left to choose: all that are no pivots
        return _at_ends(tokens, tokens.total, _PROTECTED, _OPEN).expand(own.shape).scatter(1, pivots, lowest)
    unit = _unit_rows(tokens, z2)
    prototype = _rows(unit, pivots).mean(1, keepdim=True)  # (B, 1, F)
    score = (unit * prototype).sum(2, keepdim=True).scatter(1, pivots, lowest)
    return score + _at_ends(tokens, tokens.total, _PROTECTED, _OPEN)


def _lengths(tokens: Tokens, space: str) -> Tensor:
    """Norms of all tokens, protected ones included. (B, T, 1)"""
    if space == "x":
        return _norms(tokens.x)
    if not space.endswith("h"):
        return _norms(_mean_head(tokens, space))
    return _norms(_heads(tokens, space)).mean(1)


def _norms(rows: Tensor) -> Tensor:
    """Norms over the last axis, at least 1e-18: (..., 1). ONNX Runtime's ReduceL2 takes twice as long."""
    squares = (rows * rows).sum(-1, keepdim=True)
    return squares.clamp_min(_TINY**2).sqrt()


def _unit_rows(tokens: Tokens, space: str) -> Tensor:
    """Rows of all tokens whose dot products are cosines. (B, T, F)"""
    if space == "x":
        return tokens.x / _norms(tokens.x)
    if not space.endswith("h"):
        return _unit(_mean_head(tokens, space))
    heads = _heads(tokens, space).transpose(1, 2)  # (B, T, H, d)
    root: float = heads.shape[2] ** 0.5
    return (heads / (_norms(heads) * root)).flatten(2)


def _heads(tokens: Tokens, space: str) -> Tensor:
    heads = getattr(tokens, space[0])
    assert isinstance(heads, Tensor)
    return heads  # (B, H, T, d)


def _mean_head(tokens: Tokens, space: str) -> Tensor:
    """Mean over heads, (B, T, d), as a product: ONNX Runtime's ReduceMean takes five times as long."""
    heads = _heads(tokens, space)
    number = heads.shape[1]
    mean = torch.matmul(torch.tensor([[1 / number] * number]), heads.flatten(2))  # (B, 1, T d)
    return mean.reshape(heads.shape[0], *heads.shape[2:])


def _unit(rows: Tensor) -> Tensor:
    """Divide by the norm over the last axis; zeros stay. One operator, slow on many or wide rows."""
    return _operator("LpNormalization", (rows,), rows, {"axis": -1, "p": 2})


def _rows(values: Tensor, index: Tensor) -> Tensor:
    """Rows of (B, T, F) named by (B, K, 1), without a flat index over the batch."""
    like = values[:, :1].expand(-1, index.shape[1], -1)
    return _operator("GatherND", (values, index), like, {"batch_dims": 1})


def _at_ends(tokens: Tokens, count: int, protected: float, others: float) -> Tensor:
    """A constant over `count` tokens with another value at the protected ones: (count, 1)"""
    values = [protected] * tokens.leading + [others] * (count - tokens.leading - tokens.trailing)
    return torch.tensor([*values, *[protected] * tokens.trailing]).unsqueeze(1)


def _operator(name: str, inputs: tuple[Tensor, ...], like: Tensor, attributes: Any = None) -> Tensor:
    """One ONNX operator whose result has the shape and type of `like`."""
    return torch.onnx.ops.symbolic(name, inputs, attributes, dtype=like.dtype, shape=like.shape)
