"""What a worker needs to score recipes: where model and windows are, and a trial that it opens once and keeps."""

from __future__ import annotations

import pickle
import threading
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

from zipbrain.data.windows import Windows, open_prepared
from zipbrain.errors import OptionError, ZipbrainError
from zipbrain.evaluation.result import Result
from zipbrain.evaluation.trial import Trial
from zipbrain.models import Build, own_name
from zipbrain.pretrained import CONFIG, from_pretrained
from zipbrain.recipe import Recipe
from zipbrain.training.checkpoints import run_scaling
from zipbrain.training.window_sources import SYNTHETIC, WindowSource


@dataclass(frozen=True, eq=False)
class Case:
    """A model and one split, from folders or as objects, with the options of `Trial`.

    The model is one or a folder, the data are Windows, splits by name, or what `WindowSource` takes; `limit` holds for
    the last of these. Without a scaling it is that of the run that trained the model, if it comes from one.
    """

    model: Any
    data: Any
    split: str
    limit: int | None = None
    device: str = "auto"
    batch_size: int = 128
    scaling: str | None = None
    prefix_budget: int | None = None
    name: str = ""

    def open(self) -> Trial:
        """Load the model and the split."""
        model = self.open_model()
        scaling = self.scaling
        if scaling is None and not isinstance(self.model, nn.Module | Build):
            scaling = run_scaling(self.model)
        kept = {name: getattr(self, name) for name in ("device", "batch_size", "prefix_budget", "split")}
        return Trial(model, self.open_windows(model), scaling=scaling, checkpoint=self.name, **kept)

    def open_model(self) -> nn.Module:
        """The model itself."""
        if isinstance(self.model, nn.Module):
            return self.model
        if isinstance(self.model, Build):
            return self.model.open()
        folder = Path(self.model)
        inner = folder / "model"  # the folder of a run
        return from_pretrained(inner if not (folder / CONFIG).exists() and (inner / CONFIG).exists() else self.model)

    def open_windows(self, model: nn.Module) -> Windows:
        """The windows of the split."""
        if isinstance(self.data, Windows):
            return self.data
        if isinstance(self.data, dict):
            if self.split not in self.data:
                raise OptionError("data", sorted(self.data), f"it needs a split {self.split!r}")
            windows: Windows = self.data[self.split]
            return windows
        return WindowSource(self.data, own_name(model), self.limit).split(self.split)

    def has(self, split: str) -> bool:
        """True if there is such a split."""
        if isinstance(self.data, Windows):
            return split == self.split
        if isinstance(self.data, dict):
            return split in self.data
        return str(self.data) in SYNTHETIC or not Path(self.data).is_dir() or split in open_prepared(self.data).splits

    @property
    def by_name(self) -> bool:
        """True if another process can open it from its folders."""
        return not isinstance(self.model, nn.Module) and not isinstance(self.data, Windows | dict)

    def anywhere(self) -> Case:
        """The same case with folders that do not depend on where a process was started."""
        if not self.by_name:
            return self
        if isinstance(self.model, Build):
            model: Any = self.model.anywhere()
        else:
            model = str(Path(self.model).resolve()) if Path(self.model).is_dir() else self.model
        data = str(self.data) if str(self.data) in SYNTHETIC else str(Path(self.data).resolve())
        return replace(self, model=model, data=data)


@dataclass(frozen=True, eq=False)
class Work:
    """Recipes for one call of a worker."""

    case: Case | bytes  # pickled, it is unpacked only by a worker that has not opened it yet
    token: str  # `Trial.key` of the uncompressed model: weights and data that every worker must have
    recipes: tuple[Recipe, ...]
    labels: dict[str, Any]  # fields of every result that are not measured


class _Opened(threading.local):
    """The trial that this thread opened last: compressing changes a model, so threads can't share one."""

    token: str | None = None
    trial: Trial | None = None


_opened = _Opened()


def keep(token: str, trial: Trial | None) -> None:
    """Let this thread's `score` use a trial that is open already."""
    _opened.token, _opened.trial = token, trial


def score(work: Work) -> list[Result]:
    """The results of recipes, without their logits, scored in a worker."""
    trial = _opened.trial
    if trial is None or _opened.token != work.token:
        keep("", None)  # the old trial's memory is free before the new one is opened
        case = pickle.loads(work.case) if isinstance(work.case, bytes) else work.case
        trial = case.open()
        if trial.key(None) != work.token:
            raise ZipbrainError(
                "a worker found other weights or data than the search began with: all machines need the same folders, "
                "and nothing may change them during the search"
            )
        keep(work.token, trial)
    # One recipe that gives no numbers must not end the search: it has no score and ranks last.
    return [replace(trial.run(recipe, broken="nan"), logits=None, **work.labels) for recipe in work.recipes]
