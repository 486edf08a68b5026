"""ZIPBrain: redundancy-aware token pooling, Algorithm 1 of the paper."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from zipbrain.paper import winning_settings
from zipbrain.pooling.backends import cpu, onnx
from zipbrain.pooling.backends.triton import norm_path as triton_norm_path
from zipbrain.pooling.backends.triton import path as triton_path
from zipbrain.pooling.grouping import Grouping
from zipbrain.pooling.merges import VANISHED, LargestNorm, MergeRule, merge_rule
from zipbrain.pooling.methods.base import Method
from zipbrain.pooling.methods.composition import Composition, Match, MostSimilar, PivotSplit, Split
from zipbrain.pooling.registry import register
from zipbrain.pooling.steps import pivot_count
from zipbrain.pooling.tokens import Branch, Tokens


@register("zipbrain")
@dataclass(frozen=True)
class ZIPBrain(Method):
    r"""Split tokens into unique and redundant ones, join each redundant token to its most similar unique one.

    1. *Pivots*: the :math:`N_p = \min(\max(\lceil (N-r)\rho \rceil, 1), N-r)` tokens with the largest norm in z1.
    2. *Redundancy*: :math:`s_i = \tilde z_i \cdot \frac1{N_p}\sum_{j \in P} \tilde z_j` in z2 for the others; the r
       highest are redundant.
    3. *Matching*: :math:`M(i) = \arg\max_{j\ \mathrm{unique}} \tilde z_i \cdot \tilde z_j` in z3.
    4. *Merging*: mean direction of each group, rescaled to the largest norm in it.

    Parameters
    ----------
    z1, z2, z3 : {"x", "q", "k", "v", "qh", "kh", "vh"}
        Representation used for pivots, redundancy and matching. ``x`` is the residual stream after attention;
        ``q k v`` average the vectors over heads (the paper's suffix S), ``qh kh vh`` average the scores (suffix H).
    rho : float
        Share of the N - r kept places given to pivots, 0 to 1; 0 means one pivot.
    merge : merge rule
        How features combine; the paper's is `LargestNorm`.

    Notes
    -----
    Source: the paper's Algorithm 1. Where text and algorithm differ we follow the algorithm: pivots come from all N
    tokens and are never redundant, N is the current number of tokens. Ours: scores are rounded to multiples of 2**-20
    and ties go to the lower index; a group whose sum vanishes takes its kept token's direction.

    Examples
    --------
    >>> from zipbrain import ZIPBrain
    >>> ZIPBrain.from_paper("LaBraM", "TUAB")
    ZIPBrain(z1='x', z2='v', z3='x', rho=0.4, merge=LargestNorm())
    """

    z1: str = "x"
    z2: str = "q"
    z3: str = "x"
    rho: float = 0.5
    merge: MergeRule = field(default_factory=LargestNorm)

    def __post_init__(self) -> None:
        parts = Composition(PivotSplit(self.z1, self.z2, self.rho), MostSimilar(self.z3), merge_rule(self.merge))
        object.__setattr__(self, "_parts", parts)
        for name, part in (
            ("z1", parts.split),
            ("z2", parts.split),
            ("rho", parts.split),
            ("z3", parts.match),
            ("merge", parts),
        ):
            object.__setattr__(self, name, getattr(part, name))

    @classmethod
    def from_paper(cls, model: str, dataset: str) -> ZIPBrain:
        """The paper's winning setting for one of its models and datasets, any usual spelling of both."""
        z1, z2, z3, rho = winning_settings(model, dataset)
        return cls(z1, z2, z3, rho)

    @property
    def parts(self) -> Composition:
        """The same method as an open composition of split, match and merge."""
        parts: Composition = getattr(self, "_parts")  # noqa: B009 - set in __post_init__, no field
        return parts

    def compose(self, split: Split | None = None, match: Match | None = None, merge: Any = None) -> Composition:
        """This method with some of its parts exchanged."""
        given = {"split": split, "match": match, "merge": merge}
        return replace(self.parts, **{name: part for name, part in given.items() if part is not None})

    @property
    def reads(self) -> frozenset[str]:
        return self.parts.reads

    def merge_rule(self, tokens: Tokens) -> MergeRule:
        return self.merge

    def __call__(self, tokens: Tokens) -> Grouping:
        spaces = self.z1, self.z2, self.z3
        if triton_path.usable(tokens, spaces):
            return Grouping(*triton_path.group(tokens, spaces, self._pivot_count(tokens)), tokens.total)
        if tokens.r and cpu.usable(tokens, spaces):
            return self._by_kernel(tokens, merge=False)[1]
        return self.parts(tokens)

    def fused(self, tokens: Tokens) -> tuple[Tensor, Grouping | None] | None:
        if not isinstance(self.merge, LargestNorm) or (tokens.x.requires_grad and torch.is_grad_enabled()):
            return None
        spaces = self.z1, self.z2, self.z3
        if onnx.usable(tokens, spaces):
            return onnx.pool(tokens, spaces, self._pivot_count(tokens), VANISHED)
        if triton_path.usable(tokens, spaces):
            merged, kept, source, target = triton_path.pool(tokens, spaces, self._pivot_count(tokens))
            return merged, Grouping(kept, source, target, tokens.total)
        if not cpu.usable(tokens, spaces):
            return None
        x, grouping = self._by_kernel(tokens, merge=True)
        assert x is not None
        return x, grouping

    @property
    def ignores_x(self) -> bool:
        return "x" not in (self.z1, self.z2, self.z3)

    def early(self, tokens: Tokens) -> Grouping | None:
        spaces = self.z1, self.z2, self.z3
        if not self.ignores_x or not triton_path.usable(tokens, spaces):
            return None
        return Grouping(*triton_path.group(tokens, spaces, self._pivot_count(tokens), beside=True), tokens.total)

    def fused_norm(
        self, tokens: Tokens, norm: nn.LayerNorm | None, early: Grouping | None = None, branch: Branch | None = None
    ) -> tuple[Tensor, Tensor | None] | None:
        if not isinstance(self.merge, LargestNorm):
            return None
        if torch.is_grad_enabled() and (tokens.x.requires_grad or (branch is not None and branch.requires_grad)):
            return self._followed(tokens, early, branch)
        spaces, pivots = (self.z1, self.z2, self.z3), self._pivot_count(tokens)
        if early is None:
            quick = triton_norm_path.pool_norm_again(tokens, spaces, pivots, norm, branch)
            if quick is not None:
                return quick
        if not triton_path.usable(tokens, spaces):
            return None
        if branch is not None and not triton_norm_path.takes_branch(tokens, spaces, branch):
            tokens, branch = replace(tokens, x=branch.added_to(tokens.x)), None
            if not triton_path.usable(tokens, spaces):
                return None
        found = None if early is None else (early.kept, early.source, early.target)
        return triton_norm_path.pool_norm(tokens, spaces, pivots, norm, found, branch)

    def _followed(
        self, tokens: Tokens, early: Grouping | None, branch: Branch | None
    ) -> tuple[Tensor, Tensor | None] | None:
        """Where gradients are wanted: none flow through the groups, and the norm is left to torch."""
        spaces = self.z1, self.z2, self.z3
        if torch.compiler.is_compiling() or not triton_path.usable(tokens, spaces):
            return None
        if branch is not None:
            tokens = replace(tokens, x=branch.added_to(tokens.x))
            if not triton_path.ordinary(tokens.x, tokens.x.device):
                return None
        if early is None:
            found = triton_path.group(tokens, spaces, self._pivot_count(tokens))
        else:
            found = early.kept, early.source, early.target
        return triton_path.merge_followed(tokens.x, *found), None

    def _pivot_count(self, tokens: Tokens) -> int:
        assert isinstance(self.parts.split, PivotSplit)
        return pivot_count(tokens.count, tokens.r, self.parts.split.share)

    def _by_kernel(self, tokens: Tokens, merge: bool) -> tuple[Tensor | None, Grouping]:
        spaces = self.z1, self.z2, self.z3
        kept, source, target, x = cpu.group(tokens, spaces, self._pivot_count(tokens), VANISHED, merge)
        return x, Grouping(kept, source, target, tokens.total)
