"""`Format`: the interface of an output format of `predict`: its files, their content, and the models it suits."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable
from importlib.util import find_spec
from typing import Any, ClassVar, Final

from zipbrain.edge.description import Description
from zipbrain.edge.prediction import Prediction
from zipbrain.text import readable

MARK: Final = "_zipbrain"  # in the name of everything that is written


class Format(ABC):
    """A way to write a prediction; `package` must be installed for it, and zipbrain's `extra` brings that."""

    name: ClassVar[str]
    package: ClassVar[str] = ""
    extra: ClassVar[str] = ""

    @abstractmethod
    def file_names(self, stem: str) -> dict[str, str]:
        """Names of its files by their kind, for a recording called `stem`; the first kind is the format's name."""

    @abstractmethod
    def contents(self, prediction: Prediction) -> dict[str, bytes]:
        """Contents of its files by their kind."""

    def is_installed(self) -> bool:
        """True if what it needs can be imported here."""
        return not self.package or find_spec(self.package) is not None

    def refusal_of(self, description: Description, hop_s: float) -> str:
        """Why a model's answers every `hop_s` seconds can't be written so; "" if they can."""
        return ""


def rows(prediction: Prediction) -> Iterable[tuple[float, Any, str, str]]:
    """Start, probabilities, decision and flag of every window."""
    starts = (float(start) for start in prediction.starts)
    return zip(starts, prediction.probabilities, prediction.labels, prediction.flags, strict=True)


def json_bytes(content: Any) -> bytes:
    """JSON that people can read, as UTF-8."""
    return readable(json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode()
