"""Which of the compared rows to use: the fastest one, as timed here, that keeps as many answers as were asked for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from zipbrain.errors import OptionError
from zipbrain.evaluation.comparison_tables import where
from zipbrain.evaluation.reliability import scored_of
from zipbrain.evaluation.result import Result

AGREE: Final = 0.95  # share of the windows whose answer must stay, if none is asked for
_TIE: Final = 0.02  # times that differ by less are equal, also where their noise is smaller or not known
_NAMED: Final = 4  # rows as fast as the best that a sentence names


def recommend(original: Result, rows: Sequence[Result], agree: float = AGREE) -> str:
    """One sentence that names the compressed row to use, or says why none is; empty if nothing was timed or removed."""
    timed = [row for row in rows if row.latency is not None and row.removed > 0]
    if not timed:
        return ""
    useless = _uselessness(original)
    if useless:
        return f"Which to use: none can be named: {useless}, so rows that keep its answers are no better for it."
    asked = f"{100 * agree:g} % of the answers"
    of = " of the rows timed so far" if any(row.latency is None for row in rows) else ""
    keeping = [row for row in timed if row.agreement >= agree]
    if not keeping:
        nearest = max(timed, key=lambda row: (row.agreement, -_time(row)))
        return f"Which to use: none{of} keeps {asked}; the nearest is {_described(nearest)}."
    fastest = min(keeping, key=_time)
    equal = [row for row in keeping if _time(row) <= _time(fastest) + _resolution(row, fastest)]
    best = max(equal, key=lambda row: (row.agreement, -_time(row)))
    if _time(best) > 1 - max(_TIE, _noise(best)):
        return f"Which to use: the original: none{of} that keeps {asked} is faster here ({_described(best)})."
    named = f"Which to use: {_described(best)}: the fastest{of} that keeps {asked}, measured here"
    return f"{named}{_others(best, equal)}."


def check_agree(share: float, option: str = "agree") -> float:
    """A share of the answers, above 0 and at most 1."""
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1:
        raise OptionError(option, share, "it must be a share of the answers above 0 and at most 1, such as 0.95")
    return float(share)


def _uselessness(original: Result) -> str:
    """Why agreement with a model says nothing, in words; empty if it does."""
    scored = scored_of(original)
    if scored is None:
        return ""
    place, share = scored.main_class
    if scored.is_trivial:
        name = original.task["classes"][place]
        return f"the uncompressed model calls {100 * share:.0f} % of the windows {name}"
    return "the uncompressed model is no better than chance here" if scored.is_chance else ""


def _others(best: Result, equal: list[Result]) -> str:
    """The rows that are as fast as the best one, as far as the timing can tell."""
    names = [where(row) for row in sorted(equal, key=_time) if row is not best]
    if not names:
        return ""
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"; as fast within the noise of timing, with fewer of them or as many: {', '.join(names[:_NAMED])}{more}"


def _interval(share: float, count: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share of so many windows."""
    z = 1.96
    middle, spread = share + z**2 / (2 * count), z * math.sqrt(share * (1 - share) / count + z**2 / (4 * count**2))
    return (middle - spread) / (1 + z**2 / count), (middle + spread) / (1 + z**2 / count)


def _time(row: Result) -> float:
    assert row.latency is not None
    return float(row.latency["to_original"])


def _noise(row: Result) -> float:
    assert row.latency is not None
    return float(row.latency.get("noise", 0.0))


def _resolution(one: Result, other: Result) -> float:
    """Difference of two times below which they are equal."""
    return max(_TIE, math.hypot(_noise(one), _noise(other)))


def _described(row: Result) -> str:
    count = int(row.task["windows"])
    low, high = _interval(row.agreement, count)
    same = f"the same answer in {round(row.agreement * count)} of {count} windows ({low:.0%} to {high:.0%})"
    return f"{where(row)}, {same}, {_time(row):.2f} of the time ({1 / _time(row):.2f}× as fast)"
