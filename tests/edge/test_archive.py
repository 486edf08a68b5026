"""`predict --format parquet`: thousands of recordings, killed and resumed, each once in one dataset."""

from __future__ import annotations

import csv
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dask_cluster import dask_cluster
from edge import tiny_onnx
from edge.test_predict import NAMES, save_edf
from edge.test_predict import signal as noise
from zipbrain.cli import main
from zipbrain.edge import archive
from zipbrain.edge.archive import predict_archive
from zipbrain.edge.archive_index import INDEX
from zipbrain.edge.parquet_parts import DATASET
from zipbrain.edge.predict_one import predict
from zipbrain.errors import DataError, OptionError

parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_onnx.save(tmp_path_factory.mktemp("model") / "m.onnx")


@pytest.fixture(scope="module")
def seeds(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Three short recordings, one with a flat stretch, and one without F3."""
    folder = tmp_path_factory.mktemp("seeds")
    x = noise(8)
    flat = noise(20)
    flat[2, 1600:2400] = 7.0
    paths = [save_edf(folder / f"{name}.edf", y) for name, y in (("a", x), ("b", -x), ("c", flat))]
    return [*paths, save_edf(folder / "d.edf", x[:2], NAMES[:2])]


def plant(root: Path, seeds: list[Path], count: int, of_folder: int = 100) -> Path:
    """A tree of hard links; every 500th recording is one that fails."""
    for number in range(count):
        folder = root / f"{number // of_folder:04d}"
        folder.mkdir(parents=True, exist_ok=True)
        os.link(seeds[3 if number % 500 == 7 else number % 3], folder / f"r{number:06d}.edf")
    return root


def read(out: Path) -> Any:
    """The dataset, sorted."""
    return parquet.read_table(out / DATASET).sort_by([("recording", "ascending"), ("start_s", "ascending")])


def test_the_dataset_holds_the_answers_of_predict(model: Path, seeds: list[Path], tmp_path: Path) -> None:
    report = predict_archive(seeds, model, tmp_path, backend="sequential")
    assert (report.done, report.failed, report.skipped) == (3, 1, 0), report.reasons
    table = read(tmp_path)
    assert table.column_names[:3] == ["recording", "start_s", "stop_s"]
    assert table.column_names[-2:] == ["decision", "note"]
    said = json.loads(table.schema.metadata[b"zipbrain"])
    assert said["classes"] == list(tiny_onnx.description().classes)
    for path in seeds[:3]:
        alone = predict(path, model)
        mine = table.filter(np.array(table["recording"]) == str(path)).to_pylist()
        assert [row["start_s"] for row in mine] == alone.starts.tolist()
        assert [row["decision"] or "" for row in mine] == alone.labels
        assert [row["note"] or "" for row in mine] == list(alone.flags)
        shares = [[row[f"probability_{name}"] for name in alone.classes] for row in mine]
        found = np.array([[np.nan if value is None else value for value in row] for row in shares])
        np.testing.assert_array_equal(found.astype(np.float32), alone.probabilities)
    assert report.windows == table.num_rows == sum(len(predict(path, model).starts) for path in seeds[:3])
    assert report.no_decision == sum(1 for value in table["decision"].to_pylist() if value is None) > 0


KILLED = """
import os, sys
from pathlib import Path
from zipbrain.edge import archive
archive._BATCH, archive._PART_RECORDINGS, calls = 300, 130, [0]
place, whole = sys.argv[4], archive.Parts.write
def write(self, number, found):
    calls[0] += 1
    if calls[0] == 4 and place == "before":
        os._exit(9)
    count = whole(self, number, found)
    if calls[0] == 4:
        os._exit(9)
    return count
archive.Parts.write = write
archive.predict_archive([sys.argv[1]], sys.argv[2], sys.argv[3], backend="sequential")
"""


def test_two_thousand_recordings_survive_kills_each_once(
    model: Path, seeds: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = plant(tmp_path / "tree", seeds, 2000)
    there = {**os.environ, "PYTHONPATH": str(REPOSITORY / "src")}
    for place in ("before", "after"):  # a part is written, then listed
        command = [sys.executable, "-c", KILLED, str(root), str(model), str(tmp_path / "out"), place]
        assert subprocess.run(command, env=there, check=False).returncode == 9
    monkeypatch.setattr(archive, "_BATCH", 300)
    report = predict_archive([root], model, tmp_path / "out", backend="sequential")
    assert (report.done, report.failed) == (1996, 4)
    assert report.skipped == 2 * 3 * 130 - 3  # three parts of each killed run count, but for 7 (twice) and 507
    windows = [len(predict(path, model).starts) for path in seeds[:3]]
    named = [path for path in sorted(root.rglob("*.edf")) if int(path.stem[1:]) % 500 != 7]
    wanted = {str(path): windows[int(path.stem[1:]) % 3] for path in named}
    assert Counter(read(tmp_path / "out")["recording"].to_pylist()) == wanted  # none twice, none lost
    with (tmp_path / "out" / "zipbrain_recordings.csv").open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    assert Counter(row["status"] for row in rows) == {"done": 1996, "failed": 4}
    assert [(count, reason) for reason, count, _ in report.reasons] == [(4, report.reasons[0][0])]
    again = predict_archive([root], model, tmp_path / "out", backend="sequential")
    assert (again.done, again.skipped) == (1996, 1996)


def test_failures_are_counted_by_reason_and_unreadable_folders_named(
    model: Path, seeds: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = plant(tmp_path / "tree", seeds, 12, of_folder=4)
    save_edf(root / "0000" / "short.edf", noise(2))
    save_edf(root / "0000" / "shorter.edf", noise(1))
    (root / "0001" / "broken.edf").write_bytes(b"nothing")
    scan = os.scandir

    def refuse(folder: str) -> Any:
        if str(folder).endswith("0002"):
            raise PermissionError(13, "Permission denied")
        return scan(folder)

    monkeypatch.setattr(os, "scandir", refuse)
    report = predict_archive([root], model, tmp_path / "out", backend="sequential")
    assert (report.done, report.failed, report.unreadable) == (7, 4, 1)
    assert report.folders == [f"{root / '0002'}: can't be read (Permission denied); allow it, then run the same again"]
    assert {count for _, count, _ in report.reasons} == {1, 2}
    assert report.reasons[0][:2] == ("lasts N s, but a window N s", 2)
    monkeypatch.setattr(os, "scandir", scan)
    later = predict_archive([root], model, tmp_path / "out", backend="sequential")
    assert (later.done, later.skipped, later.unreadable) == (11, 7, 0)


def test_a_changed_recording_and_other_options_are_refused_until_overwritten(
    model: Path, seeds: list[Path], tmp_path: Path
) -> None:
    root = tmp_path / "tree"
    path, other = (save_edf(root / f"{name}.edf", noise(8)) for name in "ab")
    predict_archive([root, other, root], model, tmp_path / "out", backend="sequential")
    assert set(Counter(read(tmp_path / "out")["recording"].to_pylist()).values()) == {3}  # named twice, there once
    save_edf(path, noise(20))
    report = predict_archive([root], model, tmp_path / "out", backend="sequential")
    assert (report.done, report.failed, report.reasons[0][0]) == (1, 1, "was changed after it was predicted")
    with pytest.raises(DataError, match="of another model or runtime, or with other options"):
        predict_archive([root], model, tmp_path / "out", hop_s=4.0, backend="sequential")
    report = predict_archive([root], model, tmp_path / "out", hop_s=4.0, overwrite=True, backend="sequential")
    assert (report.done, report.skipped, report.windows) == (2, 0, 5 + 2)
    next((tmp_path / "out" / DATASET).iterdir()).unlink()
    with pytest.raises(DataError, match="1 parts are gone, such as part-000001"):
        predict_archive([root], model, tmp_path / "out", hop_s=4.0, backend="sequential")
    (tmp_path / "out" / INDEX).write_bytes(b"no database" * 100)
    with pytest.raises(DataError, match="can't be used"):
        predict_archive([root], model, tmp_path / "out", backend="sequential")
    (tmp_path / "empty").mkdir()
    with pytest.raises(OptionError, match=r"no file in it ends in \.edf"):
        predict_archive([tmp_path / "empty"], model, tmp_path / "none", backend="sequential")
    with pytest.raises(OptionError, match="at least one is needed"):
        predict_archive([], model, tmp_path / "none", backend="sequential")


def test_an_archive_mixes_no_runtimes(model: Path, seeds: list[Path], tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    options: dict[str, Any] = {"backend": "sequential", "batch": 2}
    predict_archive(seeds[:1], model, tmp_path, **options)
    with pytest.raises(DataError, match="of another model or runtime, or with other options"):
        predict_archive(seeds, model, tmp_path, runtime="openvino", **options)
    with sqlite3.connect(tmp_path / INDEX) as base:  # as earlier versions wrote it
        key = json.loads(base.execute("SELECT value FROM about WHERE name = 'options'").fetchone()[0])
        assert key.pop("runtime") == "onnxruntime"
        base.execute("UPDATE about SET value = ? WHERE name = 'options'", (json.dumps(key | {"audit": None}),))
    with pytest.raises(DataError, match="of another model or runtime, or with other options"):
        predict_archive(seeds, model, tmp_path, runtime="openvino", **options)
    assert predict_archive(seeds[:2], model, tmp_path, **options).skipped == 1


def test_command_line(
    model: Path, seeds: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    root = plant(tmp_path / "tree", seeds, 20)
    command = ["predict", str(root), "--model", str(model), "--out", str(tmp_path / "out"), "--format", "parquet"]
    assert main([*command, "--backend", "threading", "--workers", "2"]) == 1
    said = capsys.readouterr().out
    assert "19 recordings" in said
    assert "1 x " in said
    assert main([*command, "--json", "--backend", "sequential"]) == 1
    assert json.loads(capsys.readouterr().out)["skipped"] == 19
    assert main([*command[:-1], "parquet,csv"]) == 2
    assert "parquet stands alone" in capsys.readouterr().err


@pytest.fixture
def cluster() -> Iterator[tuple[str, list[subprocess.Popen[bytes]]]]:
    """A Dask scheduler and two workers."""
    pytest.importorskip("distributed", reason="Dask is not installed")
    with dask_cluster() as started:
        yield started


def test_two_dask_workers_of_which_one_is_killed_write_the_same_dataset(
    cluster: tuple[str, list[subprocess.Popen[bytes]]], model: Path, seeds: list[Path], tmp_path: Path
) -> None:
    address, workers = cluster
    root = plant(tmp_path / "tree", seeds, 150)
    whole = predict_archive([root], model, tmp_path / "whole", backend="sequential")
    seen: list[float] = []

    def kill_one(what: str, done: float, total: int) -> None:
        if done >= 20 and not seen:
            seen.append(time.monotonic())
            os.kill(workers[0].pid, signal.SIGKILL)

    found = predict_archive([root], model, tmp_path / "out", backend="dask", address=address, progress=kill_one)
    assert seen
    assert workers[0].wait(10) == -signal.SIGKILL
    assert (found.done, found.failed) == (whole.done, whole.failed) == (149, 1)
    assert read(tmp_path / "out").equals(read(tmp_path / "whole"))
    with sqlite3.connect(tmp_path / "out" / INDEX) as base:
        assert base.execute("SELECT count(*) FROM recordings").fetchone() == (150,)
