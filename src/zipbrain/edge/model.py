"""`EdgeModel`: an exported file, from windows in microvolts to probabilities, without torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from zipbrain.cores import available_cores
from zipbrain.edge.description import INPUT, LOOKED_TWICE, OUTPUT, SOURCE_MAP, ModelFile
from zipbrain.edge.limits import USUAL, Limits
from zipbrain.edge.runtimes import Runtime, find_runtime, other_ends
from zipbrain.errors import ModelFileError, OptionError, ShapeError
from zipbrain.numerals import whole_number
from zipbrain.recipe import Recipe
from zipbrain.signal.scaling import scale

Array = NDArray[np.float32]

USUAL_BATCH: Final = 32  # windows per call where the file leaves it open


class EdgeModel:
    """An exported file that is ready to run.

    Parameters
    ----------
    path : path or ModelFile
        What `zipbrain export` wrote.
    runtime : str
        A name in `zipbrain.edge.runtimes.RUNTIMES`, such as "onnxruntime" or "openvino".
    threads : int, optional
        From 1 to 1024; as many as there are cores if not given.
    provider : {"cpu", "cuda"}
        Where ONNX Runtime computes; "cuda" needs the package onnxruntime-gpu and has never been run by us.
    spinning : bool
        Let ONNX Runtime's idle threads wait busily: faster alone, slower if several models share the cores.
    limits : Limits
        Time and memory that the file may take; ``Limits(None, None)`` for one that you trust.

    Attributes
    ----------
    path : Path
    description : Description
    sha256, runtime : str
        Hash of the file, and what runs it with its version.
    notes : list of str
        What to know about the runtime and its provider.
    """

    def __init__(
        self,
        path: str | Path | ModelFile,
        *,
        runtime: str = "onnxruntime",
        threads: int | None = None,
        provider: str = "cpu",
        spinning: bool = True,
        limits: Limits = USUAL,
    ) -> None:
        kind = find_runtime(runtime, threads, provider)
        file = path if isinstance(path, ModelFile) else ModelFile.read(path)
        self.path, self.description, self.sha256 = file.path, file.description, file.sha256
        recipe = self.description.recipe
        if recipe is not None and (reason := kind.refusal_of(Recipe.from_dict(recipe))):
            raise OptionError("runtime", runtime, reason)
        given: dict[str, Any] = {"threads": threads or available_cores(), "provider": provider, "spinning": spinning}
        given["limits"] = limits
        options = {name: value for name, value in given.items() if name in kind.options}
        self._runtime: Runtime = kind(file.content, str(self.path), **options)
        self.runtime = self._runtime.label
        self.notes = [note] if (note := kind.providers[provider]) else []
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
        return self.look(x)[0]

    def look(
        self, x: NDArray[Any], margin: float | None = None, *, batch: int | None = None
    ) -> tuple[Array, NDArray[np.bool_]]:
        """Compute what the network answers, and which windows it looked at twice.

        Parameters
        ----------
        x : ndarray (m, C, T)
            As for `logits`.
        margin : float, optional
            Windows whose two best classes are closer (in log-odds) are answered by the uncompressed network; the file's
            own if not given. ``math.inf`` answers all of them so. A file without a second look has no margin.
        batch : int, optional
            Windows per call; the file's own batch if that is fixed, else 32, if not given. The last bits of an answer
            depend on it. A file with a fixed batch takes up to that many, and is filled up.

        Returns
        -------
        logits : ndarray of float32 (m, classes) or (m, 1)
        looked_twice : ndarray of bool (m,)
            All False for a file without a second look.
        """
        answers, looked, _ = self._run(x, margin, batch, ())
        return answers, looked

    def look_with_groups(
        self, x: NDArray[Any], margin: float | None = None
    ) -> tuple[Array, NDArray[np.bool_], NDArray[np.integer[Any]] | None]:
        """Compute as `look` does, and which token every token ended in: (m, N), or (m, P, N) for EEGPT.

        None in place of the groups for a file without them, or where no window was whole.
        """
        return self._run(x, margin, None, (SOURCE_MAP,) if self.description.has_groups else ())

    def _run(
        self, x: NDArray[Any], margin: float | None, batch: int | None, more: tuple[str, ...]
    ) -> tuple[Array, NDArray[np.bool_], NDArray[np.integer[Any]] | None]:
        """Logits, which windows were looked at twice, and the first of the further outputs that `more` names."""
        if margin is not None:
            self.description.need_second_look("margin", margin, self.path)
        convention = self.description.convention
        shape = len(convention.ch_names), convention.n_times
        x = np.asarray(x)
        if x.ndim != 3 or x.shape[1:] != shape or x.dtype.kind not in "fiu":
            raise ShapeError("x", f"{x.dtype} {x.shape}", f"{self.path.name} needs numbers (m, {shape[0]}, {shape[1]})")
        x = x.astype(np.float32, copy=False)
        good = np.flatnonzero(np.isfinite(x).all(axis=(1, 2)))
        answers = np.full((len(x), self._outputs), np.nan, dtype=np.float32)
        looked = np.zeros(len(x), dtype=bool)
        groups: NDArray[np.integer[Any]] | None = None
        names = [OUTPUT, *((LOOKED_TWICE,) if self.description.looks_twice else ()), *more]
        fixed = self.description.batch
        size = check_batch(batch, fixed) or fixed or USUAL_BATCH
        for start in range(0, len(good), size):
            rows = good[start : start + size]
            # A fixed batch is filled up with the last window: unlike zeros, it can't widen int8's activation ranges.
            filled = rows if fixed is None else np.pad(rows, (0, fixed - len(rows)), mode="edge")
            scaled = np.ascontiguousarray(scale(x[filled], convention.scaling), dtype=np.float32)
            outputs = self._runtime.answer(scaled, names, margin) if names[1:] else [self._runtime.run(scaled)]
            found = {name: values[: len(rows)] for name, values in zip(names, outputs, strict=True)}
            answers[rows] = found[OUTPUT]
            looked[rows] = found.get(LOOKED_TWICE, False)
            if more:
                if groups is None:
                    groups = np.full((len(x), *found[more[0]].shape[1:]), -1, dtype=np.int64)
                groups[rows] = found[more[0]]
        return answers, looked, groups

    def probabilities(self, x: NDArray[Any]) -> Array:
        """Probabilities (m, classes) of windows as for `logits`: rows sum to 1, or are NaN without an answer."""
        return as_probabilities(self.logits(x))

    def _check_shapes(self) -> None:
        """Refuse a graph that its description does not fit; store how many logits it has."""
        found, said = self._runtime, self.description
        if found.outputs != (OUTPUT, *said.outputs) or found.takes_margin != said.looks_twice:
            raise other_ends(str(self.path), [INPUT, *found.outputs])
        wanted = (said.batch, len(said.convention.ch_names), said.convention.n_times)
        if found.input_shape != wanted:
            raise self._mismatch("input", found.input_shape, f"{wanted[1]} channels x {wanted[2]} samples")
        classes = len(said.classes)
        if found.output_shape not in [(said.batch, classes), *([(said.batch, 1)] if classes == 2 else [])]:
            raise self._mismatch("output", found.output_shape, f"{classes} classes")
        self._outputs = found.output_shape[1] or 1

    def _mismatch(self, end: str, shape: tuple[int | None, ...], said: str) -> ModelFileError:
        batch, *sizes = ["any" if size is None else str(size) for size in (self.description.batch, *shape)]
        found = f"its {end} is {' x '.join(sizes)}, its description says {said} and batch {batch}"
        return ModelFileError(f"{self.path}: {found}; export it again")


def check_batch(batch: int | None, fixed: int | None) -> int | None:
    """The number of windows per call that was asked for; refused where a file's fixed batch is smaller."""
    if batch is None:
        return None
    whole_number("batch", batch, 1)
    if fixed is not None and batch > fixed:
        raise OptionError("batch", batch, f"the file takes {fixed} windows at a time: give no more")
    return batch


def as_probabilities(logits: NDArray[Any]) -> Array:
    """Softmax of logits (m, K), or, with one logit a window, (m, 2) by the sigmoid."""
    values = np.asarray(logits, dtype=np.float64)
    if values.shape[1] == 1:
        values = np.concatenate([np.zeros_like(values), values], axis=1)
    values = np.where(np.isfinite(values).all(axis=1, keepdims=True), values, np.nan)
    powers = np.exp(values - values.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True), dtype=np.float32)
