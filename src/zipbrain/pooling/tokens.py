"""`Tokens`: what a method gets, the tokens between attention and feed-forward of one block."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Branch:
    """What a block adds to its residual stream."""

    values: Tensor  # output of attention or feed-forward
    scale: Tensor | None = None  # factor on it (layer scale), of a shape that broadcasts to its shape

    @property
    def requires_grad(self) -> bool:
        """True if gradients flow back through the branch."""
        return self.values.requires_grad or (self.scale is not None and self.scale.requires_grad)

    def added_to(self, x: Tensor) -> Tensor:
        """x plus the scaled branch, (B, T, D)."""
        if self.scale is None:
            return x + self.values
        if self.scale.dtype == self.values.dtype == x.dtype and not torch.compiler.is_exporting():
            return torch.addcmul(x, self.scale, self.values)
        return x + self.scale * self.values  # two operators that runtimes fuse, and any mix of precisions


@dataclass(frozen=True, eq=False)
class Tokens:
    """The tokens between attention and feed-forward of one block.

    Protected tokens stand at the two ends (`pool` brings any other arrangement into this one), so the unprotected
    tokens are one slice.

    Parameters
    ----------
    x : Tensor, shape (B, T, D)
        The residual stream after attention, before the feed-forward part.
    r : int
        How many tokens shall go.
    q, k, v : Tensor of shape (B, H, T, d), optional
        What enters the dot product of attention (after any q/k norm, before the scale).
    leading, trailing : int
        Number of protected tokens at the start and at the end.
    attention : Tensor of shape (B, H, T, T), optional
        The attention map, where the method needs it.
    bias : Tensor of shape (B, T), optional
        What attention added to the logits of every key (log of the mass).
    mass : Tensor of shape (B, T), optional
        How many original tokens each token stands for.
    layer, depth : int
        Which block this is, counted from 1, and how many blocks there are.
    scale : float, optional
        Factor on q k^T inside softmax attention; d ** -0.5 if not given.
    linear : bool
        True for linear attention (softmax of q over features, of k over tokens).
    branch : Branch, optional
        What is still to be added to x. Methods never see one; a GPU kernel may add it along with the merge.
    """

    x: Tensor
    r: int
    q: Tensor | None = None
    k: Tensor | None = None
    v: Tensor | None = None
    leading: int = 0
    trailing: int = 0
    attention: Tensor | None = None
    bias: Tensor | None = None
    mass: Tensor | None = None
    layer: int = 1
    depth: int = 1
    scale: float | None = None
    linear: bool = False
    branch: Branch | None = None

    @property
    def total(self) -> int:
        """T, all tokens."""
        return int(self.x.shape[1])

    @property
    def count(self) -> int:
        """N, the unprotected tokens."""
        return int(self.x.shape[1]) - self.leading - self.trailing

    def unprotected(self, values: Tensor, dim: int) -> Tensor:
        """The slice of any tensor over tokens that belongs to the unprotected ones."""
        if self.leading == 0 and self.trailing == 0:
            return values
        return values.narrow(dim, self.leading, self.count)

    def joined(self) -> Tokens:
        """The same tokens with the branch added to x."""
        if self.branch is None:
            return self
        return replace(self, x=self.branch.added_to(self.x), branch=None)
