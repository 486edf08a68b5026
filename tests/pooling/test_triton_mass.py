"""The Triton kernels that carry mass against the plain operators, under Triton's interpreter as in `test_triton`."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import zipbrain
from interpreted import (
    INSIDE,
    MISSING,
    inside,
    off,
    pass_under_the_interpreter,
)
from zipbrain.models import TokenEncoder
from zipbrain.pooling import (
    Composition,
    Grouping,
    LargestNorm,
    Mean,
    MeanNorm,
    Prune,
    ToFu,
    Twins,
    ZIPBrain,
)
from zipbrain.pooling.backends.triton import entry
from zipbrain.pooling.grouping import compose
from zipbrain.pooling.tokens import Tokens

DTYPES = [torch.float32, torch.float16, torch.bfloat16]


@pytest.mark.skipif(MISSING, reason="triton is not installed: pip install --no-deps triton")
@pytest.mark.skipif(INSIDE, reason="this is the process that it starts")
def test_the_kernels_that_carry_mass_agree_under_tritons_interpreter() -> None:
    pass_under_the_interpreter(__file__, least=32)


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
        found = entry.follow(places, grouping)
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
    expected = entry.follow(places, grouping)
    assert expected is not None
    for other in (
        places.t().contiguous().t(),
        torch.cat((places, places), dim=1)[:, :50],
        torch.stack((places, places), dim=2)[:, :, 0],
    ):
        found = entry.follow(other, grouping)
        assert found is not None
        assert torch.equal(found, expected)
    wide = torch.cat((grouping.source, grouping.target), dim=1)
    sliced = Grouping(grouping.kept, wide[:, :12], wide[:, 12:], 40, drops=True)
    assert torch.equal(entry.follow(places, sliced), expected)  # type: ignore[arg-type]
    alone = Grouping(grouping.kept[1:2], grouping.source[1:2], grouping.target[1:2], 40, drops=True)
    assert torch.equal(entry.follow(places[1:2], alone), expected[1:2])  # type: ignore[arg-type]
    none = Grouping(grouping.kept[:0], grouping.source[:0], grouping.target[:0], 40)
    assert entry.follow(places[:0], none).shape == (0, 50)  # type: ignore[union-attr]


@inside
def test_places_that_the_kernel_cannot_follow_are_left_to_the_plain_operators(launches: list[str]) -> None:
    grouping, places = drawn(0, 2, 20, 5), torch.arange(20).expand(2, -1)
    longer = torch.cat((grouping.kept, torch.full((2, 1), 20)), dim=1)
    assert entry.follow(places, Grouping(longer, grouping.source, grouping.target, 20, appended=1)) is None
    assert entry.follow(places, Grouping.identity(2, 20)) is None
    assert entry.follow(places.int(), grouping) is None
    many = entry.MOST_SOURCES + 1
    assert entry.follow(places, drawn(0, 2, many + 20, many)) is None
    assert off(lambda: entry.follow(places, grouping)) is None
    assert launches == []


# -- the norm behind the merge -----------------------------------------------------------------------------------------


@inside
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rule", [LargestNorm(), MeanNorm(), Mean()])
def test_the_norm_behind_a_merge_with_mass_is_applied_by_the_kernel(rule: Any, dtype: torch.dtype) -> None:
    x = torch.randn(2, 26, 20, generator=torch.Generator().manual_seed(0)).to(dtype)
    mass, grouping = logarithms(2, 26).exp().round(), drawn(1, 2, 26, 11, (1, 1))
    norm = nn.LayerNorm(20).to(dtype)
    tokens = Tokens(x, 11, mass=mass)
    with torch.no_grad():
        nn.init.normal_(norm.weight)
        nn.init.normal_(norm.bias)
        assert entry.merges_normed(tokens, rule, norm)
        found = entry.merge_norm(tokens, grouping, rule, norm)
        assert found is not None
        merged = entry.merge(x, mass, grouping, rule)
        assert merged is not None
        assert torch.equal(found[0], merged[0])
        assert torch.equal(found[1], grouping.merge(mass, "sum"))
        bound = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}[dtype]
        torch.testing.assert_close(found[2], norm(found[0]), rtol=bound, atol=bound)
        assert not entry.merges_normed(tokens, Prune(), norm)
        assert not entry.merges_normed(Tokens(x, 11, mass=mass.double()), rule, norm)
        assert not entry.merges_normed(Tokens(x, 11), rule, norm)
        assert not entry.merges_normed(tokens, rule, None)
        assert entry.merge_norm(tokens, drawn(1, 2, 26, 11, dropped=0.5), rule, norm) is None
        with torch.autocast("cpu", torch.bfloat16):
            assert not entry.merges_normed(tokens, rule, norm)
    assert not entry.merges_normed(tokens, rule, norm)  # whose weights ask for gradients


# -- models ------------------------------------------------------------------------------------------------------------


def encoder(dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(0)
    model = TokenEncoder(dim=16, depth=3, heads=2).eval()
    for block in model.blocks:
        nn.init.normal_(block.norm2.weight)
        nn.init.normal_(block.norm2.bias)
    return model.to(dtype)


EACH = {"twins": "twins", "zipbrain": "group", "tome": None, "tofu": None, "tofu pruning": None}


@inside
@pytest.mark.parametrize("method", EACH)
@pytest.mark.parametrize("protected", [0, (1, 2)])
def test_models_that_carry_mass_answer_alike(method: str, protected: Any, launches: list[str]) -> None:
    chosen: Any = ToFu(merge_from=None) if method == "tofu pruning" else method
    model = zipbrain.compress(encoder(), chosen, r=5, mass=True, protected=protected)
    x = torch.randn(2, 33, 16)
    with torch.no_grad():
        found = model(x)
        again = model(x)
        seen = list(launches)
        torch.testing.assert_close(found, off(lambda: model(x)), rtol=1e-5, atol=1e-5)
    assert torch.equal(found, again)
    assert launches == seen
    if method == "tofu pruning":
        assert seen.count("follow") == 6
    else:
        decided = [EACH[method]] if EACH[method] else []
        block = [*decided, "merge and norm", "follow"]
        assert seen == block * 6


@inside
def test_a_model_in_half_precision_answers_alike() -> None:
    model = zipbrain.compress(encoder(torch.bfloat16), Twins(), r=5)
    x = torch.randn(2, 33, 16).bfloat16()
    with torch.no_grad():
        torch.testing.assert_close(model(x), off(lambda: model(x)), rtol=0.1, atol=0.1)


@inside
def test_hooks_of_the_norm_are_called(launches: list[str]) -> None:
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
def test_training_and_autocast_with_mass_need_no_norm_of_the_kernels(launches: list[str]) -> None:
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
def test_the_operator_that_follows_tokens_describes_itself_correctly() -> None:
    from zipbrain.pooling.backends.triton import ops

    grouping = drawn(0, 2, 20, 6)
    arguments = torch.arange(20).expand(2, -1), grouping.source, grouping.target
    torch.library.opcheck(ops.follow_op, arguments, test_utils=("test_schema", "test_faketensor"))


@inside
def test_a_compiled_model_that_carries_mass_has_three_nodes_per_block() -> None:
    model = zipbrain.compress(encoder(), Twins(), r=5)
    x, names = torch.randn(2, 33, 16), []

    def backend(graph: torch.fx.GraphModule, example: Any) -> Any:
        names.extend(str(node.target) for node in graph.graph.nodes if "zipbrain" in str(node.target))
        return graph

    with torch.no_grad():
        found = torch.compile(model, fullgraph=True, backend=backend)(x)
        torch.testing.assert_close(found, model(x), rtol=1e-5, atol=1e-5)
    found = [re.sub(r".*zipbrain[./:]+(\w+).*", r"\1", name) for name in names]
    assert found == ["twins", "merge", "follow"] * 3


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
