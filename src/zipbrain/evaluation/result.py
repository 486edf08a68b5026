"""`Result`: what was measured for one recipe on one task, from trial to store, tables, pictures and reports."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from zipbrain import metrics
from zipbrain.evaluation.paper_results import Reported, reported
from zipbrain.paper import METHODS

if TYPE_CHECKING:
    from zipbrain.profiling.flops import GraphCount, HandCount

FORMAT: Final = 1
TOKEN_LOAD: Final = "token load"
_COSTS: Final = ("latency", "operations", "multiply-adds", TOKEN_LOAD)  # in the order of every table
_ORDER: Final = ("original", *METHODS, "full")  # of labels; others follow as they came
_MEASURED: Final = ("removed", "agreement", "logit_error", "seconds", "operations", "looked")


@dataclass(frozen=True)
class Result:
    """One recipe on one task.

    Attributes
    ----------
    key : str
        Of the store; see `Trial.key`.
    kind : str
        What it was measured for: compare, ablate, search, or trial.
    label : str
        Of the method, as it stands in a table.
    ratio : float, "max" or None
        As asked.
    task : dict
        Model, dataset, split, windows, subjects, classes and fingerprints; see `Trial.task`.
    recipe : dict or None
        JSON form of what was run; None for the uncompressed model.
    scores, intervals : dict
        By metric; NaN where undefined. Intervals are (low, high), and none if they were not asked for.
    confusion : list of list of int
        Rows are true classes, columns predicted ones.
    token_counts : tuple of int
        Unprotected tokens before the first block, then after each, as one window really had them; empty for an
        uncompressed model whose blocks were not found.
    removed : float
        Share of the tokens that is gone behind the last block.
    agreement : float
        Share of the windows with the same decision as the uncompressed model.
    logit_error : float
        See `zipbrain.metrics.logit_error`. NaN if an output of the uncompressed model is constant.
    seconds : float
        What the pass took; less than a forward of the model costs where a prefix was reused.
    operations : float
        Multiply-adds of the blocks over the uncompressed model's, counted by hand: pooling and, for the windows that
        looked twice, the second pass included. NaN where they can't be counted.
    looked : float
        Share of the windows that looked twice; NaN without a second look.
    extra : dict
        mass (it was used beyond what belongs to the method), seed, of (key of the recipe that this one is a
        variant of), remarks, macs (counted by onnx-tool), latency_ratio and timing.
    fewer : bool
        Fewer tokens were removed than asked.
    hand : HandCount or None
        Multiply-adds of the blocks' matrix products, as compressed and originally.
    graph : GraphCount or None
        onnx-tool's count, if it was asked for.
    latency : dict or None
        See `zipbrain.evaluation.timings.latencies`.
    logits : ndarray (n, n_outputs) of float32, or None
        In the order of the windows; not stored.
    """

    key: str
    kind: str
    label: str
    ratio: float | str | None
    task: dict[str, Any]
    recipe: dict[str, Any] | None
    scores: dict[str, float]
    intervals: dict[str, tuple[float, float]] = field(default_factory=dict)
    confusion: list[list[int]] = field(default_factory=list)
    token_counts: tuple[int, ...] = ()
    removed: float = math.nan
    agreement: float = math.nan
    logit_error: float = math.nan
    seconds: float = math.nan
    operations: float = math.nan
    looked: float = math.nan
    extra: dict[str, Any] = field(default_factory=dict)
    fewer: bool = False
    hand: HandCount | None = None
    graph: GraphCount | None = None
    latency: dict[str, float] | None = None
    logits: NDArray[np.float32] | None = field(default=None, compare=False, repr=False)

    @classmethod
    def of(cls, record: Mapping[str, Any] | Result) -> Result:
        """A stored record as a result; what it lacks is empty or NaN."""
        if isinstance(record, Result):
            return record
        numbers: dict[str, Any] = {name: _nan(record.get(name)) for name in _MEASURED}
        scores = {name: _nan(value) for name, value in (record.get("scores") or {}).items()}
        pairs = {name: pair for name, pair in (record.get("intervals") or {}).items() if pair}
        return cls(
            str(record.get("key")),
            str(record.get("kind") or "compare"),
            str(record.get("label")),
            record.get("ratio"),
            record.get("task") or {},
            record.get("recipe"),
            scores,
            {name: (_nan(pair[0]), _nan(pair[1])) for name, pair in pairs.items()},
            record.get("confusion") or [],
            tuple(record.get("token_counts") or ()),
            extra=record.get("extra") or {},
            **numbers,
        )

    def to_record(self) -> dict[str, Any]:
        """What the store keeps of it."""
        names = ("key", "kind", "label", "ratio", "task", "recipe", "scores", "confusion", "token_counts", *_MEASURED)
        optional = {name: getattr(self, name) for name in ("intervals", "extra") if getattr(self, name)}
        return {"format": FORMAT, **{name: getattr(self, name) for name in names}, **optional}

    @property
    def is_original(self) -> bool:
        """True of the uncompressed model."""
        return self.recipe is None

    @property
    def method(self) -> str:
        """Name in the registry; ``"original"`` for the uncompressed model."""
        return "original" if self.recipe is None else str(self.recipe["method"]["name"])

    @property
    def mass(self) -> bool:
        """True if tokens' masses were used beyond what belongs to the method."""
        return self.extra.get("mass") is True

    @property
    def paper(self) -> dict[str, Reported]:
        """What the paper prints for this model, dataset, method and ratio, by metric; it has no masses."""
        if self.mass:
            return {}
        method = "original" if self.is_original else plain(self.label)
        return reported(str(self.task.get("model")), str(self.task.get("dataset")), method, self.ratio)

    def value(self, name: str) -> float:
        """A score, or the agreement; NaN where it has none or it is undefined."""
        return self.agreement if name == "agreement" else float(self.scores.get(name, math.nan))

    def has(self, metric: str) -> bool:
        """True if the metric is defined here."""
        return not math.isnan(self.value(metric))

    def interval(self, metric: str) -> tuple[float, float] | None:
        """The interval of a metric, or None."""
        pair = self.intervals.get(metric)
        return None if pair is None or any(map(math.isnan, pair)) else pair

    def paper_value(self, metric: str) -> float | None:
        """The paper's value of a metric; None where it has none, or one in doubt."""
        found = self.paper.get(metric)
        return None if found is None or found.doubt else found.value

    def costs(self, original: Result | None) -> dict[str, float]:
        """Costs as shares of the uncompressed model's: latency, operations, multiply-adds (by onnx-tool), token load.

        The token load is known where the tokens at every block are: attention works on the tokens before it, the
        feed-forward part on those after, both counted alike.
        """
        if self.is_original:
            return dict.fromkeys(_COSTS, 1.0)
        found, whole = {}, original.extra.get("macs") if original is not None else None
        if self.extra.get("macs") is not None and whole:
            found["multiply-adds"] = float(self.extra["macs"]) / float(whole)
        if (self.extra.get("latency_ratio") or 0) > 0:
            found["latency"] = float(self.extra["latency_ratio"])
        if not math.isnan(self.operations):
            found["operations"] = self.operations
        counts = self.token_counts
        if len(counts) > 1:
            found[TOKEN_LOAD] = sum(counts[:-1] + counts[1:]) / (2 * (len(counts) - 1) * counts[0])
        return found


def plain(label: object) -> str:
    """A label without case, blanks and dashes."""
    return "".join(c for c in str(label).lower() if c.isalnum())


def labels_of(results: Iterable[Result]) -> list[str]:
    """Labels of the compressed results, in the paper's order, then as they came."""
    found = list(dict.fromkeys(result.label for result in results if not result.is_original))
    return sorted(found, key=lambda label: _ORDER.index(plain(label)) if plain(label) in _ORDER else len(_ORDER))


def ratio_order(result: Result) -> tuple[float, str]:
    """Key that sorts by the ratio asked for: numbers first, then max, then none."""
    if isinstance(result.ratio, int | float):
        return float(result.ratio), ""
    return (2.0 if result.ratio == "max" else 3.0), str(result.ratio)


def main_metric_of(results: Sequence[Result]) -> str:
    """The metric by which the paper ranks so many classes; else the first one that the results have."""
    classes = len(results[0].task.get("classes") or ())
    wanted = metrics.main_metric(classes if classes > 1 else 3)
    held = metrics.in_order({name for result in results for name in result.scores})
    return next((name for name in (wanted, *held) if any(result.has(name) for result in results)), wanted)


def known_costs(results: Sequence[Result]) -> dict[str, int]:
    """Kinds of cost that any compressed result has, measured ones first, and how many have each.

    The token load stands for operations where some result lacks them, as those of versions before 0.2 do.
    """
    original = next((result for result in results if result.is_original), None)
    each = [result.costs(original) for result in results if not result.is_original]
    counts = {name: sum(name in found for found in each) for name in _COSTS}
    if counts["operations"] == len(each):
        del counts[TOKEN_LOAD]
    return {name: count for name, count in counts.items() if count}


# -- reading a store: a line of it may hold anything that has a key ----------------------------------------------------


def results_of(records: Iterable[Mapping[str, Any]]) -> tuple[list[Result], list[str]]:
    """The records that have the form that `compare`, `ablate` and `search` write, and a remark on every other one."""
    found, remarks = [], []
    for record in records:
        odd = _odd_field(record)
        if odd is None:
            found.append(Result.of(record))
        else:
            remarks.append(f"record {str(record.get('key'))[:40]!r} is left out: its {odd} is missing or of odd form")
    return found, remarks


_Number = (int, float)
_Maybe = (*_Number, type(None))
# What the fields of a record must be: a type, a list of one form, or a dictionary of named forms ("": of all others).
_FORMS: Final[dict[str, Any]] = {
    "task": {"windows": _Maybe, "subjects": _Maybe, "classes": (list, type(None))},
    "ratio": (str, *_Maybe),
    "recipe": {"method": {"name": str}, "mass": (dict, type(None))},
    "extra": {"macs": _Maybe, "latency_ratio": _Maybe, "latency": (dict, type(None)), "timing": (dict, type(None))},
    "scores": {"": _Number},
    "intervals": {"": [_Maybe]},
    "confusion": [[_Number]],
    "token_counts": [_Number],
    **dict.fromkeys(_MEASURED, _Maybe),
}
_COST_FORMS: Final[dict[str, Any]] = {"latency": {"latency": {"to_original": _Number}}, "flops": {"macs": _Number}}


def _odd_field(record: Mapping[str, Any]) -> str | None:
    """The first field that is not as it should be, or None."""
    kind, confusion = record.get("kind"), record.get("confusion") or []
    for name, value in (("label", record.get("label")), ("kind", kind or "")):
        if not isinstance(value, str):
            return name
    for name, form in _FORMS.items():
        if record.get(name) is not None and not _fits(record[name], form):
            return name
    if kind in _COST_FORMS and not _fits(record.get("extra"), _COST_FORMS[kind]):
        return "extra"
    if not record.get("scores") and (kind not in _COST_FORMS or "scores" in record):
        return "scores"
    if any(pair is not None and len(pair) != 2 for pair in (record.get("intervals") or {}).values()):
        return "intervals"
    if any(len(row) != len(confusion) for row in confusion):
        return "confusion"
    return "token_counts" if (record.get("token_counts") or [1])[0] <= 0 else None


def _fits(value: Any, form: Any) -> bool:
    """True if a value has a form; see `_FORMS`."""
    if isinstance(form, list):
        return isinstance(value, list | tuple) and all(_fits(one, form[0]) for one in value)
    if not isinstance(form, dict):
        return isinstance(value, form) and (isinstance(value, str) or not isinstance(value, bool))
    if not isinstance(value, dict):
        return False
    if "" in form:
        return all(one is None or _fits(one, form[""]) for one in value.values())
    return all(_fits(value.get(name), inner) for name, inner in form.items())


def _nan(value: float | None) -> float:
    return math.nan if value is None else float(value)
