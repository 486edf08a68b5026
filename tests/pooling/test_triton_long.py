"""The Triton kernels for long windows against the plain operators, in Triton's interpreter."""

from __future__ import annotations

import random
from fractions import Fraction
from typing import Any

import pytest
import torch

import zipbrain
from interpreted import (
    INSIDE,
    MISSING,
    assert_same,
    draw,
    inside,
    kernel_module,
    on,
    pass_under_the_interpreter,
)
from zipbrain.models import TokenEncoder
from zipbrain.pooling import SPACES, ZIPBrain
from zipbrain.pooling.backends.triton import entry
from zipbrain.pooling.steps import pivot_count
from zipbrain.pooling.tokens import Tokens

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's, where numbers that are no numbers meet


@pytest.mark.skipif(MISSING, reason="triton is not installed: pip install --no-deps triton")
@pytest.mark.skipif(INSIDE, reason="this is the process that it starts")
def test_the_kernels_for_long_windows_agree_under_tritons_interpreter() -> None:
    pass_under_the_interpreter(__file__, least=18)


@inside
@pytest.mark.parametrize("case", range(14))
def test_long_windows_are_grouped_as_by_the_plain_operators(case: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(case)
    n = chance.choice([5, 17, 64, 65, 130])
    ends, r = (chance.randrange(3), chance.randrange(3)), chance.randrange(1, n - 1)
    spaces = tuple(chance.choice(SPACES) for _ in range(3))
    method = ZIPBrain(*spaces, chance.choice([0.0, 0.1, 0.4, 0.9, 1.0]))
    dtype = chance.choice([torch.float32, torch.float16, torch.bfloat16])
    x, q, k, v = (part.to(dtype) for part in draw(case, 2, n + sum(ends), width=12))
    if case % 3 == 0:  # copies and dead channels
        x[:, ends[0] : ends[0] + 3] = 0
        k[:, :, ends[0] : ends[0] + 3] = k[:, :, ends[0] : ends[0] + 1].clone()
    if case % 5 == 1:
        x[0, ends[0] + 1, 0] = v[0, 0, ends[0] + 1, 0] = float("nan")
    tokens = Tokens(x, r, q, k, v, *ends)
    monkeypatch.setattr(kernel_module("select"), "MOST_TOKENS", 4)  # all of them count as long
    expected = on(False, x, q, k, v, r=r, method=method, protected=ends).grouping
    found = entry.group(tokens, spaces, method.pivot_count(tokens))
    healthy = slice(int(case % 5 == 1), None)
    for name, one in zip(("kept", "source", "target"), found, strict=True):
        assert torch.equal(one[healthy], getattr(expected, name)[healthy]), (name, n, r, spaces, method, dtype)
    everyone = torch.cat(found[:2], dim=1).sort(dim=1).values
    assert torch.equal(everyone, torch.arange(x.shape[1]).expand(2, -1))  # NaN or not: no token is lost
    assert (found[0].unsqueeze(1) == found[2].unsqueeze(2)).any(2).all()


@inside
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_long_windows_of_wide_rows_agree(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_module("select"), "MOST_TOKENS", 4)
    x = torch.randn(2, 70, 300, generator=torch.Generator().manual_seed(0)).to(dtype)
    expected = on(False, x, r=9, method=ZIPBrain("x", "x", "x", 0.4)).grouping
    found = entry.group(Tokens(x, 9), ("x", "x", "x"), pivot_count(70, 9, Fraction(2, 5)))
    for name, one in zip(("kept", "source", "target"), found, strict=True):
        assert torch.equal(one, getattr(expected, name)), name


@inside
def test_a_window_of_two_chunks_agrees_and_gets_the_same_bits_alone(launches: list[str]) -> None:
    parts = draw(4, 2, 601)
    options: dict[str, Any] = {"r": 150, "method": ZIPBrain("x", "v", "kh", 0.4), "protected": 1}
    found = on(True, *parts, **options)
    assert launches == ["group", "merge"]
    assert_same(found, on(False, *parts, **options))
    alone = on(True, *(part[1:] for part in parts), **options)
    assert torch.equal(alone.grouping.target, found.grouping.target[1:])
    assert torch.equal(alone.x, found.x[1:])


@inside
def test_encoders_over_long_windows_answer_alike_also_under_autocast(launches: list[str]) -> None:
    torch.manual_seed(0)
    model = zipbrain.compress(
        TokenEncoder(dim=8, depth=2, heads=2).eval(), ZIPBrain("x", "x", "x", 0.4), r=4, protected=0
    )
    x = torch.randn(1, entry.MOST_TOKENS + 20, 8)
    with torch.no_grad():
        found = model(x)
        assert launches == ["group", "merge and norm"] * 2
        with torch.autocast("cpu", torch.bfloat16):
            coarse = model(x)
        assert launches[4:] == ["group", "merge"] * 2
        before = entry.switch(False)
        try:
            torch.testing.assert_close(found, model(x), rtol=1e-5, atol=1e-5)
            torch.testing.assert_close(coarse.float(), found, rtol=0.05, atol=0.05)
        finally:
            entry.switch(before)
