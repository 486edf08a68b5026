"""Decisions as outputs of a model: tokens that stay, whom the others join, TFM's codes, and how close each was."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from zipbrain.models import TFM
from zipbrain.pooling.methods.base import Method
from zipbrain.pooling.pooled import Pooled
from zipbrain.pooling.steps import gap_after, noted_gaps
from zipbrain.pooling.tokens import Tokens
from zipbrain.seams import Observer, is_compressed, observe, trace
from zipbrain.seams.forward import plan_of
from zipbrain.seams.passes import forward_of
from zipbrain.seams.second_look import first_pass


class WithDecisions(nn.Module):
    """A model that also returns its decisions: TFM's codes, then kept tokens and targets of every reduction.

    With `groups` the source map comes right after the logits. Of a model with a second look it is the first pass; with
    `tokens` those at its first reduction come next.
    """

    def __init__(self, model: nn.Module, groups: bool = False, tokens: bool = False) -> None:
        super().__init__()
        self.model, self.groups, self.tokens = model, groups, tokens
        self.codes: list[Tensor] = []
        if isinstance(model, TFM):
            model.tokenizer.register_forward_hook(self._keep_codes)

    def _keep_codes(self, module: nn.Module, args: Any, ids: Tensor) -> None:
        self.codes.append(ids.flatten(1))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """(B, C, n_times) -> logits (B, K), source map (B, N) or (B, patches, N) and tokens if wanted, then integers"""
        self.codes.clear()
        more: list[Tensor] = []
        if is_compressed(self.model):
            plan = plan_of(self.model)
            with trace(self.model) as traced:
                if plan.second_look is None:
                    logits = self.model(x)
                else:
                    logits, tap = first_pass(plan, forward_of(self.model), (x,), {})
                    more = [tap.tokens] if self.tokens and tap.tokens is not None else []
            reductions = [layer for layer in traced.layers if layer.after < layer.before]
            decisions = [part for layer in reductions for part in (layer.grouping.kept, layer.grouping.target)]
            traced.layers = reductions or traced.layers  # OpenVINO reads no empty constant, which others would add
        else:
            logits, decisions = self.model(x), []
        decisions = [*self.codes, *decisions]
        self.codes.clear()
        if self.groups:
            source_map = traced.source_map()
            if source_map.shape[0] != x.shape[0]:  # EEGPT groups the channels of every patch
                source_map = source_map.reshape(x.shape[0], -1, source_map.shape[1])
            more = [source_map, *more]
        return logits, *more, *decisions


class SeenTokens(Observer):
    """Keeps the tokens of every reduction, for the margins of its decisions."""

    def __init__(self) -> None:
        self.tokens: list[Tokens] = []

    def grouped(self, index: int, tokens: Tokens, pooled: Pooled) -> None:
        self.tokens.append(tokens.joined())


def gaps_of(tokens: Tokens, method: Method) -> tuple[Tensor, Tensor]:
    """How far a method's scores at one reduction were from another decision, in float64.

    First (B, 1): the smallest gap between the last token that was chosen and the first one that was not, over all
    choices. Then (B, r): best to second-best cosine of every redundant token; or (B, 1), the smallest of all.
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
def reference(deciding: WithDecisions, x: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """What torch gives for scaled windows (B, C, n_times): logits and decisions, and the gap behind each decision."""
    model, seen = deciding.model, SeenTokens()
    gaps = [code_gaps(model, x)] if isinstance(model, TFM) else []
    with observe(model, seen) if is_compressed(model) else nullcontext():
        outputs = list(deciding(x))
    for tokens in seen.tokens:
        gaps += gaps_of(tokens, plan_of(model).method)
    assert len(gaps) == len(outputs) - 1
    return outputs, gaps
