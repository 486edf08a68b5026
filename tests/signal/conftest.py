"""What tests of recordings share."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    """A good EDF+ file: three channels of 30 s at 100 Hz, and one annotation."""
    pytest.importorskip("edfio")
    from data.edf_files import eeg, write_edf

    return write_edf(tmp_path / "a.edf", eeg())
