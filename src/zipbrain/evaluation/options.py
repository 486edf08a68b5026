"""The options of a comparison, read and checked: methods, ratios, mass and the setting of ZIPBrain."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from torch import nn

from zipbrain.errors import OptionError
from zipbrain.evaluation.paper_results import known_pair
from zipbrain.evaluation.trial import recipe_for
from zipbrain.paper import METHODS
from zipbrain.pooling import Method, ZIPBrain, as_method
from zipbrain.recipe import Recipe, as_recipe

RATIOS: Final = (0.2, 0.4, 0.6, 0.8, "max")
SETTINGS: Final = ("auto", "paper", "default")
TUNED: Final = "Tuned"  # label of a recipe that is run as it is
_MASSES: Final = {"off": (False,), "on": (True,), "both": (False, True)}


@dataclass(frozen=True)
class Setting:
    """A method as it is to be run, and where its options come from."""

    label: str  # in tables
    method: Method
    words: str = ""  # where its options come from
    origin: Recipe | None = None
    mass: dict[str, bool] | None = None  # the uses of mass of the recipe, if it has any

    def recipe(
        self, model: nn.Module, ratio: float | str, *, mass: bool | dict[str, bool], method: Method | None = None
    ) -> Recipe:
        """What is run at a ratio: everything but method, ratio and mass is that of the recipe it comes from.

        Left out are a second look, a promise and the weights it was given for. `method` is a variant of the setting's
        own; the model gives its name.
        """
        found = recipe_for(model, method or self.method, ratio=ratio, mass=mass)
        if self.origin is None:
            return found
        run = {name: getattr(found, name) for name in ("method", "schedule", "mass", "model", "versions")}
        found = replace(self.origin, **run, second_look=None, promise=None, weights=None)
        # At another ratio it was not measured.
        return found if found.key() == self.origin.key() else replace(found, score=None)


def read_ratios(given: Iterable[object]) -> tuple[float | str, ...]:
    """Shares above 0 and at most 1, or ``"max"``, without repeats."""
    found: list[float | str] = []
    for one in given:
        ratio = read_ratio(one)
        if ratio not in found:
            found.append(ratio)
    if not found:
        raise OptionError("ratios", [], "at least one is needed, such as 0.8 or max")
    return tuple(found)


def read_ratio(given: object, option: str = "ratios") -> float | str:
    """A share above 0 and at most 1, or ``"max"``."""
    if isinstance(given, str) and given.strip().lower() == "max":
        return "max"
    if isinstance(given, str) and "," in given:
        raise OptionError(option, given, "one ratio at a time is taken here: run it once for each")
    try:
        share = float("nan") if isinstance(given, bool) else float(given)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        share = float("nan")
    if not 0 < share <= 1:
        raise OptionError(option, given, "a ratio is a share above 0 and at most 1, such as 0.8 for 80 %, or max")
    return share


def read_mass(given: str) -> tuple[bool, ...]:
    """Without mass, with it, or both."""
    if given not in _MASSES:
        raise OptionError("mass", given, f"it must be one of {', '.join(_MASSES)}")
    return _MASSES[given]


def read_methods(given: Iterable[object], zipbrain: Setting, origin: object = "auto") -> list[Setting]:
    """A setting for every name; ``"zipbrain"`` stands for the given one.

    `origin` is what that one was read from: a recipe or a method that no row would use is refused.
    """
    found: list[Setting] = []
    for one in given:
        named = as_method(one.strip() if isinstance(one, str) else one)
        plain = named == ZIPBrain() and isinstance(one, str)
        setting = zipbrain if plain else Setting(_title(named), named)
        if setting not in found:
            found.append(setting)
    if not found:
        raise OptionError("methods", [], f"at least one is needed, such as {', '.join(METHODS)}")
    if zipbrain not in found and origin not in SETTINGS:
        asked = ", ".join(one.method.name for one in found)
        raise OptionError("methods", asked, "the recipe or setting given is for the row zipbrain: add zipbrain to them")
    return found


def zipbrain_setting(given: object, model: str, dataset: str) -> Setting:
    """ZIPBrain as it is to be run for a model on a dataset.

    ``"paper"`` is the paper's winning setting, ``"default"`` is ``ZIPBrain()``, ``"auto"`` the paper's where it has
    one; or a Method, a Recipe or the path of one, of which everything is used but its schedule.
    """
    recipe = as_recipe(given)
    if recipe is not None:
        return _from_recipe(recipe, model)
    if isinstance(given, Method):
        return Setting(_title(given), given, f"{options_text(given.to_dict())}, as given")
    if not isinstance(given, str) or given not in SETTINGS:
        raise OptionError("setting", given, f"it must be {', '.join(SETTINGS)}, or a recipe's .json file")
    if given == "default" or (given == "auto" and known_pair(model, dataset) is None):
        method, words = as_method("zipbrain"), "the default setting"
    elif known_pair(model, dataset) is None:
        raise OptionError("setting", "paper", f"the paper has no setting for {model} on {dataset}: take default")
    else:
        method = read_method("paper", model, dataset)
        words = f"the paper's setting for {model} on {dataset} (found at maximum compression)"
    return Setting(_title(method), method, f"{options_text(method.to_dict())}, {words}")


def read_method(given: object, model: str, dataset: str) -> Method:
    """A method by name, JSON form or object; ``"paper"`` is ZIPBrain in the paper's setting for model and dataset."""
    if isinstance(given, str) and given.strip().lower() == "paper":
        return ZIPBrain.from_paper(model, dataset)
    return as_method(given.strip() if isinstance(given, str) else given)


def _title(method: Method) -> str:
    return method.title or method.name.replace("_", " ")


def _from_recipe(recipe: Recipe, model: str) -> Setting:
    if recipe.model is not None and recipe.model != model:
        raise OptionError("recipe", f"a recipe for {recipe.model}", f"the checkpoint is {model}: take one for it")
    method = as_method(recipe.method)
    # What a method does with mass by itself is no choice of the recipe.
    uses = {use: yes and not asdict(method.mass)[use] for use, yes in recipe.mass.items()}
    mass = recipe.mass if any(uses.values()) else None
    words = f"{options_text(method.to_dict())}, from a recipe {_chosen(recipe)}"
    return Setting(_title(method), method, words, recipe, mass)


def _chosen(recipe: Recipe) -> str:
    return f"chosen on {recipe.dataset} {recipe.split or ''}".rstrip() if recipe.dataset else "chosen elsewhere"


def tuned_setting(given: object, model: str) -> Setting:
    """A recipe, or the path of one, that is run as it is: `Setting.origin` holds it."""
    recipe = as_recipe(given)
    if recipe is None:
        raise OptionError("tuned", given, "it must be a recipe or a recipe's .json file, as zipbrain tune writes it")
    found = _from_recipe(recipe, model)
    parts = [found.label, options_text(recipe.schedule), f"a recipe {_chosen(recipe)}"]
    look = recipe.second_look
    parts += (
        []
        if look is None
        else [f"with a second look where the two best classes are less than {look:.3g} apart in log-odds"]
    )
    return replace(found, label=TUNED, words=", ".join(filter(None, parts)))


def is_tuned(recipe: Recipe) -> bool:
    """True if a recipe was made for certain weights or looks twice, so that only as a whole it is what it says."""
    return any(part is not None for part in (recipe.weights, recipe.promise, recipe.second_look))


def optimistic(setting: Setting, task: dict[str, Any]) -> list[str]:
    """A warning where a recipe is judged on what it was chosen on."""
    origin = setting.origin
    if origin is None or (origin.dataset, origin.split) != (task["dataset"], task["split"]):
        return []
    return [f"{setting.label}'s recipe was chosen on these very windows ({task['split']}): its scores flatter it."]


def options_text(form: Mapping[str, Any], between: str = "=") -> str:
    """The plain options of a method's JSON form, ``"z1=x, rho=0.5"``; parts inside it are left out."""
    plain = {key: value for key, value in form.items() if key != "name" and not isinstance(value, dict)}
    return ", ".join(f"{key}{between}{value}" for key, value in plain.items())
