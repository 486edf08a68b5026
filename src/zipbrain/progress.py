"""How long work says where it is: one callable, which every loop calls and a command shows as a bar or as lines."""

from __future__ import annotations

from collections.abc import Callable

# What is done next, how much of the stage is done, and all of it. A text such as "scoring: ToMe at 40 %" has the stage
# before the colon and the step behind it; steps of one stage have one total.
Progress = Callable[[str, float, int], None]


def silent(what: str, done: float, total: int) -> None:
    """Shows nothing: the progress of work that was not asked to tell."""
