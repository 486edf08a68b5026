"""Training steps of compressed networks with the Triton kernels, under their interpreter, against plain operators."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import zipbrain
from interpreted import INSIDE, MISSING, inside, interpreter, launches, pass_under_the_interpreter  # noqa: F401
from zipbrain.models.blocks import Block
from zipbrain.pooling import ZIPBrain
from zipbrain.pooling.backends.choose import pool_tokens
from zipbrain.pooling.backends.triton import entry
from zipbrain.pooling.tokens import Branch, Tokens
from zipbrain.seams.forward import plan_of

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


@pytest.mark.skipif(MISSING, reason="triton is not installed: pip install --no-deps triton")
@pytest.mark.skipif(INSIDE, reason="this is the process that it starts")
def test_the_kernels_agree_under_tritons_interpreter() -> None:
    pass_under_the_interpreter(__file__, least=8)


def gradients(model: nn.Module, x: Tensor, kernels: bool, half: bool = False) -> list[Tensor]:
    before = entry.switch(kernels)
    try:
        torch.manual_seed(1)  # the same paths are dropped
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            loss = model(x).float().square().sum()
        assert plan_of(model).flow.backend[0] == ("Triton kernels" if kernels else "plain operators")
        found = torch.autograd.grad(loss, list(model.parameters()))
    finally:
        entry.switch(before)
    return list(found)


def assert_close(found: list[Tensor], expected: list[Tensor], bound: float) -> None:
    """By the largest of all: those of keys' biases are nothing but rounding."""
    largest = max(float(one.abs().max()) for one in expected)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=bound, atol=bound * largest)


@inside
@pytest.mark.parametrize("linear", [False, True])
@pytest.mark.parametrize("spaces", [("k", "k", "k"), ("x", "v", "x"), ("kh", "vh", "qh")])
def test_a_training_step_has_the_gradients_of_plain_operators(spaces: tuple[str, str, str], linear: bool) -> None:
    torch.manual_seed(0)
    scale = None if linear else 0.5  # as BIOT and LaBraM have it
    options: dict[str, Any] = {"qkv_bias": False, "linear": linear, "qk_norm": not linear, "layer_scale": scale}
    base = nn.Sequential(*(Block(24, 3, drop_path=0.3, **options) for _ in range(3))).train()
    for name, value in base.named_parameters():
        if "k_norm" in name:  # or all keys would be equally long
            nn.init.normal_(value)
    model = zipbrain.compress(base, ZIPBrain(*spaces, 0.4), r=5, protected=1)
    x = torch.randn(3, 30, 24)
    found = gradients(model, x, True)
    assert_close(found, gradients(model, x, False), 1e-5)


@inside
def test_autocast_changes_nothing_about_that() -> None:
    torch.manual_seed(0)
    model = zipbrain.compress(nn.Sequential(*(Block(24, 3) for _ in range(2))), ZIPBrain("x", "x", "x", 0.4), r=5)
    x = torch.randn(2, 30, 24)
    found = gradients(model, x, True, half=True)
    assert_close(found, gradients(model, x, False, half=True), 2e-2)


@inside
def test_gradients_flow_through_a_branch(launches: list[str]) -> None:  # noqa: F811
    torch.manual_seed(0)
    method, heads = ZIPBrain("k", "k", "k", 0.9), torch.randn(3, 2, 2, 30, 8)
    x, values, scale = (torch.randn(*size, requires_grad=True) for size in ((2, 30, 16), (2, 30, 16), (16,)))
    tokens = Tokens(x, 5, *heads, leading=1, branch=Branch(values, scale))
    found = pool_tokens(tokens, method, norm=nn.LayerNorm(16))
    assert launches == ["group", "merge"]
    assert found.normed is None  # the norm is torch's
    expected = method.merge_rule(tokens)(tokens.joined().x, found.grouping)
    results = [(one, *torch.autograd.grad(one.square().sum(), (x, values, scale))) for one in (found.x, expected)]
    for kernel, plain in zip(*results, strict=True):
        torch.testing.assert_close(kernel, plain, rtol=1e-4, atol=1e-4)


@inside
def test_what_the_kernels_do_not_take_is_left_to_plain_operators(launches: list[str]) -> None:  # noqa: F811
    method, x = ZIPBrain("x", "x", "x", 0.4), torch.randn(2, 30, 16, requires_grad=True)
    wide = Branch(torch.randn(2, 30, 16, dtype=torch.float64), None)
    for tokens in (Tokens(x, 5, branch=wide), Tokens(x.double(), 5)):
        pool_tokens(tokens, method).x.sum().backward()
    model = zipbrain.compress(nn.Sequential(Block(16, 2)).double(), method, r=5)
    model(x.detach().double()).sum().backward()
    assert launches == []
