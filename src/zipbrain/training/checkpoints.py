"""A run on disk: one checkpoint per epoch, whole or not at all, its record and its log."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import secrets
import shutil
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn

from zipbrain.errors import OptionError, ZipbrainError
from zipbrain.files import json_ready, read_json, remedy, write_whole
from zipbrain.models import Task
from zipbrain.pretrained import CONFIG

RUN, LOG, MODEL, CHECKPOINTS = "run.json", "log.csv", "model", "checkpoints"
WEIGHTS: Final = "weights.safetensors"
_BEST: Final = "best.safetensors"
_STATE: Final = "state.pt"
_HASHES: Final = "sha256.json"  # of the other files

State = dict[str, Tensor]


class TrainingFailed(ZipbrainError, RuntimeError):
    """A run that can't go on; its last checkpoint is untouched."""


def weights_of(module: nn.Module) -> State:
    """A copy of all parameters and buffers, on the CPU."""
    return {name: value.detach().to("cpu", copy=True).contiguous() for name, value in module.state_dict().items()}


def keep_weights(module: nn.Module, kept: State | None = None) -> State:
    """A copy of all parameters and buffers where they are, without waiting for the device; overwrites `kept`."""
    weights = {name: value.detach() for name, value in module.state_dict().items()}
    if kept is None:
        return {name: value.clone(memory_format=torch.contiguous_format) for name, value in weights.items()}
    torch._foreach_copy_([kept[name] for name in weights], list(weights.values()))
    return kept


@contextmanager
def writing(folder: Path, advice: str = "make room there and run again with --resume") -> Iterator[None]:
    """Turn a full disk or a folder that can't be written into one line that names the folder and what to do."""
    try:
        yield
    except OSError as error:
        why, what = error.strerror or error, remedy(error, advice)
        raise TrainingFailed(f"{folder}: can't be written ({why}); {what}") from None


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write JSON whole or not at all."""
    write_whole(path, (json.dumps(json_ready(content), indent=1) + "\n").encode())


def run_scaling(path: str | Path) -> str | None:
    """The scaling a model was trained with, given the folder of its run or its own; None where neither says it."""
    task = run_task(path)
    if task is not None and task.scaling is not None:
        return task.scaling
    for home in _homes(path):
        with suppress(OSError, ValueError, KeyError, TypeError):
            return str(json.loads((home / RUN).read_text(encoding="utf-8"))["scaling"])
    return None


def run_task(path: str | Path) -> Task | None:
    """What a model was trained for, given the folder of its run or its own; None where neither says it."""
    folder = Path(path).resolve()
    for home in (folder, folder / MODEL):
        with suppress(OSError, ValueError, KeyError, TypeError):
            return Task.from_dict(json.loads((home / CONFIG).read_text(encoding="utf-8"))["task"])
    for home in _homes(path):
        with suppress(OSError, ValueError, KeyError, TypeError):
            record = json.loads((home / RUN).read_text(encoding="utf-8"))
            trained = record["train"]
            return Task.from_dict({**trained, "data": trained.get("name", ""), "scaling": record["scaling"]})
    return None


def note_unfinished(path: str | Path) -> list[str]:
    """A line on a run that has not come to its end, given its folder or that of its model; none for any other."""
    for home in _homes(path):
        with suppress(OSError, ValueError, KeyError, TypeError):
            record = read_json(home / RUN)
            last = last_checkpoint(home)
            if record["finished"] or last is None:
                return []
            done = f"epoch {int(last.name.removeprefix('epoch-'))} of {record['recipe']['epochs']}"
            return [f"the run in {home} is unfinished ({done}): its best epoch so far is taken"]
    return []


def _homes(path: str | Path) -> tuple[Path, ...]:
    """Where the record of a run may lie, given its folder or that of its model."""
    folder = Path(path).resolve()
    return (folder, folder.parent) if folder.name == MODEL else (folder,)


def write_log(path: Path, history: list[dict[str, Any]]) -> None:
    """Write one line per epoch as CSV, whole or not at all."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(history[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(history)
    write_whole(path, text.getvalue().encode())


def save_checkpoint(folder: Path, epoch: int, weights: State, best: State | None, state: dict[str, Any]) -> None:
    """Write the checkpoint of an epoch (0 before the first); once it is on the disk, remove the older ones.

    `best` are the weights of the best epoch where that is another, `state` all else that `load_checkpoint` gives back.
    """
    from safetensors.torch import save

    # As bytes first: what goes wrong on the disk is then an OSError, whichever library made them.
    rest = io.BytesIO()
    torch.save(state, rest)
    files = {WEIGHTS: save(_on_cpu(weights)), _STATE: rest.getvalue()}
    if best is not None:
        files[_BEST] = save(_on_cpu(best))
    hashes = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    files[_HASHES] = (json.dumps(hashes, indent=1) + "\n").encode()
    home = folder / CHECKPOINTS
    final, temporary = home / f"epoch-{epoch:05d}", home / f".writing-{secrets.token_hex(4)}"
    with writing(folder):
        try:
            temporary.mkdir(parents=True)
            for name, content in files.items():
                write_whole(temporary / name, content)
            if final.exists():  # this epoch was trained again after a resume
                shutil.rmtree(final)
            os.replace(temporary, final)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        for changed in (final, home):
            _sync(changed)
        remove_older(folder)


def remove_older(folder: Path) -> None:
    """Remove every checkpoint of a run but the newest, and what a killed process left half written or half removed."""
    newest = last_checkpoint(folder)
    for other in (folder / CHECKPOINTS).iterdir():
        if other != newest:
            shutil.rmtree(other, ignore_errors=True)


def _on_cpu(weights: State) -> State:
    return {name: value.cpu() for name, value in weights.items()}


def _sync(folder: Path) -> None:
    """Put the names in a folder on the disk, where the system lets a folder be opened."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def last_checkpoint(folder: Path) -> Path | None:
    """The newest whole checkpoint of a run, or None."""
    return max((folder / CHECKPOINTS).glob("epoch-*"), default=None)


def load_checkpoint(folder: Path) -> tuple[State, State | None, dict[str, Any]]:
    """Read the newest checkpoint of a run: weights, best weights where they are others, and state; runs no code.

    Every file must be what was written: by its hash, or, in a checkpoint of a zipbrain that wrote none, by the check
    sums within ``state.pt``.
    """
    from safetensors.torch import load

    path = last_checkpoint(folder)
    if path is None:
        raise OptionError("out", str(folder), "it holds no run to resume")
    try:
        files = _read_files(path)
        weights, best = load(files[WEIGHTS]), load(files[_BEST]) if _BEST in files else None
        state = torch.load(io.BytesIO(files[_STATE]), map_location="cpu", weights_only=True)
        if not isinstance(state, dict):
            raise ValueError(f"{_STATE} holds no state of a run")
    except Exception as error:  # a damaged pickle can raise anything
        reason = (str(error).splitlines() or [""])[0] or type(error).__name__
        advice = "start the run again in a new folder"
        raise OptionError("out", str(path), f"this checkpoint can't be read: {reason}; {advice}") from None
    return weights, best, state


def _read_files(path: Path) -> dict[str, bytes]:
    """The files of a checkpoint, each as it was written."""
    names = [name for name in (WEIGHTS, _BEST, _STATE) if name != _BEST or (path / name).exists()]
    files = {name: (path / name).read_bytes() for name in names}
    if not (path / _HASHES).exists():
        with zipfile.ZipFile(io.BytesIO(files[_STATE])) as archive:
            damaged = [_STATE] if archive.testzip() else []
    else:
        hashes = read_json(path / _HASHES)
        damaged = [name for name in names if hashes[name] != hashlib.sha256(files[name]).hexdigest()]
        damaged += [name for name in hashes if name not in files]
    if damaged:
        raise ValueError(f"{damaged[0]} is not what was written (its hash differs)")
    return files
