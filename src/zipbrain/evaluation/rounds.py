"""`TimingRounds`: rounds of a timing, kept so that one which ended early goes on in the next run."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from zipbrain.errors import DataError, OptionError
from zipbrain.files import write_whole
from zipbrain.profiling.latency import Timing, timed_rounds, timings_of

NAME: Final = "timings.json"  # in the folder of results; there only while a timing is unfinished


@dataclass(frozen=True, eq=False)
class TimingRounds:
    """Measures groups of networks round by round until the budget is over.

    Every round is on the disk before the next one begins. A group is kept there under its key until `forget` is called
    with it.
    """

    folder: Path | None  # of the results; without one, nothing is kept
    rounds: int  # of every group
    budget: float  # seconds for all groups together
    _ends: list[float] = field(default_factory=list)  # when the budget is over, from the first measurement on

    def measure(
        self,
        group: str,
        about: Mapping[str, Any],
        tick: Callable[[int], None],
        calls: Mapping[str, Callable[[], object]],
    ) -> dict[str, Timing]:
        """Timings of all calls of a group; none if the budget was over before its last round.

        `about` is kept beside the rounds; `tick` is called with the number of them that are done.
        """
        if not self._ends:
            self._ends.append(time.monotonic() + self.budget)
        kept = read_rounds(self.folder)
        made = kept.get(group, {}).get("rounds", [])
        made = made[: self.rounds] if all(one.keys() >= calls.keys() for one in made) else []
        made = [{name: one[name] for name in calls} for one in made]  # others of the group are stored already
        tick(len(made))
        for seconds in timed_rounds(calls, rounds=self.rounds, done=len(made), deadline=self._ends[0]):
            made.append(seconds)
            self._write(kept | {group: {"about": dict(about), "rounds": made}})
            tick(len(made))
        return timings_of(made) if len(made) == self.rounds else {}

    def forget(self, group: str) -> None:
        """Take a group out of the file, and the file away with its last one."""
        kept = read_rounds(self.folder)
        if kept.pop(group, None) is not None:
            self._write(kept)

    def _write(self, kept: dict[str, Any]) -> None:
        if self.folder is None:
            return
        path = self.folder / NAME
        try:
            if kept:
                self.folder.mkdir(parents=True, exist_ok=True)
                write_whole(path, (json.dumps(kept) + "\n").encode())
            else:
                path.unlink(missing_ok=True)
        except OSError as error:
            raise DataError(f"{path}: it can't be written ({error.strerror or error})") from None


def read_rounds(folder: Path | None) -> dict[str, dict[str, Any]]:
    """What a folder has of unfinished groups; nothing of a file that is damaged, since times can be measured again."""
    try:
        content = {} if folder is None else json.loads((folder / NAME).read_bytes())
        return {group: entry for group, entry in content.items() if _is_entry(entry)}
    except (OSError, ValueError, AttributeError, RecursionError):
        return {}


def _is_entry(entry: Any) -> bool:
    return (
        isinstance(entry, dict)
        and isinstance(entry.get("about"), dict)
        and isinstance(entry.get("rounds"), list)
        and all(isinstance(one, dict) and all(_is_time(value) for value in one.values()) for one in entry["rounds"])
    )


def _is_time(value: Any) -> bool:
    return isinstance(value, float) and 0 < value < math.inf


def check_budget(seconds: float, option: str = "time_budget") -> float:
    """Seconds that a timing may take; refuses what is no positive number."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds > 0:
        raise OptionError(option, seconds, "it must be a positive number of seconds, such as 120")
    return float(seconds)
