"""`Method`: a grouping, a merge rule, and facts about itself; `Mass`: where token masses are used."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from zipbrain.errors import OptionError
from zipbrain.pooling.flops import BlockShape
from zipbrain.pooling.grouping import Grouping
from zipbrain.pooling.merges import MergeRule
from zipbrain.pooling.registry import Part, build, names
from zipbrain.pooling.tokens import Tokens


@dataclass(frozen=True)
class Mass:
    """Where the number of original tokens that a token stands for is used.

    Parameters
    ----------
    attention : bool
        log(mass) is added to the attention logits of every key.
    merge : bool
        The direction (or mean) of a group is weighted by mass.
    readout : bool
        Tokens are un-merged after the last block, so that any head sees every original token's value: a mean over
        tokens becomes the mass-weighted mean, an attention readout gets log(mass) on its logits.
    """

    attention: bool = False
    merge: bool = False
    readout: bool = False

    def __bool__(self) -> bool:
        return self.attention or self.merge or self.readout

    def __or__(self, other: Mass) -> Mass:
        return Mass(self.attention or other.attention, self.merge or other.merge, self.readout or other.readout)

    @classmethod
    def of(cls, given: object) -> Mass:
        """Read the `mass` option: True is all three uses, False none."""
        if isinstance(given, Mass):
            return given
        if isinstance(given, bool):
            return cls(given, given, given)
        if isinstance(given, Mapping):
            try:
                return cls(**given)
            except TypeError:
                pass
        raise OptionError("mass", given, "it must be True, False or Mass(attention=..., merge=..., readout=...)")


class Method(Part):
    """A token reduction method: ``method(tokens)`` says who goes where, `merge_rule` how features combine."""

    role = "method"

    title: ClassVar[str] = ""  # what tables and figures call the method
    slices: ClassVar[bool] = False  # what stays is one slice of the tokens, so that no groups are needed

    @abstractmethod
    def __call__(self, tokens: Tokens) -> Grouping:
        """Decide the groups of ``tokens.r`` redundant tokens."""

    @abstractmethod
    def merge_rule(self, tokens: Tokens) -> MergeRule:
        """The rule that combines the features of each group at this layer."""

    @property
    def reads(self) -> frozenset[str]:
        """Which of ``"q"``, ``"k"``, ``"v"`` the method needs."""
        return frozenset()

    @property
    def merges(self) -> bool:
        """True if tokens may join others; where none does, all masses stay 1."""
        return True

    @property
    def drops(self) -> bool:
        """True if tokens may go without joining another one."""
        return False

    @property
    def appends(self) -> bool:
        """True if new tokens may stand for those that go."""
        return False

    @property
    def mass(self) -> Mass:
        """The uses of mass that belong to the method itself."""
        return Mass()

    def needs_attention(self, leading: int, linear: bool) -> bool:
        """Whether the method needs the whole attention map, so that fused attention can't be used."""
        return False

    def grouping_macs(self, n: int, r: int, shape: BlockShape) -> int:
        """Multiply-adds of the matrix products that find r redundant tokens among n and their targets."""
        return 0

    def limit(self, n: int) -> int:
        """The most tokens the method can remove from n unprotected ones in one layer."""
        return n - 1


def as_method(given: object) -> Method:
    """Return a method for a name, a JSON form or a method."""
    if isinstance(given, str | Mapping):
        given = build(given, "method", Method)
    if isinstance(given, type) or not isinstance(given, Method):
        known = ", ".join(names(Method))
        raise OptionError("method", given, f"it must be one of the names {known}, or an object such as ZIPBrain()")
    return given
