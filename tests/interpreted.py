"""What tests of the Triton kernels share: the interpreter on a CPU, the compiler without a GPU, and comparisons.

The interpreter must be chosen before triton is imported, so one test of a file runs the file again in a process of its
own (`pass_under_the_interpreter`); those marked `inside` do nothing outside of it.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from zipbrain.pooling import Pooled, pool
from zipbrain.pooling.backends import cpu
from zipbrain.pooling.backends.triton import entry
from zipbrain.pooling.tokens import Tokens

INSIDE = os.environ.get("TRITON_INTERPRET") == "1"
MISSING = importlib.util.find_spec("triton") is None
inside = pytest.mark.skipif(not INSIDE, reason="run by the first test of this file, in a process with the interpreter")


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


KERNELS = {  # names of the kernels by their modules
    "prepare": ("prepare",),
    "select": ("score", "select"),
    "match": ("match", "closest", "follow"),
    "long": ("lengths", "rank", "prototype", "score", "split", "closest", "first"),
    "merge": ("merge", "merge_gradient"),
    "twins": ("centre", "pairs", "part"),
}


def kernel_module(name: str) -> Any:
    return importlib.import_module(f"zipbrain.pooling.backends.triton.{name}")


def recorded(patch: pytest.MonkeyPatch) -> list[tuple[Any, tuple[Any, ...], dict[str, Any]]]:
    """Kernels, arguments and options of the launches to come, which do nothing else; as on a GPU since Hopper."""
    started: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = []

    class Recorder:
        def __init__(self, kernel: Any) -> None:
            self.kernel = kernel

        def __getitem__(self, grid: tuple[int, ...]) -> Any:
            return lambda *args, **options: started.append((self.kernel, args, options))

    for module, names in KERNELS.items():
        for name in names:
            owner = kernel_module(module)
            patch.setattr(owner, f"{name}_kernel", Recorder(getattr(owner, f"{name}_kernel")))
    patch.setattr(torch.cuda, "is_available", lambda: True)
    patch.setattr(torch.cuda, "current_device", lambda: 0)
    patch.setattr(kernel_module("language"), "_can_overlap", lambda device: True)
    return started


def compile_for_gpu(kernel: Any, args: tuple[Any, ...], options: dict[str, Any], shared: int = 99 * 1024) -> None:
    """Compile a kernel for an H100, with no more shared memory than the smallest GPUs since Ampere have."""
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
    assert "cubin" in built.asm
    assert built.metadata.shared <= shared


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
    prepare = module._patch_lang
    module._patch_lang = OncePerLaunch(prepare)
    assert entry.available()
    before = entry.interpret(True)
    with pytest.MonkeyPatch.context() as given:
        for name in ("language", "long", "merge", "prepare", "select", "twins"):
            given.setattr(kernel_module(name), "torch", Unclean())
        yield
    entry.interpret(before)
    module._patch_lang_tensor = patch
    module._patch_lang = prepare


class OncePerLaunch:
    """How the interpreter prepares Triton's language for a function, but once in a launch for all that use it alike.

    It does so again whenever one function calls another, which changes nothing and takes half of the time.
    """

    def __init__(self, prepare: Any) -> None:
        self._prepare, self._done = prepare, set[frozenset[str]]()
        self._uses: dict[Any, frozenset[str]] = {}

    def __call__(self, function: Any) -> Any:
        uses = self._uses.get(function)
        if uses is None:
            modules = {"triton.language", "triton.language.core"}
            names = {getattr(value, "__name__", "") for value in function.__globals__.values()}
            uses = self._uses[function] = frozenset(names & modules)
        if uses in self._done:
            return None
        scope = self._prepare(function)
        if not self._done:  # a launch begins, which ends by restoring all of it
            restore = scope.restore

            def end() -> None:
                self._done.clear()
                restore()

            scope.restore = end
        self._done.add(uses)
        return scope


class Unclean:
    """Torch whose empty memory holds other numbers than zeros, so that reading it unwritten shows."""

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
    before = entry.switch(kernels), cpu.switch(False)
    try:
        return pool(*args, **options)
    finally:
        entry.switch(before[0])
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
    seen: list[str] = []
    for label, module, name in (
        ("group", "select", "group"),
        ("merge", "merge", "merge"),
        ("twins", "twins", "group"),
        ("follow", "match", "follow"),
    ):
        owner = kernel_module(module)
        original = getattr(owner, name)

        def call(*args: Any, _label: str = label, _original: Any = original, **options: Any) -> Any:
            has_norm = _label == "merge" and len(args) > 4 and args[4] is not None
            has_branch = _label == "group" and len(args) > 4 and args[4] is not None
            seen.append(_label + " and norm" * has_norm + " and branch" * has_branch)
            return _original(*args, **options)

        monkeypatch.setattr(owner, name, call)
    return seen


def off(call: Any) -> Any:
    """What a call gives without the kernels."""
    before = entry.switch(False)
    try:
        return call()
    finally:
        entry.switch(before)
