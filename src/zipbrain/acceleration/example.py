"""The example that `accelerate` works on: the model as given, real windows, and its answers as the reference."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor, nn

from zipbrain.acceleration.accelerated import Accelerated
from zipbrain.acceleration.equivalence import judge
from zipbrain.acceleration.validation import find_device
from zipbrain.acceleration.weight_sharing import copy_modules, precision_of
from zipbrain.errors import OptionError
from zipbrain.training.cuda_graphs import explain_failure
from zipbrain.training.inference import run_inference

_ALONE: Final = 4  # windows that are answered among different others, to see whether they depend on each other


class Example:
    """A model as given, in evaluation mode, and windows to try everything on.

    `hindrance` says why it can't be made faster where it is, `x` has the windows by precision (None: the given one).
    """

    def __init__(self, model: nn.Module, windows: Tensor, tolerance: float) -> None:
        self.notes: list[str] = []
        self.tolerance = tolerance
        self.plain = self._copied(model)
        self.device, self.hindrance = find_device(self.plain, windows.device)
        self.given = precision_of(self.plain, windows.dtype)
        self.windows = windows.detach().to(self.device)
        self.x: dict[str | None, Tensor] = {None: self.cast(self.given)}
        self.reference: Any = None
        self._finite = torch.arange(0)  # windows that have finite logits

    def _copied(self, model: nn.Module) -> nn.Module:
        model = model.plain if isinstance(model, Accelerated) else getattr(model, "_orig_mod", model)
        try:
            return copy_modules(model)
        except Exception as error:
            reason = f"can't be copied ({explain_failure(error)})"
            if any(module.training for module in model.modules()):
                allowed = f"it {reason}: call model.eval() first"
                raise OptionError("model", "a model in training mode", allowed) from None
            self.notes.append(f"the model {reason}, so it is used itself: leave it as it is")
            return model

    def cast(self, dtype: torch.dtype) -> Tensor:
        """The windows in another precision, if they are floating point."""
        return self.windows.to(dtype) if self.windows.is_floating_point() else self.windows

    def run_reference(self) -> str | None:
        """Run the model as given; why its answer can't be compared, cut or captured, or None."""
        answer: Any = run_inference(self.plain, self.x[None])
        self.reference = answer
        if not isinstance(answer, Tensor):
            return f"the model answers with a {type(answer).__name__}, not with one tensor"
        fits = answer.dim() > 0 and len(answer) == len(self.windows) and answer.numel() > 0
        if not fits or not answer.is_floating_point():
            shape = f"{name_of(answer.dtype)} {tuple(answer.shape)}"
            return f"the model answers {len(self.windows)} windows with {shape}, not with logits for each of them"
        self._finite = answer.isfinite().reshape(len(answer), -1).all(1).nonzero().squeeze(1)
        return None if len(self._finite) else "no window of the example has finite logits to compare with"

    def find_dependence(self) -> str | None:
        """Why windows can't be padded or split; None if each is answered the same among any others."""
        x, count = self.x[None][self._finite[:_ALONE]], min(_ALONE, len(self._finite))
        try:
            run_inference(self.plain, x[:1])
            # Batches of one size: another size may round otherwise and decide a near tie of a pooled model otherwise.
            first, second = (run_inference(self.plain, torch.cat((x, more)))[:count] for more in (x, -x.flip(0)))
        except Exception as error:
            return f"it fails with another number of windows: {explain_failure(error)}"
        if judge(second, first).error <= self.tolerance:
            return None
        return "a window's answer depends on the others in its batch, so nothing can be padded"

    def repeated(self, precision: str | None, size: int) -> Tensor:
        """`size` windows that have finite logits, repeated if there are fewer."""
        places = torch.arange(size, device=self.device) % len(self._finite)
        return self.x[precision][self._finite[places]]


def name_of(dtype: torch.dtype) -> str:
    """Such as "float16"."""
    return str(dtype).removeprefix("torch.")
