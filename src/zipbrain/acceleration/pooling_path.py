"""Which way a compressed model's pooling takes, in words."""

from __future__ import annotations

from typing import Final

import torch
from torch import nn

from zipbrain.pooling.backends import cpu
from zipbrain.pooling.backends.triton import entry as triton_path
from zipbrain.pooling.methods import Twins, ZIPBrain
from zipbrain.seams.class_swap import site_of

KERNELS: Final = ("Triton kernels", "CPU kernel")
PLAIN: Final = "plain operators"


def pooling_path(
    network: nn.Module, device: torch.device, dtype: torch.dtype, compiled: bool = False
) -> tuple[str, str] | None:
    """How tokens are pooled and, if not by kernels of our own, why; None for a model that is not compressed.

    Parameters
    ----------
    network : nn.Module
        Compressed or not; run at least once, so that its number of tokens is known.
    device, dtype
        Where and in which precision it runs.
    compiled : bool
        Whether ``torch.compile`` has seen it; the CPU kernel stays outside of graphs, the Triton kernels don't.
    """
    site = next((site for module in network.modules() if (site := site_of(module)) is not None), None)
    if site is None:
        return None
    plan = site.plan
    if not isinstance(plan.method, ZIPBrain | Twins):
        return PLAIN, f"there are no kernels for {type(plan.method).__name__}"
    by_cpu = isinstance(plan.method, ZIPBrain) and dtype is torch.float32
    if device.type == "cpu" and by_cpu and cpu.available() and not compiled:
        return KERNELS[1], "the Triton kernels need a CUDA device"
    if device.type != "cuda":
        return PLAIN, "the Triton kernels need a CUDA device"
    if dtype not in triton_path.DTYPES:
        return PLAIN, f"there are no Triton kernels for {str(dtype).removeprefix('torch.')}"
    if not triton_path.available():
        return PLAIN, "triton is not installed or does not load"
    if not triton_path.capable(device):
        return PLAIN, "the Triton kernels need an NVIDIA GPU from Ampere on"
    most = triton_path.LONGEST if isinstance(plan.method, ZIPBrain) else triton_path.MOST_TOKENS
    if max(plan.cache, default=0) > most:
        return PLAIN, f"a window has more than {most} tokens"
    if any(max(removals, default=0) > triton_path.MOST_SOURCES for removals in plan.cache.values()):
        return PLAIN, f"more than {triton_path.MOST_SOURCES} tokens go in one block"
    if not triton_path.is_on():
        return PLAIN, "the Triton kernels are switched off (ZIPBRAIN_TRITON=0, or by triton_path.switch)"
    return KERNELS[0], ""
