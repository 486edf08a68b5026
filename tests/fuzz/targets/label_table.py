"""Tables of labels: `zipbrain data prepare folder` with names, times and labels that lead astray."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import numpy as np
from tests.fuzz.harness import Target
from tests.fuzz.mutations import NUMBERS, change_bytes
from tests.fuzz.targets.edf import write

from zipbrain.data import open_prepared, prepare

_TABLE = """file,label,subject,onset,duration,split
a.edf,rest,p1,,,train
a.edf,task,p1,4,4,train
deep/b.edf,task,p2,0,8,val
c.bdf,rest,p3,,,test
c.bdf,task,p3,2.5,,test
"""
_FILES = (
    "a.edf", "deep/b.edf", "c.bdf", "../outside.edf", "../../outside.edf", "deep/../../outside.edf", "/etc/passwd",
    "none.edf", "", ".", "deep", "x" * 300, "a" * 5000 + ".edf", "\x1b[31m.edf", "a.edf\x00", "bad.edf", "./a.edf",
)  # fmt: skip
_LABELS = (
    "rest",
    "task",
    "lonely",
    "",
    "=cmd|calc!A1",
    "\x1b]0;x\x07",
    "x" * 400,
    "0",
    "1",
    "01",
    "n/a",
    "-1",
    "\u00b2",
)
_SPLITS = ("train", "val", "test", "TEST", "", "dev", "none", "x" * 100)


def mutate(rng: Random) -> bytes:
    """Rows of odd cells, other separators and encodings, or bytes changed anywhere."""
    rows = [line.split(",") for line in _TABLE.splitlines()]
    for _ in range(rng.choice((1, 1, 2, 5))):
        way = rng.random()
        row = rng.randrange(1, len(rows))
        column = rng.randrange(6)
        choices = (_FILES, _LABELS, _LABELS, NUMBERS, NUMBERS, _SPLITS)[column]
        if way < 0.8:
            rows[row] = [cell if place != column else rng.choice(choices) for place, cell in enumerate(rows[row])]
        elif way < 0.9:
            rows.append(rows[row])
        else:
            rows[0] = rng.sample(rows[0], rng.randrange(len(rows[0]) + 1))
    text = "\n".join(rng.choice((",", ",", ";", "\t")).join(row) for row in rows)
    content = text.encode(rng.choice(("utf-8", "utf-8", "utf-8-sig", "utf-16")), "replace")
    return change_bytes(content, rng) if rng.random() < 0.2 else content


def use(path: Path) -> None:
    """Prepare a folder with this table, and look at what was written."""
    root, out = path.parent / "outer" / "root", path.parent / "windows"
    (root / "deep").mkdir(parents=True)
    for name in ("a.edf", "deep/b.edf", "../outside.edf", "../../outside.edf"):
        (root / name).write_bytes(write("edf", "EDF+C"))
    (root / "c.bdf").write_bytes(write("bdf"))
    (root / "bad.edf").write_bytes(write("edf")[:300])
    path.rename(root / "labels.csv")
    report = prepare("folder", root, out)
    json.dumps(report.as_dict())
    splits = json.loads((out / "index.json").read_text())["splits"]
    names = [Path(entry["key"]) for entries in splits.values() for entry in entries]
    assert not any(name.is_absolute() or ".." in name.parts for name in names), names
    counts = {name: sum(split.get(name, 0) for split in report.windows.values()) for name in report.classes}
    assert all(counts.values()), f"classes without windows: {counts}"
    for split in report.windows:
        windows = open_prepared(out).split(split)
        assert np.isfinite(windows.take(slice(None))).all()


LABEL_TABLE = Target(_TABLE.encode, mutate, use, 1_000, ".csv")
