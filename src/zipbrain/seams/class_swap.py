"""Class swap: a module becomes an instance of a subclass with another forward, and nothing else changes.

Hosts, which run the blocks, pool. The model around them says what a head needs that fails on fewer tokens.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from zipbrain.errors import OptionError, ZipbrainError
from zipbrain.pooling.backends.choose import is_captured
from zipbrain.seams.dialects.recognition import original_class
from zipbrain.seams.forward import Plan, Root, Site
from zipbrain.seams.identity import options_of
from zipbrain.seams.second_look import look_twice

_CLASSES: dict[tuple[type[nn.Module], type], type[nn.Module]] = {}
_SHAPE_ERRORS: Final = (RuntimeError, ValueError, IndexError, AssertionError)  # what heads raise on a wrong token count


class Swapped:
    """Mixed into the class of every swapped module; its `Site` or `Root` stands under ``_zipbrain``."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        # The class is made at run time, so it can't be pickled by name: pickle the original and swap again.
        place: Site | Root = self.__dict__["_zipbrain"]
        return _revive, (place.original, isinstance(place, Site)), self.__getstate__()

    def extra_repr(self) -> str:
        """What the module says of itself, and the recipe: caches of other libraries go by it."""
        place: Site | Root = self.__dict__["_zipbrain"]
        own = str(place.original.extra_repr(self))  # type: ignore[arg-type]
        if isinstance(place, Site) and (place.plan.has_root or place.index):
            return own
        mask = {} if place.plan.mask is None else {"protected": list(place.plan.mask)}
        recipe = json.dumps(options_of(place.plan) | mask, sort_keys=True)
        return f"{own}{own and ', '}compressed={recipe}"


class PooledHost(Swapped):
    """Mixed into the class of every host of a compressed model."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the host's blocks with pooling."""
        site: Site = self.__dict__["_zipbrain"]
        if not args and kwargs:  # the tokens by name, such as src=...
            args = (kwargs.pop(next(iter(kwargs))),)
        return site.plan.dialect.run(self, site, *args, **kwargs)  # type: ignore[arg-type]


class PooledModel(Swapped):
    """Mixed into the class of a compressed model that is no host itself."""


def swap_host(host: nn.Module, plan: Plan, index: int) -> None:
    """Let a host pool."""
    _swap(host, Site(plan, index, type(host)))


def can_swap(model: nn.Module) -> bool:
    """False for a model that has a forward or pickling of its own."""
    kind = original_class(model)
    own = kind.__reduce_ex__ is not object.__reduce_ex__ or kind.__reduce__ is not object.__reduce__
    return not own and "forward" not in model.__dict__


def swap_model(model: nn.Module, plan: Plan) -> None:
    """Let a model look twice and explain its head's failure; a host, and one that `can_swap` refuses, stays."""
    if can_swap(model) and "_zipbrain" not in model.__dict__:
        plan.has_root = True
        _swap(model, Root(plan, type(model)))


def swap_back(module: nn.Module) -> None:
    """Give a module its own class again; does nothing to any other."""
    place = module.__dict__.pop("_zipbrain", None)
    if place is not None:
        module.__class__ = place.original


@contextmanager
def swapped_back(model: nn.Module) -> Iterator[None]:
    """A model without its compression, while the ``with`` block runs."""
    places = [(module, place) for module in model.modules() if (place := module.__dict__.get("_zipbrain")) is not None]
    for module, _ in places:
        swap_back(module)
    try:
        yield
    finally:
        for module, place in places:
            _swap(module, place)


def _swap(module: nn.Module, place: Site | Root) -> None:
    module.__class__ = _swapped_class(place.original, isinstance(place, Site))
    module.__dict__["_zipbrain"] = place


def _swapped_class(original: type[nn.Module], is_host: bool) -> type[nn.Module]:
    """The subclass of a class, made once for hosts and once for models."""
    mixin = PooledHost if is_host else PooledModel
    if (original, mixin) not in _CLASSES:
        names = {"__module__": original.__module__, "__doc__": original.__doc__}
        name = f"Pooled{original.__name__}"
        if not is_host:  # keeps its name, which libraries write into files, and its forward's signature
            name = original.__name__
            names |= {"__qualname__": original.__qualname__, "forward": _explaining(original)}
        _CLASSES[original, mixin] = type(name, (mixin, original), names)
    return _CLASSES[original, mixin]


def _explaining(original: type[nn.Module]) -> Any:
    """A model's forward that turns a head's failure on fewer tokens into one line."""

    @functools.wraps(original.forward)
    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        root: Root = self.__dict__["_zipbrain"]
        plan, run = root.plan, functools.partial(root.run, self)
        if plan.second_look is not None and not self.training:
            run = functools.partial(look_twice, plan, run)
        if is_captured():
            return run(*args, **kwargs)
        plan.flow.left = 0
        try:
            return run(*args, **kwargs)
        except _SHAPE_ERRORS as error:
            refuse_meta(self, args, kwargs)
            left, total = plan.flow.left, plan.flow.total + plan.late[1]
            if not 0 < left < total or isinstance(error, ZipbrainError | torch.OutOfMemoryError):
                raise
            reason = next(iter(str(error).splitlines()), type(error).__name__)
            needed = f"the head fails on {left} of {total} tokens ({reason}); one that reads every token in its place"
            raise OptionError("mass", plan.mass, f"{needed} needs mass=Mass(readout=True)") from error

    return forward


def refuse_meta(model: nn.Module, *given: Any) -> None:
    """Refuse weights or inputs on the meta device, which have no values."""
    held = {"weights": model.state_dict(), "windows": given}
    for name, tensors in held.items():
        if any(isinstance(one, torch.Tensor) and one.is_meta for one in tree_leaves(tensors)):
            raise OptionError("model", f"{name} on the meta device", "they have no values: load them on a CPU or GPU")


def _revive(original: type[nn.Module], is_host: bool = True) -> nn.Module:
    kind = _swapped_class(original, is_host)
    return kind.__new__(kind)
