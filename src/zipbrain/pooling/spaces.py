"""The seven representation spaces (x, q, k, v, qh, kh, vh) in which tokens are measured and compared."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch
from torch import Tensor

from zipbrain.errors import OptionError
from zipbrain.paper import SPACES as SPACES  # the names and their spellings stand there, importable without torch
from zipbrain.paper import canonical_space as canonical_space

if TYPE_CHECKING:
    from zipbrain.pooling.tokens import Tokens

_TINY: Final = 1e-18  # above the root of float32's smallest normal number, so that no cosine can exceed 1


def source_of(space: str) -> str:
    """Return which tensor a space reads: ``"x"``, ``"q"``, ``"k"`` or ``"v"``."""
    return space[0]


class Spaces:
    """Norms and unit vectors of the unprotected tokens of one call, computed once per space.

    A space with suffix ``h`` takes a score per head and then the mean over heads. Because a mean of per-head cosines
    is the dot product of the concatenated per-head unit vectors divided by the number of heads, every space reduces to
    one matrix of rows whose plain dot products are the paper's similarities.
    """

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens
        self._vectors: dict[str, Tensor] = {}
        self._norms: dict[str, Tensor] = {}
        self._unit: dict[str, Tensor] = {}

    def vectors(self, space: str) -> Tensor:
        """Raw vectors: (B, N, F), or (B, N, H, d) for a per-head space; float32 or float64, without gradient."""
        if space not in self._vectors:
            self._vectors[space] = self._read(space)
        return self._vectors[space]

    def _read(self, space: str) -> Tensor:
        tokens = self._tokens
        if space == "x":
            return at_least_float32(tokens.unprotected(tokens.x.detach(), 1))
        heads: Tensor | None = getattr(tokens, space[0])
        if heads is None:
            raise OptionError(space[0], None, f"space {space!r} reads {space[0]}: give it as a (B, H, T, d) tensor")
        heads = at_least_float32(tokens.unprotected(heads.detach(), 2))  # (B, H, N, d)
        return heads.transpose(1, 2) if space.endswith("h") else heads.mean(1)

    def norms(self, space: str) -> Tensor:
        """Euclidean norms: (B, N), or (B, N, H) for a per-head space."""
        if space not in self._norms:
            self._norms[space] = torch.linalg.vector_norm(self.vectors(space), dim=-1)
        return self._norms[space]

    def length(self, space: str) -> Tensor:
        """Algorithm 1, line 3: the norm, averaged over heads in a per-head space. (B, N)"""
        norms = self.norms(space)
        return norms.mean(-1) if space.endswith("h") else norms

    def unit(self, space: str) -> Tensor:
        """Rows whose dot products are cosines (mean over heads in a per-head space). (B, N, F)"""
        if space not in self._unit:
            scale = self.norms(space).clamp_min(_TINY)
            if space.endswith("h"):
                scale = scale * scale.shape[-1] ** 0.5
            unit = self.vectors(space) / scale.unsqueeze(-1)
            self._unit[space] = unit.flatten(2) if space.endswith("h") else unit
        return self._unit[space]


def at_least_float32(values: Tensor) -> Tensor:
    """Half precision becomes float32; float32 and float64 stay as they are."""
    return values if values.dtype in (torch.float32, torch.float64) else values.float()
