"""Does an exported file answer as PyTorch does? Logits, decisions and groupings, compared on real windows.

Which tokens stay, whom the others join and which code TFM gives a frame can hang on the last bit of a score. So logits
are compared on the windows whose groupings are all the same; the others are counted, and each must show that its first
other decision was a near-tie.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from zipbrain.cost.marking import Wrapped, wrapped
from zipbrain.models import TFM
from zipbrain.pooling.grouping import Grouping
from zipbrain.pooling.methods.base import Method
from zipbrain.pooling.steps import gap_after, noted_gaps
from zipbrain.pooling.tokens import Tokens
from zipbrain.seams import is_compressed, trace
from zipbrain.training.scoring import answers, main_metric, score

BOUND: Final = 1e-5  # on the error of logits whose groupings agree
NEAR_TIE: Final = 1e-5  # how close the scores of a decision that differs must be
OTHER_GROUPINGS: Final = 0.02  # share of windows that may have others
AGREEMENT: Final = {"float32": 0.99}  # share of equal decisions that is asked for
QUANTISED_AGREEMENT: Final = 0.98
SCORE_CHANGE: Final = 0.01  # of AUROC or kappa, in half precision and int8

Logits = NDArray[np.float32]


# -- a model that tells its decisions ----------------------------------------------------------------------------------


class Told(nn.Module):
    """A model that also returns its decisions: logits, TFM's codes, then kept tokens and targets of every reduction.

    Parameters
    ----------
    model : nn.Module
        Compressed or not.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.codes: list[Tensor] = []
        if isinstance(model, TFM):
            model.tokenizer.register_forward_hook(self._note)

    def _note(self, module: nn.Module, args: Any, ids: Tensor) -> None:
        self.codes.append(ids.flatten(1))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """(B, C, n_times) -> (B, K), then integers (B or B patches, ...)"""
        told: list[Tensor] = []
        self.codes.clear()
        if not is_compressed(self.model):
            logits = self.model(x)
        else:
            with trace(self.model) as traced:
                logits = self.model(x)
            for layer in traced.layers:
                told += [layer.grouping.kept, layer.grouping.target] if layer.after < layer.before else []
        told = [*self.codes, *told]
        self.codes.clear()
        return logits, *told


class Watching(Wrapped):
    """A method that keeps the tokens it saw, by block, for the margins of its decisions."""

    def __init__(self, method: Method) -> None:
        super().__init__(method)
        self.seen: dict[int, Tokens] = {}

    def __call__(self, tokens: Tokens) -> Grouping:
        self.seen[tokens.layer] = tokens
        return super().__call__(tokens)

    def fused(self, tokens: Tokens) -> tuple[Tensor, Grouping | None] | None:
        self.seen[tokens.layer] = tokens
        return super().fused(tokens)


# -- how close a decision was ------------------------------------------------------------------------------------------


def gaps_of(tokens: Tokens, method: Method) -> tuple[Tensor, Tensor]:
    """How far the scores at one reduction were from another decision, in float64.

    Parameters
    ----------
    tokens : Tokens
        What the method saw.
    method : Method
        Any method whose scores go through `zipbrain.pooling.steps`.

    Returns
    -------
    kept : Tensor, shape (B, 1)
        The smallest gap between the last token that was chosen and the first one that was not, over all choices.
    target : Tensor, shape (B, r) or (B, 1)
        Best to second-best cosine of every redundant token, or the smallest of all that looked for a partner.
    """
    with noted_gaps() as found:
        grouping = method(_as_double(tokens))
    infinite = torch.full((tokens.x.shape[0], 1), torch.inf, dtype=torch.float64)
    kept = torch.cat([infinite, *(gap.unsqueeze(1) for gap in found.chosen)], dim=1).amin(1, keepdim=True)
    matched = torch.cat(found.matched, dim=1) if found.matched else infinite  # in chunks, if there are many
    return kept, matched if matched.shape == grouping.target.shape else matched.amin(1, keepdim=True)


def _as_double(tokens: Tokens) -> Tokens:
    values: dict[str, Any] = {name: getattr(tokens, name) for name in ("x", "q", "k", "v", "attention", "bias", "mass")}
    exact: dict[str, Any] = {name: value.double() for name, value in values.items() if value is not None}
    return replace(tokens, **exact)


def code_gaps(model: TFM, x: Tensor) -> Tensor:
    """Squared distance to the second-nearest code minus that to the nearest, in float64: (B, C frames)."""
    table = model.tokenizer.quantizer.embedding.weight.double()
    encoded = model.tokenizer.encode(x).double().flatten(1, 2)
    return gap_after(2 * torch.matmul(encoded, table.t()) - table.square().sum(1), 1)


@torch.no_grad()
def reference(told: Told, x: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """What torch gives for some windows: logits and decisions, and the gap behind each decision.

    Parameters
    ----------
    told : Told
        The model, in evaluation mode.
    x : Tensor (B, C, n_times)
        Scaled windows.
    """
    with wrapped(told.model, Watching) as watching:
        outputs = list(told(x))
    gaps = [code_gaps(told.model, x)] if isinstance(told.model, TFM) else []
    if isinstance(watching, Watching):
        for tokens in watching.seen.values():
            gaps += gaps_of(tokens, watching.method)
    assert len(gaps) == len(outputs) - 1
    return outputs, gaps


# -- comparing ---------------------------------------------------------------------------------------------------------


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
