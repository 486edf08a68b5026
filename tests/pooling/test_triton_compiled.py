"""The Triton kernels compiled for a GPU, which needs none: registers, memory, and what must not be in there."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from interpreted import INSIDE, MISSING, compiled, ptxas, recorded


@pytest.fixture(scope="module", autouse=True)
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A kernel that several tests look at is compiled once."""
    with pytest.MonkeyPatch.context() as given:
        given.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.mktemp("triton")))
        yield


def assert_it_waits(built: Any) -> None:
    """Before it reads or writes anything, a kernel waits for the ones before."""
    code = built.asm["ptx"]
    assert code.index("griddepcontrol.wait") < min(code.index(one) for one in ("ld.global", "st.global") if one in code)


@pytest.mark.skipif(MISSING, reason="triton is not installed: pip install --no-deps triton")
@pytest.mark.skipif(INSIDE, reason="the interpreter compiles nothing")
@pytest.mark.parametrize(
    ("total", "heads", "width", "kinds", "r", "dtype", "few", "many"),
    [
        (231, 10, 20, (1, 1, 1), 15, torch.float32, 2, 2),
        (304, 8, 32, (0, 1, 2), 75, torch.float16, 3, 3),
        (513, 8, 64, (2, 0, 0), 300, torch.bfloat16, 3, 3),
        (304, 8, 32, (2, 2, 0), 61, torch.bfloat16, 3, 3),
        (24, 8, 64, (2, 0, 1), 4, torch.float32, 2, 2),
        (24, 8, 64, (0, 1, 0), 18, torch.float16, 3, 2),  # most tokens go: many are merged at a time
        (231, 10, 20, (2, 2, 2), 19, torch.float32, 4, 4),
        (231, 10, 20, (0, 2, 0), 19, torch.float16, 4, 3),
        (231, 10, 20, (0, 1, 0), 15, torch.float16, 3, 2),
        (304, 8, 32, (0, 0, 0), 75, torch.float32, 2, 2),
        (304, 8, 32, (1, 1, 0), 61, torch.float32, 3, 3),
        (231, 32, 256, (0, 2, 2), 20, torch.float16, 4, 4),  # as wide as can be: gone through in loops
        (501, 32, 64, (2, 2, 1), 10, torch.float16, 2, 2),
    ],
)
@pytest.mark.parametrize("batch", [2, 8])
def test_the_kernels_compile_for_a_gpu_without_atomics_and_approximations(
    total: int, heads: int, width: int, kinds: tuple[int, int, int], r: int, dtype: torch.dtype, few: int, many: int,
    batch: int, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    # The compiler needs no GPU, and refuses much that the interpreter lets pass.
    from zipbrain.pooling.backends.triton import (
        match as triton_match,
    )
    from zipbrain.pooling.backends.triton import (
        merge as triton_merge,
    )
    from zipbrain.pooling.backends.triton import (
        merge_launch as triton_merge_launch,
    )
    from zipbrain.pooling.backends.triton import (
        prepare as triton_prepare,
    )
    from zipbrain.pooling.backends.triton import (
        select as triton_select,
    )
    from zipbrain.pooling.backends.triton import (
        select_launch as triton_select_launch,
    )
    from zipbrain.pooling.backends.triton import (
        start as triton_start,
    )

    monkeypatch.setattr(triton_select_launch, "_groups", {})
    monkeypatch.setattr(triton_merge_launch, "_merges", {})
    monkeypatch.setattr(triton_start, "overlapping", lambda: True)
    merging = triton_merge.merge_kernel
    steps = [(triton_select, "score"), (triton_select, "select"), (triton_match, "match"), (triton_match, "closest")]
    started = recorded(monkeypatch, *steps, (triton_prepare, "prepare"), (triton_merge, "merge"))
    x, q = torch.empty(batch, total, heads * width, dtype=dtype), torch.empty(batch, heads, total, width, dtype=dtype)
    index = triton_select_launch.group([q if kind else x for kind in kinds], list(kinds), r, 3, 1, 0)
    assert len(started) == (few if batch <= 4 else many)
    norm = torch.ones(heads * width, dtype=dtype)
    if kinds[0] == 0:
        triton_select_launch.group_joined(x, (x, norm), [q if kind else x for kind in kinds], list(kinds), r, 3, 1, 0)
    if batch > 4:  # the merge does not care how many windows there are
        triton_merge_launch.merge(x, *index, 0, norm=(norm, norm, 1e-6))
        triton_merge_launch.merge(x, *index, 1, torch.ones(batch, total))
        triton_merge_launch.merge(x, *index, 0, norm=(norm, norm, 1e-6), added=(x, norm))
        triton_merge_launch.merge(x, *index, 0, added=(x, None))
        assert sum(kernel is merging for kernel, *_ in started) == 4
    for kernel, args, options in started:
        assert_it_waits(compiled(kernel, args, options))


def sums(code: str) -> list[tuple[str, str, str]]:
    """Axis, shape, and how it lies in threads, of whatever a kernel sums in float32, in order."""
    layouts = dict(re.findall(r"^(#\w+) = (.*)$", code, re.MULTILINE))
    pattern = r'"tt\.reduce"\([^)]*\) <\{axis = (\d) [^}]*\}> \(\{(.*?)\}\) : \(tensor<([^>]*?), (#\w+)'
    found = re.findall(pattern, code, re.DOTALL)
    return [(axis, shape, layouts[how]) for axis, body, shape, how in found if "arith.addf" in body]


@pytest.mark.skipif(MISSING, reason="triton is not installed: pip install --no-deps triton")
@pytest.mark.skipif(INSIDE, reason="the interpreter compiles nothing")
@pytest.mark.parametrize(
    ("total", "heads", "width", "r", "dtype"),
    [
        (231, 10, 20, 19, torch.float16),
        (117, 10, 20, 19, torch.bfloat16),
        (304, 8, 32, 61, torch.float32),
        (90, 2, 8, 19, torch.float16),
    ],
)
def test_what_is_read_early_with_few_windows_is_summed_as_with_many(
    total: int, heads: int, width: int, r: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    from zipbrain.pooling.backends.triton import (
        match as triton_match,
    )
    from zipbrain.pooling.backends.triton import (
        prepare as triton_prepare,
    )
    from zipbrain.pooling.backends.triton import (
        select as triton_select,
    )
    from zipbrain.pooling.backends.triton import (
        select_launch as triton_select_launch,
    )

    selecting = triton_select.select_kernel
    monkeypatch.setattr(triton_select_launch, "_groups", {})
    steps = [(triton_select, "select"), (triton_match, "match"), (triton_match, "closest")]
    started = recorded(monkeypatch, *steps, (triton_prepare, "prepare"))
    found = {}
    sizes = [256, 64] if total == 304 else [1 << (total - 2).bit_length()]  # as what tokens are ranked
    for batch in (1, 8):
        started.clear()
        x, q = (
            torch.empty(batch, total, heads * width, dtype=dtype),
            torch.empty(batch, heads, total, width, dtype=dtype),
        )
        triton_select_launch.group_joined(x, (x, None), [x, q, x], [0, 1, 0], r, 30, 1, 0)
        ((kernel, args, options),) = [one for one in started if one[0] is selecting]
        early = dict(zip([parameter.name for parameter in kernel.params], args, strict=True))["SOON"]
        assert early is (batch == 1)
        built = compiled(kernel, args, options, shared=227 * 1024)
        every = sums(built.asm["ttgir"])
        # Products that are added to zeros are rounded; others would be fused with the first additions of their sum.
        rounded = re.findall(r"fma\.rn\.f32.*, 0f00000000", built.asm["ptx"])
        found[batch] = [one for one in every if one[1].startswith(tuple(f"{size}x" for size in sizes))], len(rounded)
    assert len(found[1][0]) == 2 * len(sizes)  # over pivots, and over features
    assert found[1][1] > 0
    assert found[1] == found[8]


@pytest.mark.skipif(MISSING, reason="triton is not installed: pip install --no-deps triton")
@pytest.mark.skipif(INSIDE, reason="the interpreter compiles nothing")
@pytest.mark.parametrize(
    ("kinds", "r", "dtype"),
    [((0, 1, 2), 75, torch.float16), ((0, 1, 0), 61, torch.float32), ((1, 1, 0), 61, torch.float32)],
)
def test_matches_take_the_fast_memory_that_a_large_gpu_has(
    kinds: tuple[int, int, int], r: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    from zipbrain.pooling.backends.triton import (
        match as triton_match,
    )
    from zipbrain.pooling.backends.triton import (
        prepare as triton_prepare,
    )
    from zipbrain.pooling.backends.triton import (
        select as triton_select,
    )
    from zipbrain.pooling.backends.triton import (
        select_launch as triton_select_launch,
    )

    most = 227 * 1024
    monkeypatch.setattr(triton_select_launch, "_groups", {})
    monkeypatch.setattr(triton_select_launch, "_shared", lambda device: most)
    steps = [(triton_select, "score"), (triton_select, "select"), (triton_prepare, "prepare")]
    started = recorded(monkeypatch, *steps, (triton_match, "match"))
    x, q = torch.empty(8, 500, 256, dtype=dtype), torch.empty(8, 8, 500, 32, dtype=dtype)
    spaces = [q if kind else x for kind in kinds]
    if kinds[0]:
        triton_select_launch.group(spaces, list(kinds), r, 3, 1, 0)
    else:
        triton_select_launch.group_joined(x, (x, None), spaces, list(kinds), r, 3, 1, 0)
    built = compiled(*started[-1], shared=most)
    assert built.metadata.shared > 99 * 1024


@pytest.mark.skipif(MISSING, reason="triton is not installed: pip install --no-deps triton")
@pytest.mark.skipif(INSIDE, reason="the interpreter compiles nothing")
@pytest.mark.parametrize(
    ("total", "heads", "width", "kinds", "r", "dtype", "kernels"),
    [
        (8193, 10, 20, (0, 1, 0), 546, torch.float16, 11),
        (2049, 10, 20, (2, 2, 2), 137, torch.float32, 10),
        (1025, 8, 64, (2, 0, 0), 300, torch.bfloat16, 10),
        (1025, 8, 256, (0, 0, 0), 300, torch.float32, 9),
    ],
)
def test_the_kernels_for_long_windows_compile_for_a_gpu(
    total: int, heads: int, width: int, kinds: tuple[int, int, int], r: int, dtype: torch.dtype, kernels: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    from zipbrain.pooling.backends.triton import (
        long as triton_long,
    )
    from zipbrain.pooling.backends.triton import (
        long_launch as triton_long_launch,
    )
    from zipbrain.pooling.backends.triton import (
        prepare as triton_prepare,
    )
    from zipbrain.pooling.backends.triton import (
        select_launch as triton_select_launch,
    )
    from zipbrain.pooling.backends.triton import (
        start as triton_start,
    )

    monkeypatch.setattr(triton_start, "overlapping", lambda: True)
    monkeypatch.setattr(triton_long_launch, "_plans", {})
    names = "lengths", "rank", "prototype", "score", "split", "closest", "first"
    started = recorded(monkeypatch, *((triton_long, name) for name in names), (triton_prepare, "prepare"))
    x, q = torch.empty(2, total, heads * width, dtype=dtype), torch.empty(2, heads, total, width, dtype=dtype)
    triton_select_launch.group([q if kind else x for kind in kinds], list(kinds), r, total // 3, 1, 0)
    assert len(started) == kernels
    for kernel, args, options in started:
        assert_it_waits(compiled(kernel, args, options))


@pytest.mark.skipif(MISSING, reason="triton is not installed: pip install --no-deps triton")
@pytest.mark.skipif(INSIDE, reason="the interpreter compiles nothing")
@pytest.mark.parametrize(
    ("batch", "total", "pivots"),
    [
        (2, 304, 3),
        (8, 304, 3),
        (2, 231, 3),
        (8, 231, 3),
        (8, 231, 169),
        (8, 304, 242),
        (2, 120, 3),
        (8, 50, 3),
    ],  # 169, 242: no choice is left
)
@pytest.mark.parametrize(
    ("kinds", "r"), [((2, 2, 2), 61), ((2, 1, 2), 61), ((0, 2, 0), 61), ((1, 2, 1), 9), ((2, 1, 1), 9)]
)
def test_programs_that_rank_stay_in_registers(
    batch: int, kinds: tuple[int, int, int], r: int, total: int, pivots: int, monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:  # fmt: skip
    # With 16 warps the assembler gave some of them 32 registers, and they took ten times as long; with more threads
    # than tokens the compiler read scores again for every pair.
    r = min(r, total - 10)
    from zipbrain.pooling.backends.triton import (
        match as triton_match,
    )
    from zipbrain.pooling.backends.triton import (
        prepare as triton_prepare,
    )
    from zipbrain.pooling.backends.triton import (
        select as triton_select,
    )
    from zipbrain.pooling.backends.triton import (
        select_launch as triton_select_launch,
    )

    scoring = triton_select.score_kernel
    monkeypatch.setattr(triton_select_launch, "_groups", {})
    steps = [(triton_select, "score"), (triton_select, "select"), (triton_match, "match"), (triton_match, "closest")]
    started = recorded(monkeypatch, *steps, (triton_prepare, "prepare"))
    x, q = torch.empty(batch, total, 128), torch.empty(batch, 8, total, 16)  # of 128 features: scored by parts
    triton_select_launch.group([q if kind else x for kind in kinds], list(kinds), r, pivots, 1, 0)
    for kernel, args, options in started:
        built = compiled(kernel, args, options)
        named = {parameter.name: value for parameter, value in zip(kernel.params, args, strict=True)}
        if kernel is scoring or (named.get("PARTS", 0) > 0 and not named["MATCHED"]):
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
    from zipbrain.pooling.backends.triton import (
        start as triton_start,
    )
    from zipbrain.pooling.backends.triton import (
        twins as triton_twins,
    )
    from zipbrain.pooling.backends.triton import (
        twins_launch as triton_twins_launch,
    )

    monkeypatch.setattr(triton_start, "overlapping", lambda: True)
    monkeypatch.setattr(triton_twins_launch, "_plans", {})
    started = recorded(monkeypatch, *((triton_twins, name) for name in ("centre", "pairs", "part")))
    x, *qkv = (torch.empty(2, total, heads * width, dtype=dtype), *torch.empty(3, 2, heads, total, width, dtype=dtype))
    triton_twins_launch.group(x, *qkv, torch.ones(2, total) if massed else None, r, 1, 0, 2.0**-16, 2.0**-32)
    assert len(started) == 3
    for kernel, args, options in started:
        built = compiled(kernel, args, options)
        assert "cubin" in built.asm
        assert_it_waits(built)
        (tmp_path / "kernel.ptx").write_text(built.asm["ptx"])
        command = [ptxas(), "-v", "-arch=sm_90a", str(tmp_path / "kernel.ptx"), "-o", str(tmp_path / "kernel.cubin")]
        told = subprocess.run(command, capture_output=True, text=True, check=True).stderr
        assert " 0 bytes spill stores" in told, told
