"""Which of the compared rows to use: the fastest one, as timed here, that keeps as many answers as were asked for."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from zipbrain.errors import OptionError
from zipbrain.evaluation.comparison_tables import label, percent
from zipbrain.evaluation.result import Result

if TYPE_CHECKING:
    from zipbrain.evaluation.comparison import Comparison

AGREE: Final = 0.95  # share of the windows whose answer must stay, if none is asked for
_TIE: Final = 0.02  # times that differ by less are equal; then more agreement decides


def recommend(found: Comparison, agree: float = AGREE) -> str:
    """One sentence that names the row to use, or says why none is; empty if nothing was timed or removed."""
    timed = [row for row in found.rows[1:] if row.latency is not None and row.removed > 0]
    if not timed:
        return ""
    asked = f"{100 * agree:g} % of the answers"
    of = " of the rows timed so far" if found.untimed else ""
    keeping = [row for row in timed if row.agreement >= agree]
    if not keeping:
        nearest = max(timed, key=lambda row: (row.agreement, -_time(row)))
        return f"Which to use: none{of} keeps {asked}; the nearest is {_named(nearest, found)}."
    fastest = min(_time(row) for row in keeping)
    best = max((row for row in keeping if _time(row) <= fastest + _TIE), key=lambda row: (row.agreement, -_time(row)))
    if _time(best) > 1 - _TIE:
        return f"Which to use: the original: none{of} that keeps {asked} is faster here ({_named(best, found)})."
    near = "" if _time(best) == fastest else f" (one is faster by less than {_TIE:.0%}, with fewer of them)"
    return f"Which to use: {_named(best, found)}: the fastest{of} that keeps {asked}, measured here{near}."


def check_agree(share: float, option: str = "agree") -> float:
    """A share of the answers, above 0 and at most 1."""
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1:
        raise OptionError(option, share, "it must be a share of the answers above 0 and at most 1, such as 0.95")
    return float(share)


def _interval(share: float, count: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share of so many windows."""
    z = 1.96
    middle, spread = share + z**2 / (2 * count), z * math.sqrt(share * (1 - share) / count + z**2 / (4 * count**2))
    return (middle - spread) / (1 + z**2 / count), (middle + spread) / (1 + z**2 / count)


def _time(row: Result) -> float:
    assert row.latency is not None
    return float(row.latency["to_original"])


def _named(row: Result, found: Comparison) -> str:
    count = found.task["windows"]
    low, high = _interval(row.agreement, count)
    same = f"the same answer in {round(row.agreement * count)} of {count} windows ({low:.0%} to {high:.0%})"
    return f"{label(row)} at {percent(row.ratio)}, {same}, {1 / _time(row):.2f}× the speed"
