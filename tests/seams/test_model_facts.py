"""Facts about models: whose count, whose don't, and blocks that only look like a dialect."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import zipbrain
from seams.small_models import PlainBlock, varied
from zipbrain import UnsupportedModel, ZIPBrain
from zipbrain.seams import model_facts
from zipbrain.seams.find import find_chain

N = 24


class Encoder(nn.Module):
    """Blocks, then all tokens."""

    def __init__(self, depth: int = 4) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(PlainBlock() for _ in range(depth))
        varied(self)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


class LateToken(Encoder):
    """Puts a token in front behind a block, and needs the grid of the others."""

    def __init__(self, after: int, count: int) -> None:
        super().__init__()
        self.after, self.count = after, count

    def forward(self, x: Tensor) -> Tensor:
        for number, block in enumerate(self.blocks, 1):
            x = block(x)
            if number == self.after:
                x = torch.cat((torch.ones_like(x[:, : self.count]), x), dim=1)
        return x[:, self.count :].reshape(len(x), 4, N // 4, -1)


@pytest.fixture
def tokens() -> Tensor:
    return torch.randn(2, N, 16, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("after", [1, 2, 4])
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("mass", [False, True])
def test_tokens_put_in_front_between_blocks(
    after: int, count: int, mass: bool, tokens: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"{LateToken.__module__}.{LateToken.__qualname__}"
    monkeypatch.setitem(
        model_facts.DECLARED, name, model_facts.ClassFacts("blocks", 0, grid=True, late_prefix=("after", "count"))
    )
    model = LateToken(after, count).eval()
    before = model(tokens)
    zipbrain.compress(model, ZIPBrain(), r=0, mass=mass)
    torch.testing.assert_close(model(tokens), before, rtol=0, atol=1e-5)
    zipbrain.compress(model, ZIPBrain(), r=3, mass=mass)
    with zipbrain.trace(model) as trace:
        after_ = model(tokens)
    assert trace.token_counts == [24, 21, 18, 15, 12]
    owner = trace.source_map()
    flat = after_.flatten(1, 2)
    for window in range(2):  # tokens of one group have one value, others have others
        for token in range(N):
            assert torch.equal(flat[window, token], flat[window, owner[window, token]])
        assert len({tuple(value.tolist()) for value in flat[window]}) == 12


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("grid", (4, 10)), ("obstacle", False), ("prefix_tokens", (1, 2)), ("prefix_tokens", True),
        ("suffix_tokens", "x"), ("late_prefix", (1, 2)), ("encoder_path", "ckpt/enc.pt"), ("reduce_at", 3),
    ],
)  # fmt: skip
@pytest.mark.parametrize("inside", [False, True])
def test_a_name_used_for_something_else_is_no_fact(name: str, value: Any, inside: bool, tokens: Tensor) -> None:
    model = Encoder().eval()
    model.embed = nn.Identity()
    setattr(model.embed if inside else model, name, value)
    zipbrain.compress(model, ZIPBrain(), r=2)
    assert model(tokens).shape == (2, N - 8, 16)


def test_the_nearest_module_that_says_something_counts() -> None:
    inner, outer = Encoder(), nn.Sequential()
    inner.prefix_tokens, outer.prefix_tokens, outer.suffix_tokens = 1, 5, 2
    outer.append(inner)
    found = model_facts.resolve_facts(outer, "0.blocks")
    assert (found.prefix_tokens, found.suffix_tokens) == (1, 2)


def test_facts_about_one_part_do_not_reach_another() -> None:
    first, second = Encoder(4), Encoder(6)
    first.reduce_at = (2,)
    both = nn.ModuleList((first, second))
    assert find_chain(both).facts.reduce_at is None
    assert find_chain(both, "0").facts.reduce_at == (2,)


@pytest.mark.parametrize(("depth", "reduced"), [(8, 4), (5, 2), (1, 1)])
def test_a_shallower_model_reduces_at_the_blocks_it_has(depth: int, reduced: int, tokens: Tensor) -> None:
    model = Encoder(depth).eval()
    model.reduce_at = (2, 4, 6, 8)
    zipbrain.compress(model, ZIPBrain(), r=1)
    assert model(tokens).shape[1] == N - reduced


def test_a_container_above_a_known_model_may_be_named() -> None:
    model = Encoder()
    model.reduce_at, model.encoder_path = (2,), "blocks"
    assert find_chain(nn.Sequential(nn.Sequential(model)), "0").facts.reduce_at == (2,)


def test_another_class_of_a_known_name_is_left_alone(tokens: Tensor) -> None:
    class EEGPTClassifier(Encoder):
        pass

    model = zipbrain.compress(EEGPTClassifier().eval(), ZIPBrain(), r=2)
    assert model(tokens).shape == (2, N - 8, 16)


class Windowed(PlainBlock):
    """Attention inside windows of neighbours."""

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[1] % 10:
            return super().forward(x)
        return super().forward(x.unflatten(1, (-1, 10)).flatten(0, 1)).reshape(x.shape)


class Grid(PlainBlock):
    """Wants a grid."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.reshape(len(x), 7, 7, -1).flatten(1, 2))


@pytest.mark.parametrize("kind", [Windowed, Grid])
def test_attention_on_windows_or_a_grid_is_refused(kind: type[nn.Module]) -> None:
    with pytest.raises(UnsupportedModel, match="its forward does something else"):
        zipbrain.compress(nn.Sequential(*(kind() for _ in range(3))), ZIPBrain(), r=1)
