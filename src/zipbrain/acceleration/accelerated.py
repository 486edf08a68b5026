"""`Accelerated`: a model that answers faster, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from zipbrain.acceleration.batch_buckets import Buckets
from zipbrain.acceleration.report import AccelerationReport
from zipbrain.acceleration.weight_sharing import precision_of
from zipbrain.errors import OptionError, ShapeError, ZipbrainError
from zipbrain.training.inference import run_inference


class Accelerated(nn.Module):
    """What `zipbrain.accelerate` returns: call it with windows as you would call the model.

    Attributes
    ----------
    report : AccelerationReport
        What was done.
    plain, network : nn.Module
        The model as it was given, and the one that answers, in the chosen precision. They are no submodules:
        `zipbrain.compress`, `restore` and `trace` take the model itself, before it is accelerated.

    Notes
    -----
    - Windows may be anywhere (the logits come back to where they are), in any floating-point type, not contiguous,
      expanded, and any number of them. Windows of another shape than the example's, and empty batches, are answered by
      the model as it was given.
    - Logits carry no gradient and are in memory of their own. Autocast is off inside.
    - Where the precision is the given one, weights are shared with the model: what is written into them in place
      (``load_state_dict``, an optimiser) counts at once. In half precision they are copies: accelerate again. Moving
      or converting the model (``model.to``) leaves this one on the old weights, which it keeps alive.
    - In float16 a window whose values overflow gets NaN, whatever the windows of the example did.
    - One thread and one stream at a time is let in; others wait.
    - It can't be trained, moved, copied or pickled. ``state_dict`` has the weights and the names of the model as given.
    """

    report: AccelerationReport
    plain: nn.Module
    network: nn.Module

    def __init__(
        self,
        plain: nn.Module,
        network: nn.Module,
        like: Tensor,
        buckets: Buckets | None,
        answers: torch.dtype | None,
        report: AccelerationReport,
    ) -> None:
        super().__init__()
        self.__dict__["plain"], self.__dict__["network"] = plain, network
        self.report = report
        self._like = like.new_empty((0, *like.shape[1:]))  # shape, precision and device of what `network` reads
        self._buckets, self._answers = buckets, answers
        super().train(False)

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        return self._like.device

    @property
    def batches(self) -> tuple[int, ...]:
        """Sizes that are captured or compiled; other batches are padded to the next or split."""
        return () if self._buckets is None else self._buckets.sizes

    def forward(self, x: Tensor) -> Tensor:
        """Windows (B, ...) -> logits (B, ...), on the device of x and in the given model's precision"""
        if not isinstance(x, Tensor):
            raise ShapeError("x", type(x).__name__, "it must be a torch tensor, such as torch.from_numpy(x)")
        x = x.detach()
        like = self._like
        if x.shape[1:] != like.shape[1:] or x.numel() == 0 or x.is_floating_point() != like.is_floating_point():
            dtype = precision_of(self.plain, like.dtype) if x.is_floating_point() else x.dtype
            return self._direct(self.plain, x, dtype)
        if self._buckets is None:
            return self._direct(self.network, x, like.dtype)
        return self._buckets(x)

    def _direct(self, network: nn.Module, x: Tensor, dtype: torch.dtype) -> Tensor:
        answer: Any = run_inference(network, x.to(self.device, dtype))
        if not isinstance(answer, Tensor):
            return answer  # type: ignore[no-any-return]  # whatever the model answers with
        return answer.to(x.device, self._answers, copy=True)  # outside of inference mode: an ordinary tensor

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Parameter]]:
        """Those of the network that answers."""
        return self.network.named_parameters(prefix, recurse, remove_duplicate)

    def named_buffers(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Tensor]]:
        """Those of the network that answers."""
        return self.network.named_buffers(prefix, recurse, remove_duplicate)

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """That of the model as it was given: same names, full precision."""
        return self.plain.state_dict(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refused: load into the model and accelerate again."""
        raise ZipbrainError(
            "an accelerated model takes no weights: load them into the model and call zipbrain.accelerate again"
        )

    def train(self, mode: bool = True) -> Accelerated:
        """Evaluation mode only."""
        if mode:
            allowed = "an accelerated model only answers: train the model, then call zipbrain.accelerate again"
            raise OptionError("mode", mode, allowed)
        return self

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Accelerated:
        """What ``to``, ``cuda``, ``half`` and the like come down to; only what changes nothing is let through."""
        before = torch.empty(0, dtype=precision_of(self.network, self._like.dtype), device=self.device)
        after = fn(before)
        if after.device != before.device or after.dtype != before.dtype:
            raise ZipbrainError(
                f"an accelerated model stays in {self.report.precision} on {self.device}: move or convert the model, "
                "then call zipbrain.accelerate again"
            )
        return self

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise ZipbrainError(
            "an accelerated model can't be copied or pickled: copy or save the model and call zipbrain.accelerate again"
        )

    def extra_repr(self) -> str:
        """Shown by ``print(model)``."""
        batches = f", batches {', '.join(map(str, self.batches))}" if self.batches else ""
        return f"{self.report.model} in {self.report.precision} on {self.report.device}{batches}"
