"""What a compressed model is, in a few lines of text."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from zipbrain.pooling.flops import network_macs
from zipbrain.pooling.schedule import FlopsBudget
from zipbrain.seams.forward import Plan

_WORTH_IT = 0.10  # a smaller share of multiply-adds saved drowns in the cost of choosing and merging


@dataclass(frozen=True)
class Summary:
    """A description of a compressed model; ``print`` it, or take the fields.

    Attributes
    ----------
    model, where, dialect : str
        The model's class, where its blocks are, and of which kind they are.
    method : dict
        JSON form of the method.
    blocks : int
        Number of blocks.
    leading, trailing : int
        Protected tokens.
    mass : dict
        Uses of mass.
    token_counts : list of int or None
        Unprotected tokens before the first block, then after each; None while N is unknown.
    cut : bool
        Whether fewer tokens are removed than requested.
    macs, original_macs : int or None
        Hand-counted multiply-adds of all blocks for one sequence of tokens (matrix products; without embedding, head
        and pooling). A sequence is a window, but for EEGPT, which runs one for every time patch of a window.
    pays : bool or None
        Whether compression is expected to save time.
    backend : str
        Who pooled in the last forward of this thread; "" before the first.
    """

    model: str
    where: str
    dialect: str
    method: dict[str, Any]
    blocks: int
    leading: int
    trailing: int
    mass: dict[str, bool]
    token_counts: list[int] | None
    cut: bool
    macs: int | None
    original_macs: int | None
    pays: bool | None
    backend: str = ""

    def __str__(self) -> str:
        options = ", ".join(f"{key}={value}" for key, value in self.method.items() if key not in ("name", "merge"))
        used = [name for name, yes in self.mass.items() if yes]
        lines = [
            f"{self.model}: {self.blocks} {self.dialect} blocks in {self.where or 'the model itself'}",
            f"  method     {self.method['name']}({options})" + (f", mass in {', '.join(used)}" if used else ""),
            f"  protected  {self.leading} leading, {self.trailing} trailing tokens",
        ]
        if self.token_counts is None or self.macs is None or self.original_macs is None:
            return "\n".join([*lines, "  tokens     known after the first forward (or give tokens= or example=)"])
        first, last = self.token_counts[0], self.token_counts[-1]
        lines.append(f"  tokens     {' '.join(map(str, self.token_counts))}  ({1 - last / first:.1%} removed)")
        if self.cut:
            lines.append("             (fewer than asked: cut to what the method can remove, one token stays)")
        share = self.macs / self.original_macs
        total = first + self.leading + self.trailing
        lines.append(
            f"  FLOPs      {2 * self.macs / 1e9:.3f} of {2 * self.original_macs / 1e9:.3f} GFLOP for one sequence of "
            f"{total} tokens ({1 - share:.1%} saved; matrix products of the blocks, counted by hand)"
        )
        if self.backend:
            lines.append(f"  backend    {self.backend}")
        if not self.pays:
            lines.append(f"  note       saves less than {_WORTH_IT:.0%}: not expected to pay off in time")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """All fields, for JSON."""
        return asdict(self)


def summarise(model: str, plan: Plan, n: int | None) -> Summary:
    """Describe a plan for windows of n unprotected tokens."""
    counts = macs = original = pays = None
    cut = False
    if n is not None:
        removed = plan.removals(n)
        counts = [n]
        for r in removed:
            counts.append(counts[-1] - r)
        budget = isinstance(plan.schedule, FlopsBudget)  # asks for a cost, not for a count
        cut = not budget and sum(plan.schedule.requested(n, sum(plan.reducing))) > sum(removed)
        macs = network_macs(plan.shape, n, removed, plan.protected)
        original = network_macs(plan.shape, n, (0,) * plan.depth, plan.protected)
        pays = 1 - macs / original >= _WORTH_IT
    ends = (plan.leading, plan.trailing) if plan.mask is None else (plan.protected, 0)
    found = model, plan.where, plan.seam.name, plan.method.to_dict(), plan.depth
    return Summary(*found, *ends, asdict(plan.mass), counts, cut, macs, original, pays, plan.flow.backend[0])
