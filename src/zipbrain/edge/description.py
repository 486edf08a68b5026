"""`Description`: what an exported file says about itself, as one JSON object in its ONNX metadata."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final

from zipbrain.edge.onnx_file import graph_sha256, read_onnx
from zipbrain.errors import ModelFileError, OptionError
from zipbrain.files import parse_json
from zipbrain.recipe import Recipe, as_margin
from zipbrain.signal.convention import Convention
from zipbrain.signal.scaling import SCALINGS

FORMAT: Final = 1
KEY: Final = "zipbrain"  # of the metadata
INPUT: Final = "eeg"  # (batch, C, T) float32, scaled as the convention says
OUTPUT: Final = "logits"  # (batch, classes) float32, or (batch, 1) for two classes
MARGIN: Final = "second_look_margin"  # optional input () float32: windows with a smaller margin look twice
LOOKED_TWICE: Final = "looked_twice"  # output (batch,) bool of a file with a second look
SOURCE_MAP: Final = "source_map"  # output (batch, N) or (batch, P, N) of a file with groups: whom every token joined
PRECISIONS: Final = ("float32", "float16", "int8-dynamic", "int8-static")

_HASH: Final = "sha256"  # of all else in a description
_LONGEST: Final = 1e6  # seconds of a window
_FASTEST: Final = 2e4  # Hz of a sampling rate
_SLOWEST: Final = 1e-3  # Hz of a band's edge: its filter is an hour long
_LARGEST: Final = 1 << 16  # windows of a batch
_NEEDED: Final = ("model", "classes", "convention", "corpus", "precision")


@dataclass(frozen=True)
class Description:
    """What an exported file says about itself.

    Attributes
    ----------
    model, corpus : str
        Such as ``"labram"``, and what it was trained on.
    classes : tuple of str
        In the order of the model's outputs.
    convention : Convention
        How a recording becomes windows, and how windows are scaled.
    precision : {"float32", "float16", "int8-dynamic", "int8-static"}
    batch : int, optional
        Windows per call, if that is fixed.
    recipe : dict, optional
        `Recipe.to_dict()` of the compression; None if there is none.
    token_counts : tuple of int
        Tokens before the first block, then after each.
    weights_sha256 : str
        Of the weights it was made from.
    versions, parity, trained_on : dict
        Versions of packages and opset, distance from PyTorch's answers at export, name and scores of the checkpoint.
    graph_sha256 : str
        `zipbrain.edge.onnx_file.graph_sha256` of the file, checked when it is opened; "" where it was not written.
    outputs : dict of str to str
        Outputs of the graph besides the logits, such as ``"source_map"``, in its order, and what each one means.
    second_look : dict, optional
        The ``margin`` below which a window is answered once more by the uncompressed network, the ``input`` that sets
        another one and the ``output`` that marks these windows; None if there is no second look.
    """

    model: str
    classes: tuple[str, ...]
    convention: Convention
    corpus: str
    precision: str = "float32"
    batch: int | None = None
    recipe: dict[str, Any] | None = None
    token_counts: tuple[int, ...] = ()
    weights_sha256: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    parity: dict[str, Any] = field(default_factory=dict)
    trained_on: dict[str, Any] = field(default_factory=dict)
    graph_sha256: str = ""
    outputs: dict[str, str] = field(default_factory=dict)
    second_look: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        for name in ("classes", "token_counts"):
            given = getattr(self, name)
            if isinstance(given, list | tuple):
                object.__setattr__(self, name, tuple(given))
        _check(self)
        check_convention(self.convention)

    @property
    def looks_twice(self) -> bool:
        """True if the file answers doubtful windows once more."""
        return LOOKED_TWICE in self.outputs

    @property
    def has_groups(self) -> bool:
        """True if the file says which token every token ended in."""
        return SOURCE_MAP in self.outputs

    def need_second_look(self, option: str, given: object, path: str | Path) -> None:
        """Refuse an option that asks the uncompressed network, where the file holds the compressed one alone."""
        if not self.looks_twice:
            advice = "export one whose recipe has a second_look, as zipbrain tune writes it (zipbrain export --recipe)"
            raise OptionError(option, given, f"{path} has no second look: {advice}")

    def to_json(self) -> str:
        """One JSON object, with the number of its format."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        content = {"format": FORMAT, **values, "convention": self.convention.as_dict()}
        return json.dumps({**content, _HASH: _hash(content)}, ensure_ascii=False, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Description:
        """Read what `to_json` gave; anything else is refused in one line."""
        try:
            content = parse_json(text)
        except ValueError as error:
            raise OptionError("description", text[:40], f"it is damaged or not JSON: {error}") from None
        if not isinstance(content, Mapping):
            raise OptionError("description", type(content).__name__, "it must be an object")
        number = content.get("format")
        if isinstance(number, bool) or not isinstance(number, int) or number < 1:
            raise OptionError("description.format", number, f"it must be the number {FORMAT}")
        if number > FORMAT:
            raise OptionError("description.format", number, f"this zipbrain reads up to {FORMAT}: take a newer one")
        for name in _NEEDED:
            if name not in content:
                raise OptionError("description", f"no {name}", f"it needs {', '.join(_NEEDED)}")
        values = {item.name: content[item.name] for item in fields(cls) if item.name in content}
        try:
            values["convention"] = Convention.from_dict(content["convention"])
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            words = " ".join(str(error).split())
            raise OptionError("description.convention", type(error).__name__, f"it can't be read: {words}") from None
        found = cls(**values)
        if _HASH in content and content[_HASH] != _hash(content):
            raise OptionError(
                f"description.{_HASH}", str(content[_HASH])[:8], "it was changed after the export: export it again"
            )
        return found

    @classmethod
    def read(cls, path: str | Path) -> Description:
        """Read the description of an exported file; nothing of the file is run."""
        return ModelFile.read(path).description


@dataclass(frozen=True, eq=False)
class ModelFile:
    """An exported file in memory, read and checked once; what was checked is what runs."""

    path: Path
    content: bytes
    description: Description
    sha256: str  # of the content

    @classmethod
    def read(cls, path: str | Path) -> ModelFile:
        """Read an exported file with a description that this zipbrain understands and the graph that it names."""
        if not isinstance(path, str | Path):
            raise OptionError("model", type(path).__name__, "give the path of what `zipbrain export` wrote")
        content, metadata = read_onnx(path)
        if KEY not in metadata:
            found = f"has no {KEY!r} in its metadata, so what it is is unknown"
            raise ModelFileError(f"{path}: {found}; use zipbrain export")
        try:
            description = Description.from_json(metadata[KEY])
        except OptionError as error:
            raise ModelFileError(f"{path}: its description can't be used: {error}") from None
        if description.graph_sha256 and graph_sha256(content) != description.graph_sha256:
            changed = "its graph is not the one that was exported (its hash differs)"
            raise ModelFileError(f"{path}: {changed}; copy or export it again")
        return cls(Path(path), content, description, hashlib.sha256(content).hexdigest())


def _hash(content: Mapping[str, Any]) -> str:
    """Hash of a description's JSON form, but for the hash in it."""
    others = {name: value for name, value in content.items() if name != _HASH}
    return hashlib.sha256(json.dumps(others, sort_keys=True).encode()).hexdigest()


def _requirements(given: object, whose: str) -> Callable[[bool, str, str], None]:
    """A function that refuses a field of `given` where a condition does not hold, and says what is allowed."""

    def require(is_good: bool, name: str, allowed: str) -> None:
        if not is_good:
            raise OptionError(f"{whose}.{name}", getattr(given, name), allowed)

    return require


def _check(given: Description) -> None:
    require = _requirements(given, "description")
    for name in ("model", "corpus", "weights_sha256", "graph_sha256"):
        require(isinstance(getattr(given, name), str), name, "it must be a string")
    names, counts = given.classes, given.token_counts
    require(_are_names(names) and len(names) > 1, "classes", "it must be a list of at least two names")
    require(len(set(names)) == len(names), "classes", "every class needs a name of its own")
    require(given.precision in PRECISIONS, "precision", f"it must be one of {', '.join(PRECISIONS)}")
    is_size = given.batch is None or (_is_count(given.batch) and given.batch <= _LARGEST)
    require(is_size, "batch", f"it must be a positive integer up to {_LARGEST}, or null")
    are_counts = isinstance(counts, tuple) and all(map(_is_count, counts))
    require(are_counts, "token_counts", "it must be a list of positive integers")
    for name in ("recipe", "versions", "parity", "trained_on", "outputs", "second_look"):
        is_absent = name in ("recipe", "second_look") and getattr(given, name) is None
        require(is_absent or isinstance(getattr(given, name), dict), name, "it must be an object")
    are_described = all(_are_names(pair) for pair in given.outputs.items())
    require(are_described, "outputs", "every output needs a name and a meaning")
    require(given.outputs.keys().isdisjoint({INPUT, OUTPUT}), "outputs", f"{INPUT} and {OUTPUT} are always there")
    if given.looks_twice:
        looks = {} if given.second_look is None else given.second_look
        ends = looks.get("input"), looks.get("output")
        require(ends == (MARGIN, LOOKED_TWICE), "second_look", f"its input is {MARGIN}, its output {LOOKED_TWICE}")
        as_margin(looks.get("margin"))
    if given.recipe is not None:
        Recipe.from_dict(given.recipe)


def check_convention(given: Convention, option: str = "description.convention") -> None:
    """Refuse numbers and names with which no window could be made; errors name the `option` it came with."""

    require = _requirements(given, option)
    for name, most in (("sfreq", _FASTEST), ("window_s", _LONGEST), ("hop_s", _LONGEST)):
        require(_is_positive(getattr(given, name), most), name, "it must be a positive number of usual size")
    for name in ("cut_sfreq", "notch"):
        is_rate = getattr(given, name) is None or _is_positive(getattr(given, name), _FASTEST)
        require(is_rate, name, "it must be a positive number of usual size, or null")
    edges = (None, None) if given.band is None else given.band
    is_band = isinstance(edges, tuple) and len(edges) == 2
    is_band = is_band and all(edge is None or (_is_positive(edge, _FASTEST) and edge >= _SLOWEST) for edge in edges)
    require(is_band, "band", "it must be two frequencies of usual size, or null")
    require(given.hop_s * given.sfreq >= 1 - 1e-9, "hop_s", "windows must be at least a sample apart")
    require(given.n_times >= 1, "window_s", "a window needs at least one sample")
    count = len(given.ch_names) if _are_names(given.ch_names) else 0
    require(count > 0, "ch_names", "it must be a list of channel names")
    pairs = [entry if isinstance(entry, tuple) else (entry, entry) for entry in given.montage]
    are_channels = all(len(pair) == 2 and _are_names(pair) for pair in pairs)
    require(are_channels, "montage", "it must be a list of electrodes and pairs of electrodes")
    require(len(given.montage) == count, "montage", f"it needs one entry for each of {count} channels")
    is_scaling = isinstance(given.scaling, str) and given.scaling in SCALINGS
    require(is_scaling, "scaling", f"known scalings are {', '.join(SCALINGS)}")
    for name, known in (("resampling", ("polyphase", "fft")), ("window_resampling", ("fft", "nearest"))):
        require(getattr(given, name) in known, name, f"it must be one of {', '.join(known)}")
    require(isinstance(given.filter_windows, bool), "filter_windows", "it must be true or false")


def _are_names(value: object) -> bool:
    return isinstance(value, tuple) and all(isinstance(name, str) and name for name in value)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _is_positive(value: object, most: float) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= most
