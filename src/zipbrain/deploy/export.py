"""`export`: a model and its recipe -> one .onnx file that describes itself, compared with PyTorch before it is kept."""

from __future__ import annotations

import copy
import os
import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from zipbrain import __version__
from zipbrain.cost.graph import OPSET
from zipbrain.data.conventions import parse_montage
from zipbrain.data.windows import Windows
from zipbrain.deploy.graph import describe, graphs
from zipbrain.deploy.nncf import to_int8_by_nncf
from zipbrain.deploy.parity import Groupings, Parity, Told, measure, reference
from zipbrain.deploy.quantise import to_half, to_int8
from zipbrain.edge.convention import Convention
from zipbrain.edge.description import INPUT, PRECISIONS, Description
from zipbrain.edge.model import EdgeModel
from zipbrain.edge.scaling import scale
from zipbrain.errors import OptionError, ZipbrainError
from zipbrain.models import model_name
from zipbrain.recipe import Recipe, as_recipe
from zipbrain.seams import compress, is_compressed, restore, trace
from zipbrain.seams.compress import describe as describe_compression
from zipbrain.seams.compress import origin_of
from zipbrain.training.checkpoints import fingerprint
from zipbrain.training.feed import scaling_of

_TOGETHER: Final = 16  # windows per call of PyTorch and of the graph that tells its decisions
_CALIBRATION: Final = 64  # windows that fix the ranges of static int8, if none are given

Progress = Callable[[str, int, int], None]
Array = NDArray[np.float32]


class ExportFailed(ZipbrainError, RuntimeError):
    """An export whose answers are not those of the model; nothing was written."""


@dataclass(frozen=True)
class Exported:
    """What `export` wrote.

    Attributes
    ----------
    path : Path
    description : Description
        As in the file.
    bytes : int
        Size of the file.
    parity : Parity
        How its answers compare with PyTorch's; with ``force``, its `faults` may not be empty.
    """

    path: Path
    description: Description
    bytes: int
    parity: Parity


def export(
    model: nn.Module,
    windows: Windows,
    path: str | Path,
    *,
    convention: Convention,
    classes: Sequence[str] | None = None,
    precision: str = "float32",
    batch: int | None = None,
    opset: int = OPSET,
    calibration: Windows | None = None,
    force: bool = False,
    checkpoint: str = "",
    recipe: Recipe | str | Path | None = None,
    quantiser: str = "onnxruntime",
    progress: Progress | None = None,
) -> Exported:
    """Write a model as one .onnx file and compare the file with PyTorch on real windows.

    Parameters
    ----------
    model : LaBraM, EEGPT, BIOT or TFM
        Compressed or not; stays as it is.
    windows : Windows
        What to compare on, in microvolts, with labels.
    path : path
        Written under another name first and renamed when it has proved to be right; what stood there stays until then.
    convention : Convention
        How a recording becomes windows: stored in the file. See `convention_of` for windows without one.
    classes : sequence of str, optional
        Names of the outputs; those of the windows if not given.
    precision : {"float32", "float16", "int8-dynamic", "int8-static"}
        Of the blocks' products; what decides over tokens stays in float32.
    batch : int, optional
        Windows per call; any number if not given.
    opset : int
        Version of ONNX's operators, at least 18.
    calibration : Windows, optional
        For static int8: 64 of `windows` if not given.
    force : bool
        Keep a file in half precision or int8 whose decisions or scores are out of bounds.
    checkpoint : str
        Where the model comes from, for the description.
    recipe : Recipe or path, optional
        How to compress the model, in place of how it is compressed now.
    quantiser : {"onnxruntime", "nncf"}
        What makes static int8; NNCF's suits OpenVINO (``zipbrain[openvino]``).
    progress : callable, optional
        Called with what is done next, the steps done and all steps.

    Returns
    -------
    exported : Exported

    Raises
    ------
    ExportFailed
        If the file's answers are out of bounds (see `zipbrain.deploy.parity`); then there is no file.
    """
    path = Path(path)
    tell = progress if progress is not None else _silent
    names = tuple(windows.classes if classes is None else classes)
    _check_options(precision, batch, quantiser, path)
    convention = _fitting(convention, windows)
    _check_classes(model, names)
    network = _prepared(model, recipe)
    tell("exporting", 0, 4)
    shape = windows.n_chans, windows.n_times
    shipped, told = graphs(network, shape, batch=batch, opset=opset)
    tell(f"making {precision}", 1, 4)
    shipped = _in_precision(shipped, network, precision, calibration or windows, convention.scaling, quantiser)
    description = Description(
        model=model_name(model), classes=names, convention=convention, corpus=windows.name, precision=precision,
        batch=batch, recipe=_recipe_of(network), token_counts=_token_counts(network, shape),
        weights_sha256=fingerprint(network.state_dict()), versions=_versions(opset),
        trained_on={"checkpoint": checkpoint} if checkpoint else {},
    )  # fmt: skip
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        _write(temporary, describe(shipped, description), path)
        tell("comparing with PyTorch", 2, 4)
        parity = compare(temporary, network, told, windows, convention.scaling, precision)
        if parity.faults and (precision == "float32" or not force):
            advice = "" if precision == "float32" else "; --force (force=True) keeps it"
            raise ExportFailed(
                f"{path}: not kept, {precision} differs from PyTorch: {'; '.join(parity.faults)}{advice}"
            )
        description = replace(description, parity=parity.to_dict())
        tell("writing", 3, 4)
        _write(temporary, describe(shipped, description), path)
        size = temporary.stat().st_size
        os.replace(temporary, path)
    except OSError as error:
        raise ExportFailed(f"{path}: can't be written ({error.strerror or error})") from None
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
    tell("done", 4, 4)
    return Exported(path, description, size, parity)


def compare(path: Path, network: nn.Module, told: Any, windows: Windows, scaling: str, precision: str) -> Parity:
    """Compare a written file with PyTorch on all windows.

    Parameters
    ----------
    path : Path
        Of the file; read as the device reads it.
    network : nn.Module
        The model, float32 on the CPU.
    told : onnx.ModelProto
        The float32 graph with its decisions, see `graphs`.
    windows : Windows
        In microvolts.
    scaling : str
        See `zipbrain.edge.scaling.scale`.
    precision : str
        Of the file.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    file = EdgeModel(path, spinning=False)
    session = onnxruntime.InferenceSession(told.SerializeToString(), options, providers=["CPUExecutionProvider"])
    size = file.description.batch or _TOGETHER
    model, groupings = Told(network), Groupings()
    mine, theirs = [], []
    for start in range(0, len(windows), size):
        raw = windows.take(slice(start, start + size))
        x = np.asarray(scale(raw, scaling), dtype=np.float32)
        answer = file.logits(raw)
        if precision == "float32":
            expected, gaps = reference(model, torch.from_numpy(x))
            filled = x if file.description.batch is None else np.concatenate((x, np.repeat(x[-1:], size - len(x), 0)))
            found = [torch.from_numpy(value) for value in session.run(None, {INPUT: filled})]
            share = [len(value) // len(filled) for value in found]  # EEGPT decides for every patch of a window
            found = [value[: len(x) * count] for value, count in zip(found, share, strict=True)]
            groupings.add(expected, gaps, found, torch.from_numpy(answer))
            logits = expected[0]
        else:
            with torch.inference_mode():
                logits = network(torch.from_numpy(x))
        mine.append(logits.numpy())
        theirs.append(answer)
    return measure(
        precision, np.concatenate(mine), np.concatenate(theirs), windows.labels, len(windows.classes), groupings
    )  # fmt: skip


def convention_of(model: nn.Module, windows: Windows) -> Convention:
    """A convention for windows that have none: cut from recordings without filters, one after the other.

    Parameters
    ----------
    model : nn.Module
        Whose scaling it takes, unless the windows say another one.
    windows : Windows
        Such as those of `zipbrain.data.Synthetic`.
    """
    name, seconds = model_name(model), windows.n_times / windows.sfreq
    return Convention(
        name, windows.name, parse_montage(list(windows.ch_names)), windows.ch_names, None, None, windows.sfreq,
        windows.sfreq, seconds, seconds, scaling_of(name, windows),
    )  # fmt: skip


def _silent(what: str, done: int, total: int) -> None:
    pass


def _check_options(precision: str, batch: int | None, quantiser: str, path: Path) -> None:
    if quantiser not in ("onnxruntime", "nncf") or (quantiser == "nncf" and precision != "int8-static"):
        raise OptionError("quantiser", quantiser, "it must be onnxruntime, or nncf with the precision int8-static")
    if precision not in PRECISIONS:
        raise OptionError("precision", precision, f"it must be one of {', '.join(PRECISIONS)}")
    if batch is not None and (isinstance(batch, bool) or not isinstance(batch, int) or batch < 1):
        raise OptionError("batch", batch, "it must be a positive integer, or None for any number of windows")
    if path.is_dir() or not path.parent.is_dir():
        raise OptionError("path", str(path), "it must be the name of a file in a folder that is there")


def _check_classes(model: nn.Module, names: tuple[str, ...]) -> None:
    outputs = getattr(model, "config", {}).get("n_outputs")
    if outputs is not None and len(names) != max(2, outputs):
        raise OptionError("classes", list(names), f"the model has {outputs} output{'s' * (outputs > 1)}")


def _fitting(convention: Convention, windows: Windows) -> Convention:
    """The convention, with the channels of the windows where it leaves them to the recording."""
    if not len(windows):
        raise OptionError("windows", repr(windows), "there is none")
    if not convention.montage:
        convention = replace(convention, montage=parse_montage(list(windows.ch_names)), ch_names=windows.ch_names)
    said = tuple(convention.ch_names), float(convention.sfreq), convention.n_times
    if said != (tuple(windows.ch_names), windows.sfreq, windows.n_times):
        found = f"{len(said[0])} channels, {said[2]} samples at {said[1]:g} Hz"
        raise OptionError("convention", found, f"the windows are {windows!r}")
    return convention


def _prepared(model: nn.Module, recipe: Recipe | str | Path | None) -> nn.Module:
    """A copy in float32 on the CPU, compressed as asked."""
    network = copy.deepcopy(model).to("cpu", torch.float32).eval()
    if recipe is not None:
        chosen = as_recipe(Path(recipe) if isinstance(recipe, str) else recipe)
        if chosen is None:
            raise OptionError("recipe", recipe, "it must be a Recipe or the path of its JSON file")
        compress(restore(network), chosen)
    return network


def _recipe_of(network: nn.Module) -> dict[str, Any] | None:
    if not is_compressed(network):
        return None
    options, origin = {**describe_compression(network), "model": model_name(network)}, origin_of(network)
    return (Recipe(**options) if origin is None else replace(origin, **options)).to_dict()


def _token_counts(network: nn.Module, shape: tuple[int, int]) -> tuple[int, ...]:
    counted = network if is_compressed(network) else compress(copy.deepcopy(network), "free_slicing", r=0)
    with torch.inference_mode(), trace(counted) as traced:
        counted(torch.zeros(1, *shape))
    return tuple(traced.token_counts)


def _in_precision(
    proto: Any, network: nn.Module, precision: str, calibration: Windows, scaling: str, quantiser: str
) -> Any:
    if precision == "float16":
        return to_half(proto)
    if precision == "int8-dynamic":
        return to_int8(proto, network)
    if precision == "int8-static":
        chosen = np.unique(np.linspace(0, len(calibration) - 1, min(_CALIBRATION, len(calibration))).astype(np.int64))
        windows = np.asarray(scale(calibration.take(chosen), scaling), dtype=np.float32)
        return (
            to_int8(proto, network, windows) if quantiser == "onnxruntime" else to_int8_by_nncf(proto, network, windows)
        )
    return proto


def _versions(opset: int) -> dict[str, str]:
    packages = {name: version(name) for name in ("torch", "onnx", "onnxruntime")}
    return {"zipbrain": __version__, **packages, "opset": str(opset)}


def _write(file: Path, proto: Any, path: Path) -> None:
    content = proto.SerializeToString()
    try:
        file.write_bytes(content)
    except OSError as error:
        raise ExportFailed(f"{path}: can't be written ({error.strerror or error})") from None
