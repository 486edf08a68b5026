"""What is searched: the paper's 27 pairs, its two stages, and the whole grid."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from zipbrain.pooling.spaces import SPACES

# Stage 1, in the paper's order: no S with H, no Q with K. A line is z1 and its z2.
_PARTNERS: Final = {
    "x": ("x", "q", "k", "v", "qh", "kh", "vh"),
    "v": ("x", "q", "k", "v"),
    "vh": ("x", "qh", "kh", "vh"),
    "q": ("x", "q", "v"),
    "qh": ("x", "qh", "vh"),
    "k": ("x", "k", "v"),
    "kh": ("x", "kh", "vh"),
}
PAIRS: Final = tuple((z1, z2) for z1, partners in _PARTNERS.items() for z2 in partners)
RHOS: Final = tuple(tenth / 10 for tenth in range(11))
LEADERS: Final = 4  # of stage 1, that go on to stage 2


@dataclass(frozen=True)
class Point:
    """One setting of ZIPBrain: representations of pivots, redundancy and matching, and the share of pivots."""

    z1: str
    z2: str
    z3: str
    rho: float

    @property
    def method(self) -> dict[str, object]:
        """JSON form of the method."""
        return {"name": "zipbrain", "z1": self.z1, "z2": self.z2, "z3": self.z3, "rho": self.rho}

    def __str__(self) -> str:
        return f"{self.z1}, {self.z2}, {self.z3}, {self.rho:.1f}"


def stage_1() -> list[Point]:
    """The 297 settings of the first stage: every pair with every rho, matching in x."""
    return [Point(z1, z2, "x", rho) for z1, z2 in PAIRS for rho in RHOS]


def stage_2(leaders: Sequence[Point]) -> list[Point]:
    """The leaders of the first stage, the best first, with the six other representations for matching."""
    return [replace(leader, z3=z3) for leader in leaders for z3 in SPACES if z3 != leader.z3]


def full_grid() -> list[Point]:
    """All 3,773 settings."""
    return [Point(z1, z2, z3, rho) for z1 in SPACES for z2 in SPACES for z3 in SPACES for rho in RHOS]
