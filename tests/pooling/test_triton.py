"""The Triton kernels against the plain operators, without a GPU: Triton's interpreter runs them on a CPU."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
import os
import re
import subprocess
import sys
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
from interpreted import (
    INSIDE,
    MISSING,
    as_tokens,
    assert_same,
    draw,
    inside,
    on,
    pass_under_the_interpreter,
)
from reference import zipbrain as literal
from zipbrain.models import TokenEncoder
from zipbrain.models.blocks import Block
from zipbrain.pooling import SPACES, LargestNorm, Mean, MeanNorm, ZIPBrain, pool
from zipbrain.pooling.backends.choose import pool_tokens
from zipbrain.pooling.backends.triton import entry
from zipbrain.pooling.grouping import Grouping
from zipbrain.pooling.steps import evenly_spread
from zipbrain.pooling.tokens import Branch, Tokens

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's, where numbers that are no numbers meet

sizes = st.tuples(st.integers(0, 10**6), st.integers(1, 3), st.integers(2, 40), st.floats(0, 1))
ends = st.tuples(st.integers(0, 2), st.integers(0, 3))
zipbrains = st.builds(ZIPBrain, *[st.sampled_from(SPACES)] * 3, st.sampled_from([i / 10 for i in range(11)]))


@pytest.mark.skipif(MISSING, reason="triton is not installed: pip install --no-deps triton")
@pytest.mark.skipif(INSIDE, reason="this is the process that it starts")
def test_the_kernels_agree_under_tritons_interpreter() -> None:
    pass_under_the_interpreter(__file__, least=90)


# -- agreement ---------------------------------------------------------------------------------------------------------


@inside
def test_golden_cases_agree(golden: Path, launches: list[str]) -> None:
    with np.load(golden / "pool_dev.npz") as file:
        cases = sorted({key.split("/")[0] for key in file.files if key.endswith("/meta")})
        metas = {case: json.loads(str(file[f"{case}/meta"])) for case in cases}
        wanted = [case for case in cases if metas[case]["r"]]
        wanted.sort(key=lambda case: metas[case]["N"])
        chosen = [*wanted[:12], *wanted[12::9]]  # all small ones and a few of the sizes of real windows
        for case in chosen:
            meta = metas[case]
            x = torch.from_numpy(file[f"{case}/x"])[None].float()
            heads = [torch.from_numpy(file[f"{case}/{n}"]).transpose(0, 1)[None].float() for n in "qkv"]
            method = ZIPBrain(meta["z1"], meta["z2"], meta["z3"], meta["rho"])
            pooled = on(True, x, *heads, r=meta["r"], method=method, protected=meta["protected"])
            index = pooled.grouping.kept, pooled.grouping.source, pooled.grouping.target
            for name, found in zip(("kept", "src", "tgt"), index, strict=True):
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
@pytest.mark.parametrize(
    ("total", "r", "spaces"),
    [
        (34, 20, ("kh", "vh", "qh")),
        (66, 33, ("x", "vh", "x")),
        (129, 65, ("kh", "q", "v")),
        (257, 17, ("kh", "vh", "qh")),
        (258, 130, ("x", "vh", "x")),
    ],
)
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
    for width, total, r in ((200, 40, 30), (26, 260, 40), (10, 70, 69)):
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


@inside
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_the_kernel_before_step_1_writes_norms_and_unit_vectors(dtype: torch.dtype) -> None:
    from zipbrain.pooling.backends.triton.language import Layout
    from zipbrain.pooling.backends.triton.prepare import plan_preparation

    generator = torch.Generator().manual_seed(2)
    q, k, v = torch.randn(2, 13, 3, 3, 5, generator=generator).to(dtype).permute(2, 0, 3, 1, 4)  # side by side
    v[1, :, 4] = 0  # stays a zero vector
    spaces = (k, 2), (v, 1), (q, 2)
    plan = plan_preparation(tuple(Layout.of(values, kind) for values, kind in spaces), (0, 1, 2), True)
    assert [layout.kind for layout in plan.layouts] == [2, 3, 3]
    scratch = torch.zeros(2, 4, 16, dtype=torch.int32)
    _, *rows = plan.run([k, v, q], 1, 11, scratch)
    lengths = scratch[:, 3, :11].contiguous().view(torch.float32)
    torch.testing.assert_close(lengths, k.float().norm(dim=-1).mean(1)[:, 1:12])
    assert not scratch[:, 3, 11:].any()
    mean, heads = (row.unflatten(2, (2, -1)).float().sum(2) for row in rows)  # every number is the sum of two
    wanted = F.normalize(v.float().mean(1), dim=-1)
    torch.testing.assert_close(mean[..., :5], wanted, rtol=0, atol=2.0**-22)
    assert not mean[..., 5:].any()
    assert not mean[1, 4].any()
    wanted = F.normalize(q.float(), dim=-1).transpose(1, 2).flatten(2)
    torch.testing.assert_close(heads[..., :15], wanted, rtol=0, atol=2.0**-22)


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
    many = Tokens(torch.empty(1, entry.LONGEST + 1, 2), 3)
    assert not entry.usable(many, ("x", "x", "x"))
    assert entry.mergeable(many.x, 3)
    assert on(False, *parts, r=3, method=method).x.shape == (1, 9, 8)
    assert launches == []
    assert entry.usable(as_tokens(parts, 3), ("x", "q", "vh"))
    for tokens in (Tokens(parts[0], 3), as_tokens(parts, 0), as_tokens(parts, 12)):  # no q; nothing, or all, to go
        assert not entry.usable(tokens, ("x", "q", "x"))
    window = torch.empty_strided((1, 12, 8), (0, 2**28, 1), device="meta")  # tokens too far apart in memory
    assert not entry.usable(Tokens(window, 3), ("x", "x", "x"))


@inside
def test_most_tokens_are_held(launches: list[str]) -> None:
    x = torch.randn(1, entry.MOST_TOKENS + 1, 4, generator=torch.manual_seed(0), dtype=torch.float64)
    x = (x * 64).round() / 64
    options: dict[str, Any] = {"r": 20, "method": ZIPBrain("x", "x", "x", 0.2), "protected": 1}
    assert_same(on(True, x.float(), **options), on(False, x.float(), **options))
    assert launches == ["group", "merge"]


# -- merging with mass, and with the next norm -------------------------------------------------------------------------


@inside
@pytest.mark.parametrize(("total", "r"), [(26, 15), (40, 32)])
@pytest.mark.parametrize(("mode", "rule"), [(0, LargestNorm()), (1, MeanNorm()), (2, Mean())])
def test_merging_agrees_with_the_rules_with_and_without_mass(mode: int, rule: Any, total: int, r: int) -> None:
    from zipbrain.pooling.backends.triton.merge import merge

    parts = draw(2, 2, total)
    grouping = on(False, *parts, r=r, method=ZIPBrain("x", "q", "x", 0.3), protected=(1, 1)).grouping
    mass = torch.randint(1, 6, (2, total), generator=torch.manual_seed(1)).float()
    index = grouping.kept, grouping.source, grouping.target
    x, branch, gain = parts[0], *torch.randn(2, 2, total, parts[0].shape[2], generator=torch.manual_seed(2))
    gain = gain[0, 0].contiguous()
    for weight in (None, mass):
        merged, masses, _ = merge(x, index, mode, weight)
        torch.testing.assert_close(merged, rule(x, grouping, weight), rtol=3e-6, atol=1e-6)
        if masses is not None:
            assert torch.equal(masses, grouping.merge(mass, "sum"))
        for factor, whole in ((gain, torch.addcmul(x, gain, branch)), (None, x + branch)):
            joined, *_ = merge(x, index, mode, weight, branch=(branch, factor))
            torch.testing.assert_close(joined, rule(whole, grouping, weight), rtol=3e-6, atol=1e-6)


@inside
@pytest.mark.parametrize("mode", [0, 1])
def test_many_sources_of_one_token_are_merged(mode: int) -> None:
    from zipbrain.pooling.backends.triton.merge import merge

    x = torch.randn(1, 80, 8, generator=torch.manual_seed(0))
    kept, source = torch.tensor([[0, 1, 2, 3, 4, 5, 6, 7]]), torch.arange(8, 80)[None]
    target = torch.full((1, 72), 5)
    target[0, :2] = torch.tensor([2, 0])
    grouping = Grouping(kept, source, target, 80)
    merged, *_ = merge(x, (kept, source, target), mode)
    rule = LargestNorm() if mode == 0 else MeanNorm()
    torch.testing.assert_close(merged, rule(x.double(), grouping, None).float(), rtol=3e-6, atol=1e-6)
    untouched = [1, 3, 4, 6, 7]
    assert torch.equal(merged[0, untouched], x[0, untouched])
    x[0, 40] = float("nan")  # one of the many
    merged, *_ = merge(x, (kept, source, target), mode)
    assert merged[0, 5].isnan().all()
    assert merged[0, [0, 1, 2, 3, 4, 6, 7]].isfinite().all()


@inside
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_the_fused_norm_equals_a_norm_behind_the_merge(dtype: torch.dtype) -> None:
    from zipbrain.pooling.backends.triton.merge import merge

    parts = draw(6, 2, 26, dtype, width=20)
    pooled = on(True, *parts, r=9, method=ZIPBrain())
    weight, bias = torch.randn(20).to(dtype), torch.randn(20).to(dtype)
    index = pooled.grouping.kept, pooled.grouping.source, pooled.grouping.target
    merged, _, normed = merge(parts[0], index, 0, norm=(weight, bias, 1e-6))
    assert torch.equal(merged, pooled.x)
    bound = 1e-5 if dtype == torch.float32 else 4e-3
    torch.testing.assert_close(normed, F.layer_norm(merged, (20,), weight, bias, 1e-6), rtol=bound, atol=bound)


# -- graphs and gradients ----------------------------------------------------------------------------------------------


@inside
@pytest.mark.parametrize(
    "name", ["group", "pool", "pool and norm", "pool with branch", "merge", "merge and norm", "twins"]
)
def test_the_operators_describe_themselves_correctly(name: str) -> None:
    from zipbrain.pooling.backends.triton import ops

    x, q, k, v = draw(0, 2, 14)
    grouping = on(False, x, q, k, v, r=4, method=ZIPBrain()).grouping
    index, norm = (grouping.kept, grouping.source, grouping.target), (torch.ones(8), torch.zeros(8), 1e-5)
    order = evenly_spread(13, x.device, torch.float32)
    spaces, nothing = (q, k, v, [2, 1, 2], [4, 3, 1, 0]), (None, None, 0.0)
    operator, arguments = {
        "group": (ops.group_op, spaces),
        "pool": (ops.pool_op, (x, *spaces, None, None, *nothing)),
        "pool and norm": (ops.pool_op, (x, *spaces, None, None, *norm)),
        "pool with branch": (ops.pool_op, (x, x, k, v, [0, 1, 2], [4, 3, 1, 0], x.clone(), torch.ones(8), *norm)),
        "merge": (ops.merge_op, (x, torch.ones(2, 14), *index, 1, *nothing)),
        "merge and norm": (ops.merge_op, (x, torch.ones(2, 14), *index, 1, *norm)),
        "twins": (ops.twins_op, (x, q, k, v, torch.ones(2, 14), order, [4, 0, 1, 0], [2.0**-16, 2.0**-32])),
    }[name]
    torch.library.opcheck(operator, arguments, test_utils=("test_schema", "test_faketensor"))


@inside
def test_a_captured_graph_has_one_node_per_pooling_and_gives_the_same() -> None:
    torch.manual_seed(0)
    model = zipbrain.compress(TokenEncoder(dim=16, depth=2, heads=2).eval(), ZIPBrain("x", "v", "kh", 0.4), ratio=0.6)
    x = torch.randn(2, 20, 16)
    before = entry.switch(False)
    try:
        plain = model(x).detach()
    finally:
        entry.switch(before)
    with torch.no_grad():
        torch.testing.assert_close(model(x), plain, rtol=1e-5, atol=1e-5)
        compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(compiled(x), plain, rtol=1e-5, atol=1e-5)
        program = torch.export.export(model, (x,))
    names = [str(node.target) for node in program.graph.nodes if "zipbrain" in str(node.target)]
    assert names == ["zipbrain.pool.default"] * 2
    torch.testing.assert_close(program.module()(x), plain, rtol=1e-5, atol=1e-5)


@inside
def test_the_norm_behind_the_merge_is_applied_by_the_kernel_where_that_changes_nothing() -> None:
    torch.manual_seed(0)
    base = TokenEncoder(dim=16, depth=2, heads=2).eval()
    torch.nn.init.normal_(base.blocks[0].norm2.weight)
    torch.nn.init.normal_(base.blocks[0].norm2.bias)
    x = torch.randn(2, 20, 16)

    def answer(kernels: bool) -> Tensor:
        before = entry.switch(kernels)
        try:
            with torch.no_grad():
                told: Tensor = zipbrain.compress(copy.deepcopy(base), ZIPBrain("x", "v", "kh", 0.4), ratio=0.6)(x)
                return told
        finally:
            entry.switch(before)

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
        before = entry.switch(kernels)
        try:
            with torch.no_grad():
                found.append(zipbrain.compress(copy.deepcopy(base), method, ratio=0.6, mass=True)(x))
        finally:
            entry.switch(before)
    assert "merge and norm" in launches
    assert ("twins" in launches) == (method == "twins")
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-5)


@inside
def test_more_tokens_than_a_program_groups_are_merged_by_the_kernel_all_the_same() -> None:
    from zipbrain.pooling.backends.triton.merge import merge

    x = torch.randn(1, entry.MOST_TOKENS + 140, 8, generator=torch.Generator().manual_seed(0))
    grouping = pool(x, r=300, method=ZIPBrain("x", "x", "x", 0.4), protected=1).grouping
    index = grouping.kept, grouping.source, grouping.target
    merged, _, normed = merge(x, index, 0, norm=(torch.ones(8), torch.zeros(8), 1e-6))
    torch.testing.assert_close(merged, LargestNorm()(x, grouping), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(normed, F.layer_norm(merged, (8,), eps=1e-6), rtol=1e-5, atol=1e-5)


# -- a branch that is added in passing ---------------------------------------------------------------------------------


def whole_numbers(seed: int, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Values whose sums and products are exact in all types."""
    return torch.randint(-8, 9, shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


BRANCHED = [("x", "v", "x"), ("k", "k", "k"), ("kh", "x", "x"), ("v", "q", "x"), ("x", "x", "x"), ("x", "vh", "q")]


@inside
@pytest.mark.parametrize("spaces", BRANCHED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_branch_is_added_on_the_way_to_the_same_bits(
    spaces: tuple[str, str, str], dtype: torch.dtype, launches: list[str]
) -> None:
    norm = torch.nn.LayerNorm(24).to(dtype)
    torch.nn.init.normal_(norm.weight)
    for number, (r, scaled, ends) in enumerate([(5, True, (1, 0)), (20, False, (2, 3))]):
        x, values = whole_numbers(number, 2, 33, 24, dtype=dtype), whole_numbers(number + 9, 2, 33, 24, dtype=dtype)
        heads = [whole_numbers(number + place, 2, 3, 33, 8, dtype=dtype) for place in (20, 30, 40)]
        scale = 0.5 * whole_numbers(number + 50, 24, dtype=dtype) if scaled else None
        apart = Tokens(x, r, *heads, *ends, branch=Branch(values, scale))
        method = ZIPBrain(*spaces, 0.3)
        with torch.no_grad():
            expected = pool_tokens(apart.joined(), method, norm=norm)
            launches.clear()
            found = pool_tokens(apart, method, norm=norm)
        assert launches == ["group and branch" if spaces[0] == "x" else "group", "merge and norm"]
        assert torch.equal(found.x, expected.x)
        assert torch.equal(found.normed, expected.normed)
        assert torch.equal(found.grouping.target, expected.grouping.target)


@inside
def test_a_branch_that_the_kernels_cannot_add_is_added_before(launches: list[str]) -> None:
    x, values = whole_numbers(0, 2, 40, 8), whole_numbers(1, 2, 40, 8)
    scale = whole_numbers(2, 8)
    norm = torch.nn.LayerNorm(8)
    method = ZIPBrain("x", "x", "x", 0.1)
    with torch.no_grad():
        for stream, branch in [
            (x, Branch(values.transpose(1, 2).contiguous().transpose(1, 2), scale)),
            (x, Branch(values, scale.expand(2, 40, 8))),
            (x, Branch(values, scale[:1])),
            (x, Branch(values, torch.stack((scale, scale), 1)[:, 0])),
            (x.transpose(1, 2).contiguous().transpose(1, 2), Branch(values, scale)),
            (x, Branch(values[:1], None)),
        ]:
            expected = pool_tokens(Tokens(branch.added_to(stream), 5), method, norm=norm)
            launches.clear()
            found = pool_tokens(Tokens(stream, 5, branch=branch), method, norm=norm)
            assert launches == ["group", "merge and norm"]
            assert torch.equal(found.x, expected.x)
            assert torch.equal(found.normed, expected.normed)


@inside
@pytest.mark.parametrize("mass", [False, True])
@pytest.mark.parametrize("spaces", [("x", "v", "x"), ("k", "k", "k")])
def test_branch_norm_and_mass_are_fused_in_a_compiled_graph_too(spaces: tuple[str, str, str], mass: bool) -> None:
    torch.manual_seed(0)
    base = torch.nn.Sequential(*(Block(24, 3, layer_scale=0.5) for _ in range(2))).eval().requires_grad_(False)
    model = zipbrain.compress(base, ZIPBrain(*spaces, 0.4), r=5, mass=mass)
    x, operators = torch.randn(2, 40, 24), []

    def backend(graph: torch.fx.GraphModule, example: Any) -> Any:
        for node in graph.graph.nodes:
            found = re.search(r"zipbrain[./:]+(\w+)", str(node.target))
            if found is not None and found[1] in ("pool", "merge"):
                # Behind six other arguments come branch and gain, if it pools, then the weights of the norm.
                operators.append((found[1], [one is not None for one in node.args[6:-1]]))
        return graph

    with torch.no_grad():
        expected = model(x)
        found = torch.compile(model, fullgraph=True, backend=backend)(x)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    assert operators == [("merge", [True] * 2) if mass else ("pool", [True] * 4)] * 2


@inside
@pytest.mark.parametrize("mass", [False, True])
def test_what_is_done_to_the_norm_counts_and_transforms_run(mass: bool) -> None:
    torch.manual_seed(0)
    base = torch.nn.Sequential(*(Block(24, 3, layer_scale=0.5) for _ in range(2))).eval().requires_grad_(False)
    model = zipbrain.compress(base, ZIPBrain("x", "v", "x", 0.4), r=5, mass=mass)
    x = torch.randn(2, 40, 24)

    def plainly(call: Any) -> Any:
        before = entry.switch(False)
        try:
            return call()
        finally:
            entry.switch(before)

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
            assert launches == ["group and branch" if "x" in spaces else "group", "merge and norm"] * 3
            assert torch.equal(model(x), found)
            before = entry.switch(False)
            try:
                torch.testing.assert_close(found, model(x), rtol=2e-5, atol=2e-5)
            finally:
                entry.switch(before)
        # weights that ask for a gradient, with an input that does not
        model(x).sum().backward()
        assert all(block.gamma_1.grad is not None and block.attn.proj.weight.grad.abs().sum() > 0 for block in model)


@inside
@pytest.mark.parametrize("method", [ZIPBrain("x", "v", "x", 0.4), ZIPBrain("k", "v", "q", 0.4), zipbrain.Twins()])
@pytest.mark.parametrize("mass", [False, True])
def test_watching_changes_no_bit_of_the_kernels(method: zipbrain.pooling.Method, mass: bool) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(Block(24, 3, layer_scale=0.5, qk_norm=True) for _ in range(2))).eval()
    zipbrain.compress(model, method, r=5, protected=1, mass=mass)
    x = torch.randn(2, 40, 24)
    with torch.no_grad():
        expected = model(x)
        with zipbrain.trace(model) as traced:
            assert torch.equal(model(x), expected)
    assert traced.token_counts == [39, 34, 29]
    assert zipbrain.summary(model).backend == "Triton kernels"


# -- gradients ---------------------------------------------------------------------------------------------------------


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
        before = entry.switch(kernels)
        try:
            both = entry.merge(x, None, grouping, LargestNorm())
        finally:
            entry.switch(before)
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
        "from zipbrain.pooling.backends.triton import entry\n"
        "entry.interpret(True)\n"
        "zipbrain.pool(torch.randn(1, 9, 4), r=2, method=zipbrain.ZIPBrain('x', 'x', 'x'))\n"
        "print(loaded or 'triton' not in sys.modules)"
    )
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    found = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "True"
