"""Class swap: a host module becomes an instance of a subclass whose forward pools, and nothing else changes."""

from __future__ import annotations

from typing import Any

from torch import nn

from zipbrain.errors import UnsupportedModel
from zipbrain.seams.forward import Plan, Site

_CLASSES: dict[type[nn.Module], type[nn.Module]] = {}


class PooledHost:
    """Mixed into the class of every host of a compressed model."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the host's blocks with pooling."""
        site: Site = self.__dict__["_zipbrain"]
        if not args and kwargs:  # the tokens by name, such as src=...
            args = (kwargs.pop(next(iter(kwargs))),)
        return site.plan.seam.run(self, site, *args, **kwargs)  # type: ignore[arg-type]

    def __reduce_ex__(self, protocol: Any) -> Any:
        # The class is made at run time, so it can't be pickled by name: pickle the original and swap again.
        site: Site = self.__dict__["_zipbrain"]
        return _revive, (site.original,), self.__getstate__()


def pooled_class(original: type[nn.Module]) -> type[nn.Module]:
    """The pooling subclass of a host's class, made once."""
    if issubclass(original, PooledHost):
        return original
    if original not in _CLASSES:
        names = {"__module__": original.__module__, "__doc__": original.__doc__}
        _CLASSES[original] = type(f"Pooled{original.__name__}", (PooledHost, original), names)
    return _CLASSES[original]


def site_of(module: nn.Module) -> Site | None:
    """Where a module stands in a plan, or None if it is not compressed."""
    site = module.__dict__.get("_zipbrain")
    return site if isinstance(site, Site) else None


def plan_of(model: nn.Module) -> Plan:
    """The plan by which a model is compressed."""
    for module in model.modules():
        site = site_of(module)
        if site is not None:
            return site.plan
    raise UnsupportedModel(f"{type(model).__name__} is not compressed: call zipbrain.compress(model, ...) first")


def _revive(original: type[nn.Module]) -> nn.Module:
    kind = pooled_class(original)
    return kind.__new__(kind)
