"""What the kernels can take, and how they are called; importable without triton."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from zipbrain.pooling.backends.triton import norm_path, path
from zipbrain.pooling.backends.triton.mass_path import follow, merge_norm, merges_normed, wider, with_mass
from zipbrain.pooling.backends.triton.norm_path import takes_branch
from zipbrain.pooling.backends.triton.path import group, merge, mergeable, twins, usable, usable_by_twins
from zipbrain.pooling.tokens import Tokens

__all__ = ["follow", "group", "merge", "merge_norm", "mergeable", "merges_normed", "takes_branch", "twins"]
__all__ += ["usable", "usable_by_twins", "wider", "with_mass"]

interprets_cpu = False


def interpret(on: bool) -> bool:
    """Use Triton's interpreter for CPU tensors."""
    global interprets_cpu
    before = path.interpret(on)
    interprets_cpu = path.interpreting()
    return before


def reason(x: Tensor, r: int) -> str:
    """Why the kernels can't merge tokens like these."""
    return "the Triton kernels need tensors of an NVIDIA GPU from Ampere on, and triton"


def pool_norm(
    tokens: Tokens, spaces: tuple[str, str, str], pivots: int, norm: Any
) -> tuple[Any, Any, tuple[Tensor, Tensor, Tensor]]:
    """Merged x, its norm, and the groups."""
    found = group(tokens, spaces, pivots)
    x, normed = norm_path.pool_norm(tokens, spaces, pivots, norm, found, tokens.branch)
    return x, normed, found
