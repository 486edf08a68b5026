"""The rules of the alarms: which class, how sure, for how long; read from a TOML file and checked key by key."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Final, NamedTuple

from zipbrain.edge.prediction import NO_DECISION
from zipbrain.errors import DataError, OptionError
from zipbrain.numerals import finite_number
from zipbrain.text import readable

FORMAT: Final = 1  # of the file
TECHNICAL: Final = ("source", "gap", "clock", "electrode", "behind", "disk", "amplitude", NO_DECISION)

_LARGEST_FILE: Final = 2**20  # bytes
_MOST_RULES: Final = 100
_LONGEST_NAME: Final = 60  # characters
_NAME: Final = re.compile(r"[^\W_][\w .+()-]*")
_DAY: Final = 86_400.0  # seconds


@dataclass(frozen=True)
class Rule:
    """When one physiological alarm begins and ends.

    Parameters
    ----------
    name : str
        What the alarm is called.
    classes : tuple of str
        The sum of their probabilities is compared with the thresholds.
    on, off : float
        The alarm condition begins at or above `on` and ends below `off`; 0 < off <= on <= 1.
    min_duration_s : float
        Seconds of decided signal during which every window must be at or above `on` before the alarm is raised.
    refractory_s : float
        Seconds after its end during which no new alarm begins.
    latching : bool
        True if the alarm signal stays after the condition has ended, until it is acknowledged.
    """

    name: str
    classes: tuple[str, ...]
    on: float = 0.8
    off: float = 0.5
    min_duration_s: float = 10.0
    refractory_s: float = 60.0
    latching: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name) or len(self.name) > _LONGEST_NAME:
            allowed = f"it must be a name of at most {_LONGEST_NAME} letters, digits, blanks and .+()-"
            raise OptionError("name", self.name, allowed)
        if self.name in TECHNICAL:
            raise OptionError("name", self.name, "technical alarms have that name; choose another one")
        names: Any = self.classes
        if not isinstance(names, tuple) or not names or not all(isinstance(name, str) for name in names):
            given = list(names) if isinstance(names, tuple) else names
            raise OptionError("classes", given, "it must be a list of one or more names of classes")
        if len(set(self.classes)) < len(self.classes):
            raise OptionError("classes", list(self.classes), "each class may stand there once")
        for key in ("on", "off", "min_duration_s", "refractory_s"):
            object.__setattr__(self, key, finite_number(key, getattr(self, key)))
        if not 0 < self.on <= 1:
            raise OptionError("on", self.on, "it must be a probability above 0, at most 1")
        if not 0 < self.off <= self.on:
            raise OptionError("off", self.off, f"it must be above 0 and at most on, which is {self.on:g}")
        for key in ("min_duration_s", "refractory_s"):
            if not 0 <= getattr(self, key) <= _DAY:
                raise OptionError(key, getattr(self, key), "it must be from 0 to 86400 seconds")
        if not isinstance(self.latching, bool):
            raise OptionError("latching", self.latching, "it must be true or false")


@dataclass(frozen=True)
class AlarmRules:
    """The rules of all alarms, and what holds for every one.

    Parameters
    ----------
    classes : tuple of str
        Those of the model, in its order.
    rules : tuple of Rule
        One per physiological alarm; without any there are technical alarms only.
    no_decision_s : float
        Seconds without a decision until that is a technical alarm.
    longest_pause_s : float
        The longest pause that may be asked for.
    technical_latching : bool
        True if technical alarms too stay until they are acknowledged.
    """

    classes: tuple[str, ...]
    rules: tuple[Rule, ...] = ()
    no_decision_s: float = 60.0
    longest_pause_s: float = 600.0
    technical_latching: bool = False

    def __post_init__(self) -> None:
        names = [rule.name for rule in self.rules]
        if repeated := [name for name in names if names.count(name) > 1]:
            raise OptionError("name", repeated[0], "every alarm needs a name of its own")
        for rule in self.rules:
            for name in rule.classes:
                if name not in self.classes:
                    has = ", ".join(self.classes)
                    raise OptionError(f"classes of alarm {rule.name!r}", name, f"the model has the classes {has}")
        for key in ("no_decision_s", "longest_pause_s"):
            object.__setattr__(self, key, finite_number(key, getattr(self, key)))
            if not 1 <= getattr(self, key) <= _DAY:
                raise OptionError(key, getattr(self, key), "it must be from 1 to 86400 seconds")
        if not isinstance(self.technical_latching, bool):
            raise OptionError("technical_latching", self.technical_latching, "it must be true or false")

    @classmethod
    def default(cls, classes: Sequence[str]) -> AlarmRules:
        """An alarm for the second of two classes; technical alarms alone for a model with more."""
        names = tuple(classes)
        return cls(names, (Rule(_alarm_name(names[1]), names[1:]),) if len(names) == 2 else ())

    @classmethod
    def read(cls, path: str | Path, classes: Sequence[str]) -> AlarmRules:
        """The rules of a TOML file for a model with these classes; DataError names the key that is wrong."""
        path = Path(path)
        try:
            with path.open("rb") as file:
                content = file.read(_LARGEST_FILE + 1)
            if len(content) > _LARGEST_FILE:
                raise ValueError(f"it has more than {_LARGEST_FILE:,} bytes")
            table = tomllib.loads(content.decode("utf-8-sig"))
        except OSError as error:
            advice = "zipbrain live --init-alarms writes an example"
            raise DataError(f"{path}: the alarm rules can't be read ({error.strerror or error}); {advice}") from None
        except (ValueError, RecursionError) as error:  # tomllib's and UTF-8's errors are ValueErrors
            raise DataError(f"{path}: is no TOML file ({error}); correct it") from None
        try:
            return cls._from_table(table, tuple(classes))
        except OptionError as error:
            raise DataError(f"{path}: {error}") from None

    @classmethod
    def _from_table(cls, table: dict[str, Any], classes: tuple[str, ...]) -> AlarmRules:
        settings = [field.name for field in fields(cls) if field.name not in ("classes", "rules")]
        _refuse_unknown("", table, ["format", *settings, "alarm"])
        if table.get("format") != FORMAT or isinstance(table["format"], bool):
            allowed = f"this zipbrain reads alarm rules that begin with format = {FORMAT}"
            raise OptionError("format", table.get("format"), allowed)
        alarms = table.get("alarm", [])
        if not isinstance(alarms, list) or not all(isinstance(alarm, dict) for alarm in alarms):
            raise OptionError("alarm", alarms, "every alarm must be a table of its own under [[alarm]]")
        if len(alarms) > _MOST_RULES:
            raise OptionError("alarm", f"{len(alarms)} alarms", f"at most {_MOST_RULES} are allowed")
        rules = tuple(_read_rule(number, alarm) for number, alarm in enumerate(alarms, 1))
        return cls(classes, rules, **{key: table[key] for key in settings if key in table})

    def to_dict(self) -> dict[str, Any]:
        """The rules as JSON has them."""
        return asdict(self)


def _read_rule(number: int, alarm: dict[str, Any]) -> Rule:
    where = f"alarm {number}" + (f" ({alarm['name']!r})" if isinstance(alarm.get("name"), str) else "")
    keys = [field.name for field in fields(Rule)]
    _refuse_unknown(f"{where}: ", alarm, keys)
    for key in ("name", "classes", "on", "off"):  # what an alarm means is never left to a default
        if key not in alarm:
            raise OptionError(f"{where}: {key}", None, f"every alarm needs {key}")
    if not isinstance(alarm["classes"], list):
        raise OptionError(f"{where}: classes", alarm["classes"], 'it must be a list such as ["seizure"]')
    try:
        return Rule(**{**alarm, "classes": tuple(alarm["classes"])})
    except OptionError as error:
        raise OptionError(f"{where}: {error.name}", error.given, error.allowed) from None


def _refuse_unknown(where: str, found: Mapping[str, Any], known: Sequence[str]) -> None:
    for key in found:
        if key not in known:
            raise OptionError(f"{where}{key}", found[key], f"there is no such key; known are {', '.join(known)}")


class _Key(NamedTuple):
    name: str
    value: object
    words: str


def example_rules(classes: Sequence[str]) -> str:
    """A commented TOML file for a model with these classes, as ``--init-alarms`` writes it."""
    default = AlarmRules.default(classes)
    general = [
        _Key("no_decision_s", default.no_decision_s, "seconds without a decision until a technical alarm is raised"),
        _Key("longest_pause_s", default.longest_pause_s, "the longest pause that may be asked for, in seconds"),
        _Key("technical_latching", default.technical_latching, "true: technical alarms too stay until acknowledged"),
    ]
    lines = [
        "# Alarm rules of zipbrain live. Not a medical device.",
        "# Thresholds, durations and refractory times are examples: choose yours on recordings with known events",
        "# (zipbrain live evaluate). docs/guides/alarms.md explains every key.",
        f"format = {FORMAT}",
        *_lines(general),
    ]
    chosen = {name for rule in default.rules for name in rule.classes}
    if not chosen:
        lines += ["", "# No alarm is active: take the # away from those that you want."]
    for name in classes:
        rule = Rule(_alarm_name(name), (name,))
        keys = [
            _Key("name", rule.name, "what the alarm is called"),
            _Key("classes", list(rule.classes), "their probabilities are added"),
            _Key("on", rule.on, "the alarm begins at or above this probability"),
            _Key("off", rule.off, "and ends below this one"),
            _Key("min_duration_s", rule.min_duration_s, "seconds at or above on before it is raised"),
            _Key("refractory_s", rule.refractory_s, "seconds after its end without a new one"),
            _Key("latching", rule.latching, "true: it stays until it is acknowledged"),
        ]
        mark = "" if name in chosen else "# "
        lines += ["", *(f"{mark}{line}" for line in ["[[alarm]]", *_lines(keys)])]
    return "\n".join(lines) + "\n"


def _lines(keys: Sequence[_Key]) -> list[str]:
    pairs = [f"{key.name} = {_toml(key.value)}" for key in keys]
    width = max(map(len, pairs))
    return [f"{pair:<{width}}  # {key.words}" for pair, key in zip(pairs, keys, strict=True)]


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, str):
        escaped = "".join(f"\\U{ord(c):08x}" if c in '"\\' or not c.isprintable() else c for c in readable(value))
        return f'"{escaped}"'
    return f"{value:g}"


def _alarm_name(name: str) -> str:
    """A class's name, made fit to be an alarm's."""
    plain = re.sub(r"[^\w .+()-]", " ", name).strip(" _.+()-")[:_LONGEST_NAME].strip() or "alarm"
    return f"{plain} alarm" if plain in TECHNICAL else plain
