"""`Summary`: a compressed model described in a few lines of text."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from itertools import accumulate
from typing import Any

from zipbrain.pooling.flops import network_macs, pooling_macs
from zipbrain.pooling.schedule import FlopsBudget
from zipbrain.seams.forward import Plan

_WORTH_IT = 0.10  # a smaller share of multiply-adds saved, pooling counted, drowns in sorting, copying and launching


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
        Whether compression is expected to save time; pooling itself counts.
    backend : str
        Name of the backend that pooled in the last forward of this thread; "" before the first.
    declared : int or None
        N that `tokens` or `example` declared; `token_counts` starts with the N that was seen.
    asked, removed : float or None
        Share of the tokens that was asked for, and that really goes; a last reduction that is worth nothing is left
        out of the second.
    tail : float or None
        Share of all multiply-adds that is saved because the last block runs for the protected tokens alone, in
        evaluation mode; None where the head reads others.
    second_look : float or None
        Margin below which a window runs again uncompressed.
    units, cells : str
        What is pooled, and what stands side by side in a unit of a grid: ``"channels"`` and ``"time steps"``, or the
        other way round; ``"tokens"`` and nothing where there is no grid.
    cells_per_token : int or None
        How many cells stand in a unit; None while it is not known, and then FLOPs are those of one.
    last_worth : float or None
        Share of all multiply-adds that the last reduction saves; 0 where the head reads nothing that comes after it.
    pooling_macs : int or None
        Multiply-adds of grouping and merging themselves (matrix products), not part of `macs`.
    head : str
        What the head reads, where an example showed it.
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
    declared: int | None = None
    asked: float | None = None
    removed: float | None = None
    last_worth: float | None = None
    pooling_macs: int | None = None
    head: str = ""
    tail: float | None = None
    second_look: float | None = None
    units: str = "tokens"
    cells: str = ""
    cells_per_token: int | None = None

    def __str__(self) -> str:
        options = ", ".join(f"{key}={value}" for key, value in self.method.items() if key not in ("name", "merge"))
        used = [name for name, yes in self.mass.items() if yes]
        lines = [
            f"{self.model}: {self.blocks} {self.dialect} blocks in {self.where or 'the model itself'}",
            f"  method     {self.method['name']}({options})" + (f", mass in {', '.join(used)}" if used else ""),
            f"  protected  {self.leading} leading, {self.trailing} trailing {self.units}",
        ]
        if self.cells:
            count = "" if self.cells_per_token is None else f"{self.cells_per_token} "
            lines.append(f"  pools      whole {self.units}, each with its {count}{self.cells}; a grid stays a grid")
        if self.head:
            lines.append(f"  head       {self.head}")
        if self.second_look is not None:
            times = math.exp(min(self.second_look, 700))
            limit = f"the best class is less than {times:.3g} times as likely as the second"
            lines.append(f"  look       again, uncompressed, where {limit}")
        if self.token_counts is None or self.macs is None or self.original_macs is None:
            return "\n".join(
                [*lines, f"  {self.units:<10} known after the first forward (or give tokens= or example=)"]
            )
        first, last = self.token_counts[0], self.token_counts[-1]
        asked = "" if self.asked is None else f", {self.asked:.1%} asked"
        lines.append(
            f"  {self.units:<10} {' '.join(map(str, self.token_counts))}  ({1 - last / first:.1%} removed){asked}"
        )
        if self.declared not in (None, first):
            lines.append(f"             ({self.declared} were declared: windows of another length get their own r)")
        if self.cut and self.asked is not None and 1 - last / first < self.asked:
            lines.append("             (fewer than asked: cut to what the method can remove, one token stays)")
        share = self.macs / self.original_macs
        total = first + self.leading + self.trailing
        shape = f"sequence of {total} tokens"
        if self.cells:
            shape = f"grid of {total} {self.units} x {self.cells_per_token or 1} {self.cells}"
        lines.append(
            f"  FLOPs      {2 * self.macs / 1e9:.3f} of {2 * self.original_macs / 1e9:.3f} GFLOP for one {shape} "
            f"({1 - share:.1%} saved; matrix products of the blocks, counted by hand)"
        )
        if self.pooling_macs:
            share = self.pooling_macs / self.original_macs
            lines.append(f"             and {2 * self.pooling_macs / 1e9:.3f} GFLOP ({share:.1%}) for pooling itself")
        if self.tail is not None:
            lines.append(
                "  tail       the last block runs for protected tokens alone, because the head reads no others: "
                f"{self.tail:.1%} of the FLOPs saved, answers unchanged"
            )
        if self.last_worth == 0:
            lines.append(
                "  last       the last reduction is worth nothing, because the head reads protected tokens only: "
                f"{self.removed:.1%} removed without it"
            )
        elif self.last_worth is not None:
            lines.append(f"  last       the last reduction saves {self.last_worth:.1%} of the FLOPs")
        if self.backend:
            lines.append(f"  backend    {self.backend}")
        if not self.pays:
            lines.append(f"  note       saves less than {_WORTH_IT:.0%}: not expected to pay off in time")
        return "\n".join(lines)

    @property
    def steps(self) -> int | None:
        """The earlier name of `cells_per_token`."""
        return self.cells_per_token

    def to_dict(self) -> dict[str, Any]:
        """All fields, for JSON."""
        return {**asdict(self), "steps": self.steps}


def summarise(model: str, plan: Plan, n: int | None) -> Summary:
    """Describe a plan for windows of n unprotected tokens."""
    found = Summary(
        model=model,
        where=plan.where,
        dialect=plan.dialect.name,
        method=plan.method.to_dict(),
        blocks=plan.depth,
        leading=plan.leading if plan.mask is None else plan.protected,
        trailing=plan.trailing,
        mass=asdict(plan.mass),
        token_counts=None,
        cut=False,
        macs=None,
        original_macs=None,
        pays=None,
        backend=plan.flow.backend[0],
        declared=plan.tokens,
        head="" if plan.readout is None else str(plan.readout),
        second_look=plan.second_look,
        units=plan.dialect.units,
        cells=plan.dialect.cells,
        cells_per_token=(plan.flow.cells_per_token or plan.cells_per_token or None) if plan.dialect.cells else None,
    )
    return found if n is None else replace(found, **_counted(plan, n))


def _counted(plan: Plan, n: int) -> dict[str, Any]:
    """The fields of a summary that need N."""
    removed = plan.planned(n)
    budget = isinstance(plan.schedule, FlopsBudget)  # asks for a cost, not for a count
    requested = 0 if budget else sum(plan.schedule.requested(n, sum(plan.reducing)))
    original = network_macs(plan.sized, n, (0,) * plan.depth, plan.protected)
    without_tail = network_macs(plan.sized, n, removed, plan.protected)
    macs = network_macs(plan.sized, n, removed, plan.protected, plan.can_run_tail)
    pooled = (*removed[:-1], 0) if plan.can_run_tail else removed
    pooling = pooling_macs(plan.sized, n, pooled, plan.protected, plan.method)
    last = max((index for index, r in enumerate(removed) if r), default=None)
    worth, counting = None, sum(removed)
    if last is not None:
        without = (*removed[:last], *(0,) * (plan.depth - last))
        worth = (network_macs(plan.sized, n, without, plan.protected, plan.can_run_tail) - macs) / original
        if plan.reads_protected and last == plan.depth - 1:
            worth, counting = 0.0, sum(without)
    return {
        "token_counts": [n - gone for gone in accumulate(removed, initial=0)],
        "cut": requested > sum(removed),
        "macs": macs,
        "original_macs": original,
        "pays": 1 - (macs + pooling) / original >= _WORTH_IT,
        "asked": None if budget else getattr(plan.schedule, "ratio", requested / n),
        "removed": counting / n,
        "last_worth": worth,
        "pooling_macs": pooling,
        "tail": (without_tail - macs) / original if plan.can_run_tail else None,
    }
