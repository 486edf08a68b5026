"""How many cores a process has, by affinity and quota, and how many of them are free."""

from __future__ import annotations

from pathlib import Path

import pytest

from zipbrain import cores


def quotas(tmp_path: Path, groups: str, **files: str) -> list[float]:
    (tmp_path / "cgroup").write_text(groups)
    for name, content in files.items():
        path = tmp_path / "fs" / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return cores._quotas(tmp_path / "cgroup", tmp_path / "fs")


def test_quotas_of_a_group_and_of_those_above_it_count(tmp_path: Path) -> None:
    found = quotas(tmp_path, "0::/a/b\n", **{"cpu.max": "max 100000\n"})
    assert found == []
    found = quotas(tmp_path, "0::/a/b\n", **{"a__b__cpu.max": "150000 100000\n", "a__cpu.max": "400000 100000\n"})
    assert found == [1.5, 4.0]


def test_quotas_of_version_one_count(tmp_path: Path) -> None:
    names = {"cpu__me__cpu.cfs_quota_us": "250000\n", "cpu__me__cpu.cfs_period_us": "100000\n"}
    assert quotas(tmp_path, "3:cpu,cpuacct:/me\n2:memory:/me\n", **names) == [2.5]
    names["cpu__me__cpu.cfs_quota_us"] = "-1\n"
    assert quotas(tmp_path, "3:cpu,cpuacct:/me\n", **names) == []


def test_a_quota_bounds_the_cores_and_one_is_always_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores.os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    for quota, expected in (([], 8), ([2.5], 2), ([0.3], 1), ([64.0], 8)):
        monkeypatch.setattr(cores, "_quotas", lambda *_, quota=quota: quota)
        assert cores.available_cores() == expected


def test_cores_that_others_use_are_not_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "available_cores", lambda: 4)
    monkeypatch.setattr(cores.os, "cpu_count", lambda: 8)
    for busy, expected in ((0, 4), (3, 4), (6, 2), (8, 1), (50, 1)):
        monkeypatch.setattr(cores, "_busy", lambda busy=busy: busy)
        assert cores.free_cores() == expected


@pytest.mark.skipif(not Path("/proc/loadavg").exists(), reason="the kernel does not say how many threads run")
def test_running_threads_of_other_processes_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = iter(f"0.1 0.2 0.3 {running}/90 7\n" for running in (4, 1, 5, 6, 5))
    monkeypatch.setattr(Path, "read_text", lambda self: next(lines))
    assert cores._busy() == 4  # the median of five looks, without this process
