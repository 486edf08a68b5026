"""The machine that a profile was measured on: processor, GPU, load and versions."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

import torch

from zipbrain import __version__

_PACKAGES: Final = ("torch", "onnx", "onnxruntime", "onnxruntime-gpu", "onnx-tool", "openvino")


def this_machine() -> dict[str, Any]:
    """What times mean little without: processor, GPU, load and versions."""
    versions = {}
    for package in _PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    load = round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None  # processes that wanted a core
    about = {"cpu": processor(), "cores": os.cpu_count(), "gpu": gpu, "load": load, "zipbrain": __version__}
    return {**about, "python": platform.python_version(), "versions": versions}


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Torch uses so many CPU threads inside."""
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(count)
        yield
    finally:
        torch.set_num_threads(before)


def processor() -> str:
    """The processor's name, as far as the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
