"""Runs every command with one optional package taken out, and prints what each said, one JSON line a run.

A process that has imported the heavy packages forks a child for each run, so that a run costs what it does and not
its imports. Only packages that a command really imports are taken out of it.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.metadata
import io
import json
import os
import shutil
import sys
import time
import traceback
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

# Import name of every package that an extra brings, and its name on the package index.
_SAME = ["torch", "safetensors", "joblib", "matplotlib", "mne", "scipy", "pooch", "onnx", "onnxscript", "openvino"]
PACKAGES = {name: name for name in [*_SAME, "distributed"]}
PACKAGES |= {"sklearn": "scikit-learn", "mne_bids": "mne-bids", "onnx_tool": "onnx-tool"}
# Commands that can't run to their end here, and the package that they need first.
UNFINISHED = {"dask": ["distributed"], "bids": ["mne_bids"], "download": ["pooch"]}


def commands(folder: Path, out: Path) -> dict[str, list[str]]:
    """Every command, small, on what `build` put into the folder; results go to `out`."""
    run, data, quick = str(folder / "run"), ["--data", "synthetic-events"], ["--device", "cpu", "--limit", "6"]
    some = ["--methods", "zipbrain", "--ratios", "0.5", "--rounds", "1", "--threads", "1"]
    tiny = ["--model", "biot", "--epochs", "1", "--set", 'options={"dim": 16, "depth": 1, "heads": 2}']
    predict = ["predict", str(folder / "one.edf"), "--model", str(folder / "m.onnx"), "--out", str(out)]
    search = ["search", run, *data, *quick, "--workers", "1", "--out", str(out)]
    return {
        "evaluate": ["evaluate", run, *data, *quick],
        "compare": ["compare", run, *data, *quick, *some, "--out", str(out)],
        "ablate": ["ablate", run, *data, *quick, "--seeds", "1", "--out", str(out)],
        "search": search,
        "dask": [*search, "--backend", "dask", "--scheduler", "tcp://127.0.0.1:9"],
        "tune": [
            "tune",
            run,
            *data,
            "--workers",
            "1",
            "--threads",
            "1",
            "--people",
            "8",
            "--limit",
            "120",
            "--out",
            str(out),
        ],
        "report": ["report", str(folder / "results"), "--out", str(out)],
        "export": ["export", run, *data, "--method", "zipbrain", "--ratio", "0.5", "--limit", "4", "-o", f"{out}.onnx"],
        "profile": [
            "profile",
            run,
            *data,
            "--methods",
            "zipbrain",
            "--rounds",
            "1",
            "--threads",
            "1",
            "--no-memory",
            "--no-timeline",
        ],
        "predict": predict,
        "openvino": [*predict, "--runtime", "openvino"],
        "figure": [*predict, "--format", "csv,figure"],
        "models": ["models", "describe", f"{run}/model"],
        "bids": ["data", "prepare", "bids", "--root", str(folder), "--out", str(out), "--model", "biot"],
        "download": ["data", "download", "eegmat", "--out", str(out)],
        "demo": ["demo", "--limit", "6", "--ratios", "0.8", "--rounds", "1", "--out", str(out), "--threads", "1"],
        "finetune": ["finetune", *data, *tiny, *quick, "--out", str(out)],
    }


class Without(PathFinder):
    """The ordinary finder of modules, blind to one package."""

    package = ""

    @classmethod
    def find_spec(cls, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        return None if fullname.partition(".")[0] == cls.package else super().find_spec(fullname, path, target)


def take_out(package: str) -> None:
    """Make this process one in which the package was never installed."""
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        del sys.modules[name]
    Without.package = package
    sys.meta_path[:] = [Without if finder is PathFinder else finder for finder in sys.meta_path]
    known = importlib.metadata.Distribution.from_name

    def from_name(name: str) -> importlib.metadata.Distribution:
        if name.replace("_", "-") == PACKAGES[package]:
            raise importlib.metadata.PackageNotFoundError(name)
        return known(name)

    importlib.metadata.Distribution.from_name = staticmethod(from_name)  # type: ignore[method-assign,assignment]


def build(folder: Path) -> None:
    """A tiny model, an exported file, a recording and a table of results in the folder."""
    import torch

    import zipbrain
    from data import edf_files
    from edge import tiny_onnx

    torch.manual_seed(0)
    model = zipbrain.models.BIOT(6, 16, 1000, dim=16, heads=2, depth=2)
    with torch.no_grad():  # all classes are answered
        model.eval().head.bias -= model(torch.randn(64, 16, 1000)).mean(0)
    zipbrain.save_pretrained(model, folder / "run" / "model")
    tiny_onnx.save(folder / "m.onnx")
    names = tiny_onnx.convention().ch_names
    edf_files.write_edf(folder / "one.edf", edf_files.eeg(len(names)), [f"EEG {name}-REF" for name in names])
    assert run_command(commands(folder, folder / "results")["compare"]) == 0


def run_command(arguments: list[str]) -> int:
    """The command line, with a small synthetic corpus in place of the large one."""
    from zipbrain.cli import main
    from zipbrain.data.synthetic import Synthetic

    sizes = {"n_subjects": 10, "windows_per_subject": 6}
    full = Synthetic.__init__
    Synthetic.__init__ = lambda self, task, **options: full(self, task, **(sizes | options))  # type: ignore[method-assign]
    return main(arguments)


def fork(work: Any) -> dict[str, Any]:
    """What a child process that does this work printed, its exit code, and the optional packages that it imported."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        said = io.StringIO()
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
            try:
                code = work()
            except BaseException:
                code = -1
                traceback.print_exc()
        imported = [name for name in PACKAGES if name in sys.modules]
        found = {"code": code, "said": said.getvalue()[-4000:], "imported": imported, "seconds": time.process_time()}
        os.write(writer, json.dumps(found).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as lines:
        found = json.loads(lines.read() or '{"code": -9, "said": "the process died", "imported": []}')
    os.waitpid(child, 0)
    assert isinstance(found, dict)
    return found


def run_without(package: str, arguments: list[str]) -> int:
    take_out(package)
    return run_command(arguments)


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    built = fork(lambda: build(folder))
    assert built["code"] is None, built["said"]
    imported = dict(UNFINISHED)
    for name, words in commands(folder, folder / "whole").items():
        if name in UNFINISHED:
            continue
        found = fork(functools.partial(run_command, words))
        imported[name] = found["imported"]
        print(json.dumps({"command": name, "without": None} | found), flush=True)
        shutil.rmtree(folder / "whole", ignore_errors=True)
    for package in PACKAGES:
        importlib.import_module(package)
    for name, words in commands(folder, folder / "without").items():
        for package in imported[name]:
            found = fork(functools.partial(run_without, package, words))
            print(json.dumps({"command": name, "without": package} | found), flush=True)
            shutil.rmtree(folder / "without", ignore_errors=True)
