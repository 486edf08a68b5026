"""The Triton kernels against the plain operators, without a GPU: Triton's interpreter runs them on a CPU.

The interpreter must be chosen before triton is imported, so one test runs this file again in a process of its own; the
others do nothing outside of it.
"""

from __future__ import annotations

import copy
import dataclasses
import importlib.util
import json
import math
import os
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import zipbrain
from reference import zipbrain as literal
from zipbrain.models import TokenEncoder
from zipbrain.models.blocks import Block
from zipbrain.pooling import SPACES, LargestNorm, Mean, MeanNorm, Pooled, Twins, ZIPBrain, pool
from zipbrain.pooling.kernels import cpu, triton_norm_path, triton_path
from zipbrain.pooling.steps import evenly_spread, pivot_count
from zipbrain.pooling.tokens import Branch, Tokens

INSIDE = os.environ.get("TRITON_INTERPRET") == "1"
MISSING = importlib.util.find_spec("triton") is None
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's, where numbers that are no numbers meet
inside = pytest.mark.skipif(not INSIDE, reason="run by test_the_kernels_agree_under_tritons_interpreter, in a process")

sizes = st.tuples(st.integers(0, 10**6), st.integers(1, 3), st.integers(2, 40), st.floats(0, 1))
ends = st.tuples(st.integers(0, 2), st.integers(0, 3))
zipbrains = st.builds(ZIPBrain, *[st.sampled_from(SPACES)] * 3, st.sampled_from([i / 10 for i in range(11)]))


def pass_under_the_interpreter(file: str, least: int) -> None:
    """Run a file of tests in a process with Triton's interpreter, where at least so many must pass and none fail."""
    command = [sys.executable, "-m", "pytest", file, "-x", "-p", "no:cacheprovider", "-p", "no:xdist"]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    folder = Path(file).parents[2]
    found = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout[-6000:] + found.stderr[-2000:]
    passed = re.search(r"(\d+) passed", found.stdout)
    assert passed is not None
    assert int(passed[1]) >= least


@pytest.mark.skipif(MISSING, reason="triton is not installed: pip install --no-deps triton")
@pytest.mark.skipif(INSIDE, reason="this is the process that it starts")
def test_the_kernels_agree_under_tritons_interpreter() -> None:
    pass_under_the_interpreter(__file__, least=150)


@pytest.mark.skipif(MISSING, reason="triton is not installed: pip install --no-deps triton")
@pytest.mark.skipif(INSIDE, reason="the interpreter compiles nothing")
@pytest.mark.parametrize(
    ("total", "heads", "width", "kinds", "r", "dtype", "kernels"),
    [
        (231, 10, 20, (1, 1, 1), 15, torch.float32, 1),
        (304, 8, 32, (0, 1, 2), 75, torch.float16, 3),
        (513, 8, 64, (2, 0, 0), 300, torch.bfloat16, 4),
        (304, 8, 32, (2, 2, 0), 61, torch.bfloat16, 6),
        (24, 8, 64, (2, 0, 1), 4, torch.float32, 2),
        (231, 10, 20, (2, 2, 2), 19, torch.float32, 5),
        (231, 10, 20, (0, 2, 0), 19, torch.float16, 3),
        (231, 10, 20, (0, 1, 0), 15, torch.float16, 1),
    ],
)
def test_the_kernels_compile_for_a_gpu_without_atomics_and_approximations(
    total: int, heads: int, width: int, kinds: tuple[int, int, int], r: int, dtype: torch.dtype, kernels: int,
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
) -> None:  # fmt: skip
    # The compiler needs no GPU, and refuses much that the interpreter lets pass.
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    from zipbrain.pooling.kernels import triton_merge, triton_merge_launch, triton_select, triton_select_launch

    steps = [(triton_select, name) for name in ("select", "cosine", "closest", "head", "join")]
    started = recorded(monkeypatch, *steps, (triton_merge, "merge"))
    x, q = torch.empty(2, total, heads * width, dtype=dtype), torch.empty(2, heads, total, width, dtype=dtype)
    index = triton_select_launch.group([q if kind else x for kind in kinds], list(kinds), r, 3, 1, 0)
    norm = torch.ones(heads * width, dtype=dtype)
    triton_merge_launch.merge(x, *index, 0, norm=(norm, norm, 1e-6))
    triton_merge_launch.merge(x, *index, 1, torch.ones(2, total))
    assert len(started) == kernels + 2
    if kinds[0] == 0:
        triton_select_launch.group_joined(x, (x, norm), [q if kind else x for kind in kinds], list(kinds), r, 3, 1, 0)
    triton_merge_launch.merge(x, *index, 0, norm=(norm, norm, 1e-6), added=(x, norm))
    triton_merge_launch.merge(x, *index, 0, added=(x, None))
    for kernel, args, options in started:
        compiled(kernel, args, options)


@pytest.mark.skipif(MISSING, reason="triton is not installed: pip install --no-deps triton")
@pytest.mark.skipif(INSIDE, reason="the interpreter compiles nothing")
@pytest.mark.parametrize(
    ("total", "heads", "width", "kinds", "r", "dtype", "kernels"),
    [
        (8193, 10, 20, (0, 1, 0), 546, torch.float16, 10),
        (2049, 10, 20, (2, 2, 2), 137, torch.float32, 10),
        (1025, 8, 64, (2, 0, 0), 300, torch.bfloat16, 10),
        (1025, 8, 256, (0, 0, 0), 300, torch.float32, 9),
    ],
)
def test_the_kernels_for_long_windows_compile_for_a_gpu(
    total: int, heads: int, width: int, kinds: tuple[int, int, int], r: int, dtype: torch.dtype, kernels: int,
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
) -> None:  # fmt: skip
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    from zipbrain.pooling.kernels import triton_long, triton_long_launch, triton_select_launch

    monkeypatch.setattr(triton_long_launch, "_plans", {})
    names = "lengths", "rank", "prototype", "score", "split", "closest", "first"
    started = recorded(monkeypatch, *((triton_long, name) for name in names))
    x, q = torch.empty(2, total, heads * width, dtype=dtype), torch.empty(2, heads, total, width, dtype=dtype)
    triton_select_launch.group([q if kind else x for kind in kinds], list(kinds), r, total // 3, 1, 0)
    assert len(started) == kernels
    for kernel, args, options in started:
        compiled(kernel, args, options)


@pytest.mark.skipif(MISSING, reason="triton is not installed: pip install --no-deps triton")
@pytest.mark.skipif(INSIDE, reason="the interpreter compiles nothing")
@pytest.mark.parametrize(("total", "pivots"), [(231, 3), (231, 169), (120, 3), (50, 3)])  # 169: no choice is left
@pytest.mark.parametrize(
    ("kinds", "r"), [((2, 2, 2), 61), ((2, 1, 2), 61), ((0, 2, 0), 61), ((1, 2, 1), 9), ((2, 1, 1), 9)]
)
def test_programs_that_rank_stay_in_registers(
    kinds: tuple[int, int, int], r: int, total: int, pivots: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # With 16 warps the assembler gave some of them 32 registers, and they took ten times as long; with more threads
    # than tokens the compiler read scores again for every pair.
    r = min(r, total - 10)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    from zipbrain.pooling.kernels import triton_select, triton_select_launch

    steps = [(triton_select, name) for name in ("select", "cosine", "closest", "head")]
    started = recorded(monkeypatch, *steps)
    x, q = torch.empty(2, total, 64), torch.empty(2, 8, total, 8)
    triton_select_launch.group([q if kind else x for kind in kinds], list(kinds), r, pivots, 1, 0)
    for kernel, args, options in started:
        built = compiled(kernel, args, options)
        named = {parameter.name: value for parameter, value in zip(kernel.params, args, strict=True)}
        if named.get("FOUND") or named.get("RANKS"):
            assert built.asm["ptx"].count("ld.global") < 100
        (tmp_path / "kernel.ptx").write_text(built.asm["ptx"])
        command = [ptxas(), "-v", "-arch=sm_90a", str(tmp_path / "kernel.ptx"), "-o", str(tmp_path / "kernel.cubin")]
        told = subprocess.run(command, capture_output=True, text=True, check=True).stderr
        spilled = re.search(r"(\d+) bytes spill stores", told)
        assert spilled is not None
        assert int(spilled[1]) < 1024, told


@pytest.mark.skipif(MISSING, reason="triton is not installed: pip install --no-deps triton")
@pytest.mark.skipif(INSIDE, reason="the interpreter compiles nothing")
@pytest.mark.parametrize(
    ("total", "heads", "width", "r", "dtype", "massed"),
    [
        (231, 10, 20, 15, torch.float16, True),
        (304, 8, 32, 75, torch.float32, True),
        (513, 32, 64, 300, torch.bfloat16, True),
        (24, 8, 64, 4, torch.float32, False),
    ],
)
def test_the_kernels_for_twins_compile_for_a_gpu_and_hold_everything_in_registers(
    total: int, heads: int, width: int, r: int, dtype: torch.dtype, massed: bool, monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:  # fmt: skip
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    from zipbrain.pooling.kernels import triton_twins, triton_twins_launch

    monkeypatch.setattr(triton_twins_launch, "_plans", {})
    started = recorded(monkeypatch, *((triton_twins, name) for name in ("centre", "pairs", "part")))
    x, *qkv = (torch.empty(2, total, heads * width, dtype=dtype), *torch.empty(3, 2, heads, total, width, dtype=dtype))
    triton_twins_launch.group(x, *qkv, torch.ones(2, total) if massed else None, r, 1, 0, 2.0**-16, 2.0**-32)
    assert len(started) == 3
    for kernel, args, options in started:
        built = compiled(kernel, args, options)
        assert "cubin" in built.asm
        (tmp_path / "kernel.ptx").write_text(built.asm["ptx"])
        command = [ptxas(), "-v", "-arch=sm_90a", str(tmp_path / "kernel.ptx"), "-o", str(tmp_path / "kernel.cubin")]
        told = subprocess.run(command, capture_output=True, text=True, check=True).stderr
        assert " 0 bytes spill stores" in told, told


def ptxas() -> str:
    import triton

    return str(triton.knobs.nvidia.ptxas.path)


def recorded(patch: pytest.MonkeyPatch, *kernels: tuple[Any, str]) -> list[tuple[Any, tuple[Any, ...], dict[str, Any]]]:
    """Kernels, arguments and options of the launches to come, which do nothing else."""
    started: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = []

    class Recorder:
        def __init__(self, kernel: Any) -> None:
            self.kernel = kernel

        def __getitem__(self, grid: tuple[int, ...]) -> Any:
            return lambda *args, **options: started.append((self.kernel, args, options))

    for module, name in kernels:
        patch.setattr(module, f"{name}_kernel", Recorder(getattr(module, f"{name}_kernel")))
    return started


def compiled(kernel: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """The kernel for an H100, without atomics and approximations."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    types = {
        torch.float32: "fp32",
        torch.float16: "fp16",
        torch.bfloat16: "bf16",
        torch.int64: "i64",
        torch.int32: "i32",
    }
    signature, constants, aligned = {}, {}, {}
    for place, (parameter, value) in enumerate(zip(kernel.params, args, strict=True)):
        if parameter.is_constexpr or value is None:
            signature[parameter.name], constants[(place,)] = "constexpr", value
        elif isinstance(value, Tensor):
            signature[parameter.name] = f"*{types[value.dtype]}"
            aligned[(place,)] = [["tt.divisibility", 16]]  # as every tensor of torch's allocators
        else:
            signature[parameter.name] = "fp32" if isinstance(value, float) else "i32"
    source = ASTSource(kernel, signature, constants, aligned)
    built = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    assert built.metadata.shared <= 99 * 1024  # what the smallest GPUs since Ampere can give
    assert re.search(r"\b(atom|red)\.|div\.full|sqrt\.approx|rcp\.approx", built.asm["ptx"]) is None
    return built


@pytest.fixture(scope="module", autouse=True)
def interpreter() -> Iterator[None]:
    """In the interpreting process: kernels on, also for CPU tensors."""
    if not INSIDE:
        yield
        return
    from triton.runtime import interpreter as module

    patch = module._patch_lang_tensor

    def repaired(tensor: Any, *scope: Any) -> None:
        # Triton 3.6 calls int() on an array of one element as a bound of a loop, which NumPy refuses since 2.4.
        patch(tensor, *scope)
        scope[0].set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    module._patch_lang_tensor = repaired
    assert triton_path.available()
    before = triton_path.interpret(True)
    from zipbrain.pooling.kernels import triton_long_launch, triton_ready, triton_select_launch, triton_twins_launch

    with pytest.MonkeyPatch.context() as given:
        for launching in (triton_long_launch, triton_ready, triton_select_launch, triton_twins_launch):
            given.setattr(launching, "torch", Unclean())
        yield
    triton_path.interpret(before)
    module._patch_lang_tensor = patch


class Unclean:
    """Torch whose empty memory holds what nobody wrote: a kernel that reads it is found out."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def empty(self, *args: Any, **options: Any) -> Tensor:
        memory = torch.empty(*args, **options)
        return memory.fill_(0x3F9A1234 if memory.dtype == torch.int32 else 7)


def draw(seed: int, batch: int, total: int, dtype: torch.dtype = torch.float32, width: int = 8) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    heads = (torch.randn(batch, 2, total, width // 2, generator=generator).to(dtype) for _ in range(3))
    return torch.randn(batch, total, width, generator=generator).to(dtype), *heads


def on(kernels: bool, *args: Tensor, **options: Any) -> Pooled:
    """`pool` with the kernels, or with plain operators alone."""
    before = triton_path.switch(kernels), cpu.switch(False)
    try:
        return pool(*args, **options)
    finally:
        triton_path.switch(before[0])
        cpu.switch(before[1])


def as_tokens(parts: tuple[Tensor, ...], r: int) -> Tokens:
    return Tokens(parts[0], r, *parts[1:])


def assert_same(found: Pooled, expected: Pooled, rtol: float = 3e-6) -> None:
    for name in ("kept", "source", "target"):
        assert torch.equal(getattr(found.grouping, name), getattr(expected.grouping, name)), name
    assert found.x.dtype == expected.x.dtype
    torch.testing.assert_close(found.x, expected.x, rtol=rtol, atol=rtol, equal_nan=True)


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the steps that went to the kernels."""
    from zipbrain.pooling.kernels import triton_merge_launch, triton_ready, triton_select_launch, triton_twins_launch

    monkeypatch.setattr(triton_norm_path, "_ready", {})
    seen: list[str] = []
    for label, module, name in (
        ("group", triton_select_launch, "group"),
        ("joined", triton_select_launch, "group_joined"),
        ("merge", triton_merge_launch, "merge"),
        ("twins", triton_twins_launch, "group"),
        ("again", triton_ready.Ready, "__call__"),
    ):
        original = getattr(module, name)

        def call(*args: Any, _label: str = label, _original: Any = original, **options: Any) -> Any:
            seen.append(_label)
            return _original(*args, **options)

        monkeypatch.setattr(module, name, call)
    return seen


# -- agreement ---------------------------------------------------------------------------------------------------------


@inside
def test_golden_cases_agree(golden: Path, launches: list[str]) -> None:
    with np.load(golden / "pool_dev.npz") as file:
        cases = sorted({key.split("/")[0] for key in file.files if key.endswith("/meta")})
        metas = {case: json.loads(str(file[f"{case}/meta"])) for case in cases}
        wanted = [case for case in cases if metas[case]["r"]]
        wanted.sort(key=lambda case: metas[case]["N"])
        chosen = [*wanted[:12], *wanted[12::9]]  # all small ones and a few of the sizes of real windows
        assert max(metas[case]["N"] for case in chosen) >= 300
        for case in chosen:
            meta = metas[case]
            x = torch.from_numpy(file[f"{case}/x"])[None].float()
            heads = [torch.from_numpy(file[f"{case}/{n}"]).transpose(0, 1)[None].float() for n in "qkv"]
            method = ZIPBrain(meta["z1"], meta["z2"], meta["z3"], meta["rho"])
            pooled = on(True, x, *heads, r=meta["r"], method=method, protected=meta["protected"])
            for name, found in zip(("kept", "src", "tgt"), (pooled.grouping.kept, pooled.grouping.source,
                                                            pooled.grouping.target), strict=True):  # fmt: skip
                assert found[0].tolist() == file[f"{case}/{name}"].tolist(), (case, name)
            expected = torch.from_numpy(file[f"{case}/out"])
            assert (pooled.x[0] - expected).abs().max() <= 1e-5 * expected.abs().max(), case
    assert launches == ["group", "merge"] * len(chosen)


@inside
@pytest.mark.parametrize("shift", range(len(SPACES)))
def test_every_space_in_every_place_agrees_with_the_literal_algorithm(shift: int) -> None:
    x, q, k, v = draw(3, 2, 21)
    turned = SPACES[shift:] + SPACES[:shift]
    for spaces in (turned[:3], turned[:5:2]):
        found = on(True, x, q, k, v, r=7, method=ZIPBrain(*spaces, 0.4), protected=(1, 2))
        for b in range(2):
            heads = {name: part[b].double().numpy() for name, part in zip("qkv", (q, k, v), strict=True)}
            wanted = literal(x[b].double().numpy(), heads, 7, spaces, "0.4", 1, 2)
            assert found.grouping.kept[b].tolist() == wanted.kept
            assert found.grouping.source[b].tolist() == wanted.source
            assert found.grouping.target[b].tolist() == wanted.target
            np.testing.assert_allclose(found.x[b].numpy(), wanted.out, rtol=1e-5, atol=1e-6)


@inside
@given(size=sizes, ends=ends, method=zipbrains)
@settings(max_examples=20)
def test_any_setting_agrees_with_the_plain_operators(
    size: tuple[int, int, int, float], ends: tuple[int, int], method: ZIPBrain
) -> None:
    seed, batch, n, share = size
    parts = draw(seed, batch, n + sum(ends))
    r = max(1, min(n - 1, int(share * n)))
    options: dict[str, Any] = {"r": r, "method": method, "protected": ends}
    assert_same(on(True, *parts, **options), on(False, *parts, **options))


@inside
@pytest.mark.parametrize("rho", [0.0, 1.0])
@pytest.mark.parametrize("r", [1, 23])
def test_the_ends_of_rho_and_r_agree(rho: float, r: int, launches: list[str]) -> None:
    parts = draw(1, 2, 25)
    options: dict[str, Any] = {"r": r, "method": ZIPBrain("x", "vh", "k", rho), "protected": 1}  # r = N - 1 = 23
    assert_same(on(True, *parts, **options), on(False, *parts, **options))
    assert launches == ["group", "merge"]


@inside
@pytest.mark.parametrize(("total", "r"), [(34, 20), (66, 33), (129, 65), (257, 17), (258, 130)])
@pytest.mark.parametrize("spaces", [("kh", "vh", "qh"), ("x", "vh", "x"), ("kh", "q", "v")])
def test_sizes_at_which_other_kernels_are_started_agree(
    spaces: tuple[str, str, str], total: int, r: int, launches: list[str]
) -> None:
    # One token is protected: 33, 65, 128, 256 and 257 are ranked, by heads of their own or by the program of a window.
    parts = draw(total, 2, total)
    found, expected = (on(k, *parts, method=ZIPBrain(*spaces, 0.3), r=r, protected=(1, 0)) for k in (True, False))
    assert_same(found, expected)
    assert launches == ["group", "merge"]


@inside
def test_widths_that_take_several_chunks_and_more_sources_than_a_block_agree(launches: list[str]) -> None:
    for width, total, r in ((200, 40, 30), (26, 300, 40), (10, 140, 139)):
        parts = draw(width, 1, total, width=width)
        for spaces in (("x", "x", "x"), ("kh", "q", "vh"), ("v", "x", "k")):
            method = ZIPBrain(*spaces, 0.3)
            # Where most of a long sum cancels, its last digits are noise.
            assert_same(on(True, *parts, r=r, method=method), on(False, *parts, r=r, method=method), rtol=3e-5)
    assert launches == ["group", "merge"] * 9


@inside
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_read_exactly_and_computed_in_float32(dtype: torch.dtype, launches: list[str]) -> None:
    parts = draw(4, 2, 30, dtype)
    for spaces in (("x", "v", "x"), ("k", "kh", "k")):
        method = ZIPBrain(*spaces, 0.4)
        found = on(True, *parts, r=9, method=method, protected=1)
        exact = on(False, *(part.double() for part in parts), r=9, method=method, protected=1)
        assert found.x.dtype == dtype
        assert torch.equal(found.grouping.target, exact.grouping.target)
        assert torch.equal(found.grouping.kept, exact.grouping.kept)
        torch.testing.assert_close(found.x, exact.x.to(dtype), rtol=2e-2 if dtype == torch.bfloat16 else 2e-3, atol=0)
    mixed = (parts[0].float(), *parts[1:])  # as under autocast: a float32 stream beside half-precision heads
    method = ZIPBrain("x", "v", "kh", 0.5)
    assert_same(on(True, *mixed, r=9, method=method), on(False, *mixed, r=9, method=method))
    assert launches == ["group", "merge"] * 3


# -- ties, zeros, broken numbers ---------------------------------------------------------------------------------------


@inside
@given(seed=st.integers(0, 10**6), method=zipbrains, copies=st.integers(2, 8), zeros=st.integers(0, 3))
@settings(max_examples=10)
def test_identical_and_zero_tokens_are_grouped_as_by_the_plain_operators(
    seed: int, method: ZIPBrain, copies: int, zeros: int
) -> None:
    parts = draw(seed, 2, 24)
    order = torch.randperm(24, generator=torch.manual_seed(seed))
    twins, dead = order[:copies].sort().values, order[copies : copies + zeros]
    for part in parts:
        part[..., twins, :] = part[..., twins[:1], :].clone()
        part[..., dead, :] = 0
    options: dict[str, Any] = {"r": 10, "method": method, "protected": 1}
    assert_same(on(True, *parts, **options), on(False, *parts, **options))


@inside
@pytest.mark.parametrize(("gap", "partner"), [(6e-7, 0), (3e-6, 1)])
def test_a_match_is_the_first_within_the_resolution_of_the_best(gap: float, partner: int) -> None:
    x = torch.tensor([[[3.0, 0.0], [2.0, 0.0], [1.0, 0.0]]])  # the two longest are pivots, the last one goes
    angle = math.sqrt(2 * gap)
    k = torch.tensor(
        [[[[math.cos(angle), math.sin(angle)], [1.0, 0.0], [1.0, 0.0]]]]
    )  # cosines with the last: 1 - gap, 1
    for kernels in (True, False):
        grouping = on(kernels, x, k=k, r=1, method=ZIPBrain("x", "x", "k", 1.0)).grouping
        assert grouping.target.tolist() == [[partner]]


@inside
@pytest.mark.parametrize("value", [0.0, 1.0, 1e-30])
def test_tokens_that_are_all_equal_go_by_their_index(value: float) -> None:
    x, heads = torch.full((1, 9, 8), value), [torch.full((1, 2, 9, 4), value)] * 3
    for method in (ZIPBrain("x", "x", "x", 0.0), ZIPBrain("kh", "k", "vh", 0.6)):
        found = on(True, x, *heads, r=4, method=method)
        assert_same(found, on(False, x, *heads, r=4, method=method))
        assert found.grouping.kept.tolist() == [[0, *range(5, 9)]] if method.rho == 0 else [[0, 1, 2, 7, 8]]


@inside
def test_a_group_whose_sum_vanishes_takes_its_kept_tokens_direction() -> None:
    x = torch.stack((torch.ones(8), torch.full((8,), 3.0), torch.full((8,), -4.0)))[None]
    found = on(True, x, r=2, method=ZIPBrain("x", "x", "x", 0.0))  # the longest stays: -4, and the sum is zero
    torch.testing.assert_close(found.x[0, 0], torch.full((8,), -4.0))


@inside
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("everywhere", [False, True])
def test_nan_and_infinity_come_out_and_stay_in_their_window(bad: float, everywhere: bool) -> None:
    for spaces in (("x", "q", "k"), ("kh", "vh", "x")):
        parts = draw(5, 3, 12)
        healthy = on(True, *(part[[0, 2]] for part in parts), r=4, method=ZIPBrain(*spaces, 0.5), protected=1)
        for part in parts:
            part[1, ..., slice(0, None) if everywhere else 4, :] = bad
        found = on(True, *parts, r=4, method=ZIPBrain(*spaces, 0.5), protected=1)
        assert torch.equal(found.x[[0, 2]], healthy.x)
        assert torch.equal(found.grouping.target[[0, 2]], healthy.grouping.target)
        assert not found.x[1].isfinite().all()
        plain = on(False, *parts, r=4, method=ZIPBrain(*spaces, 0.5), protected=1).grouping
        grouping = found.grouping
        assert torch.equal(grouping.source, plain.source)
        assert torch.equal(grouping.target, plain.target)
        assert sorted(grouping.kept[1].tolist() + grouping.source[1].tolist()) == list(range(12))
        assert set(grouping.target[1].tolist()) <= set(grouping.kept[1].tolist()) - {0}


# -- layouts, masks, limits --------------------------------------------------------------------------------------------


@inside
def test_strided_and_expanded_tensors_are_read_where_they_lie() -> None:
    x, q, k, v = draw(7, 3, 22)
    method = ZIPBrain("x", "vh", "k", 0.4)
    expected = on(True, x, q, k, v, r=6, method=method)
    for change in (
        lambda part: part.transpose(0, 1).contiguous().transpose(0, 1),  # tokens or heads first in memory
        lambda part: part.transpose(-1, -2).contiguous().transpose(-1, -2),  # features last but one
        lambda part: torch.cat((part, part), dim=-1)[..., : part.shape[-1]],  # rows with a gap
    ):
        assert_same(on(True, *map(change, (x, q, k, v)), r=6, method=method), expected, rtol=0)
    one = [part[:1] for part in (x, q, k, v)]
    wide = on(True, *(part.expand(4, *part.shape[1:]) for part in one), r=6, method=method)
    assert torch.equal(wide.grouping.target, expected.grouping.target[:1].expand(4, -1))
    assert torch.equal(wide.x, expected.x[:1].expand(4, -1, -1))


@inside
def test_a_window_alone_gets_the_same_bits_as_in_a_batch() -> None:
    parts = draw(8, 5, 33)
    method = ZIPBrain("kh", "v", "x", 0.4)
    whole = on(True, *parts, r=11, method=method)
    for b in (0, 4):
        alone = on(True, *(part[b : b + 1] for part in parts), r=11, method=method)
        assert torch.equal(alone.x[0], whole.x[b])
        assert torch.equal(alone.grouping.target[0], whole.grouping.target[b])
    nothing = on(True, *(part[:0] for part in parts), r=11, method=method)
    assert nothing.x.shape == (0, 22, 8)


@inside
def test_masks_anywhere_agree() -> None:
    parts = draw(9, 3, 20)
    mask = torch.zeros(3, 20, dtype=torch.bool)
    for b in range(3):
        mask[b, torch.randperm(20, generator=torch.manual_seed(b))[:6]] = True
    options: dict[str, Any] = {"r": 6, "method": ZIPBrain("x", "qh", "v", 0.4), "protected": mask}
    assert_same(on(True, *parts, **options), on(False, *parts, **options))


@inside
def test_what_the_kernels_cannot_take_goes_to_the_plain_operators(launches: list[str]) -> None:
    method = ZIPBrain("x", "x", "x", 0.5)
    parts = draw(1, 1, 12)
    wide = tuple(part.double() for part in parts)
    assert on(True, *wide, r=3, method=method).x.dtype == torch.float64
    many = torch.randn(1, triton_path.LONGEST + 1, 2)
    assert on(True, many, r=3, method=method).x.shape == (1, triton_path.LONGEST - 2, 2)
    assert on(False, *parts, r=3, method=method).x.shape == (1, 9, 8)
    assert launches == ["merge"]  # of the many: who goes where was decided by plain operators
    assert triton_path.usable(as_tokens(parts, 3), ("x", "q", "vh"))
    for tokens in (Tokens(parts[0], 3), as_tokens(parts, 0), as_tokens(parts, 12)):  # no q; nothing, or all, to go
        assert not triton_path.usable(tokens, ("x", "q", "x"))
    window = torch.empty_strided((1, 12, 8), (0, 2**28, 1), device="meta")  # tokens too far apart in memory
    assert not triton_path.usable(Tokens(window, 3), ("x", "x", "x"))


@inside
def test_most_tokens_are_held(launches: list[str]) -> None:
    x = torch.randn(1, triton_path.MOST_TOKENS + 1, 4, generator=torch.manual_seed(0), dtype=torch.float64)
    x = (x * 64).round() / 64
    options: dict[str, Any] = {"r": 20, "method": ZIPBrain("x", "x", "x", 0.2), "protected": 1}
    assert_same(on(True, x.float(), **options), on(False, x.float(), **options))
    assert launches == ["group", "merge"]


# -- Twins -------------------------------------------------------------------------------------------------------------


def masses(seed: int, batch: int, total: int) -> Tensor:
    return torch.randint(1, 6, (batch, total), generator=torch.Generator().manual_seed(seed)).float()


@inside
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    ("batch", "total", "width", "r", "ends"),
    [
        (2, 3, 2, 1, (0, 0)),
        (3, 24, 8, 5, (1, 2)),
        (2, 65, 70, 40, (0, 1)),  # two tiles, two chunks, several blocks of sources
        (1, 150, 20, 149, (0, 0)),  # all but one; keys compared in a loop
        (1, 300, 36, 60, (1, 0)),
    ],
)
def test_twins_agree_with_the_plain_operators(
    batch: int, total: int, width: int, r: int, ends: tuple[int, int], dtype: torch.dtype, launches: list[str]
) -> None:
    parts = draw(total, batch, total, dtype, width)
    rtol = {torch.float32: 3e-6, torch.float16: 2e-3, torch.bfloat16: 2e-2}[dtype]
    for mass in (None, masses(total, batch, total)):
        options: dict[str, Any] = {"r": r, "method": Twins(), "protected": ends, "mass": mass}
        found, expected = on(True, *parts, **options), on(False, *parts, **options)
        assert_same(found, expected, rtol)
        assert mass is None or torch.equal(found.mass, expected.mass)
    assert launches == ["twins", "merge", "twins", "merge"]


@inside
@given(size=sizes, ends=ends, massed=st.booleans())
@settings(max_examples=20)
def test_twins_of_any_size_agree(size: tuple[int, int, int, float], ends: tuple[int, int], massed: bool) -> None:
    seed, batch, n, share = size
    total = n + sum(ends)
    options: dict[str, Any] = {"r": max(1, min(n - 1, int(share * n))), "method": Twins(), "protected": ends}
    options["mass"] = masses(seed, batch, total) if massed else None
    parts = draw(seed, batch, total)
    assert_same(on(True, *parts, **options), on(False, *parts, **options))


@inside
def test_twins_at_the_most_tokens_agree(launches: list[str]) -> None:
    total = triton_path.MOST_TOKENS + 1
    parts = draw(0, 1, total, width=4)
    options: dict[str, Any] = {"r": 30, "method": Twins(), "protected": 1, "mass": masses(0, 1, total)}
    assert_same(on(True, *parts, **options), on(False, *parts, **options))
    assert launches == ["twins", "merge"]


@inside
@given(seed=st.integers(0, 10**6), copies=st.integers(2, 8), zeros=st.integers(0, 3), massed=st.booleans())
@settings(max_examples=10)
def test_copies_and_zero_tokens_are_twins_as_for_the_plain_operators(
    seed: int, copies: int, zeros: int, massed: bool
) -> None:
    parts = draw(seed, 2, 24)
    order = torch.randperm(24, generator=torch.manual_seed(seed))
    twins, dead = order[:copies].sort().values, order[copies : copies + zeros]
    for part in parts:
        part[..., twins, :] = part[..., twins[:1], :].clone()
        part[..., dead, :] = 0
    options: dict[str, Any] = {"r": 10, "method": Twins(), "protected": 1}
    options["mass"] = masses(seed, 2, 24) if massed else None
    assert_same(on(True, *parts, **options), on(False, *parts, **options))


@inside
@pytest.mark.parametrize("value", [0.0, 1.0, 1e-30, 1e15])
def test_twins_that_are_all_equal_agree(value: float) -> None:
    x, heads = torch.full((1, 9, 8), value), [torch.full((1, 2, 9, 4), value)] * 3
    assert_same(on(True, x, *heads, r=4, method=Twins()), on(False, x, *heads, r=4, method=Twins()))


@inside
@pytest.mark.parametrize(("value", "noise"), [(3.7, 0.0), (1e4, 1e-3), (0.0, 1e-25), (0.0, 1e25)])
@pytest.mark.parametrize("place", range(4))
def test_a_flat_a_tiny_and_a_huge_space_count_as_for_the_plain_operators(
    place: int, value: float, noise: float
) -> None:
    parts = list(draw(place, 2, 30))
    parts[place] = value + noise * parts[place]
    options: dict[str, Any] = {"r": 9, "method": Twins(), "mass": masses(place, 2, 30)}
    found, expected = on(True, *parts, **options).grouping, on(False, *parts, **options).grouping
    assert torch.equal(found.kept, expected.kept)
    assert torch.equal(found.target, expected.target)


@inside
@pytest.mark.parametrize(("gap", "partner"), [(6e-7, 0), (3e-6, 1)])
def test_a_twin_is_the_first_within_the_resolution_of_the_cheapest(gap: float, partner: int) -> None:
    # Two heavy tokens and a light one between them, a little closer to the second: sum and spread stay as they are.
    x = torch.tensor([[[-1.0], [1.0], [gap]]])
    flat = torch.zeros(1, 1, 3, 1)
    mass = torch.tensor([[3.0, 3.0, 1.0]])
    scale = 0.5 / math.sqrt(2 / 3)
    between = 0.75 * scale**2 * ((1 + gap) ** 2 - (1 - gap) ** 2)
    assert (between > 2.0**-20) == (partner == 1)
    for kernels in (True, False):
        assert on(kernels, x, flat, flat, flat, r=1, method=Twins(), mass=mass).grouping.target.tolist() == [[partner]]


@inside
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 3e38])
@pytest.mark.parametrize("everywhere", [False, True])
@pytest.mark.parametrize(("total", "massed"), [(20, False), (20, True), (70, True)])
def test_broken_numbers_stay_in_their_window_of_twins(bad: float, everywhere: bool, total: int, massed: bool) -> None:
    for place in range(4) if total == 20 else (1,):
        parts = draw(5, 3, total)
        mass = masses(0, 3, total) if massed else None
        options: dict[str, Any] = {"r": total // 2, "method": Twins(), "protected": 1}
        rest = None if mass is None else mass[[0, 2]]
        healthy = on(True, *(part[[0, 2]] for part in parts), **options, mass=rest).grouping
        parts[place][1, ..., slice(0, None) if everywhere else 4, :] = bad
        found = on(True, *parts, **options, mass=mass).grouping
        plain = on(False, *parts, **options, mass=mass).grouping
        assert torch.equal(found.target[[0, 2]], healthy.target)
        assert torch.equal(found.kept, plain.kept)
        assert torch.equal(found.source, plain.source)
        assert torch.equal(found.target, plain.target)


@inside
def test_twins_are_read_where_they_lie_and_get_the_same_bits_in_any_batch() -> None:
    parts, mass = draw(7, 4, 40), masses(7, 4, 40)
    options: dict[str, Any] = {"r": 21, "method": Twins(), "protected": (2, 1)}
    whole = on(True, *parts, **options, mass=mass)
    for change in (
        lambda part: part.transpose(0, 1).contiguous().transpose(0, 1),
        lambda part: part.transpose(-1, -2).contiguous().transpose(-1, -2),
        lambda part: torch.cat((part, part), dim=-1)[..., : part.shape[-1]],
    ):
        assert_same(on(True, *map(change, parts), **options, mass=change(mass)), whole, rtol=0)
    for some in (slice(0, 1), slice(3, 4), slice(1, 3)):
        alone = on(True, *(part[some] for part in parts), **options, mass=mass[some])
        assert torch.equal(alone.x, whole.x[some])
        assert torch.equal(alone.grouping.target, whole.grouping.target[some])
    spread = [part[:1].expand(3, *part.shape[1:]) for part in parts]
    wide = on(True, *spread, **options, mass=mass[:1].expand(3, -1))
    assert torch.equal(wide.grouping.target, whole.grouping.target[:1].expand(3, -1))
    nothing = on(True, *(part[:0] for part in parts), **options, mass=mass[:0])
    assert nothing.x.shape == (0, 19, 8)


@inside
def test_twins_with_protected_tokens_anywhere_and_half_masses_agree(launches: list[str]) -> None:
    parts = draw(9, 3, 20)
    mask = torch.zeros(3, 20, dtype=torch.bool)
    for b in range(3):
        mask[b, torch.randperm(20, generator=torch.manual_seed(b))[:6]] = True
    options: dict[str, Any] = {"r": 6, "method": Twins(), "protected": mask, "mass": masses(9, 3, 20).half()}
    assert_same(on(True, *parts, **options), on(False, *parts, **options))
    assert launches == ["twins"]  # the merge kernel wants float32 masses


@inside
def test_what_the_kernels_for_twins_cannot_take_goes_to_the_plain_operators(launches: list[str]) -> None:
    parts = draw(1, 1, 12)
    tokens = Tokens(parts[0], 3, *parts[1:])
    assert triton_path.usable_by_twins(tokens)
    assert not triton_path.usable_by_twins(dataclasses.replace(tokens, mass=torch.ones(1, 12).double()))
    assert not triton_path.usable_by_twins(dataclasses.replace(tokens, q=None))
    assert on(True, *(part.double() for part in parts), r=3, method=Twins()).x.dtype == torch.float64
    many = [torch.randn(1, triton_path.MOST_TOKENS + 1, 2), *[torch.randn(1, 1, triton_path.MOST_TOKENS + 1, 2)] * 3]
    assert on(True, *many, r=3, method=Twins()).x.shape == (1, triton_path.MOST_TOKENS - 2, 2)
    crowd = [parts[0], *[torch.randn(1, 33, 12, 2)] * 3]
    assert on(True, *crowd, r=3, method=Twins()).x.shape == (1, 9, 8)
    assert launches == ["merge", "merge"]


@inside
def test_a_captured_graph_of_twins_has_two_nodes_per_pooling_and_gives_the_same() -> None:
    torch.manual_seed(0)
    model = zipbrain.compress(TokenEncoder(dim=16, depth=2, heads=2).eval(), Twins(), ratio=0.6)
    x = torch.randn(2, 20, 16)
    before = triton_path.switch(False)
    try:
        plain = model(x).detach()
    finally:
        triton_path.switch(before)
    with torch.no_grad():
        torch.testing.assert_close(model(x), plain, rtol=1e-5, atol=1e-5)
        graph = torch.compile(model, fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(graph(x), plain, rtol=1e-5, atol=1e-5)
        program = torch.export.export(model, (x,))
    names = [str(node.target) for node in program.graph.nodes if "zipbrain" in str(node.target)]
    assert names == ["zipbrain.twins.default", "zipbrain.merge.default"] * 2
    torch.testing.assert_close(program.module()(x), plain, rtol=1e-5, atol=1e-5)


# -- merging with mass, and with the next norm -------------------------------------------------------------------------


@inside
@pytest.mark.parametrize(("mode", "rule"), [(0, LargestNorm()), (1, MeanNorm()), (2, Mean())])
def test_merging_agrees_with_the_rules_with_and_without_mass(mode: int, rule: Any) -> None:
    from zipbrain.pooling.kernels import triton_merge_launch

    parts = draw(2, 2, 26)
    grouping = on(False, *parts, r=15, method=ZIPBrain("x", "q", "x", 0.3), protected=(1, 1)).grouping
    mass = torch.randint(1, 6, (2, 26), generator=torch.manual_seed(1)).float()
    index = grouping.kept, grouping.source, grouping.target
    for weight in (None, mass):
        merged, masses, _ = triton_merge_launch.merge(parts[0], *index, mode, weight)
        torch.testing.assert_close(merged, rule(parts[0], grouping, weight), rtol=3e-6, atol=1e-6)
        if masses is not None:
            assert torch.equal(masses, grouping.merge(mass, "sum"))


@inside
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_the_fused_norm_equals_a_norm_behind_the_merge(dtype: torch.dtype) -> None:
    from zipbrain.pooling.kernels import triton_merge_launch

    parts = draw(6, 2, 26, dtype, width=20)
    pooled = on(True, *parts, r=9, method=ZIPBrain())
    weight, bias = torch.randn(20).to(dtype), torch.randn(20).to(dtype)
    index = pooled.grouping.kept, pooled.grouping.source, pooled.grouping.target
    merged, _, normed = triton_merge_launch.merge(parts[0], *index, 0, norm=(weight, bias, 1e-6))
    assert torch.equal(merged, pooled.x)
    bound = 1e-5 if dtype == torch.float32 else 4e-3
    torch.testing.assert_close(normed, F.layer_norm(merged, (20,), weight, bias, 1e-6), rtol=bound, atol=bound)


# -- graphs and gradients ----------------------------------------------------------------------------------------------


@inside
@pytest.mark.parametrize("name", ["group", "pool", "pool_norm", "merge", "twins"])
def test_the_operators_describe_themselves_correctly(name: str) -> None:
    from zipbrain.pooling.kernels import triton_ops

    x, q, k, v = draw(0, 2, 14)
    arguments: tuple[Any, ...] = (x, q, k, [0, 1, 2], 4, 3, 1, 0)
    if name == "merge":
        grouping = on(False, x, q, k, v, r=4, method=ZIPBrain()).grouping
        arguments = (x, torch.ones(2, 14), grouping.kept, grouping.source, grouping.target, 1)
    elif name == "twins":
        order = evenly_spread(13, x.device, torch.float32)
        arguments = (x, q, k, v, torch.ones(2, 14), order, 4, 1, 0, 2.0**-16, 2.0**-32)
    elif name != "group":
        arguments = (x, *arguments)
    if name == "pool_norm":
        arguments += (torch.ones(8), torch.zeros(8), 1e-5)
    utilities = ("test_schema", "test_faketensor")
    torch.library.opcheck(getattr(triton_ops, name), arguments, test_utils=utilities)


@inside
def test_a_captured_graph_has_one_node_per_pooling_and_gives_the_same() -> None:
    torch.manual_seed(0)
    model = zipbrain.compress(TokenEncoder(dim=16, depth=2, heads=2).eval(), ZIPBrain("x", "v", "kh", 0.4), ratio=0.6)
    x = torch.randn(2, 20, 16)
    before = triton_path.switch(False)
    try:
        plain = model(x).detach()
    finally:
        triton_path.switch(before)
    with torch.no_grad():
        torch.testing.assert_close(model(x), plain, rtol=1e-5, atol=1e-5)
        compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(compiled(x), plain, rtol=1e-5, atol=1e-5)
        program = torch.export.export(model, (x,))
    names = [str(node.target) for node in program.graph.nodes if "zipbrain" in str(node.target)]
    assert names == ["zipbrain.pool_norm.default"] * 2
    torch.testing.assert_close(program.module()(x), plain, rtol=1e-5, atol=1e-5)


@inside
def test_the_norm_behind_the_merge_is_applied_by_the_kernel_where_that_changes_nothing() -> None:
    torch.manual_seed(0)
    base = TokenEncoder(dim=16, depth=2, heads=2).eval()
    torch.nn.init.normal_(base.blocks[0].norm2.weight)
    torch.nn.init.normal_(base.blocks[0].norm2.bias)
    x = torch.randn(2, 20, 16)

    def answer(kernels: bool) -> Tensor:
        before = triton_path.switch(kernels)
        try:
            with torch.no_grad():
                told: Tensor = zipbrain.compress(copy.deepcopy(base), ZIPBrain("x", "v", "kh", 0.4), ratio=0.6)(x)
                return told
        finally:
            triton_path.switch(before)

    torch.testing.assert_close(answer(True), answer(False), rtol=1e-5, atol=1e-5)
    heard: list[int] = []
    for block in base.blocks:  # a hook on the norm must be called
        block.norm2.register_forward_hook(lambda module, given, told: heard.append(told.shape[1]))
    torch.testing.assert_close(answer(True), answer(False), rtol=1e-5, atol=1e-5)
    assert len(heard) >= 4


@inside
@pytest.mark.parametrize("method", ["zipbrain", "tome", "tofu", "twins"])
def test_mass_is_merged_by_the_kernel(method: str, launches: list[str]) -> None:
    torch.manual_seed(0)
    base = TokenEncoder(dim=16, depth=3, heads=2).eval()
    x = torch.randn(2, 24, 16)
    found = []
    for kernels in (True, False):
        before = triton_path.switch(kernels)
        try:
            with torch.no_grad():
                found.append(zipbrain.compress(copy.deepcopy(base), method, ratio=0.6, mass=True)(x))
        finally:
            triton_path.switch(before)
    assert "merge" in launches
    assert ("twins" in launches) == (method == "twins")
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-5)


@inside
def test_more_tokens_than_a_program_groups_are_merged_by_the_kernel_all_the_same() -> None:
    from zipbrain.pooling.kernels import triton_merge_launch

    x = torch.randn(1, triton_path.MOST_TOKENS + 140, 8, generator=torch.Generator().manual_seed(0))
    grouping = pool(x, r=300, method=ZIPBrain("x", "x", "x", 0.4), protected=1).grouping
    merged, _, normed = triton_merge_launch.merge(
        x, grouping.kept, grouping.source, grouping.target, 0, norm=(torch.ones(8), torch.zeros(8), 1e-6)
    )
    torch.testing.assert_close(merged, LargestNorm()(x, grouping), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(normed, F.layer_norm(merged, (8,), eps=1e-6), rtol=1e-5, atol=1e-5)


# -- long windows ------------------------------------------------------------------------------------------------------


@inside
@pytest.mark.parametrize("case", range(14))
def test_long_windows_are_grouped_as_by_the_plain_operators(case: int) -> None:
    from zipbrain.pooling.kernels import triton_long_launch

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
    expected = on(False, x, q, k, v, r=r, method=method, protected=ends).grouping
    values, kinds = triton_path.read(tokens, spaces)
    pivots = pivot_count(n, r, method.parts.split.share)  # type: ignore[attr-defined]
    found = triton_long_launch.group(values, kinds, r, pivots, *ends)
    healthy = slice(int(case % 5 == 1), None)
    for name, one in zip(("kept", "source", "target"), found, strict=True):
        assert torch.equal(one[healthy], getattr(expected, name)[healthy]), (name, n, r, spaces, method, dtype)
    everyone = torch.cat(found[:2], dim=1).sort(dim=1).values
    assert torch.equal(everyone, torch.arange(x.shape[1]).expand(2, -1))  # NaN or not: nobody is lost
    assert (found[0].unsqueeze(1) == found[2].unsqueeze(2)).any(2).all()


@inside
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_long_windows_of_wide_rows_agree(dtype: torch.dtype) -> None:
    from zipbrain.pooling.kernels import triton_long_launch

    x = torch.randn(2, 70, 300, generator=torch.Generator().manual_seed(0)).to(dtype)
    expected = on(False, x, r=9, method=ZIPBrain("x", "x", "x", 0.4)).grouping
    found = triton_long_launch.group([x, x, x], [0, 0, 0], 9, pivot_count(70, 9, Fraction(2, 5)), 0, 0)
    for name, one in zip(("kept", "source", "target"), found, strict=True):
        assert torch.equal(one, getattr(expected, name)), name


@inside
def test_a_window_of_two_chunks_agrees_and_gets_the_same_bits_alone(launches: list[str]) -> None:
    parts = draw(4, 2, 1061)
    options: dict[str, Any] = {"r": 300, "method": ZIPBrain("x", "v", "kh", 0.4), "protected": 1}
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
    x = torch.randn(1, triton_path.MOST_TOKENS + 20, 8)
    with torch.no_grad():
        found = model(x)
        assert launches == ["group", "merge"] * 2
        with torch.autocast("cpu", torch.bfloat16):
            coarse = model(x)
        assert launches == ["group", "merge"] * 4
        before = triton_path.switch(False)
        try:
            torch.testing.assert_close(found, model(x), rtol=1e-5, atol=1e-5)
            torch.testing.assert_close(coarse.float(), found, rtol=0.05, atol=0.05)
        finally:
            triton_path.switch(before)


# -- a branch that is added in passing ---------------------------------------------------------------------------------


def whole_numbers(seed: int, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Values whose sums and products are exact in all types."""
    return torch.randint(-8, 9, shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@inside
@pytest.mark.parametrize(
    "spaces",
    [
        ("x", "v", "x"),
        ("k", "k", "k"),
        ("kh", "x", "x"),
        ("v", "q", "x"),
        ("x", "x", "x"),
        ("x", "kh", "x"),
        ("x", "vh", "q"),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_branch_is_added_in_passing_to_the_same_bits(
    spaces: tuple[str, str, str], dtype: torch.dtype, launches: list[str]
) -> None:
    norm = torch.nn.LayerNorm(24).to(dtype)
    torch.nn.init.normal_(norm.weight)
    for number, (r, scaled, ends) in enumerate([(5, True, (1, 0)), (36, True, (2, 3)), (7, False, (0, 0))]):
        x, values = whole_numbers(number, 2, 50, 24, dtype=dtype), whole_numbers(number + 9, 2, 50, 24, dtype=dtype)
        heads = [whole_numbers(number + place, 2, 3, 50, 8, dtype=dtype) for place in (20, 30, 40)]
        scale = 0.5 * whole_numbers(number + 50, 24, dtype=dtype) if scaled else None
        branch = Branch(values, scale)
        apart, joined = (Tokens(one, r, *heads, *ends) for one in (x, branch.added_to(x)))
        method = ZIPBrain(*spaces, 0.3)
        with torch.no_grad():
            expected = method.fused_norm(joined, norm)
            assert expected is not None
            launches.clear()
            found = method.fused_norm(apart, norm, None, branch)
            again = method.fused_norm(apart, norm, None, branch)
            if "x" in spaces and spaces[0] != "x":  # then it is added before, and that is what was remembered
                assert launches == ["again", "again"]
            else:
                assert launches == ["joined" if spaces[0] == "x" else "group", "merge", "again"]
            others = [found, again]
            if method.ignores_x:
                others.append(method.fused_norm(apart, norm, method.early(apart), branch))
        for other in others:
            assert other is not None
            assert all(torch.equal(a, b) for a, b in zip(other, expected, strict=True))


@inside
def test_a_branch_that_the_kernels_cannot_add_is_added_before(launches: list[str]) -> None:
    x, values = whole_numbers(0, 2, 40, 8), whole_numbers(1, 2, 40, 8)
    scale = whole_numbers(2, 8)
    norm = torch.nn.LayerNorm(8)
    method = ZIPBrain("x", "x", "x", 0.1)
    with torch.no_grad():  # what is remembered of branches that fit must not be used for others
        for branch in (Branch(values, scale), Branch(values, None)):
            assert method.fused_norm(Tokens(x, 5), norm, None, branch) is not None
        for stream, branch in [
            (x, Branch(values.transpose(1, 2).contiguous().transpose(1, 2), scale)),
            (x, Branch(values, scale.expand(2, 40, 8))),
            (x, Branch(values, scale[:1])),
            (x, Branch(values, torch.stack((scale, scale), 1)[:, 0])),
            (x.transpose(1, 2).contiguous().transpose(1, 2), Branch(values, scale)),
            (x, Branch(values[:1], None)),
        ]:
            expected = method.fused_norm(Tokens(branch.added_to(stream), 5), norm)
            launches.clear()
            found = method.fused_norm(Tokens(stream, 5), norm, None, branch)
            assert launches == ["group", "merge"]
            assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
        assert method.fused_norm(Tokens(x, 5), norm, None, Branch(values.double(), None)) is None


@inside
@pytest.mark.parametrize("mass", [False, True])
def test_what_is_done_to_the_norm_counts_and_transforms_run(mass: bool) -> None:
    torch.manual_seed(0)
    base = torch.nn.Sequential(*(Block(24, 3, layer_scale=0.5) for _ in range(2))).eval().requires_grad_(False)
    model = zipbrain.compress(base, ZIPBrain("x", "v", "x", 0.4), r=5, mass=mass)
    x = torch.randn(2, 40, 24)

    def plainly(call: Any) -> Any:
        before = triton_path.switch(False)
        try:
            return call()
        finally:
            triton_path.switch(before)

    gammas = torch.randn(3, 24)
    for name in ("0.gamma_1", "0.norm2.weight", "0.attn.proj.bias"):

        def each(value: Tensor, name: str = name) -> Tensor:
            return torch.func.functional_call(model, {name: value}, (x,))

        found = torch.vmap(each)(gammas)
        torch.testing.assert_close(found, torch.stack([plainly(lambda one=one: each(one)) for one in gammas]))
    expected = model(x)
    norm = model[0].norm2
    forward = norm.forward
    norm.forward = lambda y: 3 * forward(y)
    torch.testing.assert_close(model(x), plainly(lambda: model(x)), rtol=1e-5, atol=1e-5)
    assert not torch.allclose(model(x), expected, atol=1e-2)


@inside
def test_encoders_whose_attention_is_added_by_the_kernels_answer_alike(launches: list[str]) -> None:
    torch.manual_seed(0)
    base = torch.nn.Sequential(*(Block(24, 3, layer_scale=0.5, qk_norm=True, drop_path=0.1) for _ in range(3))).eval()
    for block in base:
        torch.nn.init.normal_(block.gamma_1)
        torch.nn.init.normal_(block.attn.k_norm.weight)
    x = torch.randn(2, 40, 24)
    for spaces in (("x", "v", "x"), ("k", "v", "q")):
        model = zipbrain.compress(copy.deepcopy(base), ZIPBrain(*spaces, 0.4), r=5, protected=1)
        with torch.no_grad():
            launches.clear()
            found = model(x)
            assert torch.equal(model(x), found)
            assert launches == ["joined" if "x" in spaces else "group", "merge"] * 3 + ["again"] * 3
            before = triton_path.switch(False)
            try:
                torch.testing.assert_close(found, model(x), rtol=2e-5, atol=2e-5)
            finally:
                triton_path.switch(before)
        # weights that ask for a gradient, with an input that does not
        model(x).sum().backward()
        assert all(block.gamma_1.grad is not None and block.attn.proj.weight.grad.abs().sum() > 0 for block in model)


# -- what was pooled before --------------------------------------------------------------------------------------------


@inside
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tensors_like_some_before_are_pooled_without_another_look_to_the_same_bits(
    dtype: torch.dtype, launches: list[str]
) -> None:
    torch.manual_seed(0)
    base = TokenEncoder(dim=16, depth=2, heads=2).eval().to(dtype)
    for spaces in (("x", "v", "x"), ("k", "k", "k"), ("kh", "x", "qh")):
        model = zipbrain.compress(copy.deepcopy(base), ZIPBrain(*spaces, 0.4), r=5, protected=1)
        x, other = torch.randn(3, 40, 16).to(dtype), torch.randn(2, 40, 16).to(dtype)
        launches.clear()
        with torch.no_grad():
            first, second = model(x), model(other)
            assert launches == ["joined" if spaces[0] == "x" else "group", "merge"] * 2 + ["again"] * 2
            launches.clear()
            assert torch.equal(model(x), first)
            assert launches == ["again", "again"]
            triton_norm_path._ready.clear()
            assert torch.equal(model(other), second)


@inside
def test_an_empty_batch_or_a_failure_leaves_nothing_to_be_used_again(
    launches: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from zipbrain.pooling.kernels import triton_merge_launch

    model = zipbrain.compress(TokenEncoder(dim=16, depth=1, heads=2).eval(), ZIPBrain("x", "x", "x", 0.4), r=5)
    with torch.no_grad():
        model(torch.randn(0, 40, 16))
        assert not triton_norm_path._ready
        with monkeypatch.context() as patch:

            def full(*args: Any, **options: Any) -> Any:
                raise torch.OutOfMemoryError("no room")

            patch.setattr(triton_merge_launch, "merge", full)
            with pytest.raises(torch.OutOfMemoryError):
                model(torch.randn(2, 40, 16))
        assert not triton_norm_path._ready
        model(torch.randn(2, 40, 16))
        assert len(triton_norm_path._ready) == 1


@inside
def test_what_changes_between_two_calls_is_seen(launches: list[str]) -> None:
    torch.manual_seed(0)
    model = zipbrain.compress(TokenEncoder(dim=16, depth=2, heads=2).eval(), ZIPBrain("x", "v", "x", 0.4), r=5)
    x = torch.randn(3, 40, 16)
    with torch.no_grad():
        model(x)
        launches.clear()
        model(torch.randn(3, 41, 16))
        assert launches == ["joined", "merge"] * 2
        launches.clear()
        with torch.autocast("cpu", torch.bfloat16):
            model(x)
        assert "again" not in launches
        for block in model.blocks:
            block.norm2.register_forward_hook(lambda *_: None)
        launches.clear()
        model(x)
        assert "again" not in launches
        before = triton_path.switch(False)
        try:
            launches.clear()
            model(x)
            assert launches == []
        finally:
            triton_path.switch(before)
    launches.clear()
    model(x.requires_grad_()).sum().backward()
    assert "again" not in launches


@inside
def test_gradients_flow_through_the_merge_behind_groups_of_the_kernels(launches: list[str]) -> None:
    parts = draw(3, 2, 18)
    gradients = []
    for kernels in (True, False):
        x = parts[0].clone().requires_grad_()
        on(kernels, x, *parts[1:], r=6, method=ZIPBrain()).x.square().sum().backward()
        gradients.append(x.grad)
    assert launches == ["group", "merge"]
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-5, atol=1e-6)


@inside
@pytest.mark.parametrize("r", [1, 9, 15])
def test_the_gradient_kernel_agrees_with_autograd_also_where_a_sum_vanishes(r: int) -> None:
    parts = [part.double() for part in draw(11, 3, 16)]
    parts[0][0, 3] = -parts[0][0, 5]  # opposite tokens
    parts[0][1, 2:6] = 0.0
    weight = torch.randn(3, 16 - r, parts[0].shape[2], generator=torch.Generator().manual_seed(0)).double()
    grouping = pool(*parts, r=r, method=ZIPBrain("k", "k", "k", 0.3)).grouping
    target = grouping.target.clone()
    if r == 9:  # the opposite tokens in one group, if one of them goes and the other stays
        for here, there in ((3, 5), (5, 3)):
            where = (grouping.source[0] == here) & bool((grouping.kept[0] == there).any())
            target[0][where] = there
    grouping = dataclasses.replace(grouping, target=target)
    found = []
    for kernels in (True, False):
        x = (parts[0].float() if kernels else parts[0].clone()).requires_grad_()
        before = triton_path.switch(kernels)
        try:
            both = triton_path.merge(x, None, grouping, LargestNorm())
        finally:
            triton_path.switch(before)
        assert (both is not None) == kernels
        merged = LargestNorm()(x, grouping) if both is None else both[0]
        (merged * weight.to(merged.dtype)).sum().backward()
        assert x.grad is not None
        found.append((merged.detach().double(), x.grad.double()))
    for kernel, plain in zip(*found, strict=True):
        keep = plain.isfinite()  # autograd's norm of a zero vector has no direction to go
        torch.testing.assert_close(kernel[keep], plain[keep], rtol=1e-4, atol=1e-5)


@pytest.mark.skipif(INSIDE, reason="about a process without the interpreter")
def test_pooling_does_not_import_triton_and_cpu_tensors_never_reach_it() -> None:
    code = (
        "import sys, torch\n"
        "loaded = 'triton' in sys.modules\n"
        "import zipbrain\n"
        "from zipbrain.pooling.kernels import triton_path\n"
        "triton_path.interpret(True)\n"
        "zipbrain.pool(torch.randn(1, 9, 4), r=2, method=zipbrain.ZIPBrain('x', 'x', 'x'))\n"
        "print(loaded or 'triton' not in sys.modules)"
    )
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    found = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "True"
