"""Reading official checkpoints: never runs code from a file, and reports what became of every tensor."""

from __future__ import annotations

import argparse
import logging
import pickle
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from zipbrain.errors import OptionError
from zipbrain.models import official
from zipbrain.models.biot import BIOT
from zipbrain.models.cbramod import CBraMod
from zipbrain.models.eegpt import EEGPT
from zipbrain.models.labram import LaBraM, resize_time
from zipbrain.models.tfm import TFM, TFMEncoder, TFMTokenizer

log = logging.getLogger("zipbrain")

_UNKNOWN = "the model has no such tensor"
_WRAPPERS = ("state_dict", "model", "module", "model_state_dict")
_MAPS: dict[type[nn.Module], Callable[[dict[str, Tensor]], dict[str, Tensor]]] = {
    LaBraM: official.labram,
    BIOT: official.biot,
    EEGPT: official.eegpt,
    TFMEncoder: official.tfm_encoder,
    TFMTokenizer: official.tfm_tokenizer,
    CBraMod: official.cbramod,
}


@dataclass(frozen=True)
class LoadReport:
    """What became of every tensor of a checkpoint and of the model."""

    loaded: list[str] = field(default_factory=list)  # tensors of the model that were filled as they are
    resized: dict[str, str] = field(default_factory=dict)  # filled after a change of shape, with what was done
    # Tensors of the checkpoint that were not used, with the reason; under our name where they have one.
    skipped: dict[str, str] = field(default_factory=dict)
    initial: list[str] = field(default_factory=list)  # tensors of the model that keep their initial value

    def __str__(self) -> str:
        lines = [f"{len(self.loaded)} tensors loaded"]
        lines += [f"resized {name}: {what}" for name, what in self.resized.items()]
        lines += [f"skipped {what}: {why}" for what, why in _by_part(self.skipped, 1)]
        lines += [f"left at its initial value: {what}" for what, _ in _by_part(dict.fromkeys(self.initial, ""), 3)]
        return "\n".join(lines)

    @classmethod
    def join(cls, reports: Sequence[LoadReport]) -> LoadReport:
        """What became of the model's tensors when several checkpoints were loaded one after the other."""
        found = cls()
        for report in reports:
            found.loaded.extend(name for name in report.loaded if name not in found.loaded)
            found.resized.update(report.resized)
            found.skipped.update(report.skipped)
        untouched = [set(report.initial) for report in reports]
        found.initial.extend(name for name in reports[0].initial if all(name in names for names in untouched))
        return found

    def under(self, prefix: str) -> LoadReport:
        """The same report of a part of a model, under the whole model's names."""
        resized = {prefix + name: what for name, what in self.resized.items()}
        skipped = {name if why == _UNKNOWN else prefix + name: why for name, why in self.skipped.items()}
        return LoadReport([prefix + n for n in self.loaded], resized, skipped, [prefix + n for n in self.initial])


def _by_part(names: Mapping[str, str], most: int) -> Iterator[tuple[str, str]]:
    """Names with their reasons; more than `most` of one part of the model that share a reason are counted."""
    parts: dict[tuple[str, str], list[str]] = {}
    for name, why in names.items():
        parts.setdefault((name.split(".")[0], why), []).append(name)
    for (part, why), inside in parts.items():
        if len(inside) > most:
            yield f"{len(inside)} tensors of {part}", why
        else:
            yield from ((name, why) for name in inside)


def read_checkpoint(path: str | Path) -> dict[str, Tensor]:
    """Read the tensors of a ``.pth``/``.pt``/``.ckpt`` or ``.safetensors`` file, on the CPU.

    Pickles are read with ``weights_only=True``, always; of foreign classes only `argparse.Namespace` is allowed, which
    LaBraM's files carry and which holds no code.
    """
    path = Path(path)
    if not path.is_file():
        raise OptionError("checkpoint", str(path), "there is no such file")
    try:
        content = _read(path)
    except ImportError:  # safetensors is not installed
        raise
    except Exception as error:  # a damaged pickle can raise anything
        foreign = re.search(r"GLOBAL ([\w.]+)", str(error))
        if foreign:
            raise OptionError(
                "checkpoint", path.name, f"it asks for {foreign[1]}, which is no tensor (or it is damaged): not loaded"
            ) from None
        # torch's own words about a pickle advise to load it unsafely
        said = "" if isinstance(error, pickle.UnpicklingError) else (str(error).splitlines() or [""])[0]
        reason = f"it can't be read (cut off, or no checkpoint?): {said or type(error).__name__}"
        raise OptionError("checkpoint", path.name, reason) from None
    return unwrap(content)


def _read(path: Path) -> Any:
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        return load_file(path)
    with torch.serialization.safe_globals([argparse.Namespace]):
        return torch.load(path, map_location="cpu", weights_only=True)


def unwrap(content: Any) -> dict[str, Tensor]:
    """Find the state dict inside what a training script saved, and take off Lightning's ``model.`` prefix."""
    for name in _WRAPPERS:
        if isinstance(content, Mapping) and isinstance(content.get(name), Mapping):
            content = content[name]
    if not isinstance(content, Mapping):
        raise OptionError("checkpoint", type(content).__name__, "a mapping of names to tensors is needed")
    state = {str(name): value for name, value in content.items() if isinstance(value, Tensor)}
    if state and all(name.startswith("model.") for name in state):
        state = {name.removeprefix("model."): value for name, value in state.items()}
    return state


def load_official(model: nn.Module, source: str | Path | Mapping[str, Tensor]) -> LoadReport:
    """Fill a model from a checkpoint of its official repository.

    Parameters
    ----------
    model : LaBraM, BIOT, EEGPT, TFM, TFMEncoder or TFMTokenizer
        The model; other numbers of channels, classes and seconds than the checkpoint's are fine. TFM-Tokenizer has a
        file for its tokenizer and one for its encoder: each fills its part.
    source : path or mapping
        A file, or a state dict under official names.

    Returns
    -------
    report : LoadReport
        Also written to the log.

    Raises
    ------
    OptionError
        The file can't be read, holds more than tensors, belongs to another model or another size of it, or a tensor
        that the model needs holds NaN or infinite values (a training run that diverged; it can't be used). Nothing is
        changed then.
    """
    given = unwrap(source) if isinstance(source, Mapping) else read_checkpoint(source)
    if isinstance(model, TFM):
        part = "tokenizer" if any(name.startswith("quantizer.") for name in given) else "encoder"
        report = load_official(model.get_submodule(part), given).under(f"{part}.")
        report.initial.extend(name for name in model.state_dict() if not name.startswith(f"{part}."))
        return report
    rename = next((_MAPS[kind] for kind in type(model).__mro__ if kind in _MAPS), None)
    if rename is None:
        raise OptionError("model", type(model).__name__, f"known are {', '.join(kind.__name__ for kind in _MAPS)}")
    first = ", ".join(list(given)[:3]) or "nothing"
    own, left = model.state_dict(), dict(given)
    try:
        found = rename(left)
    except (RuntimeError, IndexError):  # joining or flattening tensors of impossible shapes
        raise OptionError("checkpoint", first, f"its shapes are not those of {type(model).__name__}") from None
    for name in found.keys() & own.keys():
        check_weight("checkpoint", name, found[name], own[name])
    ready, report = fit_state(found, own, left)
    if not any(name in ready for name in own if not name.startswith("head.")):
        raise OptionError("checkpoint", first, f"no tensor of it belongs to {type(model).__name__}")
    model.load_state_dict(ready, strict=False)
    log.info("%s from checkpoint: %s", type(model).__name__, report)
    return report


def fit_state(
    found: Mapping[str, Tensor], own: Mapping[str, Tensor], unused: Iterable[str] = ()
) -> tuple[dict[str, Tensor], LoadReport]:
    """Tensors of a checkpoint in the shapes of a model's own, and what became of each; `unused` belong to no model."""
    ready: dict[str, Tensor] = {}
    report = LoadReport(skipped=dict.fromkeys(unused, _UNKNOWN))
    for name, value in found.items():
        fitted, what = _fit(name, value, own[name]) if name in own else (None, _UNKNOWN)
        if fitted is None:
            report.skipped[name] = what
            continue
        ready[name] = fitted
        if what:
            report.resized[name] = what
        else:
            report.loaded.append(name)
    report.initial.extend(name for name in own if name not in ready)
    return ready, report


def check_weight(option: str, name: str, value: Tensor, own: Tensor) -> None:
    """Refuse a tensor that can't be the model's `own` weight of this name; errors name the `option` it came with."""
    if value.layout != torch.strided or value.is_meta or value.is_quantized or value.dtype.is_complex:
        raise OptionError(option, name, "it is sparse, quantised, complex or without values: save plain tensors")
    if own.is_floating_point() and not value.is_floating_point():
        raise OptionError(option, f"{name} {value.dtype}", f"the model needs {own.dtype}")
    if not bool(torch.isfinite(value).all()):
        raise OptionError(option, name, "it holds NaN or infinite values")


def _fit(name: str, value: Tensor, own: Tensor) -> tuple[Tensor | None, str]:
    """The tensor in the model's shape with what was done, or None with the reason."""
    if value.shape == own.shape:
        return value, ""
    shapes = f"{tuple(value.shape)} to {tuple(own.shape)}"
    if name == "time_embed" and value.dim() == 3 and value.shape[2] == own.shape[2]:
        return resize_time(value, own.shape[1]), f"{shapes}, linear interpolation over time"
    table = name in ("channel_tokens.weight", "channel_embed.weight") and value.dim() == 2
    if table and value.shape[1] == own.shape[1]:
        rows = min(value.shape[0], own.shape[0])
        return torch.cat((value[:rows], own[rows:])), f"{shapes}, first {rows} channels"
    if name.startswith("head."):
        return None, f"another number of classes or inputs ({shapes})"
    if name.startswith("front_end.mix."):
        return None, f"another number of channels ({shapes})"
    raise OptionError(
        "checkpoint", f"{name} {tuple(value.shape)}", f"the model needs {tuple(own.shape)}: is it of another size?"
    )
