"""Preparing can be killed, repeated and continued; nothing that was prepared is lost."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from data import tiny_corpora
from zipbrain.data import cache as cache_module
from zipbrain.data import convention, corpus, open_prepared, prepare
from zipbrain.data.cache import Cache, CacheError, ShardWriter, write_json
from zipbrain.errors import DataError, OptionError

RUN = "import sys; from zipbrain.data import prepare; prepare(*sys.argv[1:4], jobs=int(sys.argv[4]))"


def state(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Bytes and time of change of every file."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


def contents(folder: Path) -> dict[str, bytes]:
    """Bytes of every file but the report, which tells how long a run took and where it wrote."""
    return {name: content for name, (content, _) in state(folder).items() if name != "report.json"}


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_corpora.tuab(tmp_path_factory.mktemp("tuab"))


@pytest.fixture(scope="module")
def clean(raw: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("clean") / "windows"
    prepare("tuab", raw, out)
    return out


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """Two recordings of EEGMAT."""
    root = tmp_path / "raw"
    for number in (1, 2):
        tiny_corpora.write_edf(root / f"Subject00_{number}.edf", tiny_corpora.EEGMAT_NAMES, 500, 62, seed=number)
    return root


def test_running_again_changes_no_byte_and_no_time(raw: Path, clean: Path) -> None:
    before = state(clean)
    report = prepare("tuab", raw, clean)
    assert (report.prepared, report.reused) == (0, 14)
    assert len(report.refused) == 3
    assert state(clean) == before
    assert not [name for name in before if name.endswith(".part")]


def test_the_report_of_a_run_that_was_continued_is_that_of_an_unbroken_one(tmp_path: Path) -> None:
    raw, out = tiny_corpora.eegmat(tmp_path / "raw"), tmp_path / "out"
    prepare("eegmat", raw, out)
    unbroken = json.loads((out / "report.json").read_text())
    for path in [out / "report.json", out / "index.json", *sorted((out / "shards").iterdir())[:2]]:
        path.unlink()
    (out / "shards" / ".half.npy.0123abcd.part").write_bytes(b"half")
    report = prepare("eegmat", raw, out)
    assert report.reused
    continued = json.loads((out / "report.json").read_text())
    assert continued | {"seconds": 0} == unbroken | {"seconds": 0}
    assert not list(out.rglob("*.part"))


@pytest.mark.slow
def test_results_do_not_depend_on_the_number_of_jobs(raw: Path, clean: Path, tmp_path: Path) -> None:
    report = prepare("tuab", raw, tmp_path, jobs=2)
    assert report.prepared == 14
    assert contents(tmp_path) == contents(clean)


@pytest.mark.slow
@pytest.mark.parametrize("jobs", [1, 2])
def test_killed_at_any_moment_it_is_continued(raw: Path, clean: Path, tmp_path: Path, jobs: int) -> None:
    out = tmp_path / "windows"
    killed = 0
    for wanted in (1, 5, 9):  # recordings that must be done before the blow falls, in the middle of another
        process = subprocess.Popen(
            [sys.executable, "-c", RUN, "tuab", str(raw), str(out), str(jobs)],
            start_new_session=True,
            stderr=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + 120
        while process.poll() is None and time.monotonic() < deadline:
            shards = out / "shards"
            if shards.is_dir() and len(list(shards.glob("*.npy"))) >= wanted and list(shards.glob("*.part")):
                break
            time.sleep(0.0005)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            killed += 1
        process.wait()
    assert killed >= 2
    assert not (out / "index.json").exists()
    with pytest.raises(DataError, match="not finished"):
        open_prepared(out)
    done = {name: value for name, value in state(out).items() if name.endswith(".npy")}
    assert len(done) >= 5
    report = prepare("tuab", raw, out)
    assert report.reused >= 5
    assert report.prepared == 14 - report.reused
    assert contents(out) == contents(clean)
    after = state(out)
    kept = [name for name in done if after[name] == done[name]]
    assert len(kept) >= report.reused  # what was finished was not written again


def test_a_changed_recording_is_the_only_one_prepared_again(small: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    prepare("eegmat", small, out)
    before, first = state(out), open_prepared(out).split("train")
    seen = first.take([0, 29])
    tiny_corpora.write_edf(small / "Subject00_2.edf", tiny_corpora.EEGMAT_NAMES, 500, 62, seed=9)
    report = prepare("eegmat", small, out)
    assert (report.prepared, report.reused) == (1, 1)
    after = state(out)
    assert [name for name in before if name.startswith("shards/Subject00_1") and before[name] != after[name]] == []
    assert len([name for name in after if name.endswith(".npy")]) == 2  # the old windows are gone
    now = open_prepared(out).split("train").take([0, 29])
    np.testing.assert_array_equal(now[0], seen[0])
    assert not np.array_equal(now[1], seen[1])


def test_changed_labels_are_a_change(tmp_path: Path) -> None:
    raw = tiny_corpora.isruc(tmp_path / "raw")
    prepare("isruc", raw, tmp_path / "out")
    (raw / "1" / "1_1.txt").write_text("5\n5\n5\n")
    report = prepare("isruc", raw, tmp_path / "out")
    assert (report.prepared, report.reused) == (1, 3)
    windows = open_prepared(tmp_path / "out").split("train")
    assert windows.labels[windows.subjects == "001"].tolist() == [4, 4, 4]


def test_other_options_in_the_same_folder_are_an_error_that_names_them(small: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    prepare("eegmat", small, out)
    before = state(out)
    with pytest.raises(DataError, match=r'convention.model was "labram", now "biot"'):
        prepare("eegmat", small, out, model="biot")
    with pytest.raises(DataError, match=r'corpus options.rest was "first", now "last"'):
        prepare(corpus("eegmat", rest="last"), small, out)
    assert state(out) == before


def test_removed_and_repaired_recordings(small: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    good = (small / "Subject00_2.edf").read_bytes()
    (small / "Subject00_2.edf").write_bytes(b"broken")
    assert list(prepare("eegmat", small, out).refused) == ["Subject00_2.edf"]
    (small / "Subject00_2.edf").write_bytes(good)
    report = prepare("eegmat", small, out)
    assert (report.refused, report.prepared, report.reused) == ({}, 1, 1)
    (small / "Subject00_1.edf").unlink()
    report = prepare("eegmat", small, out)
    assert "1 recordings that were prepared before are no longer found" in report.warnings[-1]
    assert len(open_prepared(out).split("train")) == 29
    assert len(list((out / "shards").glob("*.npy"))) == 2


def test_a_damaged_shard_is_noticed_and_prepared_again(small: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    prepare("eegmat", small, out)
    before = contents(out)
    shard = next((out / "shards").glob("*.npy"))
    shard.write_bytes(shard.read_bytes()[:5000])
    with pytest.raises(DataError, match="prepare the corpus again"):
        open_prepared(out).split("train").take(slice(None))
    assert prepare("eegmat", small, out).prepared == 1
    assert contents(out) == before
    shard.unlink()
    with pytest.raises(DataError, match="these windows are missing"):
        open_prepared(out).split("train")


def test_a_disk_that_fills_up_is_a_clear_error_and_loses_nothing(small: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    prepare("eegmat", small, out)
    before = state(out)
    tiny_corpora.write_edf(small / "Subject26_1.edf", tiny_corpora.EEGMAT_NAMES, 500, 62, seed=3)
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, 500_000)); "
    code = f"{limit}import sys; from zipbrain.cli import main; sys.exit(main(sys.argv[1:]))"
    arguments = ["data", "prepare", "eegmat", "--root", str(small), "--out", str(out)]
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "can't be written (File too large)" in done.stderr
    assert "what was prepared is kept" in done.stderr
    assert "Traceback" not in done.stderr
    assert state(out) == before
    assert prepare("eegmat", small, out).prepared == 1


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_what_the_system_refuses_is_said(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(cache_module.os, "replace", refuse)
    with pytest.raises(CacheError, match=os.strerror(code)):
        prepare("eegmat", small, tmp_path / "out")
    assert not list((tmp_path / "out").rglob("*.part"))


def test_a_folder_that_cannot_be_made(small: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(CacheError, match="can't be written"):
        prepare("eegmat", small, tmp_path / "file" / "out")


def test_a_finished_folder_is_only_read(small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare("eegmat", small, tmp_path / "out")

    def refuse(*_: object) -> None:
        raise OSError(errno.EROFS, "read-only")

    monkeypatch.setattr(cache_module.os, "replace", refuse)
    assert prepare("eegmat", small, tmp_path / "out").reused == 2


def test_two_at_once_are_kept_apart(small: Path, tmp_path: Path) -> None:
    pytest.importorskip("fcntl")
    out = tmp_path / "out"
    with (
        Cache(out, {"format": 1}).opened(),
        pytest.raises(DataError, match="another process"),
        Cache(out, {"format": 1}).opened(),
    ):
        pass


def test_foreign_folders_are_left_alone(small: Path, tmp_path: Path) -> None:
    (tmp_path / "out" / "shards").mkdir(parents=True)
    (tmp_path / "out" / "shards" / "precious.npy").write_text("mine")
    with pytest.raises(DataError, match=r"no options\.json"):
        prepare("eegmat", small, tmp_path / "out")
    assert (tmp_path / "out" / "shards" / "precious.npy").read_text() == "mine"


def test_arguments_are_checked_before_anything_is_written(small: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="jobs"):
        prepare("eegmat", small, tmp_path / "out", jobs=0)
    longer = replace(convention("labram", "isruc"), window_s=20.0)
    with pytest.raises(OptionError, match="30 s"):
        prepare("isruc", small, tmp_path / "out", convention=longer)
    assert not (tmp_path / "out").exists()


def test_shards_grow_and_can_be_read_by_numpy(tmp_path: Path) -> None:
    windows = np.random.default_rng(0).normal(size=(1234, 2, 5)).astype(np.float32)
    with ShardWriter(tmp_path / "a.npy", (2, 5)) as writer:
        for start in range(0, 1234, 100):
            writer.append(windows[start : start + 100])
        size = writer.close()
    assert size == (tmp_path / "a.npy").stat().st_size
    np.testing.assert_array_equal(np.load(tmp_path / "a.npy"), windows)
    with ShardWriter(tmp_path / "b.npy", (2, 5)) as writer:
        writer.append(windows[:3])  # left without close, as after an error
    assert [path.name for path in tmp_path.iterdir()] == ["a.npy"]


def test_json_is_written_once(tmp_path: Path) -> None:
    assert write_json(tmp_path / "x.json", {"b": 1, "a": "µ"})
    assert not write_json(tmp_path / "x.json", {"a": "µ", "b": 1})
    assert json.loads((tmp_path / "x.json").read_text(encoding="utf-8")) == {"a": "µ", "b": 1}


def test_what_a_killed_process_left_behind_is_removed(small: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    prepare("eegmat", small, out)
    before = state(out)
    (out / "shards" / ".half.npy.0123abcd.part").write_bytes(b"half")
    (out / "shards" / "unrecorded.npy").write_bytes(b"whole, but of a source that has changed since")
    prepare("eegmat", small, out)
    assert state(out) == before


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="children of a process are looked up in /proc")
def test_workers_end_with_a_parent_that_is_killed(raw: Path, tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", RUN, "tuab", str(raw), str(tmp_path), "2"],
        start_new_session=True,
        stderr=subprocess.DEVNULL,
    )
    children: list[int] = []
    try:
        deadline = time.monotonic() + 120
        while not list(tmp_path.glob("shards/*.npy")) and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.001)
        children = [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        assert len(children) >= 2
        deadline = time.monotonic() + 30
        while any(_alive(pid) for pid in children) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert not [pid for pid in children if _alive(pid)]
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
