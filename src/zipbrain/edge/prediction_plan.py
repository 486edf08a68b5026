"""`PredictionPlan`: which file answers, in which runtime, with which options; checked before a recording is read."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zipbrain.edge.audit import read_audit
from zipbrain.edge.crew import Crew
from zipbrain.edge.description import ModelFile
from zipbrain.edge.limits import Limits
from zipbrain.edge.model import EdgeModel, check_batch
from zipbrain.edge.predict_one import check_reading
from zipbrain.edge.runtimes import find_runtime
from zipbrain.errors import DataError, ModelFileError, ZipbrainError
from zipbrain.files import stamp_files
from zipbrain.signal.cutting import check_hop
from zipbrain.signal.recording import COMPANIONS, check_units


@dataclass(frozen=True)
class Task:
    """One recording as a worker gets it: the model by its path, not its content."""

    recording: Path
    model: Path
    sha256: str  # of the model's file
    session: dict[str, Any]  # keywords of `EdgeModel`
    options: dict[str, Any]  # keywords of `predict`
    key: dict[str, Any]  # `PredictionPlan.key`
    folder: Path = Path()  # where results go, if they are files of their own
    stem: str = ""  # of their names
    formats: tuple[str, ...] = ()
    overwrite: bool = False


@dataclass(frozen=True)
class PredictionPlan:
    """What a run's answers depend on besides the recordings.

    Attributes
    ----------
    file : ModelFile
    runtime : str
        Its name and where it computes, without a version: after an update, a run goes on.
    session, options : dict
        Keywords of `EdgeModel` and of `predict`.
    """

    file: ModelFile
    runtime: str
    session: dict[str, Any]
    options: dict[str, Any]

    @property
    def key(self) -> dict[str, Any]:
        """What tells results of this plan from others of the same recording; JSON."""
        audit, batch = self.options["audit"], self.options["batch"]
        return {
            "model_sha256": self.file.sha256,
            "runtime": self.runtime,
            **{name: self.options[name] for name in ("hop_s", "units", "check", "channels")},
            **({} if audit is None else {"audit": [audit, self.options["audit_seed"]]}),
            **({} if batch is None else {"batch": batch}),
        }

    def task(self, crew: Crew, recording: Path, folder: Path = Path(), **writing: Any) -> Task:
        """A recording as a worker of the crew gets it; `writing` are the last fields of `Task`."""
        placed = Path.absolute if crew.is_elsewhere else Path  # workers elsewhere have another current folder
        model, session = placed(self.file.path), self.session | crew.session
        about = placed(recording), model, self.file.sha256, session, self.options, self.key
        return Task(*about, placed(folder), **writing)


def plan_prediction(
    model: str | Path, options: dict[str, Any], *, runtime: str, threads: int | None, provider: str, limits: Limits
) -> PredictionPlan:
    """The plan for a model's file and keywords of `predict`; what can't be is refused."""
    kind = find_runtime(runtime, threads, provider)
    check_reading(options["hop_s"], options["channels"])
    check_units(options["units"])
    file = ModelFile.read(model)
    read_audit(options["audit"], options["audit_seed"], file.description, model)
    check_batch(options["batch"], file.description.batch)
    convention = file.description.convention
    hop = check_hop(convention.hop_s if options["hop_s"] is None else options["hop_s"], convention)
    options = options | {"hop_s": hop, "channels": dict(options["channels"] or {})}
    session = {"runtime": runtime, "provider": provider, "limits": limits}
    return PredictionPlan(file, kind.name_on(provider), session, options)


_opened = threading.local()  # a worker opens the model once; OpenVINO's can't be shared by threads


def open_model(task: Task, file: ModelFile | None) -> EdgeModel:
    """The model of a task, opened at the worker's first one; from `file` where its content is at hand."""
    wanted = (task.model, task.sha256, task.session)
    if getattr(_opened, "wanted", None) != wanted:
        model = EdgeModel(file or task.model, **task.session)
        if model.sha256 != task.sha256:
            raise ModelFileError(f"{task.model}: was changed while recordings were predicted; run the same again")
        _opened.model, _opened.wanted = model, wanted
    found: EdgeModel = _opened.model
    return found


def stamp_recording(path: Path) -> list[list[int]]:
    """Size and time of last change of a recording's files."""
    try:
        path.stat()
    except OSError as error:
        raise DataError(f"{path}: can't be read ({error.strerror or error}); give a recording") from None
    stamps = stamp_files(path, *(path.with_suffix(end) for end in COMPANIONS.get(path.suffix.lower(), ())))
    return [stamp for stamp in stamps if stamp is not None]


def describe_failure(recording: Path, error: Exception) -> str:
    """Why a recording could not be predicted, in one line."""
    if isinstance(error, ZipbrainError):
        words = str(error)
    elif isinstance(error, MemoryError):
        words = f"{recording}: not enough memory for it ({error}); close other programs, or take fewer workers"
    else:
        words = f"{recording}: unexpected {type(error).__name__}: {error}; please report it"
    return " ".join(words.split())
