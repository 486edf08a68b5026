"""Few windows are grouped like many: idle processors find the cosines of all pairs while one splits a window."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from interpreted import INSIDE, MISSING, assert_same, inside, on, pass_under_the_interpreter
from zipbrain.pooling import ZIPBrain
from zipbrain.pooling.backends.triton import entry

Spaces = tuple[str, str, str]
CASES: list[tuple[Spaces, int, int, torch.dtype]] = [  # spaces, tokens, r
    (("x", "v", "x"), 80, 9, torch.float16),
    (("x", "v", "x"), 80, 40, torch.float32),
    (("x", "v", "x"), 40, 9, torch.bfloat16),
    (("kh", "vh", "qh"), 24, 5, torch.float32),
    (("x", "v", "x"), 17, 5, torch.float32),  # too few tokens for all pairs
    (("kh", "vh", "qh"), 100, 9, torch.bfloat16),
    (("v", "k", "kh"), 140, 40, torch.float16),
    (("v", "k", "kh"), 100, 80, torch.float16),
    (("kh", "x", "x"), 131, 33, torch.float32),  # norms in z3 are not known before
    (("x", "qh", "qh"), 66, 1, torch.float16),
]


@pytest.mark.skipif(MISSING, reason="triton is not installed: pip install --no-deps triton")
@pytest.mark.skipif(INSIDE, reason="this is the process that it starts")
def test_few_windows_agree_under_tritons_interpreter() -> None:
    pass_under_the_interpreter(__file__, least=13)


def draw(total: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(total)
    q, k, v = torch.randn(3, 2, 8, total, 10, generator=generator).to(dtype)
    return torch.randn(2, total, 80, generator=generator).to(dtype), q, k, v


@inside
@pytest.mark.parametrize(("spaces", "total", "r", "dtype"), CASES, ids=str)
def test_few_windows_are_grouped_like_many_and_like_plain_operators(
    spaces: Spaces, total: int, r: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = draw(total, dtype)
    options: dict[str, Any] = {"r": r, "method": ZIPBrain(*spaces, 0.3), "protected": 1}
    few = on(True, *parts, **options)
    monkeypatch.setattr(entry, "_FEW_WINDOWS", 1)
    assert_same(few, on(True, *parts, **options), rtol=0)
    assert_same(few, on(False, *parts, **options), rtol=3e-6 if dtype == torch.float32 else 1e-2)


@inside
@pytest.mark.parametrize(
    ("spaces", "rho", "same"),
    [(("x", "v", "x"), 0.3, 7), (("kh", "vh", "v"), 1.0, 300)],
)
def test_ties_and_pivots_of_297_tokens_are_those_of_plain_operators(
    spaces: Spaces, rho: float, same: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = [part[:, ..., torch.arange(300) // same, :] for part in draw(300, torch.float16)]  # so many are equal
    options: dict[str, Any] = {"r": 60, "method": ZIPBrain(*spaces, rho), "protected": (2, 1)}
    few = on(True, *parts, **options)
    monkeypatch.setattr(entry, "_FEW_WINDOWS", 1)
    assert_same(few, on(True, *parts, **options), rtol=0)
    assert_same(few, on(False, *parts, **options), rtol=1e-2)


@inside
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_nan_and_infinity_stay_in_their_window_and_protected_tokens_stay(bad: float) -> None:
    x, q, k, v = draw(80, torch.float16)
    x[1, 30, 5] = bad
    options: dict[str, Any] = {"r": 9, "method": ZIPBrain("x", "v", "x", 0.3), "protected": (1, 2)}
    pooled, plain = on(True, x, q, k, v, **options), on(False, x, q, k, v, **options)
    for name in ("kept", "source", "target"):
        assert torch.equal(getattr(pooled.grouping, name)[0], getattr(plain.grouping, name)[0]), name
    kept, source, target = pooled.grouping.kept[1], pooled.grouping.source[1], pooled.grouping.target[1]
    assert torch.cat([kept, source]).sort().values.tolist() == list(range(80))
    assert {0, 78, 79} <= set(kept.tolist())
    assert set(target.tolist()) <= set(kept.tolist()) - {0, 78, 79}
    assert pooled.x[0].isfinite().all()
