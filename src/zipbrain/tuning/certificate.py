"""`Certificate`: the share of a model's decisions that compression leaves unchanged, and the bound that is promised.

A decision is the class of the largest logit (of a single output, its sign); classes are those that the uncompressed
model answers, since windows have no labels. See docs/explanation/certificate.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from zipbrain.errors import OptionError
from zipbrain.metrics import (
    METRICS,
    commonest_class,
    decisions,
    has_flipped,
    is_one_sided,
    main_metric,
    probabilities,
    score,
)
from zipbrain.tuning.evidence import CONFIDENCE, FEWEST_FLIPS, FEWEST_GROUPS, Evidence, weigh
from zipbrain.tuning.groups import BETWEEN, has_group

FEWEST_OF_A_CLASS: Final = 30  # windows: with fewer, nothing is promised for a class
_HALF: Final = 0.5  # alarm threshold that is compared besides those given

Logits = NDArray[np.floating[Any]]


@dataclass(frozen=True)
class Certificate:
    """How many decisions stayed when a model was compressed, and the share that is promised to stay.

    Attributes
    ----------
    agree : float
        Share of decisions that stays for people like these, at this confidence; rounded down to three decimals.
    confidence : float
        One-sided.
    is_promise : bool
        False with fewer than five groups: `agree` is then an estimate.
    agreement : float
        Share of these windows whose decision stayed.
    flips, windows, groups : int
        Decisions that changed, and how many were counted.
    size : float
        Mean group size, weighted by windows.
    dispersion : float
        Upper limit of the variance of the groups' flip rates over their squared mean.
    icc : float
        Intraclass correlation of flips that are as frequent as the bound allows.
    effective : float
        Number of independent windows that would give the same bound.
    classes : list of dict
        Per class of the uncompressed model's decisions: name, windows, agreement, agree (None below 30 windows).
    worst : dict
        The group with the lowest agreement: name, windows, agreement.
    crossings : dict
        By probability: share of windows on the same side of it.
    looked_twice : float
        Share of windows that ran again uncompressed.
    score : dict or None
        Where labels are there: metric, before, after.
    runtime, precision : str
        Where it was counted; another one needs its own certificate.
    """

    agree: float
    confidence: float
    is_promise: bool
    agreement: float
    flips: int
    windows: int
    groups: int
    size: float
    dispersion: float
    icc: float
    effective: float
    classes: list[dict[str, Any]]
    worst: dict[str, Any]
    crossings: dict[str, float]
    looked_twice: float = 0.0
    score: dict[str, Any] | None = None
    runtime: str = "torch"
    precision: str = "float32"

    @property
    def evidence(self) -> Evidence:
        """The counts that the bound was computed from."""
        return Evidence(self.flips, self.windows, self.groups, self.size, self.dispersion)

    def to_dict(self) -> dict[str, Any]:
        """All of it, for JSON and for a recipe's `promise`."""
        return asdict(self)

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Certificate:
        """The certificate that `to_dict` wrote; keys of a newer version are left out."""
        known = [field.name for field in fields(cls)]
        missing = [name for name in known[: known.index("looked_twice")] if name not in content]
        if missing:
            raise OptionError("certificate", f"no {', '.join(missing)}", "it must be one that zipbrain tune wrote")
        return cls(**{name: content[name] for name in known if name in content})

    def lines(self) -> Iterator[str]:
        """Lines of a text to print."""
        kept = f"at least {_percent(self.agree)} of the decisions stay as they were"
        if self.is_promise:
            yield f"Promise: for people like these, {kept} ({100 * self.confidence:g} % confidence)."
        else:
            few = f"{self.groups} people or stretches are too few to speak of others (it takes {FEWEST_GROUPS})"
            yield f"Estimate, no promise: {kept}; {few}."
        counted = f"{self.flips} of {self.windows} decisions changed ({_percent(self.agreement)} stayed)"
        yield f"  counted      {counted}, {self.groups} people or stretches, {self.runtime}, {self.precision}"
        yield f"  worth        {self.effective:.0f} independent windows: windows of one person are alike"
        if self.looked_twice:
            yield f"  looked twice {100 * self.looked_twice:.1f} % of the windows"
        worst = self.worst
        yield f"  worst        {worst['name']}: {_percent(worst['agreement'])} of {worst['windows']} windows stayed"
        for threshold, share in self.crossings.items():
            yield f"  alarms       {_percent(share)} on the same side of probability {threshold}"
        if self.score is not None:
            title = METRICS[self.score["metric"]].title if self.score["metric"] in METRICS else self.score["metric"]
            old, new = (_shown(self.score[name]) for name in ("before", "after"))
            yield f"  score        {title} {old} before, {new} after"
        width = max(len("decided before"), *(len(one["name"]) for one in self.classes))
        yield f"  {'decided before':<{width}}  windows  stayed    at least"
        for one in self.classes:
            few = f"no promise: it takes {FEWEST_OF_A_CLASS} windows of {FEWEST_GROUPS} people"
            promised = few if one["agree"] is None else _percent(one["agree"])
            stayed = "-" if one["agreement"] is None else _percent(one["agreement"])
            yield f"  {one['name']:<{width}}  {one['windows']:>7}  {stayed:<8}  {promised}"

    def explain_shortfall(self, agree: float) -> Iterator[str]:
        """Lines on why `agree` can't be promised, what can, and how many people it takes; none if it can."""
        wanted, have = f"{100 * agree:g} %", f"{self.windows} windows of {self.groups} people or stretches"
        if self.is_promise and self.agree >= agree:
            return
        if not self.is_promise:
            yield f"{wanted} can't be promised with {self.groups} people or stretches; give at least {FEWEST_GROUPS}."
        if self.agreement <= agree:
            yield f"{wanted} can't be promised: {_percent(self.agreement)} stayed, and more windows won't change that."
            return
        best = math.floor(self.evidence.best_promise(self.confidence) * 1000) / 1000
        if best < agree:
            yield f"{have} can't prove more than {_percent(best)}, even if no decision changes."
        each = round(self.windows / self.groups)
        people = self.evidence.groups_needed(agree, self.confidence)
        yield (
            f"For {wanted}: about {people} people in the certifying half, {each} windows each, as many to choose with,"
            " if decisions change as often as here."
        )


@dataclass(frozen=True)
class ComparedLogits:
    """Logits (n, outputs) of the same windows, which must not overlap, all in one runtime and precision.

    Attributes
    ----------
    before : array (n, outputs)
        Of the uncompressed model; all finite.
    after : array (n, outputs)
        Of the compressed model. A window whose logits are not finite counts as one whose decision changed.
    first : array (n, outputs)
        Of the compressed model without a second look.
    """

    before: Logits
    after: Logits
    first: Logits

    def __post_init__(self) -> None:
        for name in ("before", "after", "first"):
            values = np.asarray(getattr(self, name), dtype=np.float64)
            if values.ndim != 2 or not values.size:
                raise OptionError(name, values.shape, "logits have the shape (windows, outputs)")
            bad = int((~np.isfinite(values)).any(axis=1).sum())
            if bad == len(values) or (bad and name == "before"):
                found = f"logits that are not finite for {bad} of {len(values)} windows"
                raise OptionError(name, found, "they are no decision")
            object.__setattr__(self, name, values)
        if not self.before.shape == self.after.shape == self.first.shape:
            shapes = f"{self.before.shape}, {self.after.shape}, {self.first.shape}"
            raise OptionError("before, after, first", shapes, "they must be of the same windows and outputs")


def certify(
    logits: ComparedLogits,
    groups: ArrayLike,
    *,
    labels: ArrayLike | None = None,
    classes: Sequence[str] | None = None,
    thresholds: Sequence[float] = (),
    looked_twice: float = 0.0,
    runtime: str = "torch",
) -> Certificate:
    """The certificate of a compressed model.

    Parameters
    ----------
    logits : ComparedLogits
        With and without compression, of n windows.
    groups : array (n,)
        Whose window it is: a subject, or a stretch of a recording (see `stretches`).
    labels : array (n,) of int, optional
        For the change of the score.
    classes : sequence of str, optional
        Names in the order of the outputs.
    thresholds : sequence of float
        Probabilities at which alarms are raised; 0.5 is looked at anyway.
    looked_twice : float
        Share of windows that ran again.
    runtime : str
        Where the logits come from.
    """
    before, after, whose = logits.before, logits.after, np.asarray(groups)
    if whose.shape != before.shape[:1]:
        raise OptionError(
            "groups", whose.shape, f"they must be those of the same windows, of which there are {len(before)}"
        )
    if not has_group(whose).all():
        raise OptionError("groups", BETWEEN, "leave out the windows that keep two stretches apart")
    names, numbers = np.unique(whose, return_inverse=True)
    if len(names) < 2:
        raise OptionError("groups", str(names[0]), "windows of one person or stretch say nothing about others")
    decided = decisions(before)
    titles = _titles(classes, max(before.shape[1], 2))
    _refuse_one_answer(decided, titles)
    flipped, doubtful = has_flipped(before, after), has_flipped(before, logits.first)
    evidence = weigh(flipped, whose, doubtful)
    return Certificate(
        agree=_floor(evidence.bound()),
        confidence=CONFIDENCE,
        is_promise=evidence.is_promise,
        agreement=evidence.agreement,
        flips=int(flipped.sum()),
        windows=evidence.windows,
        groups=evidence.groups,
        size=evidence.size,
        dispersion=evidence.dispersion,
        icc=evidence.icc,
        effective=evidence.effective,
        classes=[
            _class(title, flipped[rows], whose[rows], doubtful[rows], evidence)
            for i, title in enumerate(titles)
            for rows in [np.flatnonzero(decided == i)]
        ],
        worst=_worst(flipped, names, numbers),
        crossings=_crossings(before, after, thresholds),
        looked_twice=float(looked_twice),
        score=None if labels is None else _score(before, after, np.asarray(labels)),
        runtime=runtime,
    )


def _titles(classes: Sequence[str] | None, count: int) -> list[str]:
    if classes is None:
        return [f"class {number}" for number in range(count)]
    if len(classes) != count:
        raise OptionError("classes", list(classes), f"the model decides between {count}")
    return [str(name) for name in classes]


def _refuse_one_answer(decided: NDArray[np.int64], titles: Sequence[str]) -> None:
    counts = np.bincount(decided)
    if is_one_sided(counts):
        most, share = commonest_class(counts)
        found = f"{titles[most]} for {share:.1%} of {len(decided)} windows"
        raise OptionError("before", found, "where a model answers one class nearly always, agreement is trivial")


def _class(
    title: str, flipped: NDArray[np.bool_], groups: NDArray[Any], doubtful: NDArray[np.bool_], whole: Evidence
) -> dict[str, Any]:
    """Agreement and promise of one class; its dispersion is taken to be no smaller than that of all windows."""
    count = len(flipped)
    found: dict[str, Any] = {"name": title, "windows": count, "agreement": None, "agree": None}
    if not count:
        return found
    own = weigh(flipped, groups, doubtful)
    found["agreement"] = own.agreement
    if count >= FEWEST_OF_A_CLASS and own.is_promise:
        seen = own.dispersion if doubtful.sum() >= FEWEST_FLIPS else 0.0
        found["agree"] = _floor(replace(own, dispersion=max(seen, whole.dispersion)).bound())
    return found


def _worst(flipped: NDArray[np.bool_], names: NDArray[Any], numbers: NDArray[np.intp]) -> dict[str, Any]:
    """The group with the lowest agreement; of equals, the one with more windows."""
    sizes = np.bincount(numbers)
    stayed = 1 - np.bincount(numbers, flipped) / sizes
    worst = int(np.lexsort((-sizes, stayed))[0])
    return {"name": str(names[worst]), "windows": int(sizes[worst]), "agreement": float(stayed[worst])}


def _crossings(before: Logits, after: Logits, thresholds: Sequence[float]) -> dict[str, float]:
    """By threshold: share of windows whose probabilities are finite and all on the same side of it as before."""
    is_finite = np.isfinite(after).all(axis=1)
    pair = before[is_finite], after[is_finite]
    old, new = (probabilities(values).reshape(len(values), -1) for values in pair)
    found = {}
    for threshold in (_HALF, *thresholds):
        if not 0 < threshold < 1:
            raise OptionError("thresholds", threshold, "a probability lies between 0 and 1")
        same = ((old >= threshold) == (new >= threshold)).all(axis=1)
        found[f"{threshold:g}"] = float(same.sum() / len(before))
    return found


def _score(before: Logits, after: Logits, labels: NDArray[Any]) -> dict[str, Any]:
    if labels.shape != before.shape[:1]:
        raise OptionError("labels", labels.shape, f"it must have one label for each of {len(before)} windows")
    metric = main_metric(max(before.shape[1], 2))
    values = {name: score(logits, labels, metric) for name, logits in (("before", before), ("after", after))}
    return {"metric": metric} | {name: value if math.isfinite(value) else None for name, value in values.items()}


def _shown(value: float | None) -> str:
    return "undefined" if value is None else f"{value:.4f}"


def _floor(share: float) -> float:
    return math.floor(share * 1000) / 1000


def _percent(share: float) -> str:
    """A share in per cent, rounded down to one decimal: 0.9999 is not 100 %."""
    return f"{math.floor(round(share * 1000, 6)) / 10:g} %"
