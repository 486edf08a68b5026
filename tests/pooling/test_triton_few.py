"""Few windows on a GPU, without one: cosines of all pairs are found while a window is split."""

from __future__ import annotations

import inspect
import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

import zipbrain
from interpreted import INSIDE, MISSING, assert_same, inside, on, pass_under_the_interpreter
from zipbrain.models import TokenEncoder
from zipbrain.pooling import ZIPBrain
from zipbrain.pooling.backends.triton import norm_path as triton_norm_path
from zipbrain.pooling.backends.triton import path as triton_path

DTYPES = torch.float32, torch.float16, torch.bfloat16
Spaces = tuple[str, str, str]
CASES: dict[tuple[Spaces, int, int], tuple[str, str]] = {  # spaces, tokens, r: who matches with few windows, with many
    (("x", "v", "x"), 80, 9): ("closest", "select"),
    (("x", "v", "x"), 80, 40): ("closest", "match"),
    (("x", "v", "x"), 40, 9): ("closest", "select"),
    (("kh", "vh", "qh"), 24, 5): ("closest", "match"),
    (("x", "v", "x"), 17, 5): ("select", "select"),  # too few tokens to pay
    (("kh", "vh", "qh"), 100, 9): ("closest", "match"),
    (("v", "k", "kh"), 320, 40): ("closest", "match"),  # ranked as 256 tokens and 64 more, matched among as many
    (("x", "v", "x"), 350, 90): ("closest", "match"),  # ranked as 256 and 128, matched among 256 and 64
    (("v", "k", "kh"), 200, 150): ("closest", "match"),  # matched among 64
    (("kh", "x", "x"), 131, 33): ("match", "match"),  # norms in z3 are not known before
    (("x", "qh", "qh"), 66, 1): ("closest", "match"),
}
WIDE = {  # where float32 takes other ways
    (("x", "v", "x"), 80, 9): ("closest", "match"),
    (("x", "v", "x"), 40, 9): ("closest", "match"),
    (("x", "v", "x"), 17, 5): ("match", "match"),
}


@pytest.mark.skipif(MISSING, reason="triton is not installed: pip install --no-deps triton")
@pytest.mark.skipif(INSIDE, reason="this is the process that it starts")
def test_few_windows_agree_under_tritons_interpreter() -> None:
    pass_under_the_interpreter(__file__, least=36)


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    from zipbrain.pooling.backends.triton import (
        merge_launch as triton_merge_launch,
    )
    from zipbrain.pooling.backends.triton import (
        select_launch as triton_select_launch,
    )

    for module, name in (
        (triton_select_launch, "_groups"), (triton_merge_launch, "_merges"), (triton_norm_path, "_ready")
    ):  # fmt: skip
        monkeypatch.setattr(module, name, {})


def matches(plan: Any) -> str:
    """Which kernel finds the closest ones, by a plan."""
    (one,) = [name for name in ("match", "closest") if getattr(plan, name) is not None] or ["select"]
    return str(one)


def beyond_half(plan: Any) -> int:
    """How many tokens beyond half of a power of two are ranked by themselves, by a plan; 0: none."""
    from zipbrain.pooling.backends.triton import select as triton_select

    names = [one for one in inspect.signature(triton_select.select_kernel.fn).parameters if one.isupper()]
    constants = dict(zip(names[:-1], plan.select.constants, strict=True))  # the last one is found out when it is built
    return int(constants["MORE"])


def draw(total: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(total)
    q, k, v = torch.randn(3, 2, 8, total, 10, generator=generator).to(dtype)
    return torch.randn(2, total, 80, generator=generator).to(dtype), q, k, v


@inside
@pytest.mark.parametrize(
    ("case", "dtype"),
    [(case, dtype) for case in CASES for dtype in (DTYPES if case[1] < 200 else DTYPES[1:2])],
    ids=str,
)
def test_few_windows_are_grouped_like_many_and_like_plain_operators(
    case: tuple[Spaces, int, int], dtype: torch.dtype, fresh: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from zipbrain.pooling.backends.triton import select_launch as triton_select_launch

    spaces, total, r = case
    parts = draw(total, dtype)
    method = ZIPBrain(*spaces, 0.3)
    few = on(True, *parts, r=r, method=method, protected=1)
    monkeypatch.setattr(triton_path, "FEW_WINDOWS", 1)
    many = on(True, *parts, r=r, method=method, protected=1)
    by = tuple(matches(plan) for plan in triton_select_launch._groups.values())
    assert by == (WIDE if dtype == torch.float32 else CASES).get(case, CASES[case])
    assert_same(few, many, rtol=0)
    assert_same(few, on(False, *parts, r=r, method=method, protected=1), rtol=3e-6 if dtype == torch.float32 else 1e-2)


@inside
@pytest.mark.parametrize(
    ("spaces", "rho", "same"),
    [(("x", "v", "x"), 0.3, 7), (("x", "v", "k"), 1.0, 1), (("kh", "vh", "v"), 1.0, 300), (("v", "q", "x"), 0.0, 60)],
)
def test_ties_and_pivots_of_297_tokens_are_those_of_plain_operators(
    spaces: Spaces, rho: float, same: int, fresh: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from zipbrain.pooling.backends.triton import select_launch as triton_select_launch

    parts = [part[:, ..., torch.arange(300) // same, :] for part in draw(300, torch.float16)]  # so many are equal
    options: dict[str, Any] = {"r": 60, "method": ZIPBrain(*spaces, rho), "protected": (2, 1)}
    few = on(True, *parts, **options)
    monkeypatch.setattr(triton_path, "FEW_WINDOWS", 1)
    assert_same(few, on(True, *parts, **options), rtol=0)
    assert_same(few, on(False, *parts, **options), rtol=1e-2)
    scored = rho < 1  # else nothing is left to choose, and z2 is not there
    assert [beyond_half(plan) for plan in triton_select_launch._groups.values()] == [64 if scored else 0] * 2


@inside
@pytest.mark.parametrize("dtype", DTYPES)
def test_what_was_pooled_before_is_pooled_again_by_the_number_of_windows(
    dtype: torch.dtype, fresh: None, launches: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    model = TokenEncoder(dim=80, depth=1, heads=8).eval().to(dtype)
    zipbrain.compress(model, ZIPBrain("x", "v", "x", 0.4), r=5)
    x = torch.randn(2, 70, 80).to(dtype)
    with torch.no_grad():
        few = model(x)
        launches.clear()
        assert torch.equal(model(x), few)
        assert launches == ["again"]
        monkeypatch.setattr(triton_path, "FEW_WINDOWS", 1)
        assert torch.equal(model(x), few)
        assert launches == ["again", "joined", "merge"]
    by = [matches(ready.group) for ready in triton_norm_path._ready.values()]
    assert by == ["closest", "match" if dtype == torch.float32 else "select"]


@inside
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_no_number_stays_in_its_window_and_protected_tokens_stay(bad: float, fresh: None) -> None:
    x, q, k, v = draw(80, torch.float16)
    x[1, 30, 5] = bad
    pooled = on(True, x, q, k, v, r=9, method=ZIPBrain("x", "v", "x", 0.3), protected=(1, 2))
    plain = on(False, x, q, k, v, r=9, method=ZIPBrain("x", "v", "x", 0.3), protected=(1, 2))
    for name in ("kept", "source", "target"):
        assert torch.equal(getattr(pooled.grouping, name)[0], getattr(plain.grouping, name)[0]), name
    kept, source, target = pooled.grouping.kept[1], pooled.grouping.source[1], pooled.grouping.target[1]
    assert torch.cat([kept, source]).sort().values.tolist() == list(range(80))
    assert {0, 78, 79} <= set(kept.tolist())
    assert set(target.tolist()) <= set(kept.tolist()) - {0, 78, 79}
    assert pooled.x[0].isfinite().all()


@pytest.mark.skipif(MISSING, reason="triton is not installed: pip install --no-deps triton")
@pytest.mark.skipif(INSIDE, reason="needs no interpreter")
def test_the_number_of_windows_never_decides_in_which_order_anything_is_summed() -> None:
    from zipbrain.pooling.backends.triton import select_launch as triton_select_launch

    compared = other = in_two = 0
    shapes = itertools.product((100, 231, 304, 500), ((10, 20), (8, 32), (4, 8)), DTYPES[:2], (9, 20, 40))
    for total, (heads, width), dtype, r in shapes:
        x, q = torch.empty(2, total, heads * width, dtype=dtype), torch.empty(2, heads, total, width, dtype=dtype)
        for kinds in itertools.product((0, 1, 2), repeat=3):
            spaces = [q if kind else x for kind in kinds]
            for join in (None, (x, (x, None))) if kinds[0] == 0 else (None,):
                few, many = (
                    triton_select_launch._plan(spaces, list(kinds), r, 30, 1, 0, join, alone) for alone in (True, False)
                )
                compared += 1
                other += few.closest is not None
                if few.scores is None:  # else `select` adds up one number for each part
                    assert few.select.warps == many.select.warps, (total, heads, width, dtype, r, kinds)
                assert beyond_half(few) == beyond_half(many)
                in_two += beyond_half(few) > 0
                assert (few.scores is None) == (many.scores is None)
                if few.scores is not None and many.scores is not None:
                    assert few.scores.warps == many.scores.warps
                    assert few.scores.constants[:-1] == many.scores.constants[:-1]
                if few.prepare is not None and many.prepare is not None:
                    assert few.prepare.start.warps == many.prepare.start.warps
                    assert few.prepare.start.constants[:-1] == many.prepare.start.constants[:-1]  # rows of scratch
    assert other > compared // 4
    assert in_two > compared // 20
