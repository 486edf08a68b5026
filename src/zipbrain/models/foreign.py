"""`Build`: a foreign model, made by a function that a file or a package holds, with its weights."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from zipbrain.edge.convention_file import ConventionFile, read_convention
from zipbrain.errors import OptionError, ZipbrainError
from zipbrain.models.checkpoint import check_weight, read_checkpoint
from zipbrain.models.task import Task, remember

_WRAP = "wrap it in an nn.Module whose forward(self, x) fills in the others"


@dataclass(frozen=True)
class Build(os.PathLike[str]):
    """Where a model comes from.

    Attributes
    ----------
    function : str
        ``"path/to/file.py:build"`` or ``"package.module:build"``: called without arguments, it returns the model.
    weights : path, optional
        Its state dict, ``.safetensors`` or what `torch.save` wrote; those that `build` made if not given.
    convention : path, optional
        See `zipbrain.edge.convention_file`: classes, channels, rate and scaling become what it was trained for.
    """

    function: str
    weights: Path | None = None
    convention: Path | None = None

    def __fspath__(self) -> str:
        return self.function

    def __str__(self) -> str:
        return self.function

    def anywhere(self) -> Build:
        """The same with paths that do not depend on where a process was started."""
        where, _, name = self.function.rpartition(":")
        found = f"{Path(where).resolve()}:{name}" if where.endswith(".py") else self.function
        weights, convention = (
            None if path is None else Path(path).resolve() for path in (self.weights, self.convention)
        )
        return Build(found, weights, convention)

    def read_convention(self) -> ConventionFile | None:
        """What the convention says, if there is one."""
        return None if self.convention is None else read_convention(self.convention)

    def open(self) -> nn.Module:
        """The model with its weights, in evaluation mode; whatever is wrong with it is one line."""
        said = self.read_convention()
        build = self._find()
        try:
            model = build()
        except ZipbrainError:
            raise
        except Exception as error:  # it may raise anything
            raise OptionError("model", self.function, f"it raised {_words(error)}") from None
        if not isinstance(model, nn.Module):
            raise OptionError("model", self.function, f"it returned {type(model).__name__} and no nn.Module")
        self._check_forward(model)
        if self.weights is not None:
            self._fill(model)
        if said is not None:
            made = said.convention
            names = said.classes, made.corpus, made.ch_names
            remember(model, Task(*names, float(made.sfreq), made.scaling, made.filters))
        return model.eval()

    def _find(self) -> Any:
        where, _, name = self.function.rpartition(":")
        if not where or not name.isidentifier():
            raise OptionError("model", self.function, "it must be file.py:build or package.module:build")
        try:
            module = _import_file(Path(where)) if where.endswith(".py") else _import_from(os.getcwd(), where)
        except ZipbrainError:
            raise
        except Exception as error:  # a module may raise anything
            raise OptionError("model", self.function, f"{where} can't be imported: {_words(error)}") from None
        build = getattr(module, name, None)
        if not callable(build):
            known = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
            raise OptionError("model", self.function, f"{where} has no function {name}; it has {', '.join(known[:10])}")
        return build

    def _check_forward(self, model: nn.Module) -> None:
        """Refuse a forward that can't be called with one tensor."""
        signature = inspect.signature(model.forward)
        try:
            signature.bind(None)
        except TypeError:
            takes = (
                ", ".join(one.name for one in signature.parameters.values() if one.default is one.empty) or "nothing"
            )
            words = f"its forward takes {takes}, where one tensor (n, channels, samples) is given: {_WRAP}"
            raise OptionError("model", self.function, words) from None

    def _fill(self, model: nn.Module) -> None:
        """Load every weight; a missing, superfluous or misshapen one is refused."""
        found, own = read_checkpoint(str(self.weights)), model.state_dict()
        name = Path(str(self.weights)).name
        lacking, more = sorted({*own} - {*found}), sorted({*found} - {*own})
        if lacking or more:
            one, whose = (lacking[0], "it lacks") if lacking else (more[0], "the model does not have")
            count = f"{len(lacking)} of {len(own)} tensors are missing and {len(more)} are not the model's"
            raise OptionError("checkpoint", name, f"it does not fit the model: {count}; {whose} {one}")
        for key, value in found.items():
            if value.shape != own[key].shape:
                shapes = f"{key} is {tuple(value.shape)} and the model needs {tuple(own[key].shape)}"
                raise OptionError("checkpoint", name, f"{shapes}: is it of another width?")
            check_weight("checkpoint", key, value, own[key])
        model.load_state_dict(found)


def check_answer(model: nn.Module, channels: int, samples: int, classes: int) -> int:
    """How many logits a model has for windows of this shape; it must be (n, classes), or (n, 1) for two classes."""
    whose, shape = type(model).__name__, f"(1, {channels}, {samples})"
    like = next(model.parameters(), torch.zeros(()))
    try:
        with torch.inference_mode():
            logits = model(torch.zeros(1, channels, samples, dtype=like.dtype, device=like.device))
    except ZipbrainError:
        raise
    except Exception as error:  # it may raise anything
        raise OptionError("model", whose, f"it fails on a window {shape}: {_words(error)}") from None
    fits = isinstance(logits, torch.Tensor) and tuple(logits.shape) in ((1, classes), (1, max(1, classes - 1)))
    if not fits or (logits.shape[1] == 1 and classes != 2):
        found = f"a tensor {tuple(logits.shape)}" if isinstance(logits, torch.Tensor) else type(logits).__name__
        wanted = f"logits (1, {classes})" + (" or (1, 1)" if classes == 2 else "")
        raise OptionError("model", whose, f"it answers {found} to a window {shape}, and {wanted} are needed")
    return int(logits.shape[1])


def _import_file(path: Path) -> Any:
    """The module in a file, under its stem, so that other processes can import its classes too."""
    if not path.is_file():
        raise OptionError("model", str(path), "there is no such file")
    module = _import_from(str(path.resolve().parent), path.stem)
    if Path(str(getattr(module, "__file__", ""))).resolve() != path.resolve():
        raise OptionError("model", str(path), f"another module is called {path.stem}: give the file another name")
    return module


def _import_from(folder: str, module: str) -> Any:
    if folder not in sys.path:
        sys.path.append(folder)  # at the end: its other files must not hide what is installed
    return importlib.import_module(module)


def _words(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]}" if text else type(error).__name__
