"""`zipbrain doctor`: what is installed, what computes here, what is missing and how to get it."""

from __future__ import annotations

import json
import platform
import re
from dataclasses import asdict, dataclass
from importlib import metadata
from typing import Any, Final

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from zipbrain import __version__
from zipbrain.cli.options import AsJson
from zipbrain.cli.terminal import Console, say

_HIDDEN: Final = ("dev", "docs", "all")  # extras that are no purpose of their own
_PURPOSES: Final = {
    "torch": "compress, restore, models",
    "report": "evaluate, compare, ablate, search, tune, report, demo",
    "train": "data, finetune",
    "export": "export, profile",
    "openvino": "--runtime openvino, int8 by NNCF",
    "live": "live on a stream of the network",
    "archive": "predict --format parquet",
    "cluster": "--backend dask",
    "hub": "models on Hugging Face",
}


@dataclass(frozen=True)
class Extra:
    """Optional packages of one purpose: those that are there, with their versions, and those that are not."""

    name: str
    purpose: str
    present: dict[str, str]
    missing: tuple[str, ...]


@dataclass(frozen=True)
class Diagnosis:
    """What zipbrain finds on this machine."""

    versions: dict[str, str]
    extras: tuple[Extra, ...]
    computes: dict[str, str]  # kernels, devices and runtimes
    advice: tuple[str, ...]


def doctor(as_json: AsJson = False) -> None:
    """Say what is installed, what is missing and how to get it.

    Versions, extras, kernels, devices and runtimes.

    Example: zipbrain doctor
    """
    found = diagnose()
    if as_json:
        print(json.dumps(asdict(found), indent=2))
        return
    console = Console(highlight=False)
    about = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for name, words in (found.versions | found.computes).items():
        about.add_row(name, Text(words))  # an extra's brackets are no markup
    console.print(about)
    table = Table(box=SIMPLE_HEAD)
    for column in ("extra", "for", "missing"):
        table.add_column(column, overflow="fold")
    for extra in found.extras:
        table.add_row(extra.name, extra.purpose, ", ".join(extra.missing) or "-")
    console.print(table)
    for line in found.advice:
        say(line)


def diagnose() -> Diagnosis:
    """Versions, extras, kernels, devices and runtimes of this machine, and advice on what is missing."""
    extras = tuple(find_extras())
    versions = {"zipbrain": __version__, "Python": f"{platform.python_version()}, {platform.platform()}"}
    versions |= {name: version for name in _base() if (version := _version(name))}
    computes, advice = {**_torch(), **_runtimes()}, []
    if "not built" in computes.get("C kernel", ""):
        advice.append("The C kernel needs a C compiler when zipbrain is installed; torch operators do its work.")
    advice += [
        f"{extra.name} lacks {', '.join(extra.missing)}: pip install 'zipbrain[{extra.name}]'"
        for extra in extras
        if extra.missing
    ]
    return Diagnosis(versions, extras, computes, tuple(advice or ["Nothing is missing."]))


def find_extras() -> list[Extra]:
    """Every extra with what it brings, in the order of pyproject.toml."""
    declared = metadata.metadata("zipbrain").get_all("Provides-Extra") or []
    found = []
    for name in declared:
        if name in _HIDDEN:
            continue
        packages = {package: _version(package) for package in packages_of(name)}
        present = {package: version for package, version in packages.items() if version}
        missing = tuple(package for package in packages if package not in present)
        found.append(Extra(name, _PURPOSES.get(name, ""), present, missing))
    return found


def packages_of(extra: str) -> list[str]:
    """Names of the packages that an extra brings, those of the extras inside it too."""
    packages: dict[str, None] = {}
    for requirement in metadata.requires("zipbrain") or ():
        named = re.match(r"([\w.-]+)(?:\[([\w,-]+)\])?", requirement)
        if named is None or not re.search(rf"""extra == ['"]{re.escape(extra)}['"]""", requirement):
            continue
        if named[1] == "zipbrain":
            for inner in (named[2] or "").split(","):
                packages |= dict.fromkeys(packages_of(inner))
        else:
            packages[named[1]] = None
    return list(packages)


def _base() -> list[str]:
    """Names of the packages that zipbrain always needs."""
    words = [requirement for requirement in metadata.requires("zipbrain") or () if "extra ==" not in requirement]
    return [named[0] for word in words if (named := re.match(r"[\w.-]+", word))]


def _version(package: str) -> str:
    """A package's version; empty if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _torch() -> dict[str, str]:
    """Devices and kernels of torch, and the cores that zipbrain may use."""
    from zipbrain.cores import available_cores, free_cores

    found = {"cores": f"{available_cores()}, {free_cores()} of them free"}
    try:
        import torch
    except ImportError as error:
        return found | {"torch": f"not here: pip install 'zipbrain[torch]' ({error})"}
    from zipbrain.pooling.backends import cpu

    count = torch.cuda.device_count()
    devices = ", ".join(torch.cuda.get_device_name(number) for number in range(count))
    why = (
        "no device"
        if torch.version.cuda
        else "no device for it: this torch was built without CUDA (pytorch.org has others)"
    )
    found |= {"torch": torch.__version__, "CUDA": devices or why}
    found["C kernel"] = "built" if cpu.available() else "not built"
    found["Triton"] = _version("triton") or "not here; only CUDA devices use it"
    return found


def _runtimes() -> dict[str, str]:
    """Runtimes of exported files, with the providers that ONNX Runtime has."""
    from zipbrain.edge.runtimes import RUNTIMES, OnnxRuntime

    found: dict[str, Any] = {}
    for kind in RUNTIMES.values():
        missing = f"not here: pip install 'zipbrain[{kind.extra}]'" if kind.extra else "not here"
        found[kind.title] = _version(kind.package) if kind.is_installed() else missing
    try:
        import onnxruntime
    except ImportError as error:
        return found | {OnnxRuntime.title: f"can't be imported: {error}"}
    providers = (name.removesuffix("ExecutionProvider") for name in onnxruntime.get_available_providers())
    found[OnnxRuntime.title] += f", on {', '.join(providers)}"
    return found
