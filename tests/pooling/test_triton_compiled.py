"""The kernels compile for a GPU, which needs none, and are launched as the GPU allows."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from interpreted import INSIDE, KERNELS, MISSING, compile_for_gpu, kernel_module, recorded
from zipbrain.pooling.backends.triton import entry
from zipbrain.pooling.steps import RESOLUTION, evenly_spread
from zipbrain.pooling.tokens import Branch, Tokens

pytestmark = [
    pytest.mark.skipif(MISSING, reason="triton is not installed: pip install --no-deps triton"),
    pytest.mark.skipif(INSIDE, reason="the interpreter compiles nothing"),
]


@pytest.fixture(scope="module", autouse=True)
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A kernel that several tests look at is compiled once."""
    with pytest.MonkeyPatch.context() as given:
        given.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.mktemp("triton")))
        yield


def drawn(batch: int, total: int, heads: int, width: int, r: int, dtype: torch.dtype) -> Tokens:
    x, q = torch.zeros(batch, total, heads * width, dtype=dtype), torch.zeros(batch, heads, total, width, dtype=dtype)
    return Tokens(x, r, q, q.clone(), q.clone(), leading=1)


@pytest.mark.parametrize(
    ("batch", "total", "heads", "width", "spaces", "r", "dtype"),
    [
        (8, 231, 10, 20, ("k", "k", "k"), 15, torch.bfloat16),
        (2, 231, 10, 20, ("x", "v", "x"), 15, torch.bfloat16),
        (8, 231, 10, 20, ("x", "v", "x"), 15, torch.float16),
        (2, 304, 8, 32, ("v", "k", "kh"), 75, torch.float16),
        (8, 304, 8, 32, ("x", "v", "x"), 61, torch.float32),
        (8, 513, 8, 64, ("kh", "x", "x"), 300, torch.bfloat16),
        (8, 231, 10, 20, ("kh", "vh", "qh"), 19, torch.float32),
        (2, 231, 32, 256, ("x", "kh", "vh"), 20, torch.float16),  # as wide as can be: in loops
        (8, 24, 8, 64, ("x", "x", "x"), 18, torch.float32),
    ],
)
def test_the_kernels_of_all_steps_compile(
    batch: int,
    total: int,
    heads: int,
    width: int,
    spaces: tuple[str, str, str],
    r: int,
    dtype: torch.dtype,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The compiler refuses much that the interpreter lets pass.
    started = recorded(monkeypatch)
    monkeypatch.setattr(entry, "interprets_cpu", True)
    tokens, norm = drawn(batch, total, heads, width, r, dtype), torch.nn.LayerNorm(heads * width).to(dtype)
    branched = Tokens(tokens.x, r, tokens.q, tokens.k, tokens.v, 1, branch=Branch(tokens.x.clone(), norm.weight))
    with torch.no_grad():
        entry.pool_norm(tokens, spaces, 3, norm)
        if entry.takes_branch(branched, spaces, branched.branch):
            entry.pool_norm(branched, spaces, 3, norm)
    assert {kernel.fn.__name__ for kernel, *_ in started} >= {"select_kernel", "merge_kernel"}
    for kernel, args, options in started:
        compile_for_gpu(kernel, args, options)


@pytest.mark.parametrize(
    ("total", "heads", "width", "spaces", "r", "dtype"),
    [
        (8193, 10, 20, ("x", "v", "x"), 546, torch.float16),
        (2049, 10, 20, ("kh", "vh", "qh"), 137, torch.float32),
        (1025, 8, 256, ("x", "x", "x"), 300, torch.float32),
    ],
)
def test_the_kernels_for_long_windows_compile(
    total: int,
    heads: int,
    width: int,
    spaces: tuple[str, str, str],
    r: int,
    dtype: torch.dtype,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started = recorded(monkeypatch)
    entry.group(drawn(2, total, heads, width, r, dtype), spaces, total // 3)
    assert len(started) >= 9
    for kernel, args, options in started:
        compile_for_gpu(kernel, args, options)


@pytest.mark.parametrize(
    ("total", "heads", "width", "r", "dtype", "massed"),
    [
        (231, 10, 20, 15, torch.float16, True),
        (513, 32, 64, 300, torch.bfloat16, True),
        (24, 8, 64, 4, torch.float32, False),
    ],
)
def test_the_kernels_for_twins_and_mass_compile(
    total: int,
    heads: int,
    width: int,
    r: int,
    dtype: torch.dtype,
    massed: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from zipbrain.pooling.backends.triton import ops

    started = recorded(monkeypatch)
    tokens, norm = drawn(2, total, heads, width, r, dtype), torch.ones(heads * width, dtype=dtype)
    mass = torch.ones(2, total) if massed else None
    order = evenly_spread(total - 1, tokens.x.device, torch.float32)
    index = ops.twins(tokens.x, tokens.q, tokens.k, tokens.v, mass, order, [r, 0, 1, 0], [2.0**-16, 2.0**-32])
    ops.merge(tokens.x, mass, *index, 1, norm, norm, 1e-6)
    ops.follow(torch.arange(total).expand(2, -1), *index[1:])
    kernel_module("merge").merge_gradient(tokens.x, index, tokens.x[:, r:])
    assert len(started) == 7  # outliers are measured by a launch of their own
    for kernel, args, options in started:
        compile_for_gpu(kernel, args, options)


def test_the_number_of_windows_never_decides_on_the_order_of_sums() -> None:
    # Warps decide on it, and how many numbers are read at a time.
    language, select = kernel_module("language"), kernel_module("select")
    compared = other = 0
    device = torch.device("cpu")
    shapes = itertools.product((100, 231, 304, 500), ((10, 20), (8, 32), (4, 8)), (2, 4), (9, 20, 40))
    for n, (heads, width), size, r in shapes:
        layouts = {
            0: language.Layout(0, 1, heads * width, heads * width, 16 // size, size),
            1: language.Layout(1, heads, width, width, 4, size),
            2: language.Layout(2, heads, width, width, 4, size),
        }
        for kinds in itertools.product((0, 1, 2), repeat=3):
            spaces = tuple(layouts[kind] for kind in kinds)
            same = tuple(kinds.index(kind) for kind in kinds)
            for added in (None, (layouts[0], True)) if kinds[0] == 0 else (None,):
                few, many = (select._plan(spaces, same, (n, r, 30), added, idle, device) for idle in (True, False))
                compared += 1
                other += few.tiles > 0
                assert few.prepare == many.prepare
                assert few.score_warps == many.score_warps
                assert (few.scores is None) == (many.scores is None)
                if few.scores is None:  # else `select` adds up one number for each part
                    assert few.select_warps == many.select_warps
                if few.tiles and many.match is not None:
                    assert few.select.tile.block_k == many.match.sizes.block_k
    assert other > compared // 4


@pytest.mark.parametrize("module", KERNELS)
def test_every_kernel_that_may_start_early_waits_before_it_does_anything_else(module: str) -> None:
    # One that read a number first would read what another kernel has not written yet, once in a thousand times.
    for name in KERNELS[module]:
        lines = inspect.getsource(getattr(kernel_module(module), f"{name}_kernel").fn)
        if name == "follow":  # starts when the one before has ended
            assert "OVERLAP" not in lines
            continue
        body = lines.split('"""')[2].strip().splitlines()
        assert body[0].strip() == "zl.wait_for_previous(OVERLAP)", name


def test_kernels_start_early_on_hopper_and_later_unless_turned_off(monkeypatch: pytest.MonkeyPatch) -> None:
    language, started = kernel_module("language"), []

    class Kernel:
        def __getitem__(self, grid: tuple[int, int]) -> Any:
            return lambda *args, **options: started.append((grid, args, options))

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    driver = SimpleNamespace(version=12030)

    def ask(place: Any) -> None:
        place._obj.value = driver.version

    monkeypatch.setattr(language.ctypes, "CDLL", lambda name: SimpleNamespace(cuDriverGetVersion=ask))
    for capability, able in (((8, 0), False), ((9, 0), True), ((10, 0), True)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device, found=capability: found)
        assert language._can_overlap.__wrapped__(0) is able
    driver.version = 12020
    assert not language._can_overlap.__wrapped__(0)  # could not capture such launches in a graph
    for able, options in ((True, {"launch_pdl": True}), (False, {})):
        monkeypatch.setattr(language, "_can_overlap", lambda device, able=able: able)
        language.launch(Kernel(), (5, 3), 4, "x")
        assert started[-1] == ((5, 3), ("x", able), {"num_warps": 4, **options})
    monkeypatch.setattr(language, "_can_overlap", lambda device: True)
    monkeypatch.setattr(language, "_OVERLAP", False)
    language.launch(Kernel(), (5, 3), 4, "x")
    assert started[-1][1] == ("x", False)


def test_ties_are_defined_once() -> None:
    assert kernel_module("language").RESOLUTION.value == RESOLUTION
