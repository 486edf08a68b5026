"""YASA: a hypnogram, one sleep stage per 30 s."""

from __future__ import annotations

import numpy as np

from zipbrain.edge.description import Description
from zipbrain.edge.formats.base import MARK, Format
from zipbrain.edge.prediction import Prediction
from zipbrain.edge.sleep_stages import EPOCH_S, UNDECIDED, YASA_NAMES, sleep_stages
from zipbrain.errors import OptionError


class Hypnogram(Format):
    """The table of ``yasa.Hypnogram(...).hypno.to_csv()``, UNS where there is no decision."""

    name = "yasa"

    def file_names(self, stem: str) -> dict[str, str]:
        return {"yasa": f"{stem}{MARK}_hypnogram.csv"}

    def refusal_of(self, description: Description, hop_s: float) -> str:
        has_stages, window_s = sleep_stages(description.classes) is not None, description.convention.window_s
        if has_stages and hop_s == EPOCH_S == window_s:
            return ""
        why = f"windows of {window_s:g} s every {hop_s:g} s" if has_stages else "no sleep stages"
        return f"a hypnogram has one stage per 30 s, this model has {why}"

    def contents(self, prediction: Prediction) -> dict[str, bytes]:
        stages = sleep_stages(prediction.classes)
        if stages is None or not np.allclose(prediction.starts, EPOCH_S * np.arange(len(prediction.starts))):
            raise OptionError("formats", "yasa", "a hypnogram has one sleep stage for every 30 s from the beginning")
        names = (*(YASA_NAMES[stage] for stage in stages), UNDECIDED[0])
        lines = [f"{epoch},{names[decision]}" for epoch, decision in enumerate(prediction.decisions)]
        return {"yasa": ("\n".join(["Epoch,Stage", *lines]) + "\n").encode()}
