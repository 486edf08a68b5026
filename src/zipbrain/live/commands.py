"""Commands of a viewer (acknowledge, pause, resume, mark): one small file each, in the session's folder."""

from __future__ import annotations

import json
import math
import os
import re
import secrets
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from zipbrain.errors import DataError, OptionError
from zipbrain.files import new_partial, read_json

FOLDER: Final = "commands"
LABELS: Final = ("event", "false alarm")  # of a mark
LONGEST_PAUSE_S: Final = 3600.0
MOST_WAITING: Final = 64  # files; further commands are refused until the session has read these

_LARGEST: Final = 4096  # bytes of one command
_LONGEST_TEXT: Final = 80  # characters of an alarm's name and of who gave the command
_MOST_AT_ONCE: Final = 32
_NAME: Final = re.compile(r"\d{20}-[0-9a-f]{8}\.json")
_FIELDS: Final = {  # of each command, beside "command" and "by"
    "acknowledge": ("alarm",),
    "pause": ("seconds",),
    "resume": (),
    "mark": ("time_s", "stop_s", "label"),
}


def check_command(given: Any) -> dict[str, Any]:
    """The command with its known fields only; OptionError says what is wrong with it.

    ``{"command": "acknowledge", "alarm": NAME or "" for all}``, ``{"command": "pause", "seconds": 1 to 3600}``,
    ``{"command": "resume"}`` or ``{"command": "mark", "time_s", "stop_s", "label": "event" | "false alarm"}``, each
    with ``"by"`` if it is known who gave it.
    """
    name = given.get("command") if isinstance(given, dict) else None
    if not isinstance(name, str) or name not in _FIELDS:
        raise OptionError("command", name, f"it must be one of {', '.join(_FIELDS)}")
    unknown = sorted(set(map(str, given)) - {"command", "by", *_FIELDS[name]})
    if unknown:
        raise OptionError("command", unknown[0], f"{name} has no such field")
    checked: dict[str, Any] = {"command": name, "by": _text("by", given.get("by", ""))}
    if name == "acknowledge":
        checked["alarm"] = _text("alarm", given.get("alarm", ""))
    elif name == "pause":
        checked["seconds"] = _number("seconds", given.get("seconds"), 1, LONGEST_PAUSE_S)
    elif name == "mark":
        checked["time_s"] = _number("time_s", given.get("time_s"), 0, math.inf)
        checked["stop_s"] = _number("stop_s", given.get("stop_s", checked["time_s"]), checked["time_s"], math.inf)
        if given.get("label") not in LABELS:
            raise OptionError("label", given.get("label"), f"a mark is one of {', '.join(LABELS)}")
        checked["label"] = given["label"]
    return checked


def send_command(folder: Path, command: dict[str, Any]) -> None:
    """Leave a command for the session of a folder; DataError if no session reads it, OptionError if it is wrong."""
    content = json.dumps(check_command(command)).encode()
    place = folder / FOLDER
    try:
        if sum(1 for _ in os.scandir(place)) >= MOST_WAITING:
            raise DataError(f"{place}: {MOST_WAITING} commands wait already; is the session running?")
        path = place / f"{time.time_ns():020d}-{secrets.token_hex(4)}.json"
        with new_partial(path) as temporary:
            temporary.chmod(0o600)
            temporary.write_bytes(content)
            os.replace(temporary, path)
    except OSError as error:
        raise DataError(f"{place}: no command can be left there ({error.strerror}); is the session running?") from None


def take_commands(folder: Path) -> tuple[list[dict[str, Any]], int]:
    """Waiting commands, oldest first, and how many were refused; all leave the folder. None where the disk fails."""
    place = folder / FOLDER
    try:
        names = sorted(filter(_NAME.fullmatch, os.listdir(place)))[:_MOST_AT_ONCE]
    except OSError:
        return [], 0
    taken, refused = [], 0
    for name in names:
        try:
            taken.append(check_command(read_json(place / name, _LARGEST)))
        except (OSError, ValueError):  # OptionError is a ValueError
            refused += 1
        with suppress(OSError):
            (place / name).unlink()
    return taken, refused


def _text(name: str, given: Any) -> str:
    if not isinstance(given, str) or len(given) > _LONGEST_TEXT or not (given.isprintable()):
        raise OptionError(name, given, f"it must be text of one line, at most {_LONGEST_TEXT} characters")
    return given


def _number(name: str, given: Any, least: float, most: float) -> float:
    if isinstance(given, bool) or not isinstance(given, int | float) or not math.isfinite(given):
        raise OptionError(name, given, "it must be a number of seconds")
    if not least <= given <= most:
        raise OptionError(name, given, f"it must lie between {least:g} and {most:g}")
    return float(given)
