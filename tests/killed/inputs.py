"""Small inputs for every command, made by the commands before it: recordings, windows, a trained model, its file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Final

from zipbrain.cli import main

from ..data import tiny_corpora

_TINY: Final = 'options={"dim": 16, "heads": 2, "depth": 2}'
_DATA: Final = ("zipbrain.data", "scipy.signal", "mne")
_TRAINING: Final = ("zipbrain.training", "sklearn.metrics")
_SCORES: Final = (*_TRAINING, "zipbrain.evaluation.comparison", "zipbrain.search", "matplotlib.backends.backend_agg")
_EXPORT: Final = (*_TRAINING, "zipbrain.export", "torch.onnx", "onnxruntime.quantization")
_IMPORTED: Final = {
    "prepare": _DATA,
    "finetune": (*_DATA, *_TRAINING),
    "compare": _SCORES,
    "search": _SCORES,
    "export": _EXPORT,
    "predict": (*_DATA, "onnxruntime", "matplotlib.backends.backend_agg"),
}
_RATIO: Final = ("--ratio", "0.5")


@dataclass(frozen=True)
class Inputs:
    """A folder of inputs."""

    home: Path

    @property
    def raw(self) -> Path:
        return self.home / "raw"

    @property
    def windows(self) -> Path:
        return self.home / "windows"

    @property
    def run(self) -> Path:
        return self.home / "run"

    @property
    def file(self) -> Path:
        return self.home / "file" / "model.onnx"

    def make(self, command: str) -> int:
        """Write what a command needs, unless it is there; returns an exit code."""
        if not self.raw.exists():
            tiny_corpora.tuab(self.raw)
        for maker, path in (("prepare", self.windows), ("finetune", self.run), ("export", self.file.parent)):
            if maker == command or (maker == "export" and command != "predict"):
                break
            code = 0 if path.exists() else main(COMMANDS[maker](self, path))
            if code:
                return code
        return 0


def _prepare(given: Inputs, out: Path) -> list[str]:
    return ["data", "prepare", "tuab", "--root", str(given.raw), "--out", str(out), "--model", "biot"]


def _finetune(given: Inputs, out: Path) -> list[str]:
    what = ["finetune", "--model", "biot", "--data", str(given.windows), "--device", "cpu", "--out", str(out)]
    how = ["--set", _TINY, "--batch-size", "8", "--epochs", "6"]
    return [*what, *how, *["--resume"] * (out / "run.json").exists()]


def _compare(given: Inputs, out: Path) -> list[str]:
    what = ["compare", str(given.run), "--data", str(given.windows), "--device", "cpu", "--out", str(out)]
    return [*what, "--ratios", "0.4,max", "--threads", "1", "--latency-batch", "2", "--rounds", "2"]


def _search(given: Inputs, out: Path) -> list[str]:
    what = ["search", str(given.run), "--data", str(given.windows), "--device", "cpu", "--out", str(out)]
    return [*what, "--backend", "sequential"]


def _export(given: Inputs, out: Path) -> list[str]:
    out.mkdir(parents=True, exist_ok=True)
    return ["export", str(given.run), "--data", str(given.windows), "--out", str(out / "model.onnx"), *_RATIO]


def _predict(given: Inputs, out: Path) -> list[str]:
    return [
        "predict",
        str(given.raw / "edf" / "train" / "normal"),
        "--model",
        str(given.file),
        "--out",
        str(out),
        "--backend",
        "sequential",
    ]


COMMANDS: Final[dict[str, Callable[[Inputs, Path], list[str]]]] = {
    "prepare": _prepare,
    "finetune": _finetune,
    "compare": _compare,
    "search": _search,
    "export": _export,
    "predict": _predict,
}


def preload(command: str) -> None:
    """Import what a command imports, so that forked children do not spend their time on that."""
    for name in _IMPORTED[command]:
        import_module(name)
