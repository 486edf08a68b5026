"""Which of the compared rows to use: the fastest one, as timed here, that keeps as many decisions as were asked for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from zipbrain.binomial import share_bounds
from zipbrain.defaults import KEPT_AGREEMENT
from zipbrain.errors import OptionError
from zipbrain.evaluation.comparison_tables import where
from zipbrain.evaluation.reliability import scored_of
from zipbrain.evaluation.result import Result
from zipbrain.evaluation.wording import share_text, speed_text
from zipbrain.seal import Promise

_TWO_SIDED: Final = 0.975  # confidence of each bound of a 95 % interval
_TIE: Final = 0.02  # times that differ by less are equal, also where their noise is smaller or not known
_NAMED: Final = 4  # rows as fast as the best that a sentence names


def recommend(original: Result, rows: Sequence[Result], agree: float = KEPT_AGREEMENT) -> str:
    """One sentence that names the compressed row to use, or says why none is; empty if nothing was timed or removed."""
    timed = [row for row in rows if row.latency is not None and row.removed > 0]
    if not timed:
        return ""
    useless = _uselessness(original)
    if useless:
        return f"Which to use: none can be named: {useless}, so rows that keep its decisions are no better for it."
    asked = f"{100 * agree:g} % of the decisions"
    of = " of the rows timed so far" if any(row.latency is None for row in rows) else ""
    best, equal = choose_row(timed, agree)
    if best is not None:
        named = f"Which to use: {_described(best)}: the fastest{of} that keeps {asked}, measured here"
        return f"{named}{_others(best, equal)}."
    keeping = [row for row in timed if row.agreement >= agree]
    if keeping:
        nearest = min(keeping, key=_time)
        return f"Which to use: the original: none{of} that keeps {asked} is surely faster here ({_described(nearest)})."
    nearest = max(timed, key=lambda row: (row.agreement, -_time(row)))
    return f"Which to use: none{of} keeps {asked}; the nearest is {_described(nearest)}."


def choose_row(rows: Sequence[Result], agree: float = KEPT_AGREEMENT) -> tuple[Result | None, list[Result]]:
    """The fastest timed row that keeps so many decisions, and the rows that are as fast within the noise of timing.

    Of these it is the one that keeps most. Only rows that are faster than the original beyond the noise count.
    """
    keeping = [row for row in rows if row.latency is not None and row.removed > 0 and row.agreement >= agree]
    faster = [row for row in keeping if is_faster(row)]
    if not faster:
        return None, []
    fastest = min(faster, key=_time)
    equal = [row for row in faster if _time(row) <= _time(fastest) + _resolution(row, fastest)]
    return max(equal, key=lambda row: (row.agreement, -_time(row))), equal


def is_faster(row: Result) -> bool:
    """True if a timed row is faster than the original beyond the noise of timing."""
    return _time(row) <= 1 - max(_TIE, _noise(row))


def verdict(original: Result | None, rows: Sequence[Result], agree: float = KEPT_AGREEMENT) -> str:
    """What was gained and kept, in one sentence: by a tuned recipe that gains, else by the row to use.

    Where nothing was timed, by the row of fewest operations. Empty if agreement with the original says nothing.
    """
    if original is None or _uselessness(original):
        return ""
    timed = [row for row in rows if row.latency is not None and row.removed > 0]
    if not timed:
        return _verdict_by_operations([row for row in rows if row.removed > 0 and row.operations < 1], agree)
    tuned = [row for row in timed if Promise.of(row.recipe, row.task.get("weights_sha256")) and is_faster(row)]
    best = tuned[0] if tuned else choose_row(timed, agree)[0]
    if best is None:
        return f"No row that keeps {100 * agree:g} % of the decisions is surely faster than the original here."
    promise = Promise.of(best.recipe, best.task.get("weights_sha256"))
    promised = "" if promise is None else f"; {promise.percent} {promise.terms}"
    return (
        f"{where(best)}: {speed_text(_time(best))} times as fast with {share_text(best.agreement)} of the decisions "
        f"unchanged ({_count(best)}{promised})."
    )


def _verdict_by_operations(rows: Sequence[Result], agree: float) -> str:
    keeping = [row for row in rows if row.agreement >= agree]
    if not keeping:
        return ""
    best = min(keeping, key=lambda row: (row.operations, -row.agreement))
    cost, kept = share_text(best.operations, 0), share_text(best.agreement)
    words = f"{where(best)}: {cost} of the operations with {kept} of the decisions unchanged"
    return f"{words} ({_count(best)}); times are not measured."


def check_agree(share: float, option: str = "agree") -> float:
    """A share of the decisions, above 0 and at most 1."""
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1:
        raise OptionError(option, share, "it must be a share of the decisions above 0 and at most 1, such as 0.95")
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
    low, high = share_bounds(round(row.agreement * count), count, _TWO_SIDED)
    speed = f"{speed_text(_time(row))} times as fast"
    sure = f"95 % interval {100 * low:.0f} to {share_text(high, 0)}"
    return f"{where(row)}, {speed} with {share_text(row.agreement)} of the decisions unchanged ({_count(row)}, {sure})"


def _count(row: Result) -> str:
    count = int(row.task["windows"])
    return f"{round(row.agreement * count)} of {count} windows"
