"""Train, validation and test by subject, the same on every machine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fractions import Fraction

import numpy as np


def by_subject(subjects: Iterable[str], shares: Mapping[str, float], seed: int) -> dict[str, str]:
    """Deal subjects to splits at random: the split of each.

    Subjects are sorted first, so neither the order in which a file system lists them nor the interpreter matters.
    `shares` of the splits add up to 1; boundaries are rounded down, the last split takes the rest, a single subject
    goes to the first.
    """
    names = sorted(set(subjects))
    # RandomState's stream is frozen by numpy; that of default_rng may change.
    order = np.random.RandomState(seed).permutation(len(names))
    split: dict[str, str] = {}
    share = Fraction(0)
    for name, part in shares.items():
        share += Fraction(str(part))
        for place in order[len(split) : max(int(share * len(names)), 1)]:
            split[names[place]] = name
    return split


def by_number(number: int, ends: Mapping[str, int]) -> str | None:
    """The first split whose last subject is not below a number: ``by_number(85, {"train": 80, "val": 90})`` is val."""
    return next((name for name, end in ends.items() if number <= end), None)
