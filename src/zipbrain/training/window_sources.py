"""Windows by one name: those of a prepared folder, or of the synthetic corpus."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np

from zipbrain.data.synthetic import Synthetic
from zipbrain.data.windows import Prepared, Windows, open_prepared
from zipbrain.errors import OptionError
from zipbrain.paper import NETWORKS, canonical_name

SYNTHETIC: Final = ("synthetic-events", "synthetic-sleep")

_NEW_PEOPLE: Final = 23  # seed: the splits have 0, and the demo model was trained on 1
_OF_NEW_PEOPLE: Final = 40  # windows of each


def new_people(data: str, model: str | None, people: int, limit: int | None = None) -> Windows:
    """Windows of made-up people of a synthetic corpus whom none of its splits has, as a model reads them."""
    source = WindowSource(data, model, limit)
    made = source._from
    assert isinstance(made, Synthetic)
    count = -(-people * 5 // 3)  # three fifths of them are in the training split
    options = {name: made.info[name] for name in ("task", "seconds", "difficulty", "montage")}
    source._from = Synthetic(**options, n_subjects=count, windows_per_subject=_OF_NEW_PEOPLE, seed=_NEW_PEOPLE)
    windows = source._from.split("train")
    first = np.flatnonzero(np.isin(windows.subjects, np.unique(windows.subjects)[:people]))
    return source.limited(windows.select(first))


class WindowSource:
    """Splits of a corpus as a model reads them, at most `limit` windows of each, spread evenly over it.

    `data` is a folder of `zipbrain data prepare` (refused if it was prepared for another model),
    ``"synthetic-events"`` or ``"synthetic-sleep"``. Without a model, windows are as they were prepared.
    """

    def __init__(self, data: str | Path, model: str | None, limit: int | None = None) -> None:
        name = None if model is None else canonical_name("model", model, NETWORKS)
        if limit is not None and limit < 1:
            raise OptionError("limit", limit, "it must be at least 1")
        self.limit = limit
        self._from: Prepared | Synthetic
        if str(data) in SYNTHETIC:
            task = str(data).removeprefix("synthetic-")
            bipolar = name in ("BIOT", "TFM-Tokenizer") and task == "events"
            self._from = Synthetic(task, montage="bipolar" if bipolar else "referential")
        else:
            if not Path(data).is_dir():
                allowed = f"there is no such folder; without data of your own take {' or '.join(SYNTHETIC)}"
                raise OptionError("data", str(data), allowed)
            prepared = open_prepared(data)
            if name is not None and canonical_name("model", prepared.model, NETWORKS) != name:
                raise OptionError("data", str(data), f"it was prepared for {prepared.model}: prepare it for {name}")
            self._from = prepared

    def split(self, name: str) -> Windows:
        """The windows of ``"train"``, ``"val"`` or ``"test"``."""
        return self.limited(self._from.split(name))

    def limited(self, windows: Windows) -> Windows:
        """At most `limit` of the windows, spread evenly."""
        if self.limit is None or len(windows) <= self.limit:
            return windows
        return windows.select(np.linspace(0, len(windows) - 1, self.limit).astype(np.int64))

    def validation(self) -> Windows | None:
        """The validation windows, or None where there are none."""
        return None if isinstance(self._from, Prepared) and "val" not in self._from.splits else self.split("val")
