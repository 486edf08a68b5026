"""The package itself: lazy, with the names it promises."""

from __future__ import annotations

import subprocess
import sys

import pytest

import zipbrain.edge as package


def test_every_public_name_exists_and_unknown_ones_are_attribute_errors() -> None:
    for name in package.__all__:
        assert callable(getattr(package, name))
    assert {"EdgeModel", "Description", "predict", "open_edf", "windows"} <= set(dir(package))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        package.nothing  # noqa: B018


def test_the_package_opens_without_numpy_and_its_names_without_a_runtime() -> None:
    code = (
        "import sys, zipbrain.edge as e\n"
        "print('numpy' in sys.modules)\n"
        "print(e.windows.__module__, [m for m in ('torch', 'mne', 'scipy', 'onnxruntime') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:2] == ["False", "zipbrain.signal.cutting []"]
