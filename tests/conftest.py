"""What all tests share: where golden vectors and recordings may lie, and both ways of pooling on a CPU."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

from zipbrain.pooling.backends import cpu

settings.register_profile(
    "zipbrain",
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("zipbrain")
torch.set_num_threads(1)
# What a shell runs in the background ignores Ctrl-C, and so would every command that is started from here.
signal.signal(signal.SIGINT, signal.default_int_handler)

SHARED = Path(os.environ.get("ZIPBRAIN_SHARED", Path(__file__).resolve().parents[2] / "shared"))


SUBSET = Path(__file__).with_name("golden")


def pytest_report_header() -> str:
    """Says which golden vectors this run uses."""
    full = SHARED / "golden"
    if full.is_dir():
        return f"golden vectors: the subset in tests/golden and all of {full}"
    return f"golden vectors: only the subset in tests/golden; {full} is not there (ZIPBRAIN_SHARED names its parent)"


SLOW = frozenset(Path(__file__).with_name("slow.txt").read_text().split())


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks what slow.txt lists, tests and whole files that take seconds: `make check` leaves them out."""
    for item in items:
        name, path = getattr(item, "originalname", item.name), item.path
        if not SLOW.isdisjoint((name, path.name, f"{path.parent.name}/{path.name}")):
            item.add_marker("slow")


@pytest.fixture(scope="session", params=["subset", pytest.param("full", marks=pytest.mark.slow)])
def golden(request: pytest.FixtureRequest) -> Path:
    """Folder of golden vectors made with the official implementations: the subset here, then all of them."""
    if request.param == "subset":
        return SUBSET
    folder = SHARED / "golden"
    if not folder.is_dir():
        pytest.skip(f"all golden vectors not found at {folder}: set ZIPBRAIN_SHARED to the folder that holds golden/")
    return folder


@pytest.fixture(autouse=True)
def no_progress_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands say nothing of their progress, however busy the machine: tests count the lines of stderr."""
    monkeypatch.setattr("zipbrain.cli.progress._QUIET", 3600.0)


@pytest.fixture(params=["compiled", "plain"])
def path(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run a test with the compiled CPU kernel and with plain operators."""
    if request.param == "compiled" and not cpu.available():
        pytest.skip("the compiled CPU kernel was not built (no C compiler at install time)")
    before = cpu.switch(request.param == "compiled")
    yield request.param
    cpu.switch(before)
