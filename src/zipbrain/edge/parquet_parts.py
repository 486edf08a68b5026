"""Parts of a Parquet dataset with a row per window: their schema, and writing one whole or not at all."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from zipbrain._lazy import import_extra
from zipbrain.edge.description import Description
from zipbrain.edge.prediction import Prediction
from zipbrain.errors import DataError
from zipbrain.files import new_partial, remedy

DATASET: Final = "zipbrain_predictions.parquet"
_PART: Final = "part-{:06d}.parquet"
_PART_NAME: Final = re.compile(r"part-(\d{6,})\.parquet")


@dataclass(frozen=True, eq=False)
class Rows:
    """The windows of one recording, as a worker hands them over."""

    starts: NDArray[np.float64]  # (n,) seconds
    probabilities: NDArray[np.float32]  # (n, classes)
    decisions: NDArray[np.int64]  # (n,), -1 for none
    flags: tuple[str, ...]
    looked_twice: NDArray[np.bool_] | None

    @classmethod
    def of(cls, found: Prediction) -> Rows:
        """The rows of a prediction."""
        return cls(found.starts, found.probabilities, found.decisions, found.flags, found.looked_twice)


class Parts:
    """The dataset of one model's answers in a folder."""

    def __init__(self, folder: Path, description: Description, sha256: str) -> None:
        self._arrow = import_extra("pyarrow", "pyarrow", "archive", "--format parquet")
        self._parquet = import_extra("pyarrow.parquet", "pyarrow", "archive", "--format parquet")
        self.folder, self._description = folder / DATASET, description
        pa = self._arrow
        fields = [("recording", pa.string()), ("start_s", pa.float64()), ("stop_s", pa.float64())]
        fields += [(f"probability_{name}", pa.float32()) for name in description.classes]
        fields += [("decision", pa.string()), ("note", pa.string())]
        fields += [("looked_twice", pa.bool_())] if description.looks_twice else []
        about = {"classes": description.classes, "model": description.model, "model_sha256": sha256}
        about |= {"corpus": description.corpus, "precision": description.precision}
        self.schema = pa.schema(fields, metadata={"zipbrain": json.dumps(about)})
        self.folder.mkdir(parents=True, exist_ok=True)

    def write(self, number: int, found: list[tuple[str, Rows]]) -> int:
        """Write the windows of some recordings as one part; returns how many there are."""
        pa, names = self._arrow, np.array([*self._description.classes, None], dtype=object)
        window_s = float(self._description.convention.window_s)
        starts = np.concatenate([rows.starts for _, rows in found])
        shares = np.concatenate([rows.probabilities for _, rows in found])
        decided = np.concatenate([rows.decisions for _, rows in found])
        recordings = np.repeat(np.array([name for name, _ in found], dtype=object), [len(r.starts) for _, r in found])
        columns: list[Any] = [pa.array(recordings, pa.string()), pa.array(starts), pa.array(starts + window_s)]
        columns += [pa.array(shares[:, place], mask=decided < 0) for place in range(shares.shape[1])]
        columns.append(pa.array(names[decided], pa.string()))
        columns.append(pa.array([flag or None for _, rows in found for flag in rows.flags], pa.string()))
        if self._description.looks_twice:
            columns.append(pa.array(np.concatenate([rows.looked_twice for _, rows in found])))
        path = self.folder / _PART.format(number)
        try:
            with new_partial(path) as aside:
                self._parquet.write_table(pa.Table.from_arrays(columns, schema=self.schema), aside, compression="zstd")
                with aside.open("rb+") as file:
                    os.fsync(file.fileno())
                aside.replace(path)
        except OSError as error:
            words = f"can't be written ({error.strerror or error})"
            raise DataError(f"{path}: {words}; {remedy(error, 'make room, then run the same again')}") from None
        return len(starts)

    def remove_unlisted(self, listed: list[int]) -> None:
        """Remove parts that a killed run left and the index does not list; a listed one that is gone is refused."""
        there = {int(match[1]): path for path in self.folder.iterdir() if (match := _PART_NAME.fullmatch(path.name))}
        if gone := sorted(set(listed) - set(there)):
            lost = f"{len(gone)} parts are gone, such as {_PART.format(gone[0])}"
            raise DataError(f"{self.folder}: {lost}; put them back, or --overwrite to predict all again")
        for number in set(there) - set(listed):
            there[number].unlink()
