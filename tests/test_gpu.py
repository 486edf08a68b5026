"""On a CUDA device: the same groups as on a CPU, graph capture, no host synchronisation. Skipped where there is none.

Also runs without pytest: ``python tests/test_gpu.py``.
"""

from __future__ import annotations

import copy
import sys

import torch

import zipbrain
from zipbrain.models import TokenEncoder
from zipbrain.pooling import DART, SPACES, EViT, Method, ToFu, ToMe, Twins, ZIPBrain, ablations, pool

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
    "tome": ToMe(), "tofu": ToFu(), "evit": EViT(), "evit mean": EViT("mean"), "evit fused": EViT(fuse=True),
    "dart": DART(), "twins": Twins(), **ablations(seed=1),
}  # fmt: skip


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


if __name__ == "__main__":
    for label, check in list(globals().items()):
        if label.startswith("test_"):
            check()
            print("ok", label, flush=True)
    sys.exit(0)
