"""Numbers as people and files spell them, read within bounds before they become fractions or sizes (stdlib only)."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from fractions import Fraction
from numbers import Integral, Real
from typing import Any, Final

from zipbrain.errors import OptionError

LARGEST_COUNT: Final = 2**31 - 1  # of tokens, layers, samples: what a tensor's size can be

_LARGEST: Final = 2**63 - 1  # of any whole number in a file
_LONGEST: Final = 64  # characters of a spelling
_PLAIN_DIGITS: Final = 15  # significant digits that every double keeps: with more, it is the result of a calculation
_LARGEST_DENOMINATOR: Final = 10_000  # of a fraction that such a result stands for
_ROUNDING: Final = 2.0**-50  # relative error that a short calculation in doubles leaves
_SPELLING: Final = re.compile(r"[+-]?(\d+/\d+|(\d+\.?\d*|\.\d+)(e[+-]?\d{1,3})?)", re.IGNORECASE | re.ASCII)


def exact_fraction(name: str, value: object) -> Fraction:
    """The fraction that a number or its spelling stands for: ``0.1`` is 1/10, ``"5/6"`` is 5/6.

    A double with at most 15 significant digits is the decimal fraction that its shortest spelling shows. One with more
    is the result of a calculation: the fraction with a denominator up to 10,000 that it is equal to but for rounding
    (``0.1 * 3`` is 3/10, ``5 / 6`` is 5/6), or, where there is none, what its shortest spelling shows. Every spelling
    goes through the double nearest to it, so that a number means the same before and after it was written as JSON.
    """
    try:
        text = str(value).strip()
    except ValueError:  # Python writes no integers of thousands of digits
        text = ""
    if isinstance(value, bool) or len(text) > _LONGEST or not _SPELLING.fullmatch(text):
        raise OptionError(name, value, "it must be a number of usual size")
    try:
        double = float(Fraction(text))
    except (ZeroDivisionError, OverflowError):
        raise OptionError(name, value, "it must be a number of usual size") from None
    shortest = Fraction(repr(double))
    if len(repr(double).lower().partition("e")[0].replace(".", "").lstrip("-0")) <= _PLAIN_DIGITS:
        return shortest
    simple = shortest.limit_denominator(_LARGEST_DENOMINATOR)
    return simple if abs(simple - shortest) <= _ROUNDING * abs(shortest) else shortest


def whole_number(name: str, value: Any, least: int = 0, most: int = LARGEST_COUNT) -> int:
    """A whole number from `least` to `most` as a Python int; anything else is refused by the name of its option."""
    number = None if isinstance(value, bool) or not isinstance(value, Integral) else int(value)
    if number is None or not least <= number <= most:
        is_open = most == LARGEST_COUNT and (number is None or number < least)
        bound = f"of at least {least}" if is_open else f"from {least} to {most}"
        raise OptionError(name, value, f"it must be a whole number {bound}")
    return number


def finite_number(option: str, value: Any) -> float:
    """The float that is given; errors name the `option`."""
    try:
        number = math.nan if isinstance(value, bool) or not isinstance(value, Real) else float(value)
    except OverflowError:  # a whole number of hundreds of digits
        number = math.inf
    if not math.isfinite(number):
        raise OptionError(option, value, "it must be a finite number")
    return number


def plain_json(option: str, value: Any) -> Any:
    """A value as JSON knows it: tuples and arrays become lists, NumPy's numbers Python's; errors name the `option`."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, Integral):
        return whole_number(option, value, -_LARGEST, _LARGEST)
    if isinstance(value, Real):
        return finite_number(option, value)
    if isinstance(value, Mapping):
        for name in value:
            if not isinstance(name, str):
                raise OptionError(option, name, "names must be strings")
        return {name: plain_json(f"{option}.{name}", content) for name, content in value.items()}
    if isinstance(value, list | tuple):
        return [plain_json(option, content) for content in value]
    if hasattr(value, "tolist"):  # an array or a NumPy boolean
        return plain_json(option, value.tolist())
    raise OptionError(option, value, "it can't be written as JSON")


def spell_seconds(seconds: float) -> str:
    """Seconds to the microsecond, without zeros at the end."""
    return f"{seconds:.6f}".rstrip("0").rstrip(".")
