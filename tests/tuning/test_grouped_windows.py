"""Windows as a tuning reads them: which are left out, and whose the others are."""

from __future__ import annotations

import numpy as np
import pytest
from tests.tuning.conftest import TOKENS, WIDTH, Small

from zipbrain.data import Windows
from zipbrain.errors import OptionError
from zipbrain.tuning import stretches
from zipbrain.tuning.grouped_windows import read_grouped_windows

SECONDS = 4.0
STARTS = np.arange(100) * SECONDS
X = np.random.default_rng(0).normal(size=(len(STARTS), TOKENS, WIDTH)).astype(np.float32)


@pytest.mark.parametrize(
    "form", [np.asarray, np.ndarray.tolist, lambda found: found.astype(float), lambda found: found.astype(str)]
)
def test_windows_between_stretches_are_no_person_of_their_own(small: Small, form: object) -> None:
    found = stretches(STARTS, SECONDS, reach=1.0)
    between = int((found == -1).sum())
    assert between > 0
    sample = read_grouped_windows(small, X, form(found), None)  # type: ignore[operator]
    assert len(np.unique(sample.groups)) == found.max() + 1
    np.testing.assert_array_equal(sample.x, X[found >= 0])
    assert sample.notes == (f"{between} windows that keep stretches apart (group -1) were left out",)


def test_windows_between_stretches_are_left_out_of_windows_with_labels_too(small: Small) -> None:
    found, labels = stretches(STARTS, SECONDS), np.arange(len(STARTS)) % 3
    names = [f"E{number}" for number in range(TOKENS)]
    about = {"ch_names": names, "sfreq": 200, "check": False}
    for groups, subjects in ((found, None), (None, found.astype(str))):
        windows = Windows.from_arrays(X * 20, labels, subjects=subjects, **about)
        sample = read_grouped_windows(small, windows, groups, "hundred")
        assert sample.labels is not None
        np.testing.assert_array_equal(sample.labels, labels[found >= 0])
        assert "-1" not in sample.groups


def test_windows_that_all_keep_stretches_apart_are_refused(small: Small) -> None:
    with pytest.raises(OptionError, match="all windows"):
        read_grouped_windows(small, X, [-1] * len(X), None)
