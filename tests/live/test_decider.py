"""Second looks that a stream leaves no time for are counted by the rule of the model and of the file."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from zipbrain.edge.prediction import NO_ANSWER
from zipbrain.live.decider import NO_TIME, Decider
from zipbrain.signal.window_stream import StreamWindow

WINDOW = StreamWindow(0.0, 0, 100, np.zeros((2, 100), dtype=np.float32), "")


def late_decider(logits: list[float], looked: bool) -> Decider:
    """A decider of a stream that has no time left, whose network has these logits."""
    description = SimpleNamespace(looks_twice=True, second_look={"margin": 1.0}, classes=("rest", "task"))
    answer = np.array([logits], dtype=np.float32), np.array([looked]), None
    model: Any = SimpleNamespace(description=description, path="", look_with_groups=lambda x, margin: answer)
    return Decider(model, 1.0, is_live=True)


@pytest.mark.parametrize(
    ("logits", "looked", "skipped", "note"),
    [
        ([2.0, 0.0], False, 0, ""),
        ([0.5, 0.0], False, 1, NO_TIME),
        ([0.5, 0.0], True, 0, ""),  # close in the second pass: it was looked at twice all the same
        ([np.nan, 0.0], False, 1, NO_ANSWER),
    ],
)
def test_a_skipped_second_look_is_counted_where_the_file_would_have_looked(
    logits: list[float], looked: bool, skipped: int, note: str
) -> None:
    decider = late_decider(logits, looked)
    decision = decider.decide(WINDOW, 1.0, 0.0, ready_at=0.0)
    assert (decider.counts["looks_skipped"], decision.note) == (skipped, note)
