"""`compress`, `restore` and `summary`, which users call, and what `compress` decides."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from zipbrain.errors import OptionError
from zipbrain.numerals import whole_number
from zipbrain.paper import NETWORKS, known_name
from zipbrain.pooling.methods.base import Mass, Method, as_method
from zipbrain.pooling.pool import read_protected
from zipbrain.pooling.schedule import Schedule, as_schedule
from zipbrain.recipe import Recipe, as_margin, as_recipe
from zipbrain.seal import find_broken_seal
from zipbrain.seams.advice import advice
from zipbrain.seams.class_swap import can_swap, refuse_meta, swap_back, swap_host, swap_model
from zipbrain.seams.find import Chain, find_chain, protected_ends
from zipbrain.seams.forward import Plan, Protection, Root, find_plan, plan_of, site_of
from zipbrain.seams.identity import options_of
from zipbrain.seams.readout import Probe, probe
from zipbrain.seams.summary import Summary, summarise
from zipbrain.weights import fingerprint

log = logging.getLogger("zipbrain")

_OFF = Mass()  # this very object is the default, so that an explicit False counts more than a recipe


def compress(
    model: nn.Module,
    method: Method | Recipe | str | Path | dict[str, Any] = "zipbrain",
    *,
    ratio: float | str | None = None,
    r: int | list[int] | None = None,
    schedule: Schedule | list[int] | dict[str, Any] | None = None,
    layers: Iterable[int] | None = None,
    protected: int | tuple[int, int] | Tensor | None = None,
    tokens: int | None = None,
    example: Any = None,
    within: str | nn.Module | None = None,
    axis: str | None = None,
    mass: bool | Mass | dict[str, bool] = _OFF,
    second_look: float | None = None,
) -> nn.Module:
    """Reduce the tokens of a transformer between attention and feed-forward of its blocks, in place.

    Parameters
    ----------
    model : nn.Module
        Any model with blocks that a dialect in `zipbrain.seams.dialects` knows. A compressed model is
        compressed anew.
    method : Method, Recipe, str, path or dict
        ``ZIPBrain(...)``, ``ToMe()``, ``"tofu"``, ... A `Recipe`, or the path of its ``.json`` file, brings every other
        option with it; what is given besides counts more.
    ratio : float or "max", optional
        Share of the original tokens removed over the whole network, or the paper's maximum.
    r : int or list of int, optional
        Tokens removed in each reducing layer.
    schedule : Schedule or list of int, optional
        Any other schedule. Exactly one of `ratio`, `r` and `schedule` must be given (with a recipe: at most one).
    layers : iterable of int, optional
        Blocks that reduce, counted from 1; all if not given (EEGPT: 2, 4, 6, 8).
    protected : int, (int, int) or Tensor of bool, optional
        Tokens that are never touched: leading ones, (leading, trailing), or a mask over the T tokens. CLS and summary
        tokens are found by themselves.
    tokens : int, optional
        N, the number of unprotected tokens of a window. A window of another length gets its own r from the same
        `ratio`; the first one warns.
    example : Tensor, tuple or dict, optional
        An input of the model. It is run to count its tokens, and its head to see what that reads: a warning names what
        is missing (`protected`, ``mass=Mass(readout=True)``, another `tokens`).
    within : str or nn.Module, optional
        The part of the model that holds the blocks, where several do.
    axis : {"channels", "time"}, optional
        Of a model whose blocks keep a grid (CBraMod): whether whole channels are pooled, as they are if it is not
        given, or whole time steps. The grid is put together again behind the last block.
    mass : bool or Mass
        Whether a token remembers how many original tokens it stands for: in attention, in the merge and in the
        readout. Off as in the paper.
    second_look : float, optional
        A window runs again uncompressed where the log-odds of its best class against the second best (the difference
        of their logits) are below this; for models that return logits (B, classes), in evaluation mode.

    Returns
    -------
    model : nn.Module
        The same object. Parameters, buffers and ``state_dict`` keys are unchanged; `restore` undoes it.

    Examples
    --------
    >>> import torch, zipbrain
    >>> layer = torch.nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    >>> model = torch.nn.TransformerEncoder(layer, 4).eval()
    >>> model = zipbrain.compress(model, zipbrain.ZIPBrain(), ratio=0.8)
    >>> model(torch.randn(2, 50, 32)).shape
    torch.Size([2, 10, 32])
    """
    if not isinstance(model, nn.Module):
        raise OptionError("model", type(model).__name__, "it must be a torch.nn.Module")
    recipe = as_recipe(method)
    given = (ratio, r, schedule, layers, protected, tokens, example, within, axis, second_look)
    origin = recipe if mass is _OFF and all(one is None for one in given) else None
    if recipe is not None:
        _refuse_another_model(model, recipe)
        method, stored = recipe.method, recipe.options()
        schedule = stored["schedule"] if ratio is None and r is None and schedule is None else schedule
        tokens = stored["tokens"] if tokens is None and example is None else tokens
        layers = stored["layers"] if layers is None else layers
        protected = stored["protected"] if protected is None else protected
        within = stored["within"] if within is None else within
        axis = stored["axis"] if axis is None else axis
        mass = stored["mass"] if mass is _OFF else mass
        second_look = stored["second_look"] if second_look is None else second_look
    chosen, amount, uses = as_method(method), as_schedule(ratio, r, schedule), Mass.of(mass)
    chain = find_chain(model, within)
    chain = replace(chain, dialect=chain.dialect.along(axis))
    if chain.facts.grid or chain.dialect.cells:  # the head needs every token back in its place
        uses = uses | Mass(attention=False, merge=False, readout=True)
    leading, trailing, mask = _protected(model, chain, protected)
    reducing = _reducing(chain, layers)
    shape = chain.dialect.shape(chain.blocks[0])
    tokens = None if tokens is None else whole_number("tokens", tokens, 1)
    # Refuses a score that the model can't give.
    chosen.needs_attention(leading if mask is None else sum(mask), shape.linear)
    length = protected.shape[-1] if isinstance(protected, Tensor) else None
    protection = Protection(leading, trailing, mask, length, chain.facts.late)
    plan = Plan(
        dialect=chain.dialect,
        method=chosen,
        schedule=amount,
        mass=uses | chosen.mass,
        reducing=reducing,
        protection=protection,
        shape=shape,
        tokens=tokens,
        where=chain.path,
        origin=origin,
        reads_protected=chain.facts.reads_protected and (leading, trailing) == protected_ends(model, chain),
        second_look=_second_look(second_look, model, chain),
        is_window_major=getattr(model, "batch_fold", None) == "window",
    )
    if example is not None:
        refuse_meta(model, example)
    seen = None if example is None else probe(model, chain, example, (leading, trailing))
    if seen is not None:
        _declare(plan, seen)
    plan.can_run_tail = _can_run_tail(plan, model, chain)
    if plan.tokens is not None:
        plan.removals(plan.tokens)  # refuses an impossible schedule while the model is still as it was
    if amount.can_remove(sum(reducing)):
        for remark in advice(model, chain, plan, seen, protected):
            warnings.warn(remark, stacklevel=2)
    _warn_of_sharing(model, chain)
    restore(model)
    for index, host in enumerate(chain.hosts):
        swap_host(host, plan, index)
    swap_model(model, plan)
    blocks = [number for number, reduces in enumerate(reducing, 1) if reduces]
    found = f"{chain}, protecting {leading} leading and {trailing} trailing tokens"
    found += "" if plan.readout is None else f", with a head that {plan.readout}"
    log.info("%s: %s, reducing at %s", type(model).__name__, found, blocks)
    return model


def restore(model: nn.Module) -> nn.Module:
    """Undo `compress`: same classes, same ``state_dict``, bit-equal outputs. Does nothing to any other model."""
    for module in model.modules():
        swap_back(module)
    return model


def instrument(model: nn.Module, tokens: int | None = None) -> nn.Module:
    """Open a model for observers and counts without changing what it computes: no token goes, no block is shortened."""
    compress(model, "free_slicing", r=0, tokens=tokens)
    plan_of(model).can_run_tail = False
    return model


cut_open = instrument  # its earlier name


def describe(model: nn.Module) -> dict[str, Any]:
    """The options that would compress the same model in the same way again, for JSON."""
    plan = plan_of(model)
    if plan.mask is not None:
        raise OptionError("model", "protected by a mask", "only leading and trailing protected tokens can be described")
    return options_of(plan)


def origin_of(model: nn.Module) -> Recipe | None:
    """The recipe by which a model was compressed; None if options were given besides."""
    return plan_of(model).origin


def is_compressed(model: nn.Module) -> bool:
    """Whether any part of the model is compressed."""
    return find_plan(model) is not None


def summary(model: nn.Module, tokens: int | None = None) -> Summary:
    """Say what was found and what compression does: blocks, protected tokens, tokens per layer, multiply-adds.

    Parameters
    ----------
    model : nn.Module
        A compressed model.
    tokens : int, optional
        N to report for; by default the N that the last forward had, that `compress` was given, or that the model
        declares as `n_tokens`.
    """
    plan = plan_of(model)
    if tokens is None:
        tokens = plan.flow.n or next(reversed(plan.cache), None) or plan.tokens or getattr(model, "n_tokens", None)
    else:
        tokens = whole_number("tokens", tokens, 1)
    return summarise(type(model).__name__, plan, tokens)


def _refuse_another_model(model: nn.Module, recipe: Recipe) -> None:
    """Refuse a recipe for another class of model (its bases and what it wraps count); warn of other weights."""
    kinds = (kind for module in model.modules() for kind in type(module).__mro__)
    if recipe.model is not None and recipe.model not in {known_name(kind.__name__, NETWORKS) for kind in kinds}:
        found = f"a recipe for {recipe.model}"
        raise OptionError("method", found, f"the model is a {type(model).__name__}; a recipe without model fits any")
    if recipe.weights is None and recipe.promise is None:
        return
    if reason := find_broken_seal(recipe.to_dict(), fingerprint(model.state_dict())):
        warnings.warn(f"{reason}: what it promises does not hold here; zipbrain tune makes another", stacklevel=3)


def _warn_of_sharing(model: nn.Module, chain: Chain) -> None:
    """Say that blocks belong to another compressed model too, which will pool as this one."""
    places = [module.__dict__.get("_zipbrain") for module in model.modules()]
    inside = {id(place.plan) for place in places if isinstance(place, Root)}
    sites = (site for host in chain.hosts if (site := site_of(host)) is not None)
    if any(site.plan.has_root and id(site.plan) not in inside for site in sites):
        words = "blocks of this model are also part of another compressed model"
        warnings.warn(f"{words}, which now pools as this one does; compress a copy.deepcopy instead", stacklevel=3)


def _protected(model: nn.Module, chain: Chain, protected: object) -> tuple[int, int, tuple[bool, ...] | None]:
    if protected is None:
        leading, trailing = protected_ends(model, chain)
        return leading, trailing, None
    leading, trailing, mask, _ = read_protected(protected)
    return leading, trailing, None if mask is None else tuple(mask[0].tolist())


def _second_look(given: Any, model: nn.Module, chain: Chain) -> float | None:
    """The margin of a second look; refused for a model whose forward can't be run a second time."""
    if given is None:
        return None
    margin = as_margin(given)
    if not _is_around(model, chain):
        found = f"{margin:g} for a {type(model).__name__}"
        raise OptionError("second_look", found, "it needs a model with a head around the blocks, with a plain forward")
    return margin


def _is_around(model: nn.Module, chain: Chain) -> bool:
    """True if the model has a head around its blocks and a forward that can be run again."""
    return can_swap(model) and not any(host is model for host in chain.hosts)


def _can_run_tail(plan: Plan, model: nn.Module, chain: Chain) -> bool:
    """True if the head, as declared or as an example showed, needs nothing of the last block but protected tokens."""
    is_alone = plan.reads_protected and (plan.readout is None or plan.readout.stands_alone)
    at_ends = plan.mask is None and plan.protected > 0 and not plan.late[1]
    return is_alone and at_ends and chain.dialect.can_attend_ends() and _is_around(model, chain)


def _reducing(chain: Chain, layers: Iterable[int] | None) -> tuple[bool, ...]:
    depth = len(chain.blocks)
    chosen = layers
    if layers is None and chain.facts.reduce_at is not None:  # written for the usual depth
        chosen = [number for number in chain.facts.reduce_at if number <= depth] or None
    if chosen is None:
        return (True,) * depth
    if not isinstance(chosen, Iterable):
        raise OptionError("layers", chosen, f"it must hold block numbers from 1 to {depth}")
    numbers = [whole_number("layers", number, 1, depth) for number in chosen]
    if not numbers:
        raise OptionError("layers", numbers, "at least one block must reduce")
    return tuple(index + 1 in numbers for index in range(depth))


def _declare(plan: Plan, seen: Probe) -> None:
    """Take N and the readout from an example."""
    count = seen.total - plan.protected
    if count < 1:
        raise OptionError("example", f"{seen.total} tokens", f"{plan.protected} are protected")
    plan.tokens = count if plan.tokens is None else plan.tokens
    plan.readout, plan.cells_per_token = seen.readout, seen.cells_per_token
    if seen.readout is not None and plan.mask is None:
        plan.reads_protected = seen.readout.is_within(plan.leading + plan.late[1], plan.trailing)
