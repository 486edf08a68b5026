"""`EdgeModel`: an exported file, from windows in microvolts to probabilities, without torch."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from zipbrain.edge.description import described
from zipbrain.edge.runtimes import PROVIDERS, RUNTIMES, OnnxRuntime, OpenVINO, Runtime, available_threads
from zipbrain.errors import ModelFileError, OptionError, ShapeError
from zipbrain.recipe import Recipe
from zipbrain.signal.scaling import scale

Array = NDArray[np.float32]

TOGETHER: Final = 32  # windows per call where the file leaves it open
# Methods that OpenVINO was seen to group rightly, without mass (2026.4.1); others become operators it gets wrong.
_RIGHT_IN_OPENVINO: Final = ("zipbrain", "tome", "tofu", "evit", "dart", "free_slicing")


class EdgeModel:
    """An exported file that is ready to run.

    Parameters
    ----------
    path : path
        What `zipbrain export` wrote.
    runtime : {"onnxruntime", "openvino"}
    threads : int, optional
        As many as there are cores if not given.
    provider : {"cpu", "cuda"}
        Where ONNX Runtime computes; "cuda" needs the package onnxruntime-gpu.
    spinning : bool
        Let ONNX Runtime's idle threads wait busily: faster alone, slower if several models share the cores.

    Attributes
    ----------
    path : Path
    description : Description
    sha256 : str
        Of the file.
    runtime : str
        What runs it, with its version.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        runtime: str = "onnxruntime",
        threads: int | None = None,
        provider: str = "cpu",
        spinning: bool = True,
    ) -> None:
        check_runtime(runtime, threads, provider)
        self.path = Path(path)
        content, self.description = described(path)
        if runtime == "openvino" and self.description.recipe is not None:
            _check_openvino(Recipe.from_dict(self.description.recipe))
        self.sha256 = hashlib.sha256(content).hexdigest()
        count = threads or available_threads()
        self._runtime: Runtime = (
            OpenVINO(content, str(path), threads=count)
            if runtime == "openvino"
            else OnnxRuntime(content, str(path), threads=count, provider=provider, spinning=spinning)
        )
        self.runtime = self._runtime.name
        self._check_shapes()

    def __repr__(self) -> str:
        found = self.description
        return f"EdgeModel({str(self.path)!r}, {found.model} for {found.corpus}, {found.precision}, {self.runtime})"

    def logits(self, x: NDArray[Any]) -> Array:
        """Compute what the network answers.

        Parameters
        ----------
        x : ndarray (m, C, T)
            Windows in microvolts, channels and rate as the description's convention says; scaled here.

        Returns
        -------
        logits : ndarray of float32 (m, classes) or (m, 1)
            NaN for windows that hold a NaN or an infinity; the network does not get them.
        """
        convention = self.description.convention
        shape = len(convention.ch_names), convention.n_times
        x = np.asarray(x)
        if x.ndim != 3 or x.shape[1:] != shape or x.dtype.kind not in "fiu":
            raise ShapeError("x", f"{x.dtype} {x.shape}", f"{self.path.name} needs numbers (m, {shape[0]}, {shape[1]})")
        x = x.astype(np.float32, copy=False)
        good = np.flatnonzero(np.isfinite(x).all(axis=(1, 2)))
        answers = np.full((len(x), self._outputs), np.nan, dtype=np.float32)
        size = self.description.batch or TOGETHER
        for start in range(0, len(good), size):
            rows = good[start : start + size]
            # A fixed batch is filled up with the last window: unlike zeros, it can't widen int8's activation ranges.
            filled = rows if self.description.batch is None else np.pad(rows, (0, size - len(rows)), mode="edge")
            scaled = np.ascontiguousarray(scale(x[filled], convention.scaling), dtype=np.float32)
            answers[rows] = self._runtime.run(scaled)[: len(rows)]
        return answers

    def probabilities(self, x: NDArray[Any]) -> Array:
        """Compute the probability of every class.

        Parameters
        ----------
        x : ndarray (m, C, T)
            As for `logits`.

        Returns
        -------
        probabilities : ndarray of float32 (m, classes)
            Rows sum to 1; NaN where there is no answer.
        """
        return as_probabilities(self.logits(x))

    def _check_shapes(self) -> None:
        """Refuse a graph that its description does not fit, and see how many logits it gives."""
        found, said = self._runtime, self.description
        wanted = (said.batch, len(said.convention.ch_names), said.convention.n_times)
        if found.input_shape != wanted:
            raise self._mismatch("input", found.input_shape, f"{wanted[1]} channels x {wanted[2]} samples", said.batch)
        classes = len(said.classes)
        if found.output_shape not in [(said.batch, classes), *([(said.batch, 1)] if classes == 2 else [])]:
            raise self._mismatch("output", found.output_shape, f"{classes} classes", said.batch)
        self._outputs = found.output_shape[1] or 1

    def _mismatch(self, end: str, shape: tuple[int | None, ...], said: str, batch: int | None) -> ModelFileError:
        size = "any" if batch is None else batch
        drawn = " x ".join("any" if length is None else str(length) for length in shape)
        return ModelFileError(
            f"{self.path}: its {end} is {drawn}, its description says {said} and batch {size}; export it again"
        )


def check_runtime(runtime: str, threads: int | None, provider: str) -> None:
    """Refuse options of `EdgeModel` that no installation could serve."""
    if runtime not in RUNTIMES:
        raise OptionError("runtime", runtime, f"it must be one of {', '.join(RUNTIMES)}")
    if provider not in PROVIDERS:
        raise OptionError("provider", provider, f"it must be one of {', '.join(PROVIDERS)}")
    if runtime == "openvino" and provider != "cpu":
        raise OptionError("provider", provider, "OpenVINO runs on the CPU here: take runtime 'onnxruntime'")
    if threads is not None and threads < 1:
        raise OptionError("threads", threads, "at least one is needed")


def _check_openvino(recipe: Recipe) -> None:
    """Refuse a compression whose tokens OpenVINO was seen, or may be feared, to group wrongly."""
    name = recipe.method["name"]
    merge = recipe.method.get("merge", {"name": "largest_norm"})
    usual = name != "zipbrain" or merge == {"name": "largest_norm"}
    if name in _RIGHT_IN_OPENVINO and usual and not any(recipe.mass.values()):
        return
    what = f"{name} with mass" if any(recipe.mass.values()) else name if usual else f"{name} with another merge"
    wish = f"OpenVINO may group the tokens of {what} otherwise than PyTorch and ONNX Runtime: take onnxruntime"
    raise OptionError("runtime", "openvino", wish)


def as_probabilities(logits: NDArray[Any]) -> Array:
    """Softmax of logits (m, K), or, with one logit a window, (m, 2) by the sigmoid."""
    values = np.asarray(logits, dtype=np.float64)
    if values.shape[1] == 1:
        values = np.concatenate([np.zeros_like(values), values], axis=1)
    values = np.where(np.isfinite(values).all(axis=1, keepdims=True), values, np.nan)
    powers = np.exp(values - values.max(axis=1, keepdims=True))
    shares: Array = (powers / powers.sum(axis=1, keepdims=True)).astype(np.float32)
    return shares
