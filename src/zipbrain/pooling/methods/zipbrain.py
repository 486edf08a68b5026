"""ZIPBrain: redundancy-aware token pooling, Algorithm 1 of the paper."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

from zipbrain.paper import winning_settings
from zipbrain.pooling.flops import BlockShape
from zipbrain.pooling.grouping import Grouping
from zipbrain.pooling.merges import LargestNorm, MergeRule, merge_rule
from zipbrain.pooling.methods.base import Method
from zipbrain.pooling.methods.composition import Composition, Match, MostSimilar, PivotSplit, Split
from zipbrain.pooling.registry import register
from zipbrain.pooling.steps import pivot_count
from zipbrain.pooling.tokens import Tokens


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

    title = "ZIPBrain"

    z1: str = "x"
    z2: str = "q"
    z3: str = "x"
    rho: float = 0.5
    merge: MergeRule = field(default_factory=LargestNorm)
    share: Fraction = field(init=False, repr=False, compare=False)  # rho, exactly
    parts: Composition = field(init=False, repr=False, compare=False)  # the same method, open for other parts

    def __post_init__(self) -> None:
        split, match = PivotSplit(self.z1, self.z2, self.rho), MostSimilar(self.z3)
        checked: dict[str, Any] = {
            "z1": split.z1,
            "z2": split.z2,
            "rho": split.rho,
            "share": split.share,
            "z3": match.z3,
        }
        checked["merge"] = merge_rule(self.merge)
        checked["parts"] = Composition(split, match, checked["merge"])
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    @classmethod
    def from_paper(cls, model: str, dataset: str) -> ZIPBrain:
        """The paper's winning setting for one of its models and datasets, any usual spelling of both."""
        z1, z2, z3, rho = winning_settings(model, dataset)
        return cls(z1, z2, z3, rho)

    def compose(self, split: Split | None = None, match: Match | None = None, merge: Any = None) -> Composition:
        """This method with some of its parts exchanged."""
        given = {"split": split, "match": match, "merge": merge}
        return replace(self.parts, **{name: part for name, part in given.items() if part is not None})

    @property
    def reads(self) -> frozenset[str]:
        return self.parts.reads

    def grouping_macs(self, n: int, r: int, shape: BlockShape) -> int:
        return self.parts.grouping_macs(n, r, shape)

    def merge_rule(self, tokens: Tokens) -> MergeRule:
        return self.merge

    @property
    def spaces(self) -> tuple[str, str, str]:
        """z1, z2 and z3."""
        return self.z1, self.z2, self.z3

    def pivot_count(self, tokens: Tokens) -> int:
        """Number of pivots among these tokens."""
        return pivot_count(tokens.count, tokens.r, self.share)

    def __call__(self, tokens: Tokens) -> Grouping:
        return self.parts(tokens)
