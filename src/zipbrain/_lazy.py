"""Public names of a package that are imported when they are first used (PEP 562; standard library only)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_names(
    package: str, homes: Mapping[str, str], modules: str = ""
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """`__getattr__`, `__dir__` and `__all__` of a package, by its ``__name__``.

    `homes` maps a module to the public names that it defines, with spaces between; `modules` of the package are public
    themselves.
    """
    home_of = {name: home for home, names in homes.items() for name in names.split()}
    public = [*home_of, *modules.split()]

    def find(name: str) -> Any:
        if name not in public:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            home = import_module(home_of.get(name, f"{package}.{name}"))
        except ModuleNotFoundError as missing:
            if missing.name != "torch":
                raise
            from zipbrain.errors import MissingExtra

            raise MissingExtra("torch", "torch", f"{package}.{name}") from None
        value = getattr(home, name) if name in home_of else home
        setattr(sys.modules[package], name, value)
        return value

    return find, lambda: sorted(public), public


def import_extra(module: str, package: str, extra: str, purpose: str) -> Any:
    """A module of an optional package, or a refusal that names the extra that brings it."""
    try:
        return import_module(module)
    except ModuleNotFoundError as missing:
        if missing.name != module.partition(".")[0]:
            raise
        from zipbrain.errors import MissingExtra

        raise MissingExtra(package, extra, purpose) from None
