"""Equivalence of a faster network with the original, judged on the windows of an example."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final

import torch
from torch import Tensor

NEAR_TIE: Final = 0.05  # share of the usual margin below which a decision may go either way
TOLERANCE: Final = 1e-3  # largest relative squared error of the logits


@dataclass(frozen=True)
class Verdict:
    """How the logits of a faster network compare with the reference's."""

    windows: int  # windows whose reference logits are finite; only these are compared
    lost: int  # of them, those that have logits that are not finite any more
    # Decisions compared; those that changed although the reference's margin is at least `margin`; and those that
    # changed where it is smaller.
    decisions: int
    flipped: int
    near_ties: int
    # Squared differences of the logits over the reference's squared logits; NaN where nothing could be compared.
    error: float
    tolerance: float  # the largest `error` allowed
    margin: float  # `NEAR_TIE` times the root mean square of the reference's margins (best logit less second best)

    @property
    def safe(self) -> bool:
        """Whether all logits are finite, no clear decision changed and the error is within the tolerance."""
        return self.windows > 0 and not self.lost and not self.flipped and self.error <= self.tolerance

    def __str__(self) -> str:
        if not self.windows:
            return "no window of the example has finite logits to compare with"
        if self.lost:
            return f"{self.lost} of {self.windows} windows have logits that are not finite (overflow)"
        same = f"{self.decisions - self.flipped - self.near_ties} of {self.decisions} decisions are the same"
        if self.near_ties:
            same += f", {self.near_ties} changed at a near tie (margin below {self.margin:.2g})"
        if self.flipped:
            same += f", {self.flipped} changed although their margin is {self.margin:.2g} or more"
        return f"{same}; relative squared error {self.error:.1e} (allowed: {self.tolerance:.1e})"

    def as_dict(self) -> dict[str, Any]:
        """All fields and whether it is safe, for JSON."""
        return {**asdict(self), "safe": self.safe}


def judge(reference: Tensor, found: Tensor, tolerance: float = TOLERANCE) -> Verdict:
    """Compare logits (B, ..., K) or (B,) with the reference's. One decides by its sign, several by the largest."""
    expected, answer = (_rows(logits) for logits in (reference, found))  # (B, M, K)
    if expected.shape != answer.shape:
        raise ValueError(f"logits of shape {tuple(found.shape)} can't be compared with {tuple(reference.shape)}")
    usable = expected.isfinite().all(2).all(1)
    finite = answer.isfinite().all(2).all(1)
    both = usable & finite
    decided, margins = _decisions(expected[usable])
    margin = NEAR_TIE * float(margins.square().mean().sqrt()) if margins.numel() else 0.0
    changed = _decisions(answer[both])[0] != decided[both[usable]]
    close = margins[both[usable]] < margin
    return Verdict(
        windows=int(usable.sum()),
        lost=int((usable & ~finite).sum()),
        decisions=changed.numel(),
        flipped=int((changed & ~close).sum()),
        near_ties=int((changed & close).sum()),
        error=_relative(expected[both], answer[both]),
        tolerance=tolerance,
        margin=margin,
    )


def _rows(logits: Tensor) -> Tensor:
    wide = logits.detach().to("cpu", torch.float64)
    wide = wide.unsqueeze(1) if wide.dim() == 1 else wide
    return wide.reshape(wide.shape[0], -1, wide.shape[-1])


def _decisions(logits: Tensor) -> tuple[Tensor, Tensor]:
    """(B, M, K) -> the decision and its margin, each (B, M)"""
    if logits.shape[2] == 1:
        return (logits > 0).squeeze(2), logits.abs().squeeze(2)
    best = logits.topk(2, dim=2).values
    return logits.argmax(2), best[:, :, 0] - best[:, :, 1]


def _relative(expected: Tensor, answer: Tensor) -> float:
    if not expected.numel():
        return float("nan")
    difference, size = float((answer - expected).square().sum()), float(expected.square().sum())
    return difference / size if size else (float("inf") if difference else 0.0)
