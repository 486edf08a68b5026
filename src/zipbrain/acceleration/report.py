"""What was done to make a model faster, what was left and why, and what each part brought."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from zipbrain.acceleration.equivalence import Verdict

AS_GIVEN = "as given"


@dataclass(frozen=True)
class Optimisation:
    """One thing that can make a model faster: "precision", "compile", "graphs" or "pooling"."""

    name: str
    kept: bool  # whether it is in use
    what: str  # what is in use, such as "float16"
    reason: str


@dataclass(frozen=True)
class Measured:
    """The time of one way to answer one batch."""

    batch: int  # windows per call
    way: str  # "as given", "float16", "float16, graph", ...
    seconds: float  # median per call
    ratio: float  # median over rounds of the time over that of the model as given, in the same interleaved run
    kept: bool  # whether this batch is now answered in this way


@dataclass(frozen=True)
class AccelerationReport:
    """What `zipbrain.accelerate` did. ``print(report)`` shows it as a table."""

    model: str  # the model's class and the device's name
    device: str
    shape: tuple[int, ...]  # of one window
    given: str  # floating-point type of the model as it was given, and of the one that answers now
    precision: str
    steps: tuple[Optimisation, ...]  # precision, compilation, graphs, and pooling if the model is compressed
    checks: dict[str, Verdict]  # what was compared with the model as given, by name
    measured: tuple[Measured, ...] = ()  # empty where there was nothing to choose from or nothing was to be measured
    reason: str | None = None  # why the model runs as it was given; None if something makes it faster
    notes: tuple[str, ...] = ()  # what else must be known

    def step(self, name: str) -> Optimisation | None:
        """The optimisation of that name, if it was tried."""
        return next((step for step in self.steps if step.name == name), None)

    @property
    def ratios(self) -> dict[int, float]:
        """By batch, the time of what was kept over that of the model as given."""
        return {one.batch: one.ratio for one in self.measured if one.kept}

    def as_dict(self) -> dict[str, Any]:
        """Everything, for JSON."""
        return {
            **{name: getattr(self, name) for name in ("model", "device", "given", "precision", "reason")},
            "shape": list(self.shape),
            "steps": [asdict(step) for step in self.steps],
            "checks": {name: verdict.as_dict() for name, verdict in self.checks.items()},
            "measured": [asdict(one) for one in self.measured],
            "notes": list(self.notes),
        }

    def __str__(self) -> str:
        lines = [f"{self.model} on {self.device}, windows of {self.shape}, given in {self.given}"]
        if self.reason is not None:
            lines.append(f"  runs as given: {self.reason}")
        lines += [f"  {step.name:<10} {step.what:<16} {step.reason}".rstrip() for step in self.steps]
        lines += self._table()
        lines += [f"  note: {note}" for note in self.notes]
        return "\n".join(lines)

    def _table(self) -> list[str]:
        """One line per batch: milliseconds and ratio of every way, a star at the one that was kept."""
        if not self.measured:
            return []
        ways = list(dict.fromkeys(one.way for one in self.measured))
        cells = {(one.batch, one.way): _cell(one) for one in self.measured}
        batches = list(dict.fromkeys(one.batch for one in self.measured))
        widths = {way: max(len(way), *(len(cells.get((batch, way), "-")) for batch in batches)) for way in ways}
        lines = ["  milliseconds per call and share of the time of the model as given (* = in use)"]
        lines.append("  batch  " + "  ".join(f"{way:>{widths[way]}}" for way in ways))
        for batch in batches:
            row = (f"{cells.get((batch, way), '-'):>{widths[way]}}" for way in ways)
            lines.append(f"  {batch:>5}  " + "  ".join(row))
        return lines


def _cell(one: Measured) -> str:
    return f"{1e3 * one.seconds:.3f} ({one.ratio:.2f}){'*' if one.kept else ' '}"
