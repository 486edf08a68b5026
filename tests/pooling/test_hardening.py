"""Things that once crashed, corrupted memory or gave a wrong answer without a word."""

from __future__ import annotations

import subprocess
import sys
from fractions import Fraction

import numpy as np
import pytest
import torch

from zipbrain.errors import OptionError
from zipbrain.pooling import EViT, Grouping, ToMe, ZIPBrain, as_method, compose, pool
from zipbrain.pooling.schedule import Ratio, as_schedule


def draw(n: int = 30) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(2, n, 16, generator=generator), torch.randn(2, 2, n, 8, generator=generator)


def test_pooling_under_autocast_is_pooling_without_it(path: str) -> None:
    x, _ = draw()
    method = ZIPBrain("x", "x", "x")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = pool(x, r=10, method=method)
    assert torch.equal(mixed.x, pool(x, r=10, method=method).x)


@pytest.mark.parametrize("default", ["torch.set_default_dtype(torch.float16)", "torch.set_default_dtype(torch.float64)",
                                     "torch.set_default_device('meta')"])  # fmt: skip
def test_the_processes_defaults_do_not_change_the_kernels_buffers(default: str) -> None:
    code = (
        "import torch; from zipbrain.pooling import pool\n"
        "x, q = torch.randn(2, 60, 32), torch.randn(2, 2, 60, 8)\n"
        f"expected = pool(x, q, r=20).x\n{default}\n"
        "found = pool(x, q, r=20).x\nassert found.dtype == torch.float32 and torch.equal(found, expected)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr


def test_tokens_too_small_to_square_are_matched_lawfully(path: str) -> None:
    x = torch.ones(1, 20, 32)
    x[:, 7] = -1e-23
    q = torch.ones(1, 2, 20, 8)
    q[:, :, 10:] = torch.randn(1, 2, 10, 8, generator=torch.manual_seed(0))
    grouping = pool(x, q, r=8, method=ZIPBrain("q", "q", "x", 0.5)).grouping
    assert set(grouping.target[0].tolist()) <= set(grouping.kept[0].tolist())
    for scale in (1e-30, 1e-20, 1e-10, 1e10, 1e18, 1e30):
        pooled = pool(*(part * scale for part in draw()), r=12, method=ZIPBrain("x", "qh", "q"))
        for b in range(2):
            assert set(pooled.grouping.target[b].tolist()) <= set(pooled.grouping.kept[b].tolist())


def test_dropped_and_merged_sources_in_one_grouping_do_not_mix() -> None:
    x = torch.randn(1, 4, 6, generator=torch.manual_seed(1), dtype=torch.float64)
    kept, source = torch.tensor([[0, 1]]), torch.tensor([[2, 3]])
    mixed = Grouping(kept, source, torch.tensor([[0, -1]]), 4, drops=True)
    alone = Grouping(kept, source[:, :1], torch.tensor([[0]]), 4)
    for rule in ("largest_norm", "mean_norm", "mean", "sum"):
        assert torch.allclose(mixed.merge(x, rule), alone.merge(x, rule)), rule


def test_a_composed_grouping_with_fused_tokens_stays_inside_its_window() -> None:
    x, q = draw(24)
    first = pool(x, q, q, q, r=6, method=EViT("mean", fuse=True))
    second_q = torch.randn(2, 2, 18, 8, generator=torch.manual_seed(3))
    second = pool(first.x, second_q, second_q, second_q, r=12, method=EViT("mean", fuse=True))
    whole = compose([first.grouping, second.grouping])
    ones = torch.stack((torch.ones(24), torch.full((24,), 100.0)))
    assert whole.merge(ones, "sum").sum(1).tolist() == [24.0, 2400.0]


@pytest.mark.parametrize("ends", [(0, 1), (1, 0), (2, 3)])
def test_a_mask_of_the_ends_is_the_ends_for_every_method(ends: tuple[int, int]) -> None:
    x, q = draw(20)
    mask = torch.zeros(20, dtype=torch.bool)
    mask[: ends[0]] = True
    mask[20 - ends[1] :] = True
    for method in (ToMe(), EViT(fuse=False), EViT()):
        one, other = (pool(x, q, q, q, r=5, method=method, protected=p) for p in (mask, ends))
        assert torch.equal(one.grouping.kept, other.grouping.kept)
        assert torch.equal(one.x, other.x)


def test_an_empty_batch_runs_also_with_a_mask() -> None:
    mask = torch.tensor([False, True, False, False])
    assert pool(torch.zeros(0, 4, 6), r=1, method=ZIPBrain("x", "x", "x"), protected=mask).x.shape == (0, 3, 6)


def test_numbers_of_other_kinds_are_read_exactly_and_survive_json() -> None:
    assert as_schedule(ratio=np.float32(0.8)) == Ratio(0.8)
    assert as_schedule(ratio=Fraction(1, 2)) == Ratio(0.5)
    assert ZIPBrain(rho=np.float32(0.3)).to_dict()["rho"] == 0.3
    assert ZIPBrain(rho="0.5") == ZIPBrain()  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="rho: got '1/0'"):
        ZIPBrain(rho="1/0")  # type: ignore[arg-type]


def test_only_methods_are_offered_as_methods() -> None:
    with pytest.raises(OptionError, match=r"method: got 'ratio', but known names are composition, dart, evit"):
        as_method("ratio")
    with pytest.raises(OptionError, match=r"schedule: got 'ratio', but ratio needs ratio"):
        as_schedule(schedule="ratio")


def test_only_merge_rules_are_offered_as_merge_rules() -> None:
    for wrong in ("max_norm", "tome"):
        with pytest.raises(OptionError, match=f"merge: got '{wrong}'") as refusal:
            ZIPBrain(merge=wrong)
        assert "largest_norm" in str(refusal.value)
        assert not any(name in str(refusal.value) for name in ("dart", "pivot", "schedule", "evit"))


def test_function_transforms_and_forward_gradients_work_beside_the_kernel() -> None:
    x, _ = draw(12)
    method = ZIPBrain("x", "x", "x")

    def run(values: torch.Tensor) -> torch.Tensor:
        return pool(values, r=4, method=method).x.sum()

    gradient = torch.func.grad(run)(x)
    leaf = x.clone().requires_grad_()
    run(leaf).backward()
    torch.testing.assert_close(gradient, leaf.grad)
    tangent = torch.ones_like(x)
    torch.testing.assert_close(
        torch.func.jvp(run, (x,), (tangent,))[1], (gradient * tangent).sum(), rtol=1e-4, atol=1e-4
    )
