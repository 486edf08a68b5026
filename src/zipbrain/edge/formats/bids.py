"""BIDS: a table of events with its sidecar."""

from __future__ import annotations

import re
from typing import Any, Final

from zipbrain.edge.formats.base import Format, json_bytes, rows
from zipbrain.edge.prediction import Prediction
from zipbrain.numerals import spell_seconds
from zipbrain.text import readable, table_cell

_MARK: Final = "_desc-zipbrain_events"
_RECORDING: Final = re.compile(r"(sub-.+)_(eeg|ieeg|meg)$")


class BIDSEvents(Format):
    """Tab-separated events, ``n/a`` for what is not there, and a JSON file that explains the columns."""

    name = "bids"

    def file_names(self, stem: str) -> dict[str, str]:
        events = _RECORDING.sub(r"\1", stem) + _MARK
        return {"bids": f"{events}.tsv", "bids_sidecar": f"{events}.json"}

    def contents(self, prediction: Prediction) -> dict[str, bytes]:
        looked = prediction.looked_twice
        lines = ["onset\tduration\ttrial_type\tprobability\tnote" + ("" if looked is None else "\tlooked_twice")]
        duration = spell_seconds(prediction.window_s)
        for number, (start, row, label, flag) in enumerate(rows(prediction)):
            share = "n/a" if flag else f"{row.max():.6f}"
            again = "" if looked is None else f"\t{int(looked[number])}"
            lines.append(f"{spell_seconds(start)}\t{duration}\t{_cell(label)}\t{share}\t{_cell(flag)}{again}")
        events = readable("\n".join(lines) + "\n").encode()
        return {"bids": events, "bids_sidecar": json_bytes(_columns(prediction))}


def _columns(prediction: Prediction) -> dict[str, Any]:
    said = prediction.description
    levels = {"0": "The compressed network's answer.", "1": "The uncompressed network's answer."}
    again = {"looked_twice": {"Description": "Whose answer it is: close ones get a second look.", "Levels": levels}}
    maker = f"{said.model} trained on {said.corpus}, {said.precision}, file sha256 {prediction.model_sha256}"
    return {
        "onset": {"Description": "Start of the window from the recording's first sample.", "Units": "s"},
        "duration": {"Description": "Length of the window.", "Units": "s"},
        "trial_type": {
            "LongName": "Predicted class",
            "Description": f"The most probable class, computed by zipbrain ({maker}). n/a: no decision, see note.",
            "Levels": {_cell(name): f"The model's class {_cell(name)!r}." for name in prediction.classes},
        },
        "probability": {"Description": "Probability that the model gives the predicted class.", "Units": "1"},
        "note": {"Description": "Why there is no decision, such as a gap, flat or saturated channels."},
        **({} if prediction.looked_twice is None else again),
    }


def _cell(text: str) -> str:
    return str(table_cell(text)) or "n/a"
