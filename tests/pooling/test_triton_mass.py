"""The Triton kernels that carry mass against the plain operators, under Triton's interpreter as in `test_triton`."""

from __future__ import annotations

import copy
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import zipbrain
from interpreted import (
    INSIDE,
    MISSING,
    compiled,
    inside,
    pass_under_the_interpreter,
    ptxas,
    recorded,
)
from zipbrain.models import TokenEncoder
from zipbrain.pooling import Composition, Grouping, LargestNorm, Mean, MeanNorm, Prune, Twins, WeightedMean, ZIPBrain
from zipbrain.pooling.backends.triton import mass_path as triton_mass_path
from zipbrain.pooling.backends.triton import path as triton_path
from zipbrain.pooling.grouping import compose
from zipbrain.pooling.tokens import Tokens
from zipbrain.seams.dialects import attention
from zipbrain.seams.dialects.attention import softmax_attention

DTYPES = [torch.float32, torch.float16, torch.bfloat16]


@pytest.mark.skipif(MISSING, reason="triton is not installed: pip install --no-deps triton")
@pytest.mark.skipif(INSIDE, reason="this is the process that it starts")
def test_the_kernels_that_carry_mass_agree_under_tritons_interpreter() -> None:
    pass_under_the_interpreter(__file__, least=65)


@pytest.mark.skipif(MISSING, reason="triton is not installed: pip install --no-deps triton")
@pytest.mark.skipif(INSIDE, reason="the interpreter compiles nothing")
@pytest.mark.parametrize(
    ("total", "heads", "width", "r", "dtype"),
    [(231, 10, 20, 15, torch.float16), (2049, 8, 64, 600, torch.float32), (24, 2, 33, 20, torch.bfloat16)],
)
def test_the_kernels_that_carry_mass_compile_for_a_gpu_and_hold_everything_in_registers(
    total: int, heads: int, width: int, r: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    from zipbrain.pooling.backends.triton import mass as triton_mass
    from zipbrain.pooling.backends.triton import mass_launch as triton_mass_launch

    monkeypatch.setattr(triton_mass_launch, "_follows", {})
    monkeypatch.setattr(triton_mass_launch, "_widens", {})
    started = recorded(monkeypatch, (triton_mass, "follow"), (triton_mass, "widen"))
    source = torch.zeros(2, r, dtype=torch.int64)
    triton_mass_launch.follow(torch.arange(total).expand(2, -1), source, source)
    wide = triton_mass_path.wider(width)
    triton_mass_launch.widen(*projected(2, total, heads, width, dtype), torch.zeros(2, total), width**-0.5, wide)
    assert len(started) == 2
    for kernel, args, options in started:
        built = compiled(kernel, args, options)
        (tmp_path / "kernel.ptx").write_text(built.asm["ptx"])
        command = [ptxas(), "-v", "-arch=sm_90a", str(tmp_path / "kernel.ptx"), "-o", str(tmp_path / "kernel.cubin")]
        told = subprocess.run(command, capture_output=True, text=True, check=True).stderr
        assert " 0 bytes spill stores" in told, told
    if dtype != torch.float32:
        assert f"cvt.rn.{'bf16' if dtype == torch.bfloat16 else 'f16'}" in built.asm["ptx"]
    if width == 20:  # halves: rows begin at multiples of 8 bytes, wider ones of 16
        assert "st.global.v4.b32" in built.asm["ptx"]
        assert "ld.global.v2.b32" in built.asm["ptx"]


def projected(batch: int, total: int, heads: int, width: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v as they come from one projection: views into rows of 3 H d features."""
    generator = torch.Generator().manual_seed(total)
    rows = torch.randn(batch, total, 3 * heads * width, generator=generator).to(dtype)
    q, k, v = rows.reshape(batch, total, 3, heads, width).permute(2, 0, 3, 1, 4).unbind(0)
    return q, k, v


def logarithms(batch: int, total: int) -> Tensor:
    return torch.randint(1, 9, (batch, total), generator=torch.Generator().manual_seed(total)).float().log()


def drawn(seed: int, batch: int, total: int, r: int, ends: tuple[int, int] = (0, 0), dropped: float = 0.0) -> Grouping:
    """A random grouping that leaves the ends alone and drops some of its sources."""
    generator = torch.Generator().manual_seed(seed)
    kept, source, target = [], [], []
    for _ in range(batch):
        order = ends[0] + torch.randperm(total - sum(ends), generator=generator)
        gone, free = order[:r].sort().values, order[r:]
        whole = torch.ones(total, dtype=torch.bool)
        whole[gone] = False
        joined = free[torch.randint(len(free), (r,), generator=generator)]
        kept.append(whole.nonzero()[:, 0])
        source.append(gone)
        target.append(torch.where(torch.rand(r, generator=generator) < dropped, -1, joined))
    return Grouping(*map(torch.stack, (kept, source, target)), total, drops=dropped > 0)


def off(call: Any) -> Any:
    """What a call gives without the kernels."""
    before = triton_path.switch(False)
    try:
        return call()
    finally:
        triton_path.switch(before)


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the steps that went to the kernels."""
    from zipbrain.pooling.backends.triton import (
        mass_launch as triton_mass_launch,
    )
    from zipbrain.pooling.backends.triton import (
        merge_launch as triton_merge_launch,
    )
    from zipbrain.pooling.backends.triton import (
        select_launch as triton_select_launch,
    )
    from zipbrain.pooling.backends.triton import (
        twins_launch as triton_twins_launch,
    )

    seen: list[str] = []
    for label, module, name in (
        ("group", triton_select_launch, "group"),
        ("merge", triton_merge_launch, "merge"),
        ("twins", triton_twins_launch, "group"),
        ("follow", triton_mass_launch, "follow"),
        ("widen", triton_mass_launch, "widen"),
    ):
        original = getattr(module, name)

        def call(*args: Any, _label: str = label, _original: Any = original, **options: Any) -> Any:
            normed = options.get("norm", args[6] if len(args) > 6 else None) if _label == "merge" else None
            seen.append(_label if normed is None else f"{_label} and norm")
            return _original(*args, **options)

        monkeypatch.setattr(module, name, call)
    return seen


# -- places ------------------------------------------------------------------------------------------------------------


@inside
@pytest.mark.parametrize(
    ("batch", "total", "counts", "ends", "dropped"),
    [
        (3, 14, (3, 4, 1), (0, 0), 0.0),
        (1, 90, (20, 1, 40), (1, 2), 0.0),
        (3, 90, (17, 33, 16, 10), (1, 0), 0.4),
        (1, 70, (68, 1), (0, 0), 0.0),
        (2, 65, (30, 20), (2, 2), 1.0),
        (1, 1300, (600, 150, 300), (1, 1), 0.2),
    ],
)
def test_tokens_are_followed_through_layers_as_by_the_plain_operators(
    batch: int, total: int, counts: tuple[int, ...], ends: tuple[int, int], dropped: float, launches: list[str]
) -> None:
    groupings, left = [], total
    for layer, r in enumerate(counts):
        groupings.append(drawn(layer, batch, left, r, ends, dropped))
        left -= r
    places = torch.arange(total).expand(batch, -1)
    for layer, grouping in enumerate(groupings):
        found = triton_mass_path.follow(places, grouping)
        assert found is not None
        assert found.is_contiguous()
        step = grouping.places().gather(1, places.clamp_min(0))
        assert torch.equal(found, torch.where(places < 0, -1, step))
        assert torch.equal(found, compose(groupings[: layer + 1]).places())
        places = found
    assert (places < 0).any() == (dropped > 0)
    assert launches == ["follow"] * len(counts)


@inside
def test_places_are_read_where_they_lie_and_a_window_alone_gets_the_same() -> None:
    grouping = drawn(0, 3, 40, 12, dropped=0.3)
    places = torch.randint(-1, 40, (3, 50), generator=torch.Generator().manual_seed(0))
    expected = triton_mass_path.follow(places, grouping)
    assert expected is not None
    for other in (
        places.t().contiguous().t(),
        torch.cat((places, places), dim=1)[:, :50],
        torch.stack((places, places), dim=2)[:, :, 0],
    ):
        found = triton_mass_path.follow(other, grouping)
        assert found is not None
        assert torch.equal(found, expected)
    wide = torch.cat((grouping.source, grouping.target), dim=1)
    sliced = Grouping(grouping.kept, wide[:, :12], wide[:, 12:], 40, drops=True)
    assert torch.equal(triton_mass_path.follow(places, sliced), expected)  # type: ignore[arg-type]
    alone = Grouping(grouping.kept[1:2], grouping.source[1:2], grouping.target[1:2], 40, drops=True)
    assert torch.equal(triton_mass_path.follow(places[1:2], alone), expected[1:2])  # type: ignore[arg-type]
    none = Grouping(grouping.kept[:0], grouping.source[:0], grouping.target[:0], 40)
    assert triton_mass_path.follow(places[:0], none).shape == (0, 50)  # type: ignore[union-attr]


@inside
def test_places_that_the_kernel_cannot_follow_are_left_to_the_plain_operators(launches: list[str]) -> None:
    grouping, places = drawn(0, 2, 20, 5), torch.arange(20).expand(2, -1)
    longer = torch.cat((grouping.kept, torch.full((2, 1), 20)), dim=1)
    assert triton_mass_path.follow(places, Grouping(longer, grouping.source, grouping.target, 20, appended=1)) is None
    assert triton_mass_path.follow(places, Grouping.identity(2, 20)) is None
    assert triton_mass_path.follow(places.int(), grouping) is None
    many = triton_path.MOST_SOURCES + 1
    assert triton_mass_path.follow(places, drawn(0, 2, many + 20, many)) is None
    assert off(lambda: triton_mass_path.follow(places, grouping)) is None
    assert launches == []


# -- attention ---------------------------------------------------------------------------------------------------------


@inside
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("width", [20, 1, 33])
def test_odd_heads_get_zeros_by_the_kernel_and_attention_answers_alike(
    dtype: torch.dtype, width: int, launches: list[str]
) -> None:
    parts = projected(2, 30, 3, width, dtype)
    found = triton_mass_path.padded(*parts)
    assert found is not None
    for one, part in zip(found, parts, strict=True):
        assert one.shape[3] % 8 == 0
        assert one.is_contiguous()
        assert torch.equal(one, torch.nn.functional.pad(part, (0, one.shape[3] - width)))
    launches.clear()
    answer = softmax_attention(*parts, width**-0.5)[0]
    assert launches == ["widen"]
    expected = off(lambda: softmax_attention(*parts, width**-0.5)[0])
    assert answer.shape == expected.shape
    torch.testing.assert_close(answer.float(), expected.float(), rtol=2e-2, atol=2e-2)


@inside
def test_heads_that_need_no_zeros_are_left_alone(launches: list[str]) -> None:
    assert triton_mass_path.padded(*projected(2, 30, 3, 24, torch.float16)) is None
    parts = projected(2, 30, 3, 20, torch.float16)
    assert triton_mass_path.padded(*(part.float() for part in parts)) is None
    assert triton_mass_path.padded(*(part.requires_grad_() for part in parts)) is None
    with torch.autocast("cpu", torch.bfloat16):
        assert triton_mass_path.padded(*projected(2, 30, 3, 20, torch.bfloat16)) is None
    assert launches == []


@inside
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [20, 64, 1, 33, 8])
def test_wider_heads_are_those_of_the_plain_operators_to_the_last_bit(
    dtype: torch.dtype, width: int, launches: list[str]
) -> None:
    more = triton_mass_path.wider(width) - width
    for batch, total, heads in ((2, 47, 3), (1, 130, 2)):
        q, k, v = projected(batch, total, heads, width, dtype)
        bias = logarithms(batch, total)
        for scale in (width**-0.5, 0.3):
            found = triton_mass_path.with_mass(q, k, v, bias, scale)
            assert found is not None
            wanted = attention._with_mass(q, k, v, bias, scale, more)
            if dtype == torch.bfloat16:  # the interpreter cuts off where a GPU rounds: see the compiled kernel
                column = ((bias / scale).view(torch.int32) & -(2**16)).view(torch.float32)
                torch.testing.assert_close(column, bias / scale, rtol=2**-7, atol=0)
                wanted[1][..., width] = column[:, None].to(dtype)
            for one, expected in zip(found, wanted, strict=True):
                assert one.dtype == dtype
                assert one.is_contiguous()
                assert torch.equal(one, expected)
    assert launches == ["widen"] * 4


@inside
def test_heads_are_read_where_they_lie() -> None:
    q, k, v = projected(3, 30, 2, 12, torch.float32)
    bias = logarithms(3, 30)
    expected = attention._with_mass(q, k, v, bias, 0.5, 4)
    for change in (
        lambda part: part.contiguous(),
        lambda part: part.transpose(0, 2).contiguous().transpose(0, 2),  # tokens first in memory
        lambda part: part.transpose(-1, -2).contiguous().transpose(-1, -2),  # channels last but one
        lambda part: torch.cat((part, part), dim=-1)[..., : part.shape[-1]],  # rows with a gap
        lambda part: F.pad(part, (1, 2))[..., 1:-2],  # that begin anywhere
    ):
        found = triton_mass_path.with_mass(*map(change, (q, k, v)), change(bias[:, None, :, None])[:, 0, :, 0], 0.5)
        assert found is not None
        for one, wanted in zip(found, expected, strict=True):
            assert torch.equal(one, wanted)
    wide = triton_mass_path.with_mass(
        *(part[:1].expand(3, -1, -1, -1) for part in (q, k, v)), bias[:1].expand(3, -1), 0.5
    )
    assert wide is not None
    for one, wanted in zip(wide, expected, strict=True):
        assert torch.equal(one, wanted[:1].expand(3, -1, -1, -1))
    none = triton_mass_path.with_mass(q[:0], k[:0], v[:0], bias[:0], 0.5)
    assert none is not None
    assert none[0].shape == (0, 2, 30, 16)


@inside
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 2e-6), (torch.float16, 2e-3), (torch.bfloat16, 2e-2)])
def test_attention_with_mass_answers_alike(dtype: torch.dtype, bound: float, launches: list[str]) -> None:
    q, k, v = projected(2, 37, 3, 20, dtype)
    bias = logarithms(2, 37)
    found, none = softmax_attention(q, k, v, 0.2, bias)
    assert none is None
    assert launches == ["widen"]
    expected, _ = off(lambda: softmax_attention(q, k, v, 0.2, bias))
    assert found.shape == expected.shape == q.shape
    torch.testing.assert_close(found, expected, rtol=0, atol=bound)


@pytest.mark.parametrize("more", [1, 4, 12])
def test_more_channels_than_one_change_nothing(more: int) -> None:
    q, k, v = (part.double() for part in projected(2, 23, 3, 20, torch.float32))
    bias = logarithms(2, 23).double()
    widened = attention._with_mass(q, k, v, bias, 0.2, more)
    assert all(part.shape == (2, 3, 23, 20 + more) for part in widened)
    logits = 0.2 * q @ k.transpose(2, 3) + bias[:, None, None, :]
    found = F.scaled_dot_product_attention(*widened, scale=0.2)
    torch.testing.assert_close(found[..., :20], logits.softmax(-1) @ v, rtol=1e-12, atol=1e-12)
    assert not found[..., 20:].any()


@inside
def test_gradients_autocast_and_odd_tensors_go_to_the_plain_operators(launches: list[str]) -> None:
    q, k, v = projected(2, 20, 2, 8, torch.float32)
    bias = logarithms(2, 20)
    for place in range(4):
        given = [part.clone() for part in (q, k, v, bias)]
        given[place].requires_grad_()
        assert triton_mass_path.with_mass(*given, 0.5) is None  # type: ignore[call-arg]
        softmax_attention(*given[:3], 0.5, given[3])[0].sum().backward()
        assert given[place].grad is not None
    with torch.autocast("cpu", torch.bfloat16):
        assert triton_mass_path.with_mass(q, k, v, bias, 0.5) is None
    assert triton_mass_path.with_mass(q.double(), k.double(), v.double(), bias, 0.5) is None
    assert triton_mass_path.with_mass(q, k, v, bias.double(), 0.5) is None
    assert triton_mass_path.with_mass(q.half(), k, v, bias, 0.5) is None
    assert triton_mass_path.with_mass(q[:, :, :5], k, v, bias, 0.5) is None
    assert off(lambda: triton_mass_path.with_mass(q, k, v, bias, 0.5)) is None
    assert launches == []
    both = torch.func.vmap(lambda one: softmax_attention(one, k, v, 0.5, bias)[0])(torch.stack((q, q)))
    torch.testing.assert_close(both[0], off(lambda: softmax_attention(q, k, v, 0.5, bias)[0]))
    given = [q.clone().requires_grad_(), k, v, bias]
    with torch.no_grad():
        assert triton_mass_path.with_mass(*given, 0.5) is not None  # type: ignore[call-arg]


# -- the norm behind the merge -----------------------------------------------------------------------------------------


@inside
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rule", [LargestNorm(), MeanNorm(), Mean(), WeightedMean()])
def test_the_norm_behind_a_merge_with_mass_is_applied_by_the_kernel(rule: Any, dtype: torch.dtype) -> None:
    x = torch.randn(2, 26, 20, generator=torch.Generator().manual_seed(0)).to(dtype)
    mass, grouping = logarithms(2, 26).exp().round(), drawn(1, 2, 26, 11, (1, 1))
    norm = nn.LayerNorm(20).to(dtype)
    tokens = Tokens(x, 11, mass=mass)
    with torch.no_grad():
        nn.init.normal_(norm.weight)
        nn.init.normal_(norm.bias)
        assert triton_mass_path.merges_normed(tokens, rule, norm)
        found = triton_mass_path.merge_norm(tokens, grouping, rule, norm)
        assert found is not None
        merged = triton_path.merge(x, mass, grouping, rule)
        assert merged is not None
        assert torch.equal(found[0], merged[0])
        assert torch.equal(found[1], grouping.merge(mass, "sum"))
        bound = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}[dtype]
        torch.testing.assert_close(found[2], norm(found[0]), rtol=bound, atol=bound)
        assert not triton_mass_path.merges_normed(tokens, Prune(), norm)
        assert not triton_mass_path.merges_normed(Tokens(x, 11, mass=mass.double()), rule, norm)
        assert not triton_mass_path.merges_normed(Tokens(x, 11), rule, norm)
        assert not triton_mass_path.merges_normed(tokens, rule, None)
        assert triton_mass_path.merge_norm(tokens, drawn(1, 2, 26, 11, dropped=0.5), rule, norm) is None
        with torch.autocast("cpu", torch.bfloat16):
            assert not triton_mass_path.merges_normed(tokens, rule, norm)
    assert not triton_mass_path.merges_normed(tokens, rule, norm)  # whose weights ask for gradients


# -- models ------------------------------------------------------------------------------------------------------------


def encoder(dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(0)
    model = TokenEncoder(dim=16, depth=3, heads=2).eval()
    for block in model.blocks:
        nn.init.normal_(block.norm2.weight)
        nn.init.normal_(block.norm2.bias)
    return model.to(dtype)


EACH = {"twins": "twins", "zipbrain": "group", "tome": None, "tofu": None}


@inside
@pytest.mark.parametrize("method", EACH)
@pytest.mark.parametrize("protected", [0, (1, 2)])
def test_models_that_carry_mass_answer_alike(method: str, protected: Any, launches: list[str]) -> None:
    model = zipbrain.compress(encoder(), method, r=5, mass=True, protected=protected)
    x = torch.randn(2, 33, 16)
    with torch.no_grad():
        found = model(x)
        again = model(x)
        seen = list(launches)
        torch.testing.assert_close(found, off(lambda: model(x)), rtol=1e-5, atol=1e-5)
    assert torch.equal(found, again)
    assert launches == seen
    if method != "tofu":  # which prunes in its later blocks
        decided = [EACH[method]] if EACH[method] else []
        block = [*decided, "merge and norm", "follow"]
        assert seen == (block + ["widen", *block] * 2) * 2
    else:
        assert seen.count("follow") == 6


@inside
def test_a_model_in_half_precision_answers_alike() -> None:
    model = zipbrain.compress(encoder(torch.bfloat16), Twins(), r=5)
    x = torch.randn(2, 33, 16).bfloat16()
    with torch.no_grad():
        torch.testing.assert_close(model(x), off(lambda: model(x)), rtol=0.1, atol=0.1)


@inside
def test_a_norm_that_is_listened_to_is_called(launches: list[str]) -> None:
    model = zipbrain.compress(encoder(), Twins(), r=5)
    x, heard = torch.randn(2, 33, 16), []
    for block in model.blocks:
        block.norm2.register_forward_hook(lambda *given: heard.append(given[2].shape[1]))
    with torch.no_grad():
        found = model(x)
    assert heard == [29, 24, 19]
    assert "merge" in launches
    assert "merge and norm" not in launches
    torch.testing.assert_close(found, off(lambda: model(x)), rtol=1e-5, atol=1e-5)


@inside
def test_training_and_autocast_with_mass_need_neither_norm_nor_heads_of_the_kernels(launches: list[str]) -> None:
    model = zipbrain.compress(encoder(), Twins(), r=5)
    x = torch.randn(2, 33, 16)
    gradients = []
    for kernels in (True, False):
        own = copy.deepcopy(model)
        run = lambda own=own: own(x).square().sum().backward()  # noqa: E731
        run() if kernels else off(run)
        gradients.append(own.blocks[0].attn.qkv.weight.grad)
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-5)
    assert set(launches) == {"twins", "follow"}
    launches.clear()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        coarse = model(x)
        assert set(launches) == {"twins", "merge", "follow"}
        torch.testing.assert_close(coarse, off(lambda: model(x)), rtol=0.02, atol=0.02)


@inside
def test_protected_tokens_anywhere_are_followed_too(launches: list[str]) -> None:
    mask = torch.zeros(34, dtype=torch.bool)
    mask[[3, 20]] = True
    model = zipbrain.compress(encoder(), Twins(), r=5, protected=mask)
    x = torch.randn(2, 33, 16)
    with torch.no_grad():
        found = model(x)
        assert launches.count("follow") == 3
        assert "merge and norm" not in launches
        torch.testing.assert_close(found, off(lambda: model(x)), rtol=1e-5, atol=1e-5)


# -- graphs ------------------------------------------------------------------------------------------------------------


@inside
@pytest.mark.parametrize("name", ["follow", "widen", "merge_norm"])
def test_the_operators_that_carry_mass_describe_themselves_correctly(name: str) -> None:
    from zipbrain.pooling.backends.triton import ops as triton_ops

    grouping = drawn(0, 2, 20, 6)
    index = grouping.kept, grouping.source, grouping.target
    arguments: dict[str, tuple[Any, ...]] = {
        "follow": (torch.arange(20).expand(2, -1), *index[1:]),
        "widen": (*projected(2, 20, 2, 5, torch.float32), logarithms(2, 20), 0.4),
        "merge_norm": (torch.randn(2, 20, 8), torch.ones(2, 20), *index, 1, torch.ones(8), torch.zeros(8), 1e-5),
    }
    utilities = ("test_schema", "test_faketensor")
    torch.library.opcheck(getattr(triton_ops, name), arguments[name], test_utils=utilities)


@inside
def test_a_compiled_model_that_carries_mass_has_four_nodes_per_block() -> None:
    model = zipbrain.compress(encoder(), Twins(), r=5)
    x, names = torch.randn(2, 33, 16), []

    def backend(graph: torch.fx.GraphModule, example: Any) -> Any:
        names.extend(str(node.target) for node in graph.graph.nodes if "zipbrain" in str(node.target))
        return graph

    with torch.no_grad():
        found = torch.compile(model, fullgraph=True, backend=backend)(x)
        torch.testing.assert_close(found, model(x), rtol=1e-5, atol=1e-5)
    found = [re.sub(r".*zipbrain[./:]+(\w+).*", r"\1", name) for name in names]
    block = ["twins", "merge_norm", "follow"]
    assert found == [*block, "widen", *block, "widen", *block]


@inside
def test_a_method_decides_once_also_where_its_tokens_are_dropped() -> None:
    calls = []

    class Counted(Composition):
        def __call__(self, tokens: Tokens) -> Grouping:
            calls.append(1)
            return super().__call__(tokens)

    model = zipbrain.compress(
        TokenEncoder(dim=16, depth=2, heads=2).eval(), Counted("pivots", "drop", "mean"), r=5, mass=True
    )
    with torch.no_grad():
        model(torch.randn(2, 40, 16))
    assert len(calls) == 2


@inside
@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("mass", [True, False])
def test_torch_encoders_answer_alike(norm_first: bool, mass: bool) -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(24, 3, 48, norm_first=norm_first, batch_first=True)
    base = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    x = torch.randn(2, 40, 24)
    first = ("x", "v", "x") if norm_first else ("v", "x", "x")  # behind a norm all tokens are equally long
    for spaces in (first, ("k", "v", "q")):
        model = zipbrain.compress(copy.deepcopy(base), ZIPBrain(*spaces, 0.4), r=5, mass=mass)
        with torch.no_grad():
            torch.testing.assert_close(model(x), off(lambda model=model: model(x)), rtol=2e-5, atol=2e-5)
