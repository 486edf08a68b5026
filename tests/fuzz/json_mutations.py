"""Changes to JSON: any value of it replaced, left out, repeated or put elsewhere, or bytes of its text changed."""

from __future__ import annotations

import copy
import json
from random import Random
from typing import Any

from tests.fuzz.mutations import NUMBERS, change_bytes

_DEEP: Any = []
for _ in range(60):
    _DEEP = [_DEEP]
# What readers of numbers, names and lists have stumbled over.
VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 3, 7, 0.5, -0.0, 1e-9, 1e-300, 1e18, 1e300, 10**9, 2**31, 2**53, 2**63, 10**18,
    10**300, float("nan"), float("inf"), float("-inf"), "", " ", "x", "0", "max", "none", "\x00", "\x1b[2J", "\u202e",
    "\ud800", "=cmd|calc!A1", "../../x", "/etc/passwd", "a" * 5000, "1e999999999", "0." + "3" * 9999, "9" * 4000, [],
    {}, [[]], [None], [0], [1, 2], ["x"], {"name": "x"}, {"": 0}, _DEEP, [0] * 10_000, {str(n): n for n in range(2000)},
)  # fmt: skip


def change_json(content: Any, rng: Random, values: tuple[Any, ...] = ()) -> bytes:
    """Text of JSON content with one to three changes; `values` are more that a change may put there."""
    content = copy.deepcopy(content)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        content = _changed(content, rng, values)
    text = json.dumps(content, ensure_ascii=rng.random() < 0.7).encode("utf-8", "surrogatepass")
    return change_bytes(text, rng) if rng.random() < 0.2 else text


def _changed(content: Any, rng: Random, values: tuple[Any, ...]) -> Any:
    places = list(_places(content))
    if not places:
        return _value(rng, values)
    leaves = [(holder, key) for holder, key in places if not isinstance(holder[key], dict | list)]
    holder, key = rng.choice(leaves if leaves and rng.random() < 0.6 else places)
    way = rng.random()
    if way < 0.25:
        holder[key] = _near(holder[key], rng, values)
    elif way < 0.7:
        holder[key] = _value(rng, values)
    elif way < 0.8:
        del holder[key]
    elif way < 0.9:
        other, place = rng.choice(places)
        if place in other if isinstance(other, dict) else place < len(other):
            holder[key] = copy.deepcopy(other[place])
    elif isinstance(holder, dict):
        holder[rng.choice(("", "name", "format", f"{key}x", str(key).upper()))] = holder.pop(key)
    else:
        holder.insert(key, copy.deepcopy(holder[key]))
    return content


def _places(content: Any) -> Any:
    """Every list or object within, with each of its indices or keys."""
    keys = list(content) if isinstance(content, dict) else range(len(content)) if isinstance(content, list) else ()
    for key in keys:
        yield content, key
        yield from _places(content[key])


def _near(value: Any, rng: Random, values: tuple[Any, ...]) -> Any:
    """A value of the same kind, which a reader may well take."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return rng.choice((value + 1, value - 1, 2 * value, 0, 10 * value, 10**6, float(value)))
    if isinstance(value, float):
        return value * 10 ** rng.uniform(-3, 3) if rng.random() < 0.7 else rng.choice((0, 1, 0.1 * 3, value / 3))
    if isinstance(value, list):
        return value * 2 if rng.random() < 0.5 else value[:-1]
    own = [one for one in values if isinstance(one, str)]
    return rng.choice(own) if own and rng.random() < 0.7 else f"{value}x" if isinstance(value, str) else value


def _value(rng: Random, values: tuple[Any, ...]) -> Any:
    way = rng.random()
    if values and way < 0.3:
        return copy.deepcopy(rng.choice(values))
    if way < 0.5:
        return rng.choice(NUMBERS)
    return copy.deepcopy(rng.choice(VALUES)) if way < 0.9 else rng.choice((1, -1)) * 10 ** rng.uniform(-12, 12)
