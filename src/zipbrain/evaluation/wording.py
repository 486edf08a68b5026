"""The one scale of results in terminal and page: times as fast, per cent of the original's, decisions unchanged."""

from __future__ import annotations

import math
from typing import Final

NOTHING: Final = "-"

# Heads of columns; a terminal breaks them where they are broken here, a page where it must.
TIMES_AS_FAST: Final = "times\nas fast"
TIMES_SLICING: Final = "as fast\nas slicing"
OPERATIONS: Final = "opera-\ntions"
UNCHANGED: Final = "decisions\nunchanged"
LOOKED_TWICE: Final = "looked\ntwice"


def speed_text(time: float | None, noise: float | None = None) -> str:
    """``1.60`` for 0.625 of a time, ``1.60±.05`` with half of its 95 % interval; a dash where there is no time."""
    if time is None or not time > 0:
        return NOTHING
    spread = "" if noise is None else f"±{noise / time**2:.2f}".replace("0.", ".", 1)
    return f"{1 / time:.2f}{spread}"


def share_text(share: float | None, digits: int = 1) -> str:
    """``95.8 %``, or a dash for nothing."""
    return NOTHING if share is None or math.isnan(share) else f"{100 * share:.{digits}f} %"


def operations_text(share: float | None) -> str:
    """``57 %`` of the original's operations, or a dash for nothing."""
    return share_text(share, 0)


def head_text(head: str) -> str:
    """The head of a column on one line: ``operations`` for ``opera-`` above ``tions``."""
    return " ".join(head.replace("-\n", "").split())
