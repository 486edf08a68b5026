"""CSV: one line per decision, with the columns that `predict` writes and the seconds that each took."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from typing import Any

from zipbrain.edge.prediction import NO_DECISION
from zipbrain.live.decision import Decision
from zipbrain.live.outputs.base import Output, SessionFacts
from zipbrain.live.outputs.lines import LineFile, new_path
from zipbrain.numerals import spell_seconds
from zipbrain.text import table_cell


class DecisionTable(Output):
    """``decisions_<start>.csv``: one line per window, written as soon as it is decided."""

    name = "csv"

    def open(self, facts: SessionFacts) -> None:
        self._classes = facts.classes
        self._file = LineFile(new_path(facts.folder, "decisions", facts.started, "csv"))
        shares = [f"probability_{name}" for name in facts.classes]
        last = ("decision", "note", "looked_twice", "compute_s", "delay_s")
        self._append(["start_s", "stop_s", *map(table_cell, shares), *last])

    def decide(self, decision: Decision) -> None:
        is_made = decision.is_made
        shares = [f"{value:.6f}" if is_made else "" for value in decision.probabilities]
        label = table_cell(self._classes[decision.decision]) if is_made else NO_DECISION
        ends = spell_seconds(decision.start_s), spell_seconds(decision.stop_s)
        took = f"{decision.compute_s:.4f}", f"{decision.delay_s:.4f}"
        self._append([*ends, *shares, label, table_cell(decision.note), int(decision.looked_twice), *took])

    def close(self) -> None:
        self._file.close()
        self.failure = self._file.failure

    def _append(self, cells: Iterable[Any]) -> None:
        text = io.StringIO()
        csv.writer(text, lineterminator="").writerow(cells)
        self._file.append(text.getvalue())
        self.failure = self._file.failure
