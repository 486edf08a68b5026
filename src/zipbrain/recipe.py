"""`Recipe`: how a model is compressed and on what that was chosen, as one small file (stdlib only)."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from numbers import Integral
from pathlib import Path
from typing import Any, Final

from zipbrain import __version__
from zipbrain.errors import OptionError
from zipbrain.files import read_json, write_whole
from zipbrain.numerals import exact_fraction, finite_number, plain_json, whole_number
from zipbrain.paper import DATASETS, NETWORKS, canonical_part, canonical_space, known_name

FORMAT: Final = 1

_LARGEST_NORM: Final = {"name": "largest_norm"}
_PIVOTS: Final = {"z1": "x", "z2": "q", "rho": 0.5}
# Options of a part that are not written: pooling's own defaults, here without torch, for `key` only.
_DEFAULTS: Final[dict[str, dict[str, Any]]] = {
    "zipbrain": {**_PIVOTS, "z3": "x", "merge": _LARGEST_NORM},
    "composition": {"split": {"name": "pivots"}, "match": {"name": "most_similar"}, "merge": _LARGEST_NORM},
    "pivots": _PIVOTS,
    "regular_pivots": _PIVOTS,
    "most_similar": {"z3": "x"},
    "random_split": {"seed": 0},
    "random_match": {"seed": 0},
    "tome": {"proportional_attention": True},
    "tofu": {"merge_from": 1},
    "evit": {"score": "auto", "fuse": True},
    "dart": {"pivots": 8},
    "pitome": {"proportional_attention": True},
    "local_merging": {"neighbourhood": 1},
    "twins": {"softmax": {"name": "mean_norm"}, "linear": {"name": "mean"}, "trimmed": True},
    "ward_pairs": {"softmax": {"name": "mean_norm"}, "linear": {"name": "mean"}},
    "close_pairs": {},
    "linear": {"inflect": -1.0},
}
# What an option that is not written in a file stood for when its default was another one, or before there was one. So
# these options are always written, and a file without them keeps its meaning.
_EARLIER: Final[dict[str, dict[str, Any]]] = {
    "tofu": {"merge_from": None},
    "evit": {"fuse": False},
    "twins": {"trimmed": False},
}
_USES: Final = ("attention", "merge", "readout")


@dataclass(frozen=True)
class Recipe:
    """How a model is compressed, and on what that was chosen.

    Parameters
    ----------
    method : dict
        JSON form of a method, ``{"name": "zipbrain", "z1": "x", ...}``; any usual spelling of names and spaces.
    schedule : dict
        JSON form of a schedule, ``{"name": "ratio", "ratio": 0.8}``.
    mass : dict or bool
        Where mass is used: ``{"attention": bool, "merge": bool, "readout": bool}``; what is left out is off.
    model : str, optional
        The model it is for, the paper's name or a class name; any model that fits if None.
    layers : tuple of int, optional
        Blocks that reduce, from 1.
    protected : (int, int), optional
        Leading and trailing tokens that are never touched.
    tokens : int, optional
        N that the schedule refers to.
    within : str, optional
        Path of the module that holds the blocks.
    axis : {"channels", "time"}, optional
        Of a grid: what is pooled, see `zipbrain.compress`; channels if None.
    dataset, split, metric : str, optional
        What the recipe was chosen on.
    score : float, optional
        What it reached there.
    second_look : float, optional
        A window whose margin is below it runs again uncompressed, see `zipbrain.compress`.
    promise : dict, optional
        What `zipbrain.tune` certified, for `weights` alone.
    weights : str, optional
        SHA-256 of the weights that the recipe was tuned for.
    versions : dict of str to str
        Of the software that made it.

    Notes
    -----
    Recipes are equal if they are written alike; two that compress a model in the same way have the same `key`. Treat
    the dictionaries as read-only; `options` and `to_dict` give copies.

    Examples
    --------
    >>> from zipbrain.recipe import Recipe
    >>> recipe = Recipe({"name": "ZIPBrain", "z2": "QS"}, {"name": "ratio", "ratio": 0.8}, model="labram")
    >>> recipe.model, recipe.method
    ('LaBraM', {'name': 'zipbrain', 'z2': 'q'})
    """

    method: dict[str, Any]
    schedule: dict[str, Any]
    mass: dict[str, bool] = field(default_factory=dict)
    model: str | None = None
    layers: tuple[int, ...] | None = None
    protected: tuple[int, int] | None = None
    tokens: int | None = None
    within: str | None = None
    dataset: str | None = None
    split: str | None = None
    metric: str | None = None
    score: float | None = None
    second_look: float | None = None
    axis: str | None = None
    promise: dict[str, Any] | None = None
    weights: str | None = None
    versions: dict[str, str] = field(default_factory=lambda: {"zipbrain": __version__})

    def __post_init__(self) -> None:
        method, mass = _first_twins(self.method, self.mass)
        clean: dict[str, Any] = {
            "method": _part("method", method),
            "schedule": _part("schedule", self.schedule),
            "mass": _mass(mass),
            "layers": _layers(self.layers),
            "protected": _protected(self.protected),
            "tokens": None if self.tokens is None else whole_number("tokens", self.tokens, 1),
            "score": None if self.score is None else finite_number("score", self.score),
            "second_look": None if self.second_look is None else as_margin(self.second_look),
            "promise": None if self.promise is None else _promise(self.promise),
            "versions": _versions(self.versions),
        }
        for name in ("model", "within", "dataset", "split", "metric", "weights"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, str):
                raise OptionError(name, value, "it must be a string or None")
        if self.axis not in (None, "channels", "time"):
            raise OptionError("axis", self.axis, "it must be 'channels' or 'time'")
        clean["model"] = self.model and known_name(self.model, NETWORKS)
        clean["dataset"] = self.dataset and known_name(self.dataset, DATASETS)
        for name, value in clean.items():
            object.__setattr__(self, name, value)

    def __eq__(self, other: object) -> bool:
        return self.to_dict() == other.to_dict() if isinstance(other, Recipe) else NotImplemented

    def __hash__(self) -> int:
        return hash(_canonical(self.to_dict()))

    def key(self) -> str:
        """Canonical JSON of what changes a network's answer; recipes that differ in nothing of it have the same key.

        Left out are the provenance and the model's name (the network itself says which it is). Defaults of zipbrain's
        own methods are filled in; options that can't matter (z2 where every kept place is a pivot, the merge rule where
        tokens are dropped, mass that the method uses by itself) are levelled. `layers`, `protected`, `tokens` and
        `within` count as they are written: only the model could say what None stands for.
        """
        method, mass = _full(self.method), dict(self.mass)
        if method["name"] in ("tome", "pitome"):
            mass["merge"] = True
            mass["attention"] = mass["attention"] or bool(method["proportional_attention"])
        if method["name"] in ("twins", "ward_pairs"):
            mass = dict.fromkeys(mass, True)
        schedule = _full(self.schedule)
        if schedule["name"] == "per_layer" and isinstance(schedule.get("r"), list):
            while schedule["r"] and schedule["r"][-1] == 0:  # layers after the list remove none
                schedule["r"].pop()
        where = {name: getattr(self, name) for name in ("layers", "protected", "tokens", "within")}
        if self.axis == "time":  # channels are what None stands for
            where["axis"] = self.axis
        if self.second_look is not None:
            where["second_look"] = self.second_look
        return _canonical({"method": method, "schedule": schedule, "mass": mass, **where})

    def options(self) -> dict[str, Any]:
        """The keyword arguments of `zipbrain.compress` besides `method`."""
        names = ("schedule", "layers", "protected", "tokens", "within", "axis", "mass", "second_look")
        return {name: copy.deepcopy(getattr(self, name)) for name in names}

    def to_dict(self) -> dict[str, Any]:
        """JSON form, with the number of its format; fields that are None are left out."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        values["method"] = _with_options(self.method, _DEFAULTS)
        values = {name: value for name, value in values.items() if value is not None}
        for name in ("layers", "protected"):
            if name in values:
                values[name] = list(values[name])
        return {"format": FORMAT, **copy.deepcopy(values)}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Recipe:
        """Read what `to_dict` gave; a form without ``format`` is taken as the first one."""
        if not isinstance(content, Mapping):
            raise OptionError("recipe", type(content).__name__, "it must be an object with a method and a schedule")
        number = content.get("format", FORMAT)
        if isinstance(number, bool) or not isinstance(number, int) or number < 1:
            raise OptionError("recipe.format", number, f"it must be the number {FORMAT}")
        if number > FORMAT:
            raise OptionError("recipe.format", number, f"this zipbrain reads up to {FORMAT}: a newer zipbrain wrote it")
        known = [item.name for item in fields(cls)]
        for name in content:
            if name not in known and name != "format":
                raise OptionError("recipe", name, f"its keys are {', '.join(known)}")
        for name in ("method", "schedule"):
            if content.get(name) is None:
                raise OptionError("recipe", f"no {name}", "a recipe needs a method and a schedule")
        values = {name: content[name] for name in known if name in content}
        method, values["mass"] = _first_twins(values["method"], values.get("mass", {}))
        values["method"] = _with_options(method, _EARLIER)
        return cls(**{"versions": {}, **values})

    def save(self, path: str | Path) -> Path:
        """Write the recipe as a JSON file, whole or not at all; its folder is made if it is not there."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, (json.dumps(self.to_dict(), indent=1, ensure_ascii=False) + "\n").encode())
        return path

    @classmethod
    def load(cls, path: str | Path) -> Recipe:
        """Read a JSON file that `save` wrote."""
        if not isinstance(path, str | Path):
            raise OptionError("recipe", path, "it must be a Recipe or the path of its JSON file")
        try:
            content = read_json(Path(path))
        except OSError as error:
            raise OptionError("recipe", str(path), f"it can't be read: {error.strerror or error}") from None
        except ValueError as error:
            raise OptionError("recipe", str(path), f"it is damaged or not JSON: {error}") from None
        try:
            return cls.from_dict(content)
        except OptionError as error:
            raise OptionError("recipe", str(path), f"its content can't be used: {error}") from None


def as_recipe(given: object) -> Recipe | None:
    """The recipe that is given, or that a file of a given `Path` or name in ``.json`` holds; None for anything else."""
    if isinstance(given, Path) or (isinstance(given, str) and given.lower().endswith(".json")):
        return Recipe.load(given)
    return given if isinstance(given, Recipe) else None


def as_margin(given: Any) -> float:
    """The margin of a second look, in log-odds; refuses what is no number of at least 0."""
    margin = finite_number("second_look", given)
    if margin < 0:
        raise OptionError("second_look", given, "it must be at least 0, in log-odds of the two best classes")
    return margin


def _part(option: str, form: Any) -> dict[str, Any]:
    """The JSON form of a method, a schedule or a part of one, in zipbrain's own spelling."""
    if isinstance(form, Mapping) and isinstance(form.get("name"), str) and form["name"].strip():
        name = canonical_part(form["name"].strip())
        clean: dict[str, Any] = {"name": name}
        for key, value in form.items():
            where = f"{option}.{key}"
            if key == "name":
                continue
            ours = key in _DEFAULTS.get(name, ())
            if ours and key in ("split", "match", "merge", "softmax", "linear"):
                clean[key] = _part(where, {"name": value} if isinstance(value, str) else value)
            elif isinstance(value, Mapping):
                clean[key] = _part(where, value)
            elif ours and key in ("z1", "z2", "z3"):
                clean[key] = canonical_space(where, value)
            elif key in ("rho", "ratio", "share", "inflect"):
                clean[key] = float(exact_fraction(where, value))
            else:
                clean[key] = plain_json(where, value)
        return clean
    raise OptionError(option, form, "it must be an object with a name, such as {'name': 'zipbrain'}")


def _first_twins(method: Any, mass: Any) -> tuple[Any, Any]:
    """A method and its mass; the first version of Twins, which had one merge rule, as the parts it was made of."""
    if not isinstance(method, Mapping) or "merge" not in method or canonical_part(method.get("name")) != "twins":
        return method, mass
    parts = {"name": "composition", "split": {"name": "close_pairs"}, "match": {"name": "most_similar", "z3": "x"}}
    return {**method, **parts}, True


def _with_options(method: Any, values: Mapping[str, Mapping[str, Any]]) -> Any:
    """A method with those options written out whose default has changed, taken from `values` where they are missing."""
    if not isinstance(method, Mapping) or not isinstance(method.get("name"), str):
        return method
    name = canonical_part(method["name"].strip())
    return {**method, **{key: values[name][key] for key in _EARLIER.get(name, ()) if key not in method}}


def _full(part: Mapping[str, Any]) -> dict[str, Any]:
    """The same part with every default written out and options that can't matter taken away."""
    name = part["name"]
    form = {**_DEFAULTS.get(name, {}), **part}
    form = {key: _full(value) if isinstance(value, dict) else copy.copy(value) for key, value in form.items()}
    if name in ("zipbrain", "pivots") and form["rho"] == 1:  # all kept places are pivots
        del form["z2"]
    if name == "composition" and form["match"]["name"] == "drop":
        del form["merge"]
    if name == "twins" and form["trimmed"] is False:  # as in keys from before there was the option
        del form["trimmed"]
    return form


def _canonical(content: Any) -> str:
    return json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def _mass(given: Any) -> dict[str, bool]:
    if isinstance(given, bool):
        return dict.fromkeys(_USES, given)
    is_object = isinstance(given, Mapping) and {*given} <= {*_USES}
    if not is_object or not all(isinstance(value, bool) for value in given.values()):
        raise OptionError("mass", given, f"it must be true, false or an object of booleans for {', '.join(_USES)}")
    return {use: given.get(use, False) for use in _USES}


def _layers(given: Any) -> tuple[int, ...] | None:
    if given is None:
        return None
    if not isinstance(given, Iterable) or isinstance(given, str | Mapping):
        raise OptionError("layers", given, "it must be a list of block numbers from 1")
    numbers = {whole_number("layers", number, 1) for number in given}
    if not numbers:
        raise OptionError("layers", given, "at least one block must reduce")
    return tuple(sorted(numbers))


def _protected(given: Any) -> tuple[int, int] | None:
    if given is None:
        return None
    pair = (given, 0) if isinstance(given, Integral) else given
    if not isinstance(pair, list | tuple) or len(pair) != 2:
        raise OptionError("protected", given, "it must be a count or a pair (leading, trailing)")
    return whole_number("protected", pair[0], 0), whole_number("protected", pair[1], 0)


def _versions(given: Any) -> dict[str, str]:
    if not isinstance(given, Mapping) or not all(isinstance(text, str) for pair in given.items() for text in pair):
        raise OptionError("versions", given, "it must be an object of strings")
    return dict(given)


def _promise(given: Any) -> dict[str, Any]:
    if not isinstance(given, Mapping):
        raise OptionError("promise", given, "it must be an object, as zipbrain tune writes it")
    return dict(plain_json("promise", given))
