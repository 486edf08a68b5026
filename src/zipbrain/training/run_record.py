"""The record of a run (``run.json``): what was trained on what, and whether a folder holds a run to go on with."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from zipbrain import __version__
from zipbrain.data.windows import Windows
from zipbrain.errors import OptionError
from zipbrain.files import json_ready, read_json, remove_leftovers
from zipbrain.training import checkpoints
from zipbrain.training.settings import TrainingSettings

_SETTINGS: Final = "recipe"  # what the file calls the settings
_KEPT: Final = (_SETTINGS, "train", "validation", "scaling")  # what a resumed run may not change
_SAMPLED: Final = 32  # windows that a split's fingerprint reads


def describe_windows(windows: Windows) -> dict[str, Any]:
    """What a record says of a split. The fingerprint reads all labels and subjects, and 32 windows spread over it."""
    digest = hashlib.sha256()
    digest.update(windows.labels.tobytes())
    digest.update("\n".join(windows.subjects.tolist()).encode())
    if len(windows):
        digest.update(windows.take(np.unique(np.linspace(0, len(windows) - 1, _SAMPLED).astype(np.int64))).tobytes())
    counts = np.bincount(windows.labels, minlength=len(windows.classes)).tolist()
    people = len(np.unique(windows.subjects))
    about = {"name": windows.name, "windows": len(windows), "subjects": people, "classes": list(windows.classes)}
    shape = {"ch_names": list(windows.ch_names), "sfreq": windows.sfreq, "n_times": windows.n_times}
    return {**about, "counts": counts, **shape, "fingerprint": digest.hexdigest()}


def new_record(
    settings: TrainingSettings,
    windows: Windows,
    validation: Windows | None,
    init: Sequence[str | Path],
    device: torch.device,
    scaling: str,
) -> dict[str, Any]:
    """What is known of a run before it begins."""
    gpu = device.type == "cuda"
    versions = {"zipbrain": __version__, "torch": str(torch.__version__), "numpy": np.__version__}
    versions["python"] = platform.python_version()
    how = {"finished": False, _SETTINGS: settings.to_dict(), "settings": settings.origin, "seed": settings.seed}
    how |= {"init": [str(source) for source in init], "scaling": scaling, "train": describe_windows(windows)}
    how["validation"] = None if validation is None else describe_windows(validation)
    how["device"] = torch.cuda.get_device_name(device) if gpu else platform.processor() or platform.machine()
    how["precision"] = settings.amp if gpu and settings.amp != "no" else "fp32"
    return json_ready(how | {"threads": torch.get_num_threads(), "versions": versions})


def can_go_on(folder: Path | None, resume: bool, record: dict[str, Any]) -> bool:
    """True if there is a checkpoint to go on from; refuses to overwrite a run, or to go on with another one."""
    if folder is None:
        if resume:
            raise OptionError("resume", True, "it needs the folder of the run")
        return False
    path = folder / checkpoints.RUN
    if folder.exists() and not folder.is_dir():
        raise OptionError("out", str(folder), "it is a file: name a new folder")
    if not path.exists():
        if resume:
            raise OptionError("out", str(folder), "it holds no run to resume: start one without --resume")
        remove_leftovers(folder)
        if folder.exists() and any(folder.iterdir()):
            raise OptionError("out", str(folder), "it is not empty and holds no run: name a new folder")
        return False
    if not resume and _has_begun(folder):
        raise OptionError("out", str(folder), "it holds a run already: resume it, or name a new folder")
    if not resume:
        return False
    try:
        old = json.loads(path.read_text())
        before = {key: old[key] for key in _KEPT}
    except (OSError, ValueError, KeyError) as error:
        raise OptionError("out", str(folder), f"its {checkpoints.RUN} can't be used: {error!r}") from None
    for key, value in before.items():
        now = record[key]
        if key == _SETTINGS:  # how the settings came about does not matter
            key, value, now = "settings", value | {"changed": []}, now | {"changed": []}
        if value != now:
            raise OptionError("resume", _difference(key, value, now), "a resumed run keeps what it began with")
    if checkpoints.last_checkpoint(folder) is None:  # stopped before the first checkpoint
        return False
    record |= {key: old[key] for key in ("init", "init_report") if key in old}
    return True


def _has_begun(folder: Path) -> bool:
    """False if a folder holds nothing but the record of a run that ended before its first checkpoint."""
    if any(path.name not in (checkpoints.RUN, checkpoints.CHECKPOINTS) for path in folder.iterdir()):
        return True
    try:
        is_finished = bool(read_json(folder / checkpoints.RUN)["finished"])
    except (OSError, ValueError, KeyError, TypeError):
        return True
    return is_finished or checkpoints.last_checkpoint(folder) is not None


def _difference(key: str, before: Any, now: Any) -> str:
    if not isinstance(before, dict) or not isinstance(now, dict):
        return f"another {key}"
    names = [name for name in before if before[name] != now.get(name)]
    return f"another {key}: {', '.join(f'{name} {now.get(name)!r} instead of {before[name]!r}' for name in names[:3])}"
