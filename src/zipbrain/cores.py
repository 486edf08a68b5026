"""CPU cores that this process may use, and how many of them are free now: what threads and workers default to."""

from __future__ import annotations

import os
import statistics
import time
from pathlib import Path
from typing import Final

_LOOKS: Final = 5  # at the number of running threads, of which the median counts
_PAUSE: Final = 0.02  # seconds between two looks


def available_cores() -> int:
    """Cores that this process may use: its affinity, and the quota of its control group rounded down."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([cores, *map(int, _quotas(Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")))]))


def free_cores() -> int:
    """Available cores that other work leaves free at this moment, at least one.

    More threads than free cores wait for each other, and each call takes many times as long.
    """
    return max(1, min(available_cores(), (os.cpu_count() or 1) - _busy()))


def _busy() -> int:
    """Threads of the whole machine that run or want to, without the one that asks; the load average elsewhere."""
    try:
        seen = []
        for look in range(_LOOKS):
            time.sleep(_PAUSE if look else 0)
            seen.append(int(Path("/proc/loadavg").read_text().split()[3].partition("/")[0]))
        return max(0, int(statistics.median(seen)) - 1)
    except (OSError, ValueError, IndexError):
        return round(os.getloadavg()[0]) if hasattr(os, "getloadavg") else 0


def _quotas(groups: Path, root: Path) -> list[float]:
    """Cores that each control group above this process grants, of those that bound them (version 1 and 2)."""
    try:
        lines = groups.read_text().splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        _, controllers, inside = [*line.split(":", 2), "", ""][:3]
        if controllers and "cpu" not in controllers.split(","):
            continue
        base = root / "cpu" if controllers else root
        place = base / inside.lstrip("/")
        for folder in (place, *place.parents):
            found += _quota(folder)
            if folder == base:
                break
    return found


def _quota(folder: Path) -> list[float]:
    """The quota of one control group, if it has one."""
    try:
        if (folder / "cpu.max").exists():
            share, period = (folder / "cpu.max").read_text().split()
        else:
            share = (folder / "cpu.cfs_quota_us").read_text()
            period = (folder / "cpu.cfs_period_us").read_text()
        return [float(share) / float(period)] if float(share) > 0 else []
    except (OSError, ValueError, ZeroDivisionError):  # "max" is no number
        return []
