"""On a CUDA device: the same groups as on a CPU, graph capture, no host synchronisation. Skipped where there is none.

Also runs without pytest: ``python tests/test_gpu.py``.
"""

from __future__ import annotations

import copy
import sys
from typing import Any

import torch
import torch.nn.functional as F

import zipbrain
from zipbrain.models import TokenEncoder
from zipbrain.pooling import (
    DART,
    SPACES,
    EViT,
    LargestNorm,
    Mean,
    MeanNorm,
    Method,
    Pooled,
    ToFu,
    ToMe,
    Twins,
    ZIPBrain,
    ablations,
    pool,
)
from zipbrain.pooling.backends.choose import pool_tokens
from zipbrain.pooling.backends.triton import entry
from zipbrain.pooling.grouping import Grouping
from zipbrain.pooling.steps import noted_gaps
from zipbrain.pooling.tokens import Branch, Tokens
from zipbrain.seams.dialects.attention import softmax_attention

try:
    import pytest

    pytestmark = [
        pytest.mark.gpu,
        pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine"),
    ]
except ImportError:  # a machine with torch alone
    pass

METHODS: dict[str, Method] = {
    "zipbrain": ZIPBrain(), "kkk": ZIPBrain("k", "k", "k", 0.9), "per head": ZIPBrain("kh", "vh", "qh", 0.3),
    "tome": ToMe(), "tofu": ToFu(), "tofu pruning": ToFu(merge_from=None), "evit": EViT(fuse=False),
    "evit mean": EViT("mean", fuse=False), "evit fused": EViT(),
    "dart": DART(), "twins": Twins(), **ablations(seed=1),
}  # fmt: skip


entry.switch(True)


def draw(batch: int, total: int) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(batch * 1000 + total)
    heads = (torch.randn(batch, 10, total, 20, generator=generator) for _ in range(3))
    return torch.randn(batch, total, 200, generator=generator), *heads


def test_groups_are_the_same_on_a_gpu_as_on_a_cpu_also_with_tf32() -> None:
    torch.backends.cuda.matmul.allow_tf32 = True
    different = compared = 0
    for name, method in METHODS.items():
        for total in (231, 64):
            parts = draw(32, total)
            cpu = pool(*parts, r=total // 5, method=method, protected=1, layer=2, depth=2)
            gpu = pool(*(part.cuda() for part in parts), r=total // 5, method=method, protected=1, layer=2, depth=2)
            same = (cpu.grouping.kept == gpu.grouping.kept.cpu()).all(1)
            same &= (cpu.grouping.target == gpu.grouping.target.cpu()).all(1)
            different += int((~same).sum())
            compared += len(same)
            error = (cpu.x - gpu.x.cpu()).abs()[same].max() / cpu.x.abs().max()
            assert error < 2e-6, (name, error)
    # Random tokens have a few near ties that the last bit of a cosine decides; identical tokens have none.
    assert different <= compared // 200, (different, compared)


def test_all_343_settings_agree_on_windows_with_dead_channels() -> None:
    parts = draw(4, 48)
    for part in parts:  # a dead channel: eight identical tokens, and four zero ones
        part.narrow(part.dim() - 2, 8, 8).copy_(
            part.narrow(part.dim() - 2, 8, 1).expand_as(part.narrow(part.dim() - 2, 8, 8))
        )
        part.narrow(part.dim() - 2, 20, 4).zero_()
    wide = tuple(part.double() for part in parts)
    for z1 in SPACES:
        for z2 in SPACES:
            for z3 in SPACES:
                method = ZIPBrain(z1, z2, z3, 0.4)
                cpu = pool(*wide, r=16, method=method)
                gpu = pool(*(part.cuda() for part in wide), r=16, method=method)
                assert torch.equal(cpu.grouping.target, gpu.grouping.target.cpu()), method
                assert torch.equal(cpu.grouping.source, gpu.grouping.source.cpu()), method


def test_a_compressed_encoder_is_captured_in_a_cuda_graph_without_host_sync() -> None:
    torch.manual_seed(0)
    base = TokenEncoder(dim=64, depth=4, heads=4).eval().cuda()
    x = torch.randn(8, 100, 64, device="cuda")
    for name, method in METHODS.items():
        for mass in (False, True):
            model = zipbrain.compress(copy.deepcopy(base), method, ratio=0.8, mass=mass)
            with torch.inference_mode():
                expected = model(x)
                side = torch.cuda.Stream()
                side.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(side):
                    model(x)
                torch.cuda.current_stream().wait_stream(side)
                torch.cuda.set_sync_debug_mode("error")
                try:
                    model(x)
                finally:
                    torch.cuda.set_sync_debug_mode("default")
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):
                    captured = model(x)
                graph.replay()
                torch.cuda.synchronize()
                assert torch.allclose(captured, expected, atol=1e-4), (name, mass)


def test_half_precision_and_autocast_run_on_a_gpu() -> None:
    base = TokenEncoder(dim=64, depth=4, heads=4).eval().cuda()
    x = torch.randn(8, 100, 64, device="cuda")
    for dtype in (torch.float16, torch.bfloat16):
        model = zipbrain.compress(copy.deepcopy(base), ZIPBrain(), ratio=0.8, mass=True)
        with torch.inference_mode(), torch.autocast("cuda", dtype=dtype):
            assert model(x).isfinite().all()
        model = zipbrain.compress(copy.deepcopy(base).to(dtype), ToMe(), ratio=0.8)
        with torch.inference_mode():
            assert model(x.to(dtype)).isfinite().all()


def test_torch_compile_runs_on_a_gpu() -> None:
    base = TokenEncoder(dim=64, depth=4, heads=4).eval().cuda()
    x = torch.randn(8, 100, 64, device="cuda")
    model = zipbrain.compress(base, ZIPBrain(), ratio=0.8)
    with torch.inference_mode():
        expected = model(x)
        compiled = torch.compile(model, fullgraph=True)
        assert torch.allclose(compiled(x), expected, atol=2e-3)


# -- the Triton kernels ------------------------------------------------------------------------------------------------

SETTINGS = [
    ("k", "k", "k", 0.9),
    ("x", "v", "x", 0.4),
    ("kh", "vh", "qh", 0.3),
    ("q", "x", "k", 0.0),
    ("v", "kh", "vh", 1.0),
]


def on_gpu(kernels: bool, *parts: torch.Tensor, **options: Any) -> Pooled:
    """Pool on the GPU with the Triton kernels, or with plain operators."""
    before = entry.switch(kernels)
    try:
        return pool(*(part.cuda() for part in parts), **options)
    finally:
        entry.switch(before)


def test_the_kernels_are_what_runs_on_this_gpu() -> None:
    assert entry.available(), "triton is not installed or does not load"
    x, q, k, v = (part.cuda() for part in draw(2, 40))
    assert entry.usable(Tokens(x, 5, q, k, v), ("x", "q", "vh"))
    assert not entry.usable(Tokens(x.double(), 5, q, k, v), ("x", "q", "x"))
    assert not entry.usable(Tokens(x, 5, q.cpu(), k, v), ("x", "q", "x"))


def test_the_kernels_group_as_float64_does_in_every_precision() -> None:
    torch.backends.cuda.matmul.allow_tf32 = True
    for dtype, bound in ((torch.float32, 3e-6), (torch.float16, 2e-3), (torch.bfloat16, 1.6e-2)):
        different = compared = 0
        for *spaces, rho in SETTINGS:
            for total, r in ((231, 15), (231, 19), (305, 75), (64, 40), (20, 18), (500, 100)):
                parts = [part.to(dtype) for part in draw(16, total)]
                options: dict[str, Any] = {"r": r, "method": ZIPBrain(*spaces, rho), "protected": (1, 0)}
                exact = on_gpu(False, *(part.double() for part in parts), **options)
                found = on_gpu(True, *parts, **options)
                same = (exact.grouping.kept == found.grouping.kept).all(1)
                same &= (exact.grouping.target == found.grouping.target).all(1)
                different += int((~same).sum())
                compared += len(same)
                error = (exact.x - found.x.double()).abs()[same].max() / exact.x.abs().max()
                assert found.x.dtype == dtype
                assert error < bound, (spaces, rho, total, dtype, error)
        # Near ties that the last bit of float32 decides.
        assert different <= compared // 200, (dtype, different, compared)


def test_the_kernels_agree_on_windows_with_dead_channels_in_all_343_settings() -> None:
    parts = draw(4, 48)
    for part in parts:
        part.narrow(part.dim() - 2, 8, 8).copy_(
            part.narrow(part.dim() - 2, 8, 1).expand_as(part.narrow(part.dim() - 2, 8, 8))
        )
        part.narrow(part.dim() - 2, 20, 4).zero_()
    wide = [part.double() for part in parts]
    different = []
    for z1 in SPACES:
        for z2 in SPACES:
            for z3 in SPACES:
                method = ZIPBrain(z1, z2, z3, 0.4)
                exact, found = on_gpu(False, *wide, r=16, method=method), on_gpu(True, *parts, r=16, method=method)
                if not torch.equal(exact.grouping.target, found.grouping.target):
                    different.append(method)
    assert len(different) <= 3, different  # near ties among the live tokens


def test_a_hundred_runs_of_the_kernels_give_the_same_bits_in_any_batch() -> None:
    for dtype in (torch.float32, torch.float16):
        for *spaces, rho in SETTINGS:
            parts = [part.to("cuda", dtype) for part in draw(64, 231)]
            options: dict[str, Any] = {"r": 15, "method": ZIPBrain(*spaces, rho), "protected": 1}
            first = on_gpu(True, *parts, **options)
            for _ in range(100):
                again = on_gpu(True, *parts, **options)
                assert torch.equal(first.x, again.x)
                assert torch.equal(first.grouping.target, again.grouping.target)
            for some in (slice(0, 1), slice(17, 18), slice(3, 40)):
                alone = on_gpu(True, *(part[some] for part in parts), **options)
                assert torch.equal(alone.grouping.kept, first.grouping.kept[some])
                assert torch.equal(alone.grouping.target, first.grouping.target[some])
                assert torch.equal(alone.x, first.x[some])


def test_few_windows_are_grouped_by_other_kernels_to_the_same_bits() -> None:
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        for total, r in ((231, 19), (305, 75), (305, 16), (150, 40), (100, 9), (60, 19), (30, 9)):
            parts = [part.to("cuda", dtype) for part in draw(24, total)]
            for part in parts:
                part[12:].mul_(2).round_().div_(2)  # many cosines are nearly the same
                few_rows = part[8:12, ..., :10, :].repeat_interleave(total // 10 + 1, dim=-2)[..., :total, :]
                part[8:12] = few_rows + 1e-6 * torch.randn_like(few_rows)  # and here scores are
            for spaces in (("x", "v", "x"), ("kh", "vh", "qh"), ("v", "k", "kh"), ("x", "qh", "x"), ("x", "x", "x")):
                options: dict[str, Any] = {"r": r, "method": ZIPBrain(*spaces, 0.4), "protected": 1}
                many = on_gpu(True, *parts, **options)
                for some in (slice(0, 1), slice(1, 5), slice(10, 14), slice(20, 24)):
                    few = on_gpu(True, *(part[some] for part in parts), **options)
                    assert torch.equal(few.grouping.kept, many.grouping.kept[some]), (dtype, total, spaces)
                    assert torch.equal(few.grouping.target, many.grouping.target[some]), (dtype, total, spaces)
                    assert torch.equal(few.x, many.x[some]), (dtype, total, spaces)


def test_the_kernels_read_tensors_where_they_lie() -> None:
    parts = [part.cuda() for part in draw(3, 231)]
    options: dict[str, Any] = {"r": 19, "method": ZIPBrain("x", "vh", "k", 0.4), "protected": 1}
    expected = on_gpu(True, *parts, **options)
    turned = [part.transpose(0, 1).contiguous().transpose(0, 1) for part in parts]
    fused = torch.randn(3, 231, 3, 10, 20, device="cuda")  # as a qkv projection leaves them
    for place, part in enumerate(parts[1:]):
        fused[:, :, place] = part.transpose(1, 2)
    packed = [parts[0], *fused.permute(2, 0, 3, 1, 4).unbind(0)]
    for arranged in (turned, packed):
        found = on_gpu(True, *arranged, **options)
        assert torch.equal(found.grouping.target, expected.grouping.target)
        torch.testing.assert_close(found.x, expected.x, rtol=1e-6, atol=1e-6)
    wide = on_gpu(True, *(part[:1].expand(4, *part.shape[1:]) for part in parts), **options)
    assert torch.equal(wide.grouping.target, expected.grouping.target[:1].expand(4, -1))


def test_nan_stays_in_its_window_and_nothing_hangs() -> None:
    parts = [part.cuda() for part in draw(4, 100)]
    options: dict[str, Any] = {"r": 20, "method": ZIPBrain("x", "v", "kh", 0.4), "protected": 1}
    healthy = on_gpu(True, *parts, **options)
    for bad in (float("nan"), float("inf")):
        for part in parts:
            part[2] = bad
        found = on_gpu(True, *parts, **options)
        others = [0, 1, 3]
        assert torch.equal(found.x[others], healthy.x[others])
        assert not found.x[2].isfinite().all()
        every = torch.cat((found.grouping.kept, found.grouping.source), dim=1).sort(1).values
        assert torch.equal(every.cpu(), torch.arange(100).expand(4, 100))


def test_the_merge_kernel_agrees_with_the_rules_and_its_norm_with_layer_norm() -> None:
    from zipbrain.pooling.backends.triton.merge import merge

    x, q, k, v = (part.cuda() for part in draw(8, 231))
    mass = torch.randint(1, 6, (8, 231), device="cuda").float()
    for r in (200, 60):
        grouping = on_gpu(False, x, q, k, v, r=r, method=ZIPBrain(), protected=1).grouping
        index = grouping.kept, grouping.source, grouping.target
        fourth = tuple(one[3:4] for one in index)
        for mode, rule in enumerate((LargestNorm(), MeanNorm(), Mean())):
            for weight in (None, mass):
                merged, masses, _ = merge(x, index, mode, weight)
                expected = rule(x.double(), grouping, None if weight is None else weight.double())
                torch.testing.assert_close(merged, expected.float(), rtol=1e-5, atol=1e-5)
                assert masses is None or torch.equal(masses, grouping.merge(mass, "sum"))
                alone = merge(x[3:4], fourth, mode, None if weight is None else weight[3:4])
                assert torch.equal(alone[0], merged[3:4])
        for dtype, bound in ((torch.float32, 1e-5), (torch.float16, 4e-3), (torch.bfloat16, 3e-2)):
            weight, bias = (torch.randn(200, device="cuda").to(dtype) for _ in range(2))
            merged, _, normed = merge(x.to(dtype), index, 0, norm=(weight, bias, 1e-6))
            alone = merge(x[3:4].to(dtype), fourth, 0, norm=(weight, bias, 1e-6))
            assert torch.equal(alone[2], normed[3:4])
            expected = F.layer_norm(merged, (200,), weight, bias, 1e-6)
            torch.testing.assert_close(normed, expected, rtol=bound, atol=bound)


def test_kernels_that_start_early_give_the_bits_of_kernels_that_do_not() -> None:
    # Behind a kernel that takes long: one that did not wait would read what is not there yet.
    from zipbrain.pooling.backends.triton import language

    settings = [("x", "v", "x", 0.4), ("kh", "vh", "qh", 0.3), ("k", "k", "k", 0.9), ("v", "k", "kh", 0.9)]
    large = torch.randn(4096, 4096, device="cuda")
    answers: dict[bool, list[torch.Tensor]] = {}
    before = language._OVERLAP
    try:
        for early in (False, True):
            language._OVERLAP = early
            torch.manual_seed(0)
            base = TokenEncoder(dim=64, depth=4, heads=4).eval().cuda()
            answers[early] = []
            for setting in settings:
                model = zipbrain.compress(copy.deepcopy(base), ZIPBrain(*setting), ratio=0.8)
                for seed in range(20):
                    x = torch.randn(16, 200, 64, device="cuda", generator=torch.Generator("cuda").manual_seed(seed))
                    x = x + 0 * (large @ large)[0, 0]
                    with torch.no_grad():
                        answers[early].append(model(x))
    finally:
        language._OVERLAP = before
    for one, other in zip(answers[False], answers[True], strict=True):
        assert torch.equal(one, other)


def test_kernels_that_start_early_in_a_captured_graph_follow_its_input() -> None:
    # Memory is the same in every replay: what was read too early would be the replay before's.
    from zipbrain.pooling.backends.triton import language

    torch.manual_seed(0)
    base = TokenEncoder(dim=256, depth=4, heads=8).eval().cuda()
    before = language._OVERLAP
    for batch, dtype in ((32, torch.float32), (32, torch.float16), (2, torch.float16)):
        inputs = [torch.randn(batch, 304, 256, device="cuda", dtype=dtype) for _ in range(12)]
        answers: dict[bool, list[torch.Tensor]] = {False: [], True: []}
        try:
            for early in (False, True):
                language._OVERLAP = early
                model = zipbrain.compress(copy.deepcopy(base).to(dtype), ZIPBrain("x", "v", "x", 0.4), r=61)
                still = inputs[0].clone()  # the inputs stay what they are
                with torch.inference_mode():
                    for _ in range(3):
                        model(still)
                    torch.cuda.synchronize()
                    graph = torch.cuda.CUDAGraph()
                    with torch.cuda.graph(graph):
                        answer = model(still)
                    for _ in range(8):
                        for one in inputs:
                            still.copy_(one)
                            graph.replay()
                            answers[early].append(answer.clone())
        finally:
            language._OVERLAP = before
        for one, other in zip(answers[False], answers[True], strict=True):
            assert torch.equal(one, other)


def test_a_captured_graph_with_kernels_follows_its_input() -> None:
    method = ZIPBrain("x", "v", "k", 0.4)
    still = [part.cuda() for part in draw(32, 231)]
    other = [part.cuda() for part in draw(32, 232)]
    other = [part.narrow(part.dim() - 2, 1, 231) for part in other]
    tokens = Tokens(still[0], 15, *still[1:], 1, 0)
    with torch.inference_mode():
        for _ in range(2):
            pool_tokens(tokens, method)  # compile outside of the capture
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            pooled = pool_tokens(tokens, method)
        for parts in (other, [part.cuda() for part in draw(32, 231)]):
            for place, part in zip(still, parts, strict=True):
                place.copy_(part)
            graph.replay()
            expected = on_gpu(True, *parts, r=15, method=method, protected=1)
            assert torch.equal(pooled.x, expected.x)


def test_captured_groups_by_heads_alone_follow_their_input() -> None:
    torch.manual_seed(0)
    base = TokenEncoder(dim=200, depth=4, heads=10).eval().cuda()
    for spaces in (("k", "k", "k"), ("q", "v", "kh")):
        for dtype in (torch.float32, torch.float16):
            model = zipbrain.compress(copy.deepcopy(base), ZIPBrain(*spaces, 0.5), r=15).to(dtype)
            with torch.inference_mode():
                x = torch.randn(32, 231, 200, device="cuda").to(dtype)
                for _ in range(2):
                    model(x)
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):
                    captured = model(x)
                for _ in range(20):
                    x.copy_(torch.randn_like(x))
                    expected = model(x)
                    graph.replay()
                    assert torch.equal(captured, expected), (spaces, dtype)


def test_mass_is_merged_by_the_kernel_as_by_the_plain_operators() -> None:
    torch.manual_seed(0)
    base = TokenEncoder(dim=64, depth=4, heads=4).eval().cuda()
    x = torch.randn(8, 100, 64, device="cuda")
    for method in (ZIPBrain("k", "k", "k", 0.9), ToMe(), ToFu(), Twins()):
        found = []
        for kernels in (True, False):
            before = entry.switch(kernels)
            try:
                with torch.inference_mode():
                    found.append(zipbrain.compress(copy.deepcopy(base), method, ratio=0.8, mass=True)(x))
            finally:
                entry.switch(before)
        assert torch.allclose(*found, atol=1e-3), method


def check_long_windows(dtype: torch.dtype) -> None:
    for spaces in (("x", "v", "x"), ("k", "k", "k"), ("kh", "vh", "qh")):
        for total, r in ((600, 40), (3000, 700)):
            parts = [part.to(dtype) for part in draw(4, total)]
            options: dict[str, Any] = {"r": r, "method": ZIPBrain(*spaces, 0.4), "protected": (1, 0)}
            with noted_gaps() as gaps:
                exact = on_gpu(False, *(part.double() for part in parts), **options).grouping
            found = on_gpu(True, *parts, **options).grouping
            same = (exact.kept == found.kept).all(1) & (exact.target == found.target).all(1)
            margin = torch.minimum(torch.stack(gaps.chosen).amin(0), torch.cat(gaps.matched, dim=1).amin(1))
            assert same[margin > 2.0**-19].all(), (dtype, spaces, total, margin[~same])
            alike = (exact.target == found.target).float().mean(1)  # most sources agree in windows with near ties, too
            assert (alike[(exact.kept == found.kept).all(1)] > 0.97).all()
            alone = on_gpu(True, *(part[2:3] for part in parts), **options).grouping
            assert torch.equal(alone.target, found.target[2:3])
            print(f"   {spaces} {total}: {int(same.sum())} of 4 windows as in float64", flush=True)


def test_long_windows_are_grouped_as_in_float64_wherever_more_than_rounding_decides() -> None:
    check_long_windows(torch.float32)


def test_long_windows_of_float16_are_grouped_as_in_float64() -> None:
    check_long_windows(torch.float16)


def test_long_windows_of_bfloat16_are_grouped_as_in_float64() -> None:
    check_long_windows(torch.bfloat16)


def test_encoders_over_long_windows_answer_as_with_plain_operators() -> None:
    torch.manual_seed(0)
    model = zipbrain.compress(
        TokenEncoder(dim=64, depth=2, heads=4).eval().cuda(), ZIPBrain("x", "v", "x", 0.4), ratio=0.6
    )
    x = torch.randn(2, 1500, 64, device="cuda")
    found = []
    for kernels in (True, False):
        before = entry.switch(kernels)
        try:
            with torch.inference_mode():
                found.append(model(x))
        finally:
            entry.switch(before)
    assert torch.allclose(*found, atol=1e-3)


def test_a_branch_added_on_the_way_gives_the_bits_of_one_added_before() -> None:
    torch.manual_seed(0)
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        norm = torch.nn.LayerNorm(200, device="cuda", dtype=dtype)
        for spaces in (("x", "v", "x"), ("k", "k", "k"), ("kh", "x", "x"), ("kh", "vh", "qh")):
            for total, r, scaled in ((231, 15, True), (231, 19, False), (304, 75, True)):
                x, values = (torch.randint(-8, 9, (4, total, 200), device="cuda").to(dtype) for _ in range(2))
                heads = [torch.randn(4, 10, total, 20, device="cuda").to(dtype) for _ in range(3)]
                scale = torch.randint(-4, 5, (200,), device="cuda").to(dtype) / 2 if scaled else None
                branch = Branch(values, scale)
                whole = branch.added_to(x)  # exact: what is compared is not the rounding of one sum
                method = ZIPBrain(*spaces, 0.3)
                with torch.inference_mode():
                    expected = pool_tokens(Tokens(whole, r, *heads, 1, 0), method, norm=norm)
                    apart = Tokens(x, r, *heads, 1, 0, branch=branch)
                    found = [pool_tokens(apart, method, norm=norm) for _ in range(2)]
                for other in found:
                    assert torch.equal(other.x, expected.x), (spaces, dtype, r)
                    assert torch.equal(other.normed, expected.normed), (spaces, dtype, r)


def test_attention_with_mass_is_that_of_an_additive_mask() -> None:
    torch.manual_seed(0)
    for dtype, rounding in ((torch.float32, 2e-3), (torch.float16, 2e-3), (torch.bfloat16, 2e-2)):  # TF32 may be on
        for heads, width in ((10, 20), (4, 64), (3, 33)):
            qkv = torch.randn(4, 150, 3, heads, width, device="cuda").to(dtype)
            q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
            bias = torch.randint(1, 6, (4, 150), device="cuda").float().log()
            with torch.inference_mode():
                found, _ = softmax_attention(q, k, v, width**-0.5, bias)
                wide = [part.double() for part in (q, k, v)]
                mask = bias.double()[:, None, None, :].expand(-1, heads, 150, -1)
                expected = F.scaled_dot_product_attention(*wide, attn_mask=mask, scale=width**-0.5)
            assert found.shape == q.shape
            assert torch.allclose(found.double(), expected, atol=rounding, rtol=rounding), (dtype, width)


def test_places_are_followed_by_a_kernel_as_by_the_plain_operators() -> None:
    generator = torch.Generator("cuda").manual_seed(0)
    for total, r in ((231, 15), (304, 75), (2049, 600)):
        order = torch.rand(8, total, device="cuda", generator=generator).argsort(1)
        source, kept = order[:, :r].sort(1).values, order[:, r:].sort(1).values
        target = kept.gather(1, torch.randint(0, total - r, (8, r), device="cuda", generator=generator))
        grouping = Grouping(kept, source, target, total)
        places = torch.randint(-1, total, (8, 500), device="cuda", generator=generator)
        found = entry.follow(places, grouping)
        assert found is not None
        step = grouping.places().gather(1, places.clamp_min(0))
        assert torch.equal(found, torch.where(places < 0, -1, step))


def test_compile_and_export_keep_the_kernels_as_one_node() -> None:
    torch.manual_seed(0)
    x = torch.randn(8, 100, 64, device="cuda")
    model = zipbrain.compress(
        TokenEncoder(dim=64, depth=4, heads=4).eval().cuda(), ZIPBrain("x", "v", "kh", 0.4), ratio=0.8
    )
    with torch.no_grad():
        expected = model(x)
        program = torch.export.export(model, (x,))
        names = [str(node.target) for node in program.graph.nodes if "zipbrain" in str(node.target)]
        assert names == ["zipbrain.pool_norm.default"] * 4
        compiled = torch.compile(model, fullgraph=True)
        assert torch.allclose(compiled(x), expected, atol=2e-3)
        quick = torch.compile(model, fullgraph=True, mode="reduce-overhead")
        for _ in range(3):
            found = quick(x).clone()
        assert torch.allclose(found, expected, atol=2e-3)


def test_training_steps_have_the_gradients_of_the_plain_operators() -> None:
    torch.manual_seed(0)
    base = TokenEncoder(dim=64, depth=4, heads=4).cuda()
    x = torch.randn(8, 100, 64, device="cuda")
    found = []
    for kernels in (True, False):
        before = entry.switch(kernels)
        try:
            model = zipbrain.compress(copy.deepcopy(base), ZIPBrain("x", "v", "x", 0.4), ratio=0.8)
            model(x).square().sum().backward()
        finally:
            entry.switch(before)
        found.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]))
    assert (found[0] - found[1]).abs().max() <= 1e-3 * found[1].abs().max()


# -- Twins by kernels --------------------------------------------------------------------------------------------------


def masses(batch: int, total: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(batch * 1000 + total)
    return torch.randint(1, 6, (batch, total), generator=generator).float().cuda()


def test_the_kernels_are_what_groups_twins_on_this_gpu() -> None:
    x, q, k, v = (part.cuda() for part in draw(2, 40))
    for mass in (None, masses(2, 40), masses(2, 40).half()):
        assert entry.usable_by_twins(Tokens(x, 5, q, k, v, mass=mass))
    assert not entry.usable_by_twins(Tokens(x, 5, q, k, v, mass=masses(2, 40).cpu()))
    assert not entry.usable_by_twins(Tokens(x.double(), 5, q, k, v))


def test_twins_are_grouped_as_in_float64_wherever_more_than_rounding_decides() -> None:
    torch.backends.cuda.matmul.allow_tf32 = True  # as users have it: nothing here may depend on it
    clear = compared = 0
    for dtype, bound in ((torch.float32, 3e-6), (torch.float16, 2e-3), (torch.bfloat16, 1.6e-2)):
        for total, r in ((231, 15), (231, 19), (305, 75), (64, 40), (20, 18), (65, 5), (130, 120), (500, 100)):
            parts = [part.to(dtype) for part in draw(16, total)]
            for mass in (None, masses(16, total)):
                options: dict[str, Any] = {"r": r, "method": Twins(), "protected": (1, 0)}
                wide = None if mass is None else mass.double()
                with noted_gaps() as gaps:
                    exact = on_gpu(False, *(part.double() for part in parts), **options, mass=wide)
                found = on_gpu(True, *parts, **options, mass=mass)
                same = (exact.grouping.kept == found.grouping.kept).all(1)
                same &= (exact.grouping.target == found.grouping.target).all(1)
                margin = torch.minimum(gaps.chosen[0], torch.cat(gaps.matched, dim=1).amin(1))
                decided = margin > 2.0**-18
                assert same[decided].all(), (dtype, total, r, mass is not None, margin[~same])
                clear += int(decided.sum())
                compared += len(same)
                error = (exact.x - found.x.double()).abs()[same].max() / exact.x.abs().max()
                assert found.x.dtype == dtype
                assert error < bound, (dtype, total, r, error)
    assert clear >= 0.8 * compared, (clear, compared)


def test_twins_among_dead_channels_and_in_flat_spaces_are_those_of_the_plain_operators() -> None:
    for place in range(5):
        parts = draw(8, 100)
        for part in parts:
            part[..., 8:16, :] = part[..., 8:9, :].clone()
            part[..., 20:24, :] = 0
        if place < 4:
            parts[place].fill_(3.7)  # a space that says nothing
        for mass in (None, masses(8, 100)):
            options: dict[str, Any] = {"r": 30, "method": Twins(), "protected": 1}
            wide = None if mass is None else mass.double()
            exact = on_gpu(False, *(part.double() for part in parts), **options, mass=wide)
            found = on_gpu(True, *parts, **options, mass=mass)
            same = (exact.grouping.target == found.grouping.target).all(1)
            assert int((~same).sum()) <= 1, place  # a near tie among the live tokens


def test_a_hundred_runs_of_twins_give_the_same_bits_in_any_batch() -> None:
    for dtype in (torch.float32, torch.float16):
        parts, mass = [part.to("cuda", dtype) for part in draw(64, 231)], masses(64, 231)
        options: dict[str, Any] = {"r": 19, "method": Twins(), "protected": 1}
        first = on_gpu(True, *parts, **options, mass=mass)
        for _ in range(100):
            again = on_gpu(True, *parts, **options, mass=mass)
            assert torch.equal(first.x, again.x)
            assert torch.equal(first.grouping.target, again.grouping.target)
        for some in (slice(0, 1), slice(17, 18), slice(3, 40)):
            alone = on_gpu(True, *(part[some] for part in parts), **options, mass=mass[some])
            assert torch.equal(alone.grouping.kept, first.grouping.kept[some])
            assert torch.equal(alone.grouping.target, first.grouping.target[some])
            assert torch.equal(alone.x, first.x[some])


def test_broken_numbers_stay_in_their_window_of_twins() -> None:
    parts, mass = [part.cuda() for part in draw(4, 100)], masses(4, 100)
    options: dict[str, Any] = {"r": 40, "method": Twins(), "protected": 1, "mass": mass}
    healthy = on_gpu(True, *parts, **options)
    for bad in (float("nan"), float("inf")):
        for part in parts:
            part[2] = bad
        found, plain = on_gpu(True, *parts, **options), on_gpu(False, *parts, **options)
        assert torch.equal(found.x[[0, 1, 3]], healthy.x[[0, 1, 3]])
        assert torch.equal(found.grouping.kept[2], plain.grouping.kept[2])
        assert torch.equal(found.grouping.target[2], plain.grouping.target[2])


def test_a_captured_graph_of_twins_follows_its_input() -> None:
    method = Twins()
    still, mass = [part.cuda() for part in draw(32, 231)], masses(32, 231)
    tokens = Tokens(still[0], 15, *still[1:], 1, 0, mass=mass)
    with torch.inference_mode():
        for _ in range(2):
            method(tokens)  # compile outside of the capture
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            grouping = method(tokens)
        other = [part.narrow(part.dim() - 2, 1, 231).cuda() for part in draw(32, 232)]
        for parts in (other, [part.cuda() for part in draw(32, 231)]):
            for place, part in zip(still, parts, strict=True):
                place.copy_(part)
            graph.replay()
            expected = on_gpu(True, *parts, r=15, method=method, protected=1, mass=mass).grouping
            assert torch.equal(grouping.kept, expected.kept)
            assert torch.equal(grouping.target, expected.target)


def test_compile_and_export_keep_twins_as_two_nodes() -> None:
    torch.manual_seed(0)
    x = torch.randn(8, 100, 64, device="cuda")
    model = zipbrain.compress(TokenEncoder(dim=64, depth=4, heads=4).eval().cuda(), Twins(), ratio=0.8)
    with torch.no_grad():
        expected = model(x)
        program = torch.export.export(model, (x,))
        names = [str(node.target) for node in program.graph.nodes if "zipbrain" in str(node.target)]
        assert names == ["zipbrain.twins.default", "zipbrain.merge.default"] * 4
        compiled = torch.compile(model, fullgraph=True)
        assert torch.allclose(compiled(x), expected, atol=2e-3)
        quick = torch.compile(model, fullgraph=True, mode="reduce-overhead")
        for _ in range(3):
            found = quick(x).clone()
        assert torch.allclose(found, expected, atol=2e-3)


if __name__ == "__main__":
    for label, check in list(globals().items()):
        if label.startswith("test_"):
            check()
            print("ok", label, flush=True)
    sys.exit(0)
