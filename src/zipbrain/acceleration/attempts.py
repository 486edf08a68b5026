"""What can make a network faster before anything is captured: half precision and ``torch.compile``, each checked."""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from zipbrain.acceleration.candidates import Way
from zipbrain.acceleration.equivalence import Verdict, judge
from zipbrain.acceleration.example import Example, name_of
from zipbrain.acceleration.report import Optimisation
from zipbrain.acceleration.two_passes import TwoPasses
from zipbrain.acceleration.validation import HALVES
from zipbrain.acceleration.weight_sharing import copy_modules
from zipbrain.training.cuda_graphs import explain_failure
from zipbrain.training.inference import run_inference

_numbers = itertools.count()


def try_half(example: Example, asked: str, checks: dict[str, Verdict]) -> tuple[Way | None, Optimisation]:
    """The first half precision that is safe, or the one asked for; every verdict goes into `checks`."""
    stays = why_not_half(example, asked)
    refused = [] if stays is None else [stays]
    for name in () if stays else HALVES if asked == "auto" else (asked,):
        if name == "bfloat16" and example.device.type == "cuda" and not torch.cuda.is_bf16_supported(False):
            refused.append(f"{name}: this GPU has none")
            continue
        try:
            network, x = copy_modules(example.plain, HALVES[name]), example.cast(HALVES[name])
            verdict = judge(example.reference, run_inference(network, x), example.tolerance)
        except Exception as error:
            refused.append(f"{name}: {explain_failure(error)}")
            continue
        checks[name] = verdict
        if verdict.safe or asked == name:
            example.x[name] = x
            words = str(verdict) if verdict.safe else f"asked for, though not safe: {verdict}"
            return Way(name, network), Optimisation("precision", True, name, words)
        refused.append(f"{name}: {verdict}")
    return None, Optimisation("precision", False, name_of(example.given), "; ".join(refused))


def why_not_half(example: Example, asked: str) -> str | None:
    """Why half precision is not even tried; None if it is."""
    if example.hindrance is not None:
        return f"on {example.device} a model keeps its own precision"
    if asked == "float32":
        return "asked for" if example.given is torch.float32 else "float32 was asked for: the model's own is kept"
    if example.given in HALVES.values() and HALVES.get(asked, example.given) is example.given:
        return "given in half precision already"
    return None


def try_compile(
    example: Example, way: Way, size: int, wanted: bool | None, checks: dict[str, Verdict]
) -> tuple[Callable[[Tensor], Tensor] | None, str]:
    """The network of a way compiled and run once with `size` windows, or None and why not."""
    if wanted is False:
        return None, "not asked for"
    if wanted is None and importlib.util.find_spec("triton") is None:
        return None, "triton is not installed"
    try:
        x = example.repeated(way.precision, size)
        passes = TwoPasses.of(way.network, x)
        compiled: Callable[[Tensor], Tensor]
        if passes is None:
            compiled = torch.compile(with_code_of_its_own(way.network))
        else:
            first, second = (torch.compile(with_code_of_its_own(one)) for one in (passes.first, passes.second))
            compiled = TwoPasses(first, second, passes.margin)
        verdict = judge(run_inference(way.network, x), run_inference(compiled, x), example.tolerance)
    except Exception as error:
        return None, f"it failed: {explain_failure(error)}"
    checks["compiled"] = verdict
    return (compiled, "") if verdict.safe else (None, f"it answers otherwise: {verdict}")


def with_code_of_its_own(network: Callable[..., Any]) -> Callable[..., Any]:
    """A function that calls a network, for ``torch.compile``.

    torch counts recompilations and remembers changing shapes by code object and name: a model that comes after several
    others of its class would be compiled for changing shapes from the start, or no more at all.
    """

    def call(*inputs: Tensor) -> Any:
        return network(*inputs)

    call.__code__ = call.__code__.replace(co_name=f"accelerated_{next(_numbers)}")
    return call
