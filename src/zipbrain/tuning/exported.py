"""`certify_file`: the certificate of an exported file, from its own decisions with and without compression."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from zipbrain.data.windows import Windows
from zipbrain.edge.model import EdgeModel
from zipbrain.tuning.certificate import Certificate, ComparedLogits, certify
from zipbrain.tuning.groups import has_group


def certify_file(path: str | Path, windows: Windows, *, thresholds: Sequence[float] = ()) -> Certificate:
    """The certificate of an exported file with a second look: how many of its uncompressed decisions it keeps.

    Parameters
    ----------
    path : path
        Written by `zipbrain.export` for a recipe with a second look: the file holds the uncompressed network too.
    windows : Windows
        In microvolts, of people that neither recipe nor margin were chosen on. Those between `stretches` (subject -1)
        are left out.
    thresholds : sequence of float
        Probabilities at which alarms are raised.
    """
    file, windows = EdgeModel(path), windows.select(has_group(windows.subjects))
    x = windows.take(slice(None))
    (before, _), (first, _), (after, looked) = file.look(x, math.inf), file.look(x, 0.0), file.look(x)
    found = certify(
        ComparedLogits(before, after, first),
        windows.subjects,
        labels=windows.labels,
        classes=windows.classes,
        thresholds=thresholds,
        looked_twice=float(looked.mean()),
        runtime=file.runtime,
    )
    return replace(found, precision=file.description.precision)
