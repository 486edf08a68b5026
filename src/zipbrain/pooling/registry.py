"""One table of everything that can be named: methods, splits, matches and merge rules, each with a JSON form."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, ClassVar, TypeVar

from zipbrain.errors import OptionError
from zipbrain.numerals import whole_number
from zipbrain.paper import canonical_part

_PARTS: dict[str, type[Part]] = {}


class Part:
    """Base of a frozen dataclass that has a name and a JSON form."""

    name: ClassVar[str]
    role: ClassVar[str] = (
        "merge rule"  # what the part does, in error messages; methods, splits and so on have their own
    )

    def to_dict(self) -> dict[str, Any]:
        """JSON form: ``{"name": ..., option: value, ...}``; parts inside parts are nested."""
        values: dict[str, Any] = {"name": self.name}
        for name in options_of(type(self)):
            value = getattr(self, name)
            values[name] = value.to_dict() if isinstance(value, Part) else value
        return values


def options_of(part: type[Part]) -> list[str]:
    """Names of the options that a part is made from."""
    return [field.name for field in fields(part) if field.init]  # type: ignore[arg-type]


def check_flag(option: str, value: object) -> None:
    """Refuse what is neither True nor False: a word such as ``"no"`` would count as True."""
    if not isinstance(value, bool):
        raise OptionError(option, value, "it must be True or False")


Kind = TypeVar("Kind", bound=type[Part])


def register(name: str) -> Callable[[Kind], Kind]:
    """Class decorator: make a part known by name, so that it can be built from a string or from JSON."""

    def add(kind: Kind) -> Kind:
        known = _PARTS.get(name)
        if known is not None and (known.__module__, known.__qualname__) != (kind.__module__, kind.__qualname__):
            raise OptionError("name", name, f"it already names {known.__module__}.{known.__qualname__}")
        kind.name = name
        _PARTS[name] = kind
        return kind

    return add


def names(kind: type, role: str | None = None) -> list[str]:
    """Names of all registered parts of a kind, and of a role if one is given, sorted."""
    return sorted(name for name, part in _PARTS.items() if issubclass(part, kind) and role in (None, part.role))


def build(form: str | Mapping[str, Any], option: str = "method", kind: type = Part, role: str | None = None) -> Part:
    """A part made from its name (all options at their defaults) or from its JSON form.

    `option` is the caller's argument, for the error message; `kind` and `role` are what the part must be.
    """
    if isinstance(form, str):
        form = {"name": form}
    given = form.get("name")
    name = canonical_part(given)
    known = names(kind, role)
    if name not in known:
        close = difflib.get_close_matches(name, known, 1)
        hint = f" (did you mean {close[0]!r}?)" if close else ""
        raise OptionError(option, given, f"known names are {', '.join(known)}{hint}")
    part = _PARTS[name]
    allowed = options_of(part)
    kinds: dict[str, Any] = {field.name: field.type for field in fields(part)}  # type: ignore[arg-type]
    options = {}
    for key, value in form.items():
        if key == "name":
            continue
        if key not in allowed:
            raise OptionError(f"{option}.{key}", value, f"{name} takes {', '.join(sorted(allowed)) or 'no options'}")
        options[key] = build(value, f"{option}.{key}") if isinstance(value, Mapping) else value
        _check_plain(f"{option}.{key}", value, kinds[key])
    try:
        return part(**options)
    except TypeError:
        raise OptionError(option, given, f"{name} needs {', '.join(sorted(allowed))}") from None


def _check_plain(option: str, value: object, kind: Any) -> None:
    """Refuse a value of an option that is declared as a boolean or a whole number and gets something else."""
    if kind in ("bool", bool) and not isinstance(value, bool):
        raise OptionError(option, value, "it must be true or false")
    if kind in ("int", int) or (kind == "int | None" and value is not None):
        whole_number(option, value)
