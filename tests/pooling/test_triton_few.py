"""Few windows on a GPU, without one: cosines of all pairs are found while a window is split."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import zipbrain
from interpreted import INSIDE, MISSING, assert_same, inside, on, pass_under_the_interpreter
from zipbrain.models import TokenEncoder
from zipbrain.pooling import ZIPBrain
from zipbrain.pooling.kernels import triton_norm_path, triton_path

DTYPES = torch.float32, torch.float16, torch.bfloat16
Spaces = tuple[str, str, str]
CASES: dict[tuple[Spaces, int, int], tuple[int, int]] = {  # spaces, tokens, r: kernels for few windows, and for many
    (("x", "v", "x"), 80, 9): (3, 2),
    (("x", "v", "x"), 80, 40): (3, 3),
    (("kh", "vh", "qh"), 100, 9): (4, 4),
    (("v", "k", "kh"), 270, 40): (3, 3),
    (("kh", "x", "x"), 131, 33): (3, 3),  # norms in z3 are not known before
    (("x", "qh", "qh"), 66, 1): (4, 4),
}
WIDE = {(("x", "v", "x"), 80, 9): (3, 3)}  # where float32 takes other ways


@pytest.mark.skipif(MISSING, reason="triton is not installed: pip install --no-deps triton")
@pytest.mark.skipif(INSIDE, reason="this is the process that it starts")
def test_few_windows_agree_under_tritons_interpreter() -> None:
    pass_under_the_interpreter(__file__, least=21)


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    from zipbrain.pooling.kernels import triton_merge_launch, triton_select_launch

    for module, name in (
        (triton_select_launch, "_groups"), (triton_merge_launch, "_merges"), (triton_norm_path, "_ready")
    ):  # fmt: skip
        monkeypatch.setattr(module, name, {})


def draw(total: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(total)
    q, k, v = torch.randn(3, 2, 8, total, 10, generator=generator).to(dtype)
    return torch.randn(2, total, 80, generator=generator).to(dtype), q, k, v


@inside
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", list(CASES), ids=str)
def test_few_windows_are_grouped_like_many_and_like_plain_operators(
    case: tuple[Spaces, int, int], dtype: torch.dtype, fresh: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from zipbrain.pooling.kernels import triton_select_launch

    spaces, total, r = case
    parts = draw(total, dtype)
    method = ZIPBrain(*spaces, 0.3)
    few = on(True, *parts, r=r, method=method, protected=1)
    monkeypatch.setattr(triton_path, "FEW_WINDOWS", 1)
    many = on(True, *parts, r=r, method=method, protected=1)
    kernels = tuple(len(plan.starts) for plan in triton_select_launch._groups.values())
    assert kernels == (WIDE if dtype == torch.float32 else CASES).get(case, CASES[case])
    assert_same(few, many, rtol=0)
    assert_same(few, on(False, *parts, r=r, method=method, protected=1), rtol=3e-6 if dtype == torch.float32 else 1e-2)


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
    kernels = [len(ready.group.starts) for ready in triton_norm_path._ready.values()]
    assert kernels == [3, 3 if dtype == torch.float32 else 2]
