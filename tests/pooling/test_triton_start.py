"""How Triton kernels are started: built once, then without a look at their arguments; early where the GPU can."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest
import torch

from interpreted import MISSING

pytestmark = pytest.mark.skipif(MISSING, reason="triton is not installed: pip install --no-deps triton")

KERNELS = Path(__file__).parents[2] / "src" / "zipbrain" / "pooling" / "kernels"
WAITING = "triton_prepare", "triton_select", "triton_match", "triton_merge", "triton_long", "triton_twins"


class Built:
    """What Triton gives back for a kernel that it has built: a launcher, which remembers how it was called."""

    def __init__(self, scratch: int) -> None:
        self.run: Any = self
        self.function, self.packed_metadata, self.launch_pdl = "function", "metadata", False
        self.launch_cooperative_grid, self.global_scratch_size, self.profile_scratch_size = False, scratch, 0
        self.started: list[tuple[bool, tuple[Any, ...]]] = []
        self.quickly = 0

    def launch(self, x: int, y: int, z: int, stream: int, function: str, *args: Any) -> None:
        together, early, *scratch, metadata, launched, enter, leave = args[:8]
        assert (function, together, metadata) == ("function", False, "metadata")
        assert (*scratch, launched, enter, leave) == (None,) * 5
        self.quickly += 1
        self.started.append((early, args[8:]))

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return lambda *args, stream=None: self.started.append((self.launch_pdl, args))


class Kernel:
    def __init__(self, scratch: int) -> None:
        self.built, self.builds = Built(scratch), []  # type: ignore[var-annotated]

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def build(*args: Any, **options: Any) -> Built:
            self.builds.append((grid, args, options))
            return self.built

        return build


def starting(waits: bool, able: bool, monkeypatch: pytest.MonkeyPatch, scratch: int = 0) -> tuple[Any, Kernel]:
    from zipbrain.pooling.backends.triton import start as triton_start

    monkeypatch.setattr(triton_start, "overlapping", lambda: able)
    monkeypatch.setattr(triton_start, "_DIRECT", True)
    kernel = Kernel(scratch)
    return triton_start.Start(kernel, 3, ("constant",), 4, waits), kernel


@pytest.mark.parametrize(("stream", "scratch"), [(None, 0), (7, 0), (7, 64)])
@pytest.mark.parametrize("able", [True, False])
def test_a_kernel_that_waits_begins_early_unless_it_is_crowded(
    able: bool, stream: int | None, scratch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, kernel = starting(True, able, monkeypatch, scratch)
    start(5, "x", stream=stream)
    assert kernel.builds == [((5, 3, 1), ("x", "constant", able), {"num_warps": 4})]
    for crowded in (False, True, False):
        start(2, "y", stream=stream, crowded=crowded)
    assert len(kernel.builds) == 1
    early = [told for told, _ in kernel.built.started]
    assert early == ([True, False, True] if able else [False] * 3)
    assert all(args == ("y", "constant", able) for _, args in kernel.built.started)
    # Addresses and no memory of Triton's own: without its launcher in Python.
    assert kernel.built.quickly == (3 if stream is not None and not scratch else 0)


def test_whoever_asked_triton_to_be_told_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    from zipbrain.pooling.backends.triton import start as triton_start

    start, kernel = starting(True, True, monkeypatch)
    start(5, "x", stream=7)
    monkeypatch.setattr(triton_start, "_unheard", lambda: False)
    start(5, "x", stream=7)
    assert (len(kernel.built.started), kernel.built.quickly) == (1, 0)


def test_a_kernel_that_does_not_wait_never_begins_early(monkeypatch: pytest.MonkeyPatch) -> None:
    start, kernel = starting(False, True, monkeypatch)
    for _ in range(3):
        start(5, "x", stream=7)
    assert kernel.builds == [((5, 3, 1), ("x", "constant"), {"num_warps": 4})]
    assert [told for told, _ in kernel.built.started] == [False] * 2


def test_early_starts_need_hopper_and_can_be_turned_off(monkeypatch: pytest.MonkeyPatch) -> None:
    from zipbrain.pooling.backends.triton import start as triton_start

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(triton_start, "_DIRECT", True)
    monkeypatch.setattr(triton_start, "_driver", lambda: 12030)
    for capability, able in (((8, 0), False), ((9, 0), True), ((10, 0), True)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda found=capability: found)
        assert triton_start.overlapping() is able
    for name in ("_DIRECT", "_OVERLAP"):
        with monkeypatch.context() as given:
            given.setattr(triton_start, name, False)
            assert not triton_start.overlapping()
    monkeypatch.setattr(triton_start, "_driver", lambda: 12020)  # could not capture them in a graph
    assert not triton_start.overlapping()


def test_the_driver_is_asked_for_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    from zipbrain.pooling.backends.triton import start as triton_start

    class Library:
        code = 0

        def __init__(self, name: str) -> None:
            assert name == "libcuda.so.1"

        def cuDriverGetVersion(self, place: Any) -> int:
            place._obj.value = 12020
            return self.code

    ask = triton_start._driver.__wrapped__
    monkeypatch.setattr(triton_start.ctypes, "CDLL", Library)
    assert ask() == 12020
    monkeypatch.setattr(Library, "code", 999)
    assert ask() == 12030  # it can't tell

    def missing(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr(triton_start.ctypes, "CDLL", missing)
    assert ask() == 12030


@pytest.mark.parametrize("module", WAITING)
def test_every_kernel_that_may_begin_early_waits_before_it_does_anything_else(module: str) -> None:
    # One that read a number first would read what another kernel has not written yet, once in a thousand times.
    tree = ast.parse((KERNELS / f"{module}.py").read_text())
    kernels = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.endswith("_kernel")]
    assert kernels
    for kernel in kernels:
        assert kernel.args.args[-1].arg == "DEPENDENT", kernel.name
        first = kernel.body[1]  # behind the docstring
        assert ast.unparse(first) == "after_others(DEPENDENT)", kernel.name


def test_all_kernels_of_those_files_are_started_as_ones_that_wait() -> None:
    # `Start` gives DEPENDENT only to those; the others would miss an argument.
    for file in KERNELS.glob("triton_*_launch.py"):
        for call in ast.walk(ast.parse(file.read_text())):
            if isinstance(call, ast.Call) and ast.unparse(call.func) == "Start":
                given = ast.unparse(call.args[0])
                waits = [ast.unparse(one) for one in call.args[4:]] + [
                    ast.unparse(word.value) for word in call.keywords if word.arg == "waits"
                ]
                waiting = given == "kernel" or given.split(".")[0] in WAITING
                assert (waits == ["True"]) == waiting, f"{file.name}: {given}"


def test_pieces_of_memory_for_a_pooling_lie_apart_where_a_wide_load_may_begin() -> None:
    from zipbrain.pooling.backends.triton.ready import Room

    for indices, scratch, rows in (((5, 3, 3), 7, ()), ((1, 1, 1), 1, (1, 5)), ((6912, 480, 480), 32768, (473088, 9))):
        pieces = [*((size, torch.int64) for size in indices), (scratch, torch.int32)]
        room = Room(*pieces, *((row, torch.float16) for row in rows), (33, torch.float32), (33, torch.bfloat16))
        sizes = [*(8 * size for size in indices), 4 * scratch, *(2 * row for row in rows), 4 * 33, 2 * 33]
        assert len(room.starts) == len(sizes)
        assert room.starts[0] == 0
        for start, size, after in zip(room.starts, sizes, [*room.starts[1:], room.size], strict=True):
            assert start % 16 == 0
            assert start + size <= after
