"""Parity of an exported file with PyTorch: logits, decisions and groupings, compared on real windows.

Which tokens stay, whom the others join and which code TFM gives a frame can hang on the last bit of a score. So logits
are compared on the windows whose groupings are all the same; the others are counted, and each must show that its first
other decision was a near-tie. The same holds for a second look: a window that looks twice in the file or in PyTorch
alone must have a margin next to the one that decides about it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from zipbrain.data.windows import Windows
from zipbrain.edge.description import INPUT
from zipbrain.edge.model import EdgeModel, as_probabilities
from zipbrain.export.decision_outputs import WithDecisions, reference
from zipbrain.metrics import check, decisions, is_chance, main_metric, probabilities, score
from zipbrain.seams.forward import plan_of
from zipbrain.seams.second_look import is_doubtful, margins
from zipbrain.signal.scaling import scale

BOUND: Final = 1e-5  # largest relative error of logits whose groupings agree
NEAR_TIE: Final = 1e-5  # largest gap between the scores of a decision that differs
FAR: Final = 1e-4  # largest difference of probabilities in a second look; dead channels amplify rounding
OTHER_GROUPINGS: Final = 0.02  # share of windows that may be grouped in another way, or beyond `BOUND` in a second look
AGREEMENT: Final = 0.99  # least share of equal decisions in float32
QUANTISED_AGREEMENT: Final = 0.98  # least share of equal decisions in half precision and int8
SCORE_CHANGE: Final = 0.01  # largest change of AUROC or kappa in half precision and int8

_TOGETHER: Final = 16  # windows per call of PyTorch and of the graph with decisions

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
        """Compare some more windows: what `reference` gave, what the exported graph gave, and the file's logits.

        Every row (a window; in EEGPT one of its patches, which are apart until the head) is judged by its first
        decision that differs, because all later ones follow from it. A window of which the file's logits alone are off
        was grouped in another way there, and its margin is its smallest gap.
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


@dataclass
class Looks:
    """Windows that looked twice, and (window, distance of its margin) where the file or PyTorch alone did."""

    margin: float
    twice: int = 0
    windows: int = 0
    largest: float = 0.0  # logit
    error: float = 0.0  # largest difference of probabilities, over the windows that looked twice in both
    beyond: list[tuple[int, float]] = field(default_factory=list)  # windows with more than `BOUND` of it
    ties: list[tuple[int, float]] = field(default_factory=list)

    def add(self, first: Tensor, expected: Tensor, answer: Tensor, looked: Tensor) -> None:
        """Compare some more windows: PyTorch's logits of the first pass and in the end, and what the file gave."""
        doubtful = is_doubtful(first, self.margin)
        distance = (margins(first) - self.margin).abs()
        self.ties += [(self.windows + w, distance[w].item()) for w in torch.where(doubtful != looked)[0].tolist()]
        apart = torch.from_numpy(np.abs(as_probabilities(answer.numpy()) - as_probabilities(expected.numpy())).max(1))
        both = doubtful & looked
        self.beyond += [(self.windows + w, apart[w].item()) for w in torch.where(both & ~(apart <= BOUND))[0].tolist()]
        self.error, self.largest = _largest(self.error, apart[both]), _largest(self.largest, expected)
        self.windows, self.twice = self.windows + len(looked), self.twice + int(looked.sum())

    def faults(self, grouped_otherwise: set[int]) -> list[str]:
        """What is out of bounds, in words; a window that is grouped otherwise may have any other margin."""
        near = 2 * BOUND * self.largest  # a margin is the difference of two logits
        far = [(w, gap) for w, gap in self.ties if w not in grouped_otherwise and not gap <= near]
        many = len(self.beyond) > max(1, int(self.windows * OTHER_GROUPINGS))
        return [
            *(f"window {w} differs by {gap:.1e} in probability" for w, gap in self.beyond if not gap <= FAR),
            *([f"{len(self.beyond)} second looks differ by more than {BOUND:g} in probability"] if many else []),
            *(f"window {w} looks twice in one of both, {gap:.1e} from the margin" for w, gap in far),
        ]


def _largest(before: float, values: Tensor) -> float:
    """The largest absolute value so far; NaN if there is any."""
    return torch.cat((torch.tensor([before]), values.abs().flatten())).max().item()


@dataclass(frozen=True)
class Parity:
    """How an exported file compares with PyTorch."""

    windows: int  # how many were compared
    # Largest difference of logits over the largest logit; in float32, over the windows whose groupings agree.
    error: float
    other_groupings: int  # windows that were grouped in another way; 0 where this was not looked at
    margin: float  # the largest gap behind their first other decision
    agreement: float  # share of the windows with the same decision
    metric: str  # "auroc" or "kappa"
    before: float  # the metric of PyTorch's answers and of the file's; NaN where it is not defined
    after: float
    faults: tuple[str, ...]  # what is out of bounds, in words; empty if all is well
    looked_twice: int | None = None  # windows that the file looked at twice; None for a file without a second look
    other_looks: int = 0  # windows that the file or PyTorch alone looked at twice; 0 where this was not looked at
    look_distance: float = 0.0  # the largest distance of their margin from the one that decides
    look_error: float = 0.0  # largest difference of probabilities in second looks, in float32
    is_chance: bool = False  # True if PyTorch's answers score no better than guesses

    def to_dict(self) -> dict[str, Any]:
        """For JSON: numbers that are not defined are None."""
        numbers = asdict(self) | {"faults": list(self.faults)}
        del numbers["is_chance"]  # of the windows, not of the file that keeps these numbers
        return {k: None if isinstance(v, float) and not np.isfinite(v) else v for k, v in numbers.items()}


def measure(
    precision: str,
    expected: Logits,
    found: Logits,
    labels: NDArray[np.int64],
    classes: int,
    groupings: Groupings,
    looks: Looks | None = None,
) -> Parity:
    """Judge the logits (n, K) that a file gave: float32 by its groupings, anything else by decisions and scores."""
    exact = precision == "float32"
    agreement = float((decisions(expected) == decisions(found)).mean())
    metric = main_metric(classes)
    before, after = score(expected, labels, metric), score(found, labels, metric)
    wanted = AGREEMENT if exact else QUANTISED_AGREEMENT
    faults = groupings.faults() if exact else []
    far = {window for window, _ in groupings.flips}
    if exact and looks is not None:
        faults += looks.faults(far)
        far |= {window for window, _ in looks.ties}
        differ = set(np.flatnonzero(decisions(expected) != decisions(found)).tolist()) - far
        faults += [f"{len(differ)} window{'s' * (len(differ) > 1)} decided otherwise"] if differ else []
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
    faults = list(dict.fromkeys(faults))
    twice = None if looks is None else looks.twice
    ties = [] if looks is None or not exact else [distance for _, distance in looks.ties]
    seen = twice, len(ties), max(ties, default=0.0), looks.error if looks is not None and exact else 0.0
    guesses = np.isfinite(expected).all() and is_chance(before, check(labels, probabilities(expected)).table)
    scored = metric, before, after, tuple(faults)
    return Parity(len(found), error, others, margin, agreement, *scored, *seen, is_chance=bool(guesses))


def compare(path: Path, network: nn.Module, deciding: Any, windows: Windows, scaling: str, precision: str) -> Parity:
    """Compare a written file with PyTorch on all windows, which are in microvolts.

    The file is read as the device reads it, `network` is float32 on the CPU, and `deciding` the float32 graph with its
    decisions, see `graphs`.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    file = EdgeModel(path, spinning=False)
    session = onnxruntime.InferenceSession(deciding.SerializeToString(), options, providers=["CPUExecutionProvider"])
    size = file.description.batch or _TOGETHER
    model, groupings = WithDecisions(network), Groupings()
    looks = Looks(plan_of(network).second_look or 0.0) if file.description.looks_twice else None
    mine, theirs = [], []
    for start in range(0, len(windows), size):
        raw = windows.take(slice(start, start + size))
        x = np.asarray(scale(raw, scaling), dtype=np.float32)
        answer, looked = file.look(raw)
        if precision != "float32" or looks is not None:
            with torch.inference_mode():
                logits = network(torch.from_numpy(x))
        if precision == "float32":
            expected, gaps = reference(model, torch.from_numpy(x))
            filled = x if file.description.batch is None else np.concatenate((x, np.repeat(x[-1:], size - len(x), 0)))
            found = [torch.from_numpy(value) for value in session.run(None, {INPUT: filled})]
            share = [len(value) // len(filled) for value in found]  # EEGPT decides for every patch of a window
            found = [value[: len(x) * count] for value, count in zip(found, share, strict=True)]
            first = answer if looks is None else file.look(raw, margin=0.0)[0]  # no margin is below 0
            groupings.add(expected, gaps, found, torch.from_numpy(first))
            if looks is None:
                logits = expected[0]
            else:
                looks.add(expected[0], logits, torch.from_numpy(answer), torch.from_numpy(looked))
        elif looks is not None:
            looks.twice += int(looked.sum())
        mine.append(logits.numpy())
        theirs.append(answer)
    both = np.concatenate(mine), np.concatenate(theirs)
    return measure(precision, *both, windows.labels, len(windows.classes), groupings, looks)
