"""A compressed block runs its parts as the model would, in few calls, and watching it changes no bit."""

from __future__ import annotations

import os
import sys
from types import FrameType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune

import zipbrain
from zipbrain import Mass, ZIPBrain
from zipbrain.errors import UnsupportedModel
from zipbrain.models import LaBraM, TokenEncoder
from zipbrain.models.blocks import Block
from zipbrain.pooling import as_method
from zipbrain.pooling.backends import cpu, plain
from zipbrain.pooling.methods.base import Method
from zipbrain.pooling.pooled import Pooled
from zipbrain.pooling.registry import names
from zipbrain.pooling.tokens import Branch, Tokens
from zipbrain.seams import Attended, Observer, observe
from zipbrain.seams.forward import Plan

MOST_CALLS, MOST_FILES = 45, 12  # of ours, for one block of a compressed LaBraM on a CPU


def blocks(depth: int = 2) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(Block(24, 3, qk_norm=True, layer_scale=0.1) for _ in range(depth))).eval()


def compressed(depth: int = 2) -> Any:
    return zipbrain.compress(blocks(depth), ZIPBrain("x", "v", "x", 0.4), r=5)


@pytest.mark.skipif(not cpu.available(), reason="the C kernel was not built")
def test_a_block_takes_few_calls_through_few_files() -> None:
    channels = ["FP1", "FP2", "F3", "F4", "C3", "C4", "P3", "P4"]
    model = LaBraM(n_outputs=2, ch_names=channels, n_times=2000).eval()
    zipbrain.compress(model, ZIPBrain("x", "v", "x", 0.4), ratio=0.6)
    x, root = torch.randn(2, 8, 2000), os.path.dirname(zipbrain.__file__)
    files: list[str] = []

    def count(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(root):
            files.append(frame.f_code.co_filename)

    with torch.inference_mode():
        model(x)
        model(x)
        sys.setprofile(count)
        try:
            model(x)
        finally:
            sys.setprofile(None)
    assert len(files) / 12 <= MOST_CALLS
    assert len(set(files)) <= MOST_FILES


# -- the parts of a block ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["norm1", "norm2", "attn.qkv", "attn.q_norm", "attn.proj", "attn.proj_drop", "mlp"])
def test_a_hook_inside_a_compressed_block_is_called_once_per_forward(name: str) -> None:
    small, calls = compressed(), []
    small[1].get_submodule(name).register_forward_hook(lambda *_: calls.append(1))
    small(torch.randn(1, 30, 24))
    assert len(calls) == 1


def other_forward(module: nn.Module) -> None:
    module.forward = lambda x: torch.zeros_like(x)  # type: ignore[method-assign]


CHANGES: dict[str, Any] = {
    "hook": lambda module: module.register_forward_hook(lambda _, x, y: 2 * y),
    "hook before": lambda module: module.register_forward_pre_hook(lambda _, x: (x[0] + 1,)),
    "another forward": other_forward,
    "spectral norm": lambda module: parametrizations.spectral_norm(module),
    "pruned": lambda module: prune.l1_unstructured(module, "weight", 0.5),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_whatever_was_done_to_a_part_counts_in_a_compressed_block(change: Any) -> None:
    model, x = blocks(), torch.randn(2, 30, 24)
    before = model(x)
    change(model[0].attn.proj)
    expected = model(x)
    assert not torch.equal(expected, before)
    torch.testing.assert_close(zipbrain.compress(model, r=0)(x), expected, rtol=0, atol=1e-6)


class Outside(nn.Module):
    """Looks for what it does not have in another module, as compiled and checkpointed ones do."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("inner"), name)


def test_parts_are_found_through_a_wrapper() -> None:
    small, x = compressed(), torch.randn(1, 30, 24)
    expected = small(x)
    small[0].attn = Outside(small[0].attn)
    small[1].attn = torch.compile(small[1].attn, backend="eager")
    assert torch.equal(small(x), expected)


@pytest.mark.parametrize("scaled", [True, False])
def test_a_branch_is_added_once_when_x_is_read(scaled: bool) -> None:
    x, y = torch.randn(2, 5, 6), torch.randn(2, 5, 6)
    scale = torch.randn(6) if scaled else None
    attended = Attended(x, x, x, x, 1.0, branch=Branch(y, scale))
    torch.testing.assert_close(attended.x, x + y * (1 if scale is None else scale))
    assert attended.x is attended.x
    assert attended.branch is None


def test_a_branch_requires_gradients_if_any_part_of_it_does() -> None:
    y, scale = torch.ones(1, 2, 3), torch.ones(3)
    assert not Branch(y, scale).requires_grad
    assert Branch(y, scale.clone().requires_grad_()).requires_grad
    assert Branch(y.clone().requires_grad_()).requires_grad


def test_a_branch_of_another_precision_is_added_as_torch_adds_it() -> None:
    x, y, scale = torch.randn(1, 3, 4), torch.randn(1, 3, 4).bfloat16(), torch.randn(4)
    assert torch.equal(Branch(y, scale).added_to(x), x + scale * y)


# -- watching ----------------------------------------------------------------------------------------------------------


class Everything(Observer):
    """Reads all that an observer is told."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.kept: list[Tensor] = []

    def entered(self, plan: Plan, x: Tensor) -> None:
        self.events.append("entered")

    def attended(self, index: int, attended: Attended) -> None:
        self.events.append(f"attended {index}")
        attended.x.sum()

    def grouped(self, index: int, tokens: Tokens, pooled: Pooled) -> None:
        self.events.append(f"grouped {index}")
        self.kept.append(pooled.grouping.kept)

    def fed(self, index: int, x: Tensor) -> None:
        self.events.append(f"fed {index}")

    def finished(self, x: Tensor) -> None:
        self.events.append("finished")


@pytest.mark.parametrize("kernel", [True, False], ids=["kernel", "plain"])
@pytest.mark.parametrize("mass", [False, True], ids=["", "mass"])
@pytest.mark.parametrize("name", names(Method))
def test_watching_changes_no_bit(name: str, mass: bool, kernel: bool) -> None:
    torch.manual_seed(0)
    model = TokenEncoder(dim=32, depth=3, heads=4).eval()
    zipbrain.compress(model, as_method(name), r=4, mass=mass)
    before, x = cpu.switch(kernel), torch.randn(3, 24, 32)
    try:
        with torch.inference_mode():
            expected = model(x)
            with zipbrain.trace(model) as traced, observe(model, Everything()):
                assert torch.equal(model(x), expected)
        assert traced.token_counts == [24, 20, 16, 12]
    finally:
        cpu.switch(before)


def test_an_observer_is_told_every_step_in_order() -> None:
    model, seen = compressed(), Everything()
    zipbrain.compress(model, ZIPBrain(), r=5, layers=[2], mass=Mass(readout=True))
    with observe(model, seen):
        model(torch.randn(1, 30, 24))
    model(torch.randn(1, 30, 24))  # outside
    blocks = ["attended 0", "fed 0", "attended 1", "grouped 1", "fed 1"]
    assert seen.events == ["entered", *blocks, "finished"]
    assert seen.kept[0].shape == (1, 25)


def test_a_failing_forward_leaves_no_observer_behind() -> None:
    model, seen = compressed(), Everything()
    with pytest.raises(RuntimeError), observe(model, seen):
        model(torch.randn(1, 30, 7))
    count = len(seen.events)
    model(torch.randn(1, 30, 24))
    assert len(seen.events) == count


@pytest.mark.parametrize("in_place", [True, False])
def test_a_compiled_model_refuses_to_be_watched(in_place: bool) -> None:
    model = compressed()
    compiled = model if in_place else torch.compile(model, backend="eager")
    if in_place:
        model.compile(backend="eager")
    with pytest.raises(UnsupportedModel, match="compiled"), zipbrain.trace(compiled):
        pass


# -- who computes ------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not cpu.available(), reason="the C kernel was not built")
@pytest.mark.parametrize(
    ("method", "expected"), [("zipbrain", cpu.NAME), ("tome", plain.NAME), ("free_slicing", plain.NAME)]
)
def test_the_backend_that_pooled_is_named(method: str, expected: str) -> None:
    model = zipbrain.compress(blocks(), method, r=5)
    model(torch.randn(1, 30, 24))
    assert zipbrain.summary(model).backend == expected
