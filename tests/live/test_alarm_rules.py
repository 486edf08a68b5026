"""The file of alarm rules: what it means, the example, and what is refused with the key named."""

from __future__ import annotations

import re
import tomllib
from dataclasses import fields
from pathlib import Path

import pytest

from zipbrain.errors import DataError
from zipbrain.live.alarm_rules import AlarmRules, Rule, example_rules

CLASSES = ("background", "seizure")
GENERAL = "format = 1\n"
ALARM = '[[alarm]]\nname = "seizure"\nclasses = ["seizure"]\non = 0.8\noff = 0.5\n'


def read(tmp_path, text, classes=CLASSES):
    path = tmp_path / "alarms.toml"
    path.write_text(text, encoding="utf-8")
    return AlarmRules.read(path, classes)


def test_a_file_says_every_key(tmp_path):
    text = 'format = 1\nno_decision_s = 30\nlongest_pause_s = 120\ntechnical_latching = true\n[[alarm]]\nname = "any"\n'
    text += 'classes = ["seizure", "background"]\non = 0.9\noff = 0.4\nmin_duration_s = 5\nrefractory_s = 0\n'
    text += "latching = false"
    assert read(tmp_path, text).to_dict() == {
        "classes": CLASSES,
        "rules": (
            {
                "name": "any",
                "classes": ("seizure", "background"),
                "on": 0.9,
                "off": 0.4,
                "min_duration_s": 5.0,
                "refractory_s": 0.0,
                "latching": False,
            },
        ),
        "no_decision_s": 30.0,
        "longest_pause_s": 120.0,
        "technical_latching": True,
    }


@pytest.mark.parametrize(
    "classes", [CLASSES, ("SPSW", "GPED", "PLED"), ('a "b"', "\\c\n=", "gap"), ("é", "日本"), ("-", "source")]
)
def test_the_example_reads_as_the_defaults_and_every_alarm_in_it_can_be_switched_on(tmp_path, classes):
    text = example_rules(classes)
    assert read(tmp_path, text, classes) == AlarmRules.default(classes)
    assert len(AlarmRules.default(classes).rules) == (len(classes) == 2)
    active = "\n".join(line.removeprefix("# ") if "=" in line or "[[" in line else line for line in text.splitlines())
    rules = tomllib.loads(active)["alarm"]
    assert [rule["classes"] for rule in rules] == [[name] for name in classes]
    assert len(read(tmp_path, active, classes).rules) == len(classes)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (ALARM, ["format", "None"]),
        ("format = 2\n" + ALARM, ["format", "2"]),
        (GENERAL + "no_decison_s = 3\n", ["no_decison_s", "no_decision_s"]),
        (GENERAL + "no_decision_s = 0\n", ["no_decision_s", "86400"]),
        (GENERAL + "longest_pause_s = inf\n", ["longest_pause_s", "finite"]),
        (GENERAL + "technical_latching = 1\n", ["technical_latching", "true or false"]),
        (GENERAL + "alarm = 3\n", ["alarm", "[[alarm]]"]),
        (GENERAL + ALARM + "min_duration = 3\n", ["alarm 1 ('seizure')", "min_duration", "min_duration_s"]),
        (GENERAL + ALARM.replace('"seizure"]', '"fire"]'), ["'fire'", "background, seizure"]),
        (GENERAL + ALARM.replace("0.5", "0.9"), ["off", "0.9", "0.8"]),
        (GENERAL + ALARM.replace("0.8", "1.5"), ["on", "1.5"]),
        (GENERAL + ALARM.replace("0.8", '"0.8"'), ["on", "'0.8'", "number"]),
        (GENERAL + ALARM.replace("off = 0.5\n", ""), ["alarm 1 ('seizure')", "off"]),
        (GENERAL + ALARM.replace('["seizure"]', '"seizure"'), ["classes", "list"]),
        (GENERAL + ALARM.replace('["seizure"]', "[]"), ["classes", "[]"]),
        (GENERAL + ALARM.replace('["seizure"]', "[1]"), ["classes", "[1]"]),
        (GENERAL + ALARM.replace('["seizure"]', '["seizure", "seizure"]'), ["classes", "once"]),
        (GENERAL + ALARM.replace('name = "seizure"', 'name = ""'), ["name", "''"]),
        (GENERAL + ALARM.replace('name = "seizure"', 'name = "source"'), ["name", "'source'", "technical"]),
        (GENERAL + ALARM + 'latching = "no"\n', ["latching", "'no'"]),
        (GENERAL + ALARM + "refractory_s = -1\n", ["refractory_s", "-1"]),
        (GENERAL + ALARM + ALARM, ["name", "'seizure'"]),
        ("format = ", ["TOML"]),
        ("a = " + "[" * 100_000, ["TOML"]),
    ],
)
def test_a_wrong_file_is_refused_in_one_line_that_names_the_key_and_what_is_allowed(tmp_path, text, named):
    with pytest.raises(DataError) as refusal:
        read(tmp_path, text)
    words = str(refusal.value)
    assert words.startswith(str(tmp_path / "alarms.toml"))
    assert "\n" not in words
    for part in named:
        assert part in words


def test_a_missing_or_binary_file_is_refused(tmp_path):
    with pytest.raises(DataError, match="init-alarms"):
        AlarmRules.read(tmp_path / "none.toml", CLASSES)
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match="TOML"):
        AlarmRules.read(tmp_path / "binary.toml", CLASSES)


def test_the_page_lists_every_key_with_its_default():
    page = (Path(__file__).parents[2] / "docs" / "guides" / "alarms.md").read_text()
    shown = dict(re.findall(r"^\| `(\w+)` \| [^|]+ \| `?([^`|]+)`? \| [^|]+ \|$", page, re.MULTILINE))
    needed = {"format", "name", "classes", "on", "off"}  # without a default
    assert {key for key, default in shown.items() if default == "–"} == needed
    defaults = {one.name: one.default for kind in (Rule, AlarmRules) for one in fields(kind)}
    wanted = {name: str(default).lower() for name, default in defaults.items() if name not in needed | {"rules"}}
    assert {key: default for key, default in shown.items() if key not in needed} == {
        name: default.removesuffix(".0") for name, default in wanted.items()
    }
