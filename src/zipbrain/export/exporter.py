"""`export`: a model and its recipe -> one .onnx file that describes itself, compared with PyTorch before it is kept."""

from __future__ import annotations

import copy
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from zipbrain import __version__
from zipbrain.data.windows import Windows
from zipbrain.edge.description import Description
from zipbrain.errors import OptionError
from zipbrain.export import checks
from zipbrain.export.checks import ExportFailed
from zipbrain.export.nncf import to_int8_by_nncf
from zipbrain.export.onnx_graph import OPSET
from zipbrain.export.parity import Parity, compare
from zipbrain.export.quantise import to_half, to_int8
from zipbrain.export.shipped_graph import Passes, describe, describe_outputs, export_passes, tokens_at_first_reduction
from zipbrain.files import new_partial, remedy
from zipbrain.models import name_of, task_of
from zipbrain.progress import Progress, silent
from zipbrain.recipe import Recipe, as_recipe
from zipbrain.seams import compress, is_compressed, restore, trace
from zipbrain.seams.compress import describe as describe_compression
from zipbrain.seams.compress import origin_of
from zipbrain.signal.convention import Convention
from zipbrain.signal.montage import parse_montage
from zipbrain.signal.scaling import scale
from zipbrain.training.loader import scaling_for
from zipbrain.weights import fingerprint


@dataclass(frozen=True)
class Exported:
    """What `export` wrote."""

    path: Path
    description: Description  # as in the file
    bytes: int  # size of the file
    parity: Parity  # how its answers compare with PyTorch's; with ``force``, its `faults` may not be empty


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
    groups: bool = False,
    progress: Progress | None = None,
) -> Exported:
    """Write a model as one .onnx file and compare the file with PyTorch on real windows.

    Parameters
    ----------
    model : LaBraM, EEGPT, BIOT, TFM or CBraMod
        Compressed or not; stays as it is.
    windows : Windows
        What to compare on, in microvolts, with labels.
    path : path
        Ends in ``.onnx``. Written under another name first and renamed when it has proved to be right; an earlier
        export that stood there stays until then, and any other file is refused.
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
        What fixes the ranges of static int8, best of the training split. If not given, 64 of `windows`, half of them at
        most, which then take no part in the comparison.
    force : bool
        Keep a file in half precision or int8 whose decisions or scores are out of bounds.
    checkpoint : str
        Where the model comes from, for the description.
    recipe : Recipe or path, optional
        How to compress the model, in place of how it is compressed now.
    quantiser : {"onnxruntime", "nncf"}
        What makes static int8; NNCF's suits OpenVINO (``zipbrain[openvino]``).
    groups : bool
        Give the file a second output ``source_map``: for every unprotected token of a window, the token it ended in.
    progress : callable, optional
        Called with what is done next, the steps done and all steps.

    Returns
    -------
    exported : Exported

    Raises
    ------
    ExportFailed
        If the file's answers are out of bounds (see `zipbrain.export.parity`); then there is no file.
    """
    path = Path(path)
    checks.check_path(path)
    tell = progress or silent
    task = task_of(model)
    names = tuple(windows.classes if classes is None else classes)
    if task is not None:
        names = task.names(names)
        windows = windows.reorder(task.names(windows.classes))
    checks.check_options(precision, batch, quantiser)
    convention = checks.fit_convention(convention, windows)
    checks.check_model(model, windows, names)
    if precision == "int8-static":
        calibration, windows = checks.split_calibration(calibration, windows)
    network = _prepared(model, recipe)
    shape = windows.n_chans, windows.n_times
    description = Description(
        model=name_of(model),
        classes=names,
        convention=convention,
        corpus=windows.name,
        precision=precision,
        batch=batch,
        recipe=_recipe_of(network),
        token_counts=_token_counts(network, shape),
        weights_sha256=fingerprint(network.state_dict()),
        versions=_versions(opset),
        trained_on=_trained_on(model, checkpoint),
    )
    tell("exporting", 0, 4)
    passes, deciding = export_passes(network, shape, batch=batch, opset=opset, groups=groups)
    tell(f"making {precision}", 1, 4)
    shipped = _in_precision(passes, network, precision, calibration, convention.scaling, quantiser).join()
    description = replace(description, **describe_outputs(shipped, passes))
    try:
        with new_partial(path) as temporary:
            describe(shipped, description)
            _write(temporary, shipped)
            tell("comparing with PyTorch", 2, 4)
            parity = compare(temporary, network, deciding, windows, convention.scaling, precision)
            if parity.faults and (precision == "float32" or not force):
                advice = "" if precision == "float32" else "; --force (force=True) keeps it"
                faults = f"{precision} differs from PyTorch: {'; '.join(parity.faults)}"
                raise ExportFailed(f"{path}: not kept, {faults}{advice}")
            description = describe(shipped, replace(description, parity=parity.to_dict()))
            tell("writing", 3, 4)
            _write(temporary, shipped)
            size = temporary.stat().st_size
            os.replace(temporary, path)
    except OSError as error:
        raise ExportFailed(
            f"{path}: can't be written ({error.strerror or error}); {remedy(error, 'make room')}"
        ) from None
    tell("done", 4, 4)
    return Exported(path, description, size, parity)


def convention_of(model: nn.Module, windows: Windows) -> Convention:
    """A convention for windows that have none: cut from recordings without filters, one after the other.

    Parameters
    ----------
    model : nn.Module
        Whose scaling it takes, unless the windows say another one.
    windows : Windows
        Such as those of `zipbrain.data.Synthetic`.
    """
    name, rate, seconds = name_of(model), windows.sfreq, windows.n_times / windows.sfreq
    montage, scaling = parse_montage(list(windows.ch_names)), scaling_for(model, windows)
    names = name, windows.name, montage, windows.ch_names
    return Convention(*names, None, None, rate, rate, window_s=seconds, hop_s=seconds, scaling=scaling)


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
    options, origin = {**describe_compression(network), "model": name_of(network)}, origin_of(network)
    return (Recipe(**options) if origin is None else replace(origin, **options)).to_dict()


def _token_counts(network: nn.Module, shape: tuple[int, int]) -> tuple[int, ...]:
    counted = network if is_compressed(network) else compress(copy.deepcopy(network), "free_slicing", r=0)
    with torch.inference_mode(), trace(counted) as traced:
        counted(torch.zeros(1, *shape))
    return tuple(traced.token_counts)


def _in_precision(
    passes: Passes, network: nn.Module, precision: str, calibration: Windows | None, scaling: str, quantiser: str
) -> Passes:
    if precision == "float16":
        return passes.convert(to_half)
    if precision == "int8-dynamic":
        return passes.convert(lambda proto: to_int8(proto, network))
    if precision == "int8-static" and calibration is not None:
        chosen = calibration.take(checks.spread(len(calibration), checks.CALIBRATION))
        make = to_int8 if quantiser == "onnxruntime" else to_int8_by_nncf
        x = np.asarray(scale(chosen, scaling), dtype=np.float32)
        tokens = tokens_at_first_reduction(network, torch.from_numpy(x))
        again = () if tokens is None else (x, tokens.numpy())
        return passes.convert(lambda proto: make(proto, network, x), lambda proto: make(proto, network, *again))
    return passes


def _trained_on(model: nn.Module, checkpoint: str) -> dict[str, Any]:
    task = task_of(model)
    facts = {"checkpoint": checkpoint, "data": "" if task is None else task.data}
    return {name: value for name, value in facts.items() if value}


def _versions(opset: int) -> dict[str, str]:
    packages = {name: version(name) for name in ("torch", "onnx", "onnxruntime")}
    return {"zipbrain": __version__, **packages, "opset": str(opset)}


def _write(file: Path, proto: Any) -> None:
    with file.open("wb") as stream:
        stream.write(proto.SerializeToString())
        stream.flush()
        os.fsync(stream.fileno())
