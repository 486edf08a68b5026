"""Does an exported file answer as PyTorch does? Logits, decisions and groupings, compared on real windows.

Which tokens stay, whom the others join and which code TFM gives a frame can hang on the last bit of a score. So logits
are compared on the windows whose groupings are all the same; the others are counted, and each must show that its first
other decision was a near-tie.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from zipbrain.data.windows import Windows
from zipbrain.edge.description import INPUT
from zipbrain.edge.model import EdgeModel
from zipbrain.export.decision_outputs import Told, code_gaps, gaps_of, reference
from zipbrain.metrics import answers, main_metric, score
from zipbrain.signal.scaling import scale

__all__ = [
    "BOUND", "NEAR_TIE", "Groupings", "Parity", "Told", "code_gaps", "compare", "gaps_of", "measure",
    "reference",
]  # fmt: skip

BOUND: Final = 1e-5  # on the error of logits whose groupings agree
NEAR_TIE: Final = 1e-5  # how close the scores of a decision that differs must be
OTHER_GROUPINGS: Final = 0.02  # share of windows that may have others
AGREEMENT: Final = {"float32": 0.99}  # share of equal decisions that is asked for
QUANTISED_AGREEMENT: Final = 0.98
SCORE_CHANGE: Final = 0.01  # of AUROC or kappa, in half precision and int8

_TOGETHER: Final = 16  # windows per call of PyTorch and of the graph that tells its decisions

Logits = NDArray[np.float32]


@dataclass
class Groupings:
    """A comparison: windows, largest error where groupings agree, and (window, margin) where they don't."""

    windows: int = 0
    difference: float = 0.0
    largest: float = 0.0
    flips: list[tuple[int, float]] = field(default_factory=list)

    @property
    def error(self) -> float:
        """Largest difference over the largest logit, over the windows whose groupings agree."""
        return self.difference / self.largest if self.largest else self.difference

    def add(
        self, expected: list[Tensor], gaps: list[Tensor], found: list[Tensor], answer: Tensor | None = None
    ) -> None:
        """Compare some more windows.

        Every row (a window; in EEGPT one of its patches, which are apart until the head) is judged by its first
        decision that differs, because all later ones follow from it.

        Parameters
        ----------
        expected, gaps : list of Tensor
            See `reference`.
        found : list of Tensor
            Logits and decisions of the exported graph.
        answer : Tensor, optional
            Logits of the file, where they come from another session than the decisions. A window of which these alone
            are off was grouped in another way there, and its margin is its smallest gap.
        """
        count = expected[0].shape[0]
        rows = max(part.shape[0] for part in expected)
        same, margin = torch.ones(rows, dtype=torch.bool), torch.zeros(rows, dtype=torch.float64)
        for mine, theirs, gap in zip(expected[1:], found[1:], gaps, strict=True):
            differs = mine != theirs
            now = differs.any(1) & same
            margin = torch.where(now, torch.where(differs, gap, 0.0).amax(1), margin)
            same &= ~now
        agree = same.reshape(count, -1).all(1)
        worst = margin.reshape(count, -1).amax(1)
        self.largest = _largest(self.largest, expected[0])
        if answer is not None and gaps:
            bound = BOUND * self.largest
            silent = agree & ((found[0] - expected[0]).abs().amax(1) <= bound)
            silent &= ~((answer - expected[0]).abs().amax(1) <= bound)
            closest = torch.stack([gap.reshape(count, -1).amin(1) for gap in gaps]).amin(0).double()
            worst, agree = torch.where(silent, closest, worst), agree & ~silent
        self.flips += [(self.windows + window, worst[window].item()) for window in torch.where(~agree)[0].tolist()]
        self.windows += count
        logits = found[0] if answer is None else answer
        self.difference = _largest(self.difference, (logits - expected[0])[agree])

    def faults(self) -> list[str]:
        """What is out of bounds, in words."""
        allowed = max(1, int(self.windows * OTHER_GROUPINGS))
        return [
            *([f"error {self.error:.1e} over {BOUND:g}"] if not self.error <= BOUND else []),
            *(f"window {w} differs at a margin of {margin:.1e}" for w, margin in self.flips if not margin < NEAR_TIE),
            *([f"{len(self.flips)} of {self.windows} windows differ"] if len(self.flips) > allowed else []),
        ]


def _largest(before: float, values: Tensor) -> float:
    """The largest absolute value so far; NaN if there is any."""
    return torch.cat((torch.tensor([before]), values.abs().flatten())).max().item()


@dataclass(frozen=True)
class Parity:
    """How an exported file compares with PyTorch.

    Attributes
    ----------
    windows : int
        How many were compared.
    error : float
        Largest difference of logits over the largest logit; in float32, over the windows whose groupings agree.
    other_groupings : int
        Windows that were grouped in another way; 0 where this was not looked at.
    margin : float
        The largest gap behind their first other decision.
    agreement : float
        Share of the windows with the same decision.
    metric : str
        "auroc" or "kappa".
    before, after : float
        The metric of PyTorch's answers and of the file's; NaN where it is not defined.
    faults : tuple of str
        What is out of bounds, in words; empty if all is well.
    """

    windows: int
    error: float
    other_groupings: int
    margin: float
    agreement: float
    metric: str
    before: float
    after: float
    faults: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """For JSON: numbers that are not defined are None."""
        numbers = {
            "windows": self.windows, "error": self.error, "other_groupings": self.other_groupings,
            "margin": self.margin, "agreement": self.agreement, "metric": self.metric, "before": self.before,
            "after": self.after, "faults": list(self.faults),
        }  # fmt: skip
        return {k: None if isinstance(v, float) and not np.isfinite(v) else v for k, v in numbers.items()}


def measure(
    precision: str, expected: Logits, found: Logits, labels: NDArray[np.int64], classes: int, groupings: Groupings
) -> Parity:
    """Judge the answers of a file.

    Parameters
    ----------
    precision : str
        "float32" is held to the groupings; anything else to decisions and scores.
    expected, found : ndarray (n, K)
        Logits of PyTorch and of the file.
    labels : ndarray (n,)
        True classes.
    classes : int
        How many there are.
    groupings : Groupings
        Of the float32 graph.
    """
    exact = precision == "float32"
    agreement = float((answers(expected) == answers(found)).mean())
    metric = main_metric(classes)
    before, after = score(expected, labels, metric), score(found, labels, metric)
    wanted = AGREEMENT.get(precision, QUANTISED_AGREEMENT)
    faults = groupings.faults() if exact else []
    if not np.isfinite(found).all():
        faults.append(f"{(~np.isfinite(found).all(1)).sum()} windows with NaN or infinite logits")
    if agreement < wanted:
        faults.append(f"decisions agree on {agreement:.1%} of {len(found)} windows, {wanted:.0%} are asked for")
    if not exact and abs(after - before) > SCORE_CHANGE:
        faults.append(f"{metric} goes from {before:.3f} to {after:.3f}, by more than {SCORE_CHANGE:g}")
    size = float(np.abs(expected).max()) or 1.0
    error = groupings.error if exact else float(np.abs(found - expected).max()) / size
    others = len(groupings.flips) if exact else 0
    margin = max((margin for _, margin in groupings.flips), default=0.0) if exact else 0.0
    return Parity(
        len(found), error, others, margin, agreement, metric, before, after, tuple(dict.fromkeys(faults))
    )  # fmt: skip


def compare(path: Path, network: nn.Module, told: Any, windows: Windows, scaling: str, precision: str) -> Parity:
    """Compare a written file with PyTorch on all windows.

    Parameters
    ----------
    path : Path
        Of the file; read as the device reads it.
    network : nn.Module
        The model, float32 on the CPU.
    told : onnx.ModelProto
        The float32 graph with its decisions, see `graphs`.
    windows : Windows
        In microvolts.
    scaling : str
        See `zipbrain.signal.scaling.scale`.
    precision : str
        Of the file.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    file = EdgeModel(path, spinning=False)
    session = onnxruntime.InferenceSession(told.SerializeToString(), options, providers=["CPUExecutionProvider"])
    size = file.description.batch or _TOGETHER
    model, groupings = Told(network), Groupings()
    mine, theirs = [], []
    for start in range(0, len(windows), size):
        raw = windows.take(slice(start, start + size))
        x = np.asarray(scale(raw, scaling), dtype=np.float32)
        answer = file.logits(raw)
        if precision == "float32":
            expected, gaps = reference(model, torch.from_numpy(x))
            filled = x if file.description.batch is None else np.concatenate((x, np.repeat(x[-1:], size - len(x), 0)))
            found = [torch.from_numpy(value) for value in session.run(None, {INPUT: filled})]
            share = [len(value) // len(filled) for value in found]  # EEGPT decides for every patch of a window
            found = [value[: len(x) * count] for value, count in zip(found, share, strict=True)]
            groupings.add(expected, gaps, found, torch.from_numpy(answer))
            logits = expected[0]
        else:
            with torch.inference_mode():
                logits = network(torch.from_numpy(x))
        mine.append(logits.numpy())
        theirs.append(answer)
    return measure(
        precision, np.concatenate(mine), np.concatenate(theirs), windows.labels, len(windows.classes), groupings
    )  # fmt: skip
