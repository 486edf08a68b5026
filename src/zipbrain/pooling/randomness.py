"""Pseudo-random integers from arithmetic alone: the same on every device, in every export, for every batch."""

from __future__ import annotations

import torch
from torch import Tensor

_PRIME = 2**31 - 1  # products of two residues stay below 2**62


def random_integers(seed: int, layer: int, n: int, stream: int, count: int, device: torch.device | str) -> Tensor:
    """`count` integers of [0, 2**31 - 1) that depend on (seed, layer, n, stream) only: int64 (count,).

    Integer arithmetic modulo a prime has one result on all hardware, needs no generator state and is a constant for a
    compiler.
    """
    start = (seed * 1_000_003 + layer * 7_368_787 + n * 15_485_863 + stream * 32_452_843 + 12_345) % _PRIME
    state = (torch.arange(1, count + 1, device=device) * 48_271 + start) % _PRIME
    for multiplier, shift in ((69_621, 16_807), (630_360_016, 1_043), (742_938_285, 39_373), (950_706_376, 271)):
        state = (state * multiplier + shift) % _PRIME
        state = (state * state + multiplier) % _PRIME  # quadratic: breaks up the lattice of the linear step
    return state
