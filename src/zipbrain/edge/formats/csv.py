"""CSV: one line per window with the probability of every class."""

from __future__ import annotations

import csv
import io

from zipbrain.edge.formats.base import MARK, Format, rows
from zipbrain.edge.prediction import NO_DECISION, Prediction
from zipbrain.numerals import spell_seconds
from zipbrain.text import readable, table_cell


class WindowTable(Format):
    """Start, stop, probabilities, decision and note of every window."""

    name = "csv"

    def file_names(self, stem: str) -> dict[str, str]:
        return {"csv": f"{stem}{MARK}.csv"}

    def contents(self, prediction: Prediction) -> dict[str, bytes]:
        text = io.StringIO()
        table = csv.writer(text, lineterminator="\n")
        shares = (f"probability_{name}" for name in prediction.classes)
        looked = prediction.looked_twice
        more = [] if looked is None else ["looked_twice"]
        table.writerow(["start_s", "stop_s", *map(table_cell, shares), "decision", "note", *more])
        for number, (start, row, label, flag) in enumerate(rows(prediction)):
            ends = spell_seconds(start), spell_seconds(start + prediction.window_s)
            cells = [""] * len(row) if flag else [f"{value:.6f}" for value in row]
            again = [] if looked is None else [int(looked[number])]
            table.writerow([*ends, *cells, table_cell(label) or NO_DECISION, table_cell(flag), *again])
        return {"csv": readable(text.getvalue()).encode()}
