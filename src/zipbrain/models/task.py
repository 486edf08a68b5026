"""`Task`: what a model was trained for, so that its outputs are never read under the names of another task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from torch import nn

from zipbrain.channels import check_channels, measured_at
from zipbrain.errors import OptionError


@dataclass(frozen=True)
class Task:
    """What a classifier was trained for.

    A trained model carries it as the plain attribute `trained_for`; `zipbrain.save_pretrained` stores it.
    """

    # Names of the classes in the order of the outputs. ``"0", "1", ...`` are places and no names: then only their
    # number counts.
    classes: tuple[str, ...]
    data: str = ""  # the corpus, as its windows call it; empty if not known
    ch_names: tuple[str, ...] = ()  # channels in the order of a window; empty if not known
    sfreq: float | None = None  # in Hz
    scaling: str | None = None  # what the model reads: see `zipbrain.data.scale`
    filters: str | None = None  # band and notch of its windows, in words

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Task:
        """Read what `to_dict` wrote, and not what later versions may add; TypeError or ValueError for anything else."""
        if not isinstance(stored, Mapping):
            raise TypeError("it is no table of names and values")
        texts = {key: stored.get(key, ()) for key in ("classes", "ch_names")}
        for key, value in texts.items():
            if not isinstance(value, list | tuple) or not all(isinstance(name, str) for name in value):
                raise TypeError(f"{key} is no list of names")
        if not texts["classes"]:
            raise ValueError("it names no classes")
        rate = stored.get("sfreq")
        known = tuple(texts["classes"]), str(stored.get("data", "")), tuple(texts["ch_names"])
        scaling, filters = (None if (text := stored.get(key)) is None else str(text) for key in ("scaling", "filters"))
        return cls(*known, None if rate is None else float(rate), scaling, filters)

    def names(self, classes: Sequence[str]) -> tuple[str, ...]:
        """Names of the classes of some data in the order of the outputs, the model's own where the data have places."""
        if not _named(classes):
            return self.classes if len(classes) == len(self.classes) else tuple(classes)
        spelt = {name.casefold(): name for name in classes}
        own = [name.casefold() for name in self.classes]
        is_same = len(spelt) == len(classes) and sorted(spelt) == sorted(own)
        return tuple(spelt[name] for name in own) if is_same else tuple(classes)

    def check(
        self, classes: Sequence[str], ch_names: Sequence[str] = (), sfreq: float | None = None, *, option: str = "data"
    ) -> None:
        """Refuse data of another task; errors name the `option` that the data came with.

        The same classes in another order are the same task: `names` has them in the order of the outputs. Channels and
        rate that are not known here or there are not compared. Old and new names of one electrode (T3 and T7) are the
        same.
        """
        whose = f"the model was trained{f' on {self.data}' if self.data else ''}"
        named = _named(classes) and _named(self.classes)
        same = sorted(name.casefold() for name in classes) == sorted(name.casefold() for name in self.classes)
        if len(classes) != len(self.classes) or (named and not same):
            what = f"{whose} for {', '.join(self.classes)}"
            if len(classes) == len(self.classes):
                what += "; if these are the same under other names, rename them in the data"
            raise OptionError(option, f"classes {', '.join(classes)}", what)
        if ch_names and self.ch_names:
            check_channels(option, ch_names, self.ch_names, f"{whose} with")
        if sfreq is not None and self.sfreq is not None and sfreq != self.sfreq:
            raise OptionError(option, f"{sfreq:g} Hz", f"{whose} at {self.sfreq:g} Hz")


def remember(model: nn.Module, task: Task) -> None:
    """Let a model carry what it was trained for: a plain attribute, no part of the network."""
    model.trained_for = task  # type: ignore[assignment]


def task_of(model: nn.Module) -> Task | None:
    """What a model says it was trained for, or None."""
    found = getattr(model, "trained_for", None)
    return found if isinstance(found, Task) else None


def _named(classes: Sequence[str]) -> bool:
    """Whether these are names, and not the numbers that stand for missing ones."""
    return list(classes) != [str(place) for place in range(len(classes))]


def check_places(model: nn.Module, ch_names: Sequence[str], *, option: str = "data") -> None:
    """Refuse channels that are not those a model was made for, as far as its config tells and no task does.

    EEGPT's projections read any channels: there only their number counts.
    """
    task, config = task_of(model), getattr(model, "config", None)
    if (task is not None and task.ch_names) or not isinstance(config, dict):
        return
    own = config.get("ch_names")
    if own and not config.get("front_end") and not config.get("places"):
        check_channels(option, [measured_at(name) for name in ch_names], own, "the model was made for")
