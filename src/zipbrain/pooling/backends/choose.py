"""Which backend computes a pooling: chosen here, from the tensors, the method and where it runs.

The Triton backend falls back to plain operators, step by step, where it has no kernel.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor, nn

from zipbrain.errors import ShapeError
from zipbrain.pooling.backends import cpu, onnx, plain
from zipbrain.pooling.backends.triton import backend as triton
from zipbrain.pooling.backends.triton import entry
from zipbrain.pooling.grouping import DROPPED, Grouping
from zipbrain.pooling.methods.base import Method
from zipbrain.pooling.pooled import Pooled
from zipbrain.pooling.tokens import Tokens


class Backend(Protocol):
    """A module that pools.

    Its function is called `forward` because torch's exporter notes such frames for every operator: that is how
    `export.onnx_graph` tells pooling from the rest of a graph.
    """

    @property
    def NAME(self) -> str:
        """Its name in summaries."""

    def forward(self, tokens: Tokens, method: Method, weigh: bool, norm: nn.LayerNorm | None) -> Pooled:
        """Pool tokens; `weigh`: mass weighs the merge; `norm`: what a kernel may apply along with the merge."""


def choose_backend(tokens: Tokens, method: Method) -> tuple[Backend, str]:
    """The backend that pools these tokens, and why it is not a faster one ("" if none is faster)."""
    backend: Backend
    if torch.onnx.is_in_onnx_export():
        backend, reason = onnx, onnx.refusal(tokens, method)
    elif _is_for_triton(tokens.x):
        backend, reason = triton, triton.refusal(tokens, method)
    else:
        backend, reason = cpu, cpu.refusal(tokens, method)
    return (plain, reason) if reason else (backend, "")


def _is_for_triton(x: Tensor) -> bool:
    return x.is_cuda or entry.interprets_cpu


def pool_tokens(tokens: Tokens, method: Method, weigh: bool = False, norm: nn.LayerNorm | None = None) -> Pooled:
    """Group and merge without checks; called by `pool` and by every compressed block.

    `tokens` has 0 <= r < N and whatever the method reads. `weigh`: mass weighs the merge. `norm` follows the merge, and
    a kernel may apply it in passing.
    """
    if not _is_for_triton(tokens.x):
        tokens = tokens.joined()
    device = tokens.x.device.type
    if device == "meta":
        raise ShapeError("x", "a meta tensor", "it has no values to group by: load weights and windows on a CPU or GPU")
    if torch.is_autocast_enabled(device):
        with torch.autocast(device, enabled=False):  # scores, norms and matching run in float32 or better
            return pool_tokens(tokens, method, weigh)
    backend, reason = choose_backend(tokens, method)
    pooled = backend.forward(tokens, method, weigh, norm)
    pooled.backend = backend.NAME, reason
    return pooled


def is_captured() -> bool:
    """True while a forward becomes a graph: torch.compile, torch.export, an ONNX export or torch.jit.trace."""
    if torch.compiler.is_compiling() or torch.onnx.is_in_onnx_export():
        return True
    return torch._C._get_tracing_state() is not None


def is_exported() -> bool:
    """True while a forward becomes a graph that is stored: torch.export, an ONNX export or torch.jit.trace."""
    return torch.compiler.is_exporting() if torch.compiler.is_compiling() else is_captured()


def move_places(places: Tensor, grouping: Grouping) -> Tensor:
    """Where original tokens stand after another pooling, (B, T0); -1 where they were dropped."""
    moved = entry.follow(places, grouping)
    if moved is not None:
        return moved
    return torch.where(places < 0, DROPPED, grouping.places().gather(1, places.clamp_min(0)))
