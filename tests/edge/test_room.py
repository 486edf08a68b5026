"""The room itself: lazy, with the names it promises."""

from __future__ import annotations

import subprocess
import sys

import pytest

import zipbrain.edge as room


def test_every_public_name_exists_and_unknown_ones_are_attribute_errors() -> None:
    for name in room.__all__:
        assert callable(getattr(room, name))
    assert {"EdgeModel", "Description", "predict", "open_edf", "windows"} <= set(dir(room))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        room.nothing  # noqa: B018


def test_the_room_opens_without_numpy_and_windows_stays_a_function() -> None:
    code = (
        "import sys, zipbrain.edge as e\n"
        "print('numpy' in sys.modules)\n"
        "import zipbrain.edge.windows\n"
        "print(e.windows.__module__, [m for m in ('torch', 'mne', 'scipy', 'onnxruntime') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:2] == ["False", "zipbrain.edge.windows []"]
