"""Public names of a package that are imported when they are first used (PEP 562; standard library only)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_names(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package.

    Parameters
    ----------
    package : str
        Its ``__name__``.
    homes : mapping of str to str
        Public name to the module that defines it; "" for a module of the package itself.
    """

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            home = import_module(homes[name] or f"{package}.{name}")
        except ModuleNotFoundError as missing:
            if missing.name != "torch":
                raise
            from zipbrain.errors import MissingExtra

            raise MissingExtra("torch", "torch", f"{package}.{name}") from None
        value = getattr(home, name) if homes[name] else home
        setattr(sys.modules[package], name, value)
        return value

    return find, lambda: sorted(sys.modules[package].__dict__.get("__all__", homes))


def import_extra(module: str, package: str, extra: str, purpose: str) -> Any:
    """A module of an optional package, or a refusal that names the extra that brings it."""
    try:
        return import_module(module)
    except ModuleNotFoundError as missing:
        if missing.name != module.partition(".")[0]:
            raise
        from zipbrain.errors import MissingExtra

        raise MissingExtra(package, extra, purpose) from None
