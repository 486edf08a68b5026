"""Candidates of a tuning: methods with the tokens that every block removes, and the usual schedules."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, Final

import torch
from torch import nn

from zipbrain.errors import OptionError, UnsupportedModel
from zipbrain.paper import NETWORKS, known_name
from zipbrain.pooling.flops import BlockShape, network_macs, pooling_macs, second_pass_macs
from zipbrain.pooling.methods.base import Mass, Method, as_method
from zipbrain.pooling.schedule import clip
from zipbrain.recipe import Recipe
from zipbrain.seams import compress, restore
from zipbrain.seams.forward import plan_of
from zipbrain.seams.second_look import first_reduction

SHARES: Final = (0.4, 0.6, 0.8)  # of the tokens that a usual schedule removes in all

Removed = tuple[int, ...]  # number of tokens that every block removes


@dataclass(frozen=True)
class Anatomy:
    """Tokens, blocks and sizes of a network: all that its multiply-adds depend on."""

    model: str  # the paper's name or a class name
    tokens: int  # N of a window
    depth: int
    protected: int
    ends: tuple[int, int]  # leading and trailing protected tokens
    shape: BlockShape
    has_tail: bool  # the last block runs for protected tokens alone, so that its reduction is worth nothing

    @classmethod
    def of(cls, model: nn.Module, window: torch.Tensor) -> Anatomy:
        """The anatomy of a model that is not compressed, from a run on one window (1, C, T)."""
        compress(model, "twins", r=0, example=window)
        tokens, shape = plan_of(model).tokens, plan_of(model).sized
        plan = plan_of(compress(model, "twins", r=0, tokens=tokens))  # as a recipe does, without an example
        restore(model)
        if plan.mask is not None or plan.tokens is None:
            raise UnsupportedModel("protected tokens must stand at the ends of a window to be tuned")
        if plan.tokens < 2:
            raise UnsupportedModel(f"windows have {plan.tokens} token: there is nothing to remove")
        known = {known_name(kind.__name__, NETWORKS) for kind in type(model).__mro__} & {*NETWORKS}
        name = next(iter(known), type(model).__name__)
        ends = plan.leading, plan.trailing
        return cls(name, plan.tokens, plan.depth, plan.protected, ends, shape, plan.can_run_tail)

    def operations(self, candidate: MethodSchedule) -> float:
        """Multiply-adds of a first pass, pooling included, relative to the original's."""
        method, removed = as_method(candidate.method), candidate.removed
        made = network_macs(self.shape, self.tokens, removed, self.protected, self.has_tail)
        made += pooling_macs(self.shape, self.tokens, removed, self.protected, method)
        return made / self._original

    def second_pass_cost(self, candidate: MethodSchedule) -> float:
        """Multiply-adds of a second pass, relative to the original's: those behind the first reduction."""
        first = first_reduction(candidate.removed)
        if first is None:
            return 0.0
        again = second_pass_macs(self.shape, self.tokens, self.depth, first, self.protected, self.has_tail)
        return again / self._original

    @property
    def _original(self) -> int:
        return network_macs(self.shape, self.tokens, (0,) * self.depth, self.protected)

    @property
    def useful(self) -> int:
        """Blocks whose reduction may save time."""
        return self.depth - self.has_tail if self.depth > 1 else 1


@dataclass(frozen=True)
class MethodSchedule:
    """A method with the tokens that every block removes."""

    method: dict[str, Any]
    mass: dict[str, bool]
    removed: Removed
    title: str  # name of the schedule

    def __hash__(self) -> int:
        return hash(self.key)

    @property
    def key(self) -> str:
        """Canonical JSON of method, mass and schedule: candidates of the same key have the same logits."""
        return json.dumps([self.method, self.mass, self.removed], sort_keys=True)

    def recipe(self, anatomy: Anatomy, **about: Any) -> Recipe:
        """The recipe of a network; `about` are fields of `Recipe` that the candidate does not know."""
        blocks = tuple(number for number, r in enumerate(self.removed, 1) if r)
        if not blocks:
            return Recipe(self.method, {"name": "constant", "r": 0}, model=anatomy.model, **about)
        schedule: dict[str, Any] = {"name": "allocation", "r": [self.removed[number - 1] for number in blocks]}
        schedule["tokens"] = anatomy.tokens
        where: dict[str, Any] = {"layers": blocks, "protected": anatomy.ends, "tokens": anatomy.tokens}
        return Recipe(self.method, schedule, self.mass, anatomy.model, **where, **about)


def read_methods(
    methods: Iterable[Method | str | dict[str, Any]], refusal: Callable[[Recipe], str]
) -> tuple[list[MethodSchedule], list[str]]:
    """Methods as candidates that remove nothing yet, and notes on those that the runtime refuses.

    Mass is on wherever the runtime can compute it, because it keeps more decisions.
    """
    found, notes = [], []
    for given in methods:
        method = as_method(given)
        reason = ""
        for uses in (Mass.of(True), Mass()):
            one = MethodSchedule(method.to_dict(), asdict(uses | method.mass), (), "")
            reason = refusal(Recipe(one.method, {"name": "constant", "r": 0}, one.mass))
            if not reason:
                found.append(one)
                if not uses and method.mass != Mass.of(True):
                    notes.append(f"{one.method['name']} is tried without mass, which this runtime groups otherwise")
                break
        else:
            notes.append(f"{method.to_dict()['name']} was left out: {reason}")
    if not found:
        raise OptionError("methods", [str(one) for one in methods], "; ".join(notes) or "at least one is needed")
    return found, notes


def usual_schedules(anatomy: Anatomy, method: Method, shares: Sequence[float] = SHARES) -> dict[str, Removed]:
    """Schedules by title: the same number in every block, the same share, all in the first third, every third block."""
    blocks, found = anatomy.useful, {}
    for share in shares:
        rate = 1 - (1 - share) ** (1 / blocks)
        left = [round(anatomy.tokens * (1 - rate) ** number) for number in range(blocks + 1)]
        shrinking = [before - after for before, after in pairwise(left)]
        total, third = round(share * anatomy.tokens), -(-blocks // 3)
        shapes = {
            "constant": [total // blocks] * blocks,
            "geometric": shrinking,
            "early": [-(-total // third)] * third,
            "every third block": [0 if number % 3 else -(-total // third) for number in range(blocks)],
        }
        for title, wanted in shapes.items():
            found[f"{title} {share:.0%}"] = fit(anatomy, method, wanted)
    return {title: removed for title, removed in found.items() if any(removed)}


def fit(anatomy: Anatomy, method: Method, wanted: Sequence[int]) -> Removed:
    """The wanted removals, one per block, cut to what the method can remove; at least one token stays."""
    padded = [*wanted, *(0,) * (anatomy.depth - len(wanted))]
    return clip(padded, anatomy.tokens, (True,) * anatomy.depth, method.limit)
