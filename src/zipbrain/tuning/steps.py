"""`Tuning`: the steps of one tuning, from candidates through times and margins to the certificate."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import numpy as np
import torch
from torch import nn

from zipbrain import metrics
from zipbrain.edge.runtimes import find_runtime
from zipbrain.errors import OptionError
from zipbrain.pooling.methods.base import Method, as_method
from zipbrain.recipe import Recipe
from zipbrain.seal import sealed
from zipbrain.tuning.allocation import TimeModel, allocate, fit_damage, neighbours, probes
from zipbrain.tuning.candidates import Anatomy, MethodSchedule, read_methods, usual_schedules
from zipbrain.tuning.certificate import Certificate
from zipbrain.tuning.certification import Certification
from zipbrain.tuning.grouped_windows import GroupedWindows
from zipbrain.tuning.logit_cache import LogitCache
from zipbrain.tuning.margin import FlipMargins, MarginOutcome, certification_probability
from zipbrain.tuning.model_checks import (
    check_decisions,
    check_second_look,
    note_chance,
    note_probabilities,
    split_halves,
)
from zipbrain.tuning.times import RUNTIMES, Times, is_gain, is_within, second_look_time
from zipbrain.tuning.tuned import Option, Tuned
from zipbrain.weights import fingerprint

LEVELS: Final = (0.95, 0.98, 0.99, 0.995)  # agreement levels for the table of options, besides the requested one

_PROBED: Final = 96  # windows on which the damage of single blocks is measured
_SCREENED: Final = ("early", "every third block")  # schedules on which methods are compared
_ROUNDS: Final = 3  # rounds of refining the best candidate, at most
_MEASURED: Final = ("constant 80%", "early 40%", "early 80%")  # schedules to which the time model is fitted
_FINALISTS: Final = 3  # candidates whose times are measured together
_TIMINGS: Final = 3  # groups of finalists that are timed, at most
_TARGETS: Final = (0.85, 0.75, 0.65, 0.55, 0.45, 0.35, 0.25)  # relative times to which schedules are allocated


class Tuning:
    """One tuning, step by step."""

    def __init__(self, model: nn.Module, windows: GroupedWindows, logits: LogitCache, times: Times, seed: int) -> None:
        self.model, self.logits, self.times = model, logits, times
        self.notes = list(windows.notes)
        self.weights = fingerprint(model.state_dict())  # as the recipe will find them
        everything = np.arange(len(windows))
        self.before = logits.of([None], everything, "the original's answers")[0]
        good = np.flatnonzero(np.isfinite(self.before).all(1))
        if not len(good):
            found = f"NaN logits for all {len(windows)} windows"
            raise OptionError("windows", found, "check weights, units and scaling")
        self.windows = self._named(windows)
        labels = self.windows.labels
        self.notes += note_chance(self.before[good], None if labels is None else labels[good])
        self.notes += note_probabilities(self.before[good])
        if len(good) < len(windows):
            self.notes.append(f"{len(windows) - len(good)} windows without a decision (NaN logits) were left out")
        self.choosing, self.certifying = (good[half] for half in split_halves(windows.groups[good], seed))
        for half in (self.choosing, self.certifying):
            check_decisions(self.before[half])
        check_second_look(model, torch.from_numpy(windows.x[self.choosing[:2]]))
        self.anatomy = Anatomy.of(model, torch.from_numpy(windows.x[self.choosing[:1]]))
        self.timed = windows.x[np.resize(self.choosing, times.batch)]

    def _named(self, windows: GroupedWindows) -> GroupedWindows:
        """The windows, without labels and names of classes that are not those the model decides between."""
        outputs = max(self.before.shape[1], 2)
        if not windows.classes or len(windows.classes) == outputs:
            return windows
        self.notes.append(
            f"labels of {len(windows.classes)} classes were not used: the model decides between {outputs}"
        )
        return replace(windows, classes=(), labels=None)

    def run(
        self,
        methods: Iterable[Method | str | dict[str, Any]],
        agree: float,
        time: float | None,
        thresholds: tuple[float, ...],
    ) -> Tuned:
        """The whole tuning: search, choose, certify on the other half and measure the time."""
        tried, model = self.search(methods, agree)
        chosen = self.choose(tried, model, agree, time)
        options = [self._fastest(tried, model, level) for level in sorted({*LEVELS, agree})]
        return self._finish(chosen, options, agree if time is None else None, time, thresholds)

    def search(
        self, methods: Iterable[Method | str | dict[str, Any]], agree: float
    ) -> tuple[list[ScoredCandidate], TimeModel]:
        """Candidates scored on the choosing half, and the time model of the runtime."""
        kinds, notes = read_methods(methods, self._refusal)
        self.notes += notes
        tried = self._try_methods(kinds)
        if not tried:
            raise OptionError("methods", [one.method["name"] for one in kinds], "; ".join(self.notes))
        model = self._time_model(tried[0].candidate)

        cost = partial(self._expected, model=model, agree=agree)
        tried += self._try_schedules(min(tried, key=cost).candidate, model)
        for number in range(_ROUNDS):
            best = min(tried, key=cost)
            known = {one.candidate.key for one in tried}
            near = [one for one in neighbours(self.anatomy, best.candidate) if one.key not in known]
            tried += self._answered(near, f"refining schedules, round {number + 1}")
            if min(tried, key=cost) is best:
                break
        return tried, model

    def _refusal(self, recipe: Recipe) -> str:
        name = RUNTIMES[self.times.runtime]
        return "" if name == "torch" else find_runtime(name).refusal_of(recipe)

    def _try_methods(self, kinds: Sequence[MethodSchedule]) -> list[ScoredCandidate]:
        """Every method, scored with the same few schedules."""
        wanted = [
            replace(kind, removed=removed, title=title)
            for kind in kinds
            for title, removed in usual_schedules(self.anatomy, as_method(kind.method), (0.6,)).items()
            if title.startswith(_SCREENED)
        ]
        if not wanted:
            raise OptionError("windows", f"{self.anatomy.tokens} tokens", "too few to remove any")
        return self._answered(wanted, "comparing methods")

    def _try_schedules(self, method: MethodSchedule, model: TimeModel) -> list[ScoredCandidate]:
        """The usual schedules of a method, and those allocated by measured damage, scored."""
        anatomy, rule = self.anatomy, as_method(method.method)
        usual = [replace(method, removed=r, title=title) for title, r in usual_schedules(anatomy, rule).items()]
        rows = self.choosing[np.linspace(0, len(self.choosing) - 1, min(_PROBED, len(self.choosing))).astype(np.intp)]
        tried = probes(anatomy, method)
        found = self.logits.of([one.recipe(anatomy) for one in tried], rows, "measuring the damage of every block")
        errors = [metrics.logit_error(logits, self.before[rows]) for logits in found]
        damage = fit_damage(anatomy, tried, errors)
        made = allocate(anatomy, method, damage, lambda one: model.of(anatomy, one), _TARGETS)
        return self._answered([*usual, *made], "trying schedules")

    def _answered(self, candidates: Sequence[MethodSchedule], what: str) -> list[ScoredCandidate]:
        distinct = list({one.key: one for one in candidates}.values())
        found = self.logits.of([one.recipe(self.anatomy) for one in distinct], self.choosing, what)
        before, groups = self.before[self.choosing], self.windows.groups[self.choosing]
        tried = []
        for one, logits in zip(distinct, found, strict=True):
            if np.isfinite(logits).all():
                tried.append(ScoredCandidate(one, FlipMargins(before, logits, groups)))
            else:
                self.notes.append(f"{one.method['name']}, {one.title}, gives NaN logits and was left out")
        return tried

    def _time_model(self, method: MethodSchedule) -> TimeModel:
        """The cost of operations and reductions in the runtime, fitted to a few measured networks."""
        schedules = usual_schedules(self.anatomy, as_method(method.method), (0.4, 0.8))
        measured = [replace(method, removed=schedules[t], title=t) for t in _MEASURED if t in schedules]
        recipes = [one.recipe(self.anatomy) for one in measured]
        ratios = self.times.relative(recipes, self.timed, "schedules")
        return TimeModel.fit(self.anatomy, dict(zip(measured, ratios, strict=True)))

    def _expected(self, one: ScoredCandidate, model: TimeModel, agree: float) -> float:
        """Expected time of a candidate with the margin for a promise."""
        looked = one.flips.margin_for_promise(agree)
        return self._time(one.candidate, model.of(self.anatomy, one.candidate), looked.second_look_share)

    def _fastest(self, tried: Sequence[ScoredCandidate], model: TimeModel, agree: float) -> Option:
        """The candidate with the shortest expected time for a promise."""
        best = min(tried, key=partial(self._expected, model=model, agree=agree))
        return self._option(best, agree, best.flips.margin_for_promise(agree), model.of(self.anatomy, best.candidate))

    def _time(self, candidate: MethodSchedule, first: float, share: float) -> float:
        behind, single = self.anatomy.second_pass_cost(candidate), self.times.of_single(self.timed)
        return first + second_look_time(behind, share, self.times.batch, single)

    def _affordable(self, candidate: MethodSchedule, first: float, time: float) -> float:
        """The largest share of second looks with which a first pass stays within a time."""
        low, high = 0.0, 1.0
        for _ in range(30):
            middle = (low + high) / 2
            is_within = self._time(candidate, first, middle) <= time
            low, high = (middle, high) if is_within else (low, middle)
        return low

    def choose(self, tried: Sequence[ScoredCandidate], model: TimeModel, agree: float, time: float | None) -> Option:
        """The fastest candidate for a promise, or the most faithful one at a time, by measured first passes."""

        def looked_at(one: ScoredCandidate, first: float) -> MarginOutcome:
            if time is None:
                return one.flips.margin_for_promise(agree)
            return one.flips.margin_for_share(self._affordable(one.candidate, first, time))

        def rank(one: ScoredCandidate, first: float) -> tuple[float, float]:
            looked = looked_at(one, first)
            spent = self._time(one.candidate, first, looked.second_look_share)
            if time is None or first > time:
                return (0.0, spent) if time is None else (1.0, first)
            return 0.0, -looked.evidence.bound()

        order = sorted(tried, key=lambda one: rank(one, model.of(self.anatomy, one.candidate)))
        timed: list[tuple[ScoredCandidate, float]] = []
        while order and len(timed) < _FINALISTS * _TIMINGS:
            finalists, order = order[:_FINALISTS], order[_FINALISTS:]
            recipes = [one.candidate.recipe(self.anatomy) for one in finalists]
            timed += zip(finalists, self.times.relative(recipes, self.timed, "finalists"), strict=True)
            best, first = min(timed, key=lambda pair: rank(*pair))
            if order and rank(best, first) <= rank(order[0], model.of(self.anatomy, order[0].candidate)):
                break  # the next ones are not even expected to be better
        return self._option(best, agree, looked_at(best, first), first)

    def _option(self, one: ScoredCandidate, agree: float, looked: MarginOutcome, first: float) -> Option:
        """A candidate with a margin, given the time of its first pass."""
        operations = self.anatomy.operations(one.candidate)
        operations += looked.second_look_share * self.anatomy.second_pass_cost(one.candidate)
        spent = self._time(one.candidate, first, looked.second_look_share)
        likely = certification_probability(looked.evidence, agree)
        return Option(
            agree=agree,
            candidate=one.candidate,
            margin=looked.margin,
            second_look_share=looked.second_look_share,
            certification_probability=likely,
            time=spent,
            operations=operations,
        )

    def _finish(
        self,
        chosen: Option,
        options: Sequence[Option],
        agree: float | None,
        time: float | None,
        thresholds: tuple[float, ...],
    ) -> Tuned:
        """The result for a choice; if that gains no time on the certifying half, the result for the original."""
        original, expected = self._original(chosen), chosen.time
        taken = chosen if time is not None or is_gain(expected) else original
        recipe, found, spent = self._certify(taken, thresholds)
        if taken.removes and not is_gain(spent):
            taken, expected = original, spent
            recipe, found, spent = self._certify(taken, thresholds)
        self.notes += _note_time(taken, expected, spent, time)
        return Tuned(
            recipe=sealed(recipe, found.to_dict()),
            certificate=found,
            chosen=taken,
            time=spent,
            options=tuple(options),
            agree=agree,
            asked_time=time,
            anatomy=self.anatomy,
            runtime=self.times.runtime,
            batch=self.times.batch,
            notes=tuple(self.notes),
        )

    def _certify(self, taken: Option, thresholds: tuple[float, ...]) -> tuple[Recipe, Certificate, float]:
        """Recipe of an option, its certificate and its time relative to the original's, from the certifying half."""
        recipe = taken.candidate.recipe(
            self.anatomy,
            second_look=taken.margin if taken.removes else None,
            dataset=self.windows.name,
            weights=self.weights,
        )
        trial = Certification(self.model, recipe, self.windows.take(self.certifying), self.times)
        found = trial.certificate(thresholds)
        if not taken.removes:  # the same network: nothing has to be proved
            found = replace(found, agree=1.0, is_promise=True)
        return recipe, found, trial.time() if taken.removes or self.anatomy.has_tail else 1.0

    def _original(self, chosen: Option) -> Option:
        """The option of removing nothing, for the same promise."""
        nothing = replace(chosen.candidate, removed=(0,) * self.anatomy.depth, title="nothing removed")
        return replace(
            chosen,
            candidate=nothing,
            margin=0.0,
            second_look_share=0.0,
            certification_probability=1.0,
            time=1.0,
            operations=1.0,
        )


@dataclass(frozen=True)
class ScoredCandidate:
    """A candidate with the decisions that its first pass flips on the choosing half."""

    candidate: MethodSchedule
    flips: FlipMargins


def _note_time(taken: Option, expected: float, spent: float, asked: float | None) -> list[str]:
    """A line on a time that was not reached, or on an original that is returned; empty if all went as asked.

    `expected` is the time of the recipe that was chosen, `spent` that of what is returned.
    """
    if asked is None:
        kept = f"the fastest recipe that may keep {taken.agree:.1%} of the decisions takes {expected:.0%}"
        line = f"nothing gains time: {kept} of the original's time, so the original is returned"
        return [] if taken.removes else [line]
    missed = f"no recipe was found at {asked:.0%} of the original's time"
    if not taken.removes:
        return [f"{missed}: the nearest takes {expected:.0%}, so the original is returned"]
    return [] if is_within(spent, asked) else [f"{missed}: this is the nearest"]
