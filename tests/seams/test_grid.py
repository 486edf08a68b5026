"""Criss-cross blocks: whole channels or whole time steps go, what is left is a grid, and heads see all of it."""

from __future__ import annotations

import copy
import pickle
import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import zipbrain
from zipbrain import Recipe, ToMe, UnsupportedModel, ZIPBrain
from zipbrain.errors import OptionError, ShapeError
from zipbrain.models import CBraMod, load_official
from zipbrain.models.cbramod import CrissCrossBlock
from zipbrain.pooling.flops import BlockShape
from zipbrain.profiling.flops import hand_flops
from zipbrain.seams.compress import describe

AXES = pytest.mark.parametrize("axis", ["channels", "time"])


class OfficialBlock(nn.Module):
    """A block under the official names, with torch's attention, in a width of its own."""

    def __init__(self, dim: int = 200, heads: int = 8) -> None:
        super().__init__()
        self.self_attn_s = nn.MultiheadAttention(dim // 2, heads // 2, dropout=0.1, batch_first=True)
        self.self_attn_t = nn.MultiheadAttention(dim // 2, heads // 2, dropout=0.1, batch_first=True)
        self.linear1, self.linear2 = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.dropout, self.dropout1, self.dropout2 = (nn.Dropout(0.1) for _ in range(3))

    def forward(self, src: Tensor, src_mask: Tensor | None = None) -> Tensor:
        src = src + self._sa_block(self.norm1(src))
        return src + self._ff_block(self.norm2(src))

    def _sa_block(self, x: Tensor) -> Tensor:
        batch, channels, steps, dim = x.shape
        across = x[..., : dim // 2].transpose(1, 2).flatten(0, 1)
        along = x[..., dim // 2 :].flatten(0, 1)
        across = self.self_attn_s(across, across, across, need_weights=False)[0]
        along = self.self_attn_t(along, along, along, need_weights=False)[0]
        across = across.reshape(batch, steps, channels, -1).transpose(1, 2)
        return self.dropout1(torch.cat((across, along.reshape(batch, channels, steps, -1)), dim=3))

    def _ff_block(self, x: Tensor) -> Tensor:
        return self.dropout2(self.linear2(self.dropout(F.gelu(self.linear1(x)))))


class PostNorm(OfficialBlock):
    """The same parts in another order."""

    def forward(self, src: Tensor, src_mask: Tensor | None = None) -> Tensor:
        src = self.norm1(src + self._sa_block(src))
        return self.norm2(src + self._ff_block(src))


class Encoder(nn.Module):
    """Blocks that are given a mask by name, as the official encoder does it."""

    def __init__(self, depth: int, **options: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(OfficialBlock(**options) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x, src_mask=None)
        return x


def varied(model: nn.Module) -> Any:
    """The model in evaluation mode with every parameter random."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(noise * parameter.shape[-1] ** -0.5 if parameter.dim() > 1 else 0.7 + 0.3 * noise)
    return model.eval()


def grid(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


@AXES
@torch.inference_mode()
def test_a_model_is_compressed_traced_copied_and_restored(axis: str) -> None:
    model, x = varied(CBraMod(3, 12, 2400, depth=3)), grid(2, 12, 2400)
    before, keys = model(x), list(model.state_dict())
    zipbrain.compress(model, ZIPBrain(), r=0, axis=axis)
    assert torch.equal(model(x), before)
    zipbrain.compress(model, ZIPBrain("x", "k", "vh", 0.4), r=3, axis=axis)
    with zipbrain.trace(model) as seen:
        after = model(x)
    assert seen.token_counts == [12, 9, 6, 3]
    assert seen.source_map().shape == (2, 12)
    assert after.shape == before.shape
    assert not torch.equal(after, before)
    assert torch.equal(copy.deepcopy(model)(x), after)
    assert torch.equal(pickle.loads(pickle.dumps(model))(x), after)
    torch.testing.assert_close(model(x[1:]), after[1:], rtol=1e-4, atol=1e-5)
    assert list(model.state_dict()) == keys
    assert torch.equal(zipbrain.restore(model)(x), before)


@AXES
@pytest.mark.parametrize("method", ["zipbrain", "tome", "tofu", "dart", "evit", "twins", "free_slicing"])
@torch.inference_mode()
def test_every_method_takes_rows_of_a_grid_as_tokens(axis: str, method: str) -> None:
    encoder, x = varied(Encoder(2, dim=16, heads=4)), grid(2, 7, 8, 16)
    for mass in (False, True):
        zipbrain.compress(encoder, method, r=2, axis=axis, mass=mass)
        found = encoder(x)
        assert found.shape == x.shape
        assert torch.isfinite(found).all()


@AXES
@torch.inference_mode()
def test_with_mass_a_row_that_stands_for_two_counts_twice(axis: str) -> None:
    encoder, x = varied(Encoder(3, dim=16, heads=4)), grid(2, 5, 5, 16)
    x = x.repeat_interleave(torch.tensor([2, 1, 1, 1, 1]), dim=1 if axis == "channels" else 2)
    expected = encoder(x)
    zipbrain.compress(encoder, ToMe(), r=[1, 0, 0], axis=axis, mass=True)
    with zipbrain.trace(encoder) as seen:
        torch.testing.assert_close(encoder(x), expected, rtol=1e-4, atol=1e-5)
    assert seen.layers[0].grouping.source.tolist() == [[0], [0]]
    zipbrain.compress(encoder, ZIPBrain(), r=[1, 0, 0], axis=axis)
    assert not torch.allclose(encoder(x), expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("options", [{}, {"mass": True}, {"axis": "time"}])
@torch.inference_mode()
def test_the_official_block_with_the_same_weights_gives_the_same(options: dict[str, Any]) -> None:
    theirs, ours = varied(Encoder(2)), CBraMod(0, 6, 1000, depth=2)
    state = {f"encoder.{name}": value for name, value in theirs.state_dict().items()}
    load_official(ours, state)
    x = grid(2, 6, 5, 200)
    mine = nn.Sequential(*ours.blocks).eval()
    torch.testing.assert_close(mine(x), theirs(x), rtol=1e-4, atol=1e-5)
    for model in (theirs, mine):
        zipbrain.compress(model, ZIPBrain("x", "q", "kh", 0.5), r=1, **options)
    torch.testing.assert_close(mine(x), theirs(x), rtol=1e-4, atol=1e-5)


@torch.inference_mode()
def test_pooling_channels_is_pooling_time_steps_of_the_turned_grid() -> None:
    block, turned = varied(CrissCrossBlock(16, 4, 32, 0.0)), CrissCrossBlock(16, 4, 32, 0.0).eval()
    order = torch.cat((torch.arange(8, 16), torch.arange(8)))  # the halves of the features change places
    state = block.state_dict()
    for name, value in state.items():
        swapped = name.replace("spatial", "*").replace("temporal", "spatial").replace("*", "temporal")
        value = value[order] if name.startswith("norm") or name.startswith("mlp.fc2") else value
        turned.state_dict()[swapped].copy_(value[:, order] if name == "mlp.fc1.weight" else value)
    x = grid(2, 6, 5, 16)
    one, other = nn.Sequential(block), nn.Sequential(turned)
    zipbrain.compress(one, ZIPBrain(), r=2)
    zipbrain.compress(other, ZIPBrain(), r=2, axis="time")
    found = other(x.transpose(1, 2)[..., order])
    torch.testing.assert_close(found.transpose(1, 2)[..., order], one(x), rtol=1e-4, atol=1e-5)


def test_a_summary_says_what_is_pooled_and_counts_the_grid() -> None:
    model, x = varied(CBraMod(2, 8, 600, depth=2)), grid(1, 8, 600)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        zipbrain.compress(model, ZIPBrain(), r=2, example=x)
    found = zipbrain.summary(model)
    assert (found.units, found.cells, found.cells_per_token, found.token_counts) == (
        "channels",
        "time steps",
        3,
        [8, 6, 4],
    )
    assert found.head == "reads every token in its place"
    assert "whole channels, each with its 3 time steps" in str(found)
    # Two attentions of half the width, along channels and along time steps, then the feed-forward, for every cell.
    attention = [24 * (8 * 100**2 + 2 * 100 * (8 + 3)), 18 * (8 * 100**2 + 2 * 100 * (6 + 3))]
    assert found.macs == sum(attention) + (18 + 12) * 2 * 200 * 800
    assert hand_flops(model).macs == found.macs
    zipbrain.compress(model, ZIPBrain(), r=1, example=x, axis="time")
    assert zipbrain.summary(model).cells_per_token == 8
    unseen = zipbrain.summary(zipbrain.compress(model, ZIPBrain(), r=1, tokens=8))
    assert unseen.steps is unseen.cells_per_token is unseen.to_dict()["steps"] is None  # the earlier name
    assert "grid of 8 channels x 1 time steps" in str(unseen)
    assert BlockShape(8, 2, 4, 16).spanning(3) == BlockShape(8, 2, 4, 16)


def test_a_recipe_keeps_the_axis() -> None:
    model = zipbrain.compress(CBraMod(2, 4, 1600, depth=2, head_layers=0).eval(), ZIPBrain(), r=2, axis="time")
    recipe = Recipe(**describe(model))
    assert recipe.axis == "time"
    assert Recipe.from_dict(recipe.to_dict()) == recipe
    assert zipbrain.summary(zipbrain.compress(model, recipe)).units == "time steps"
    channels = Recipe(**describe(zipbrain.compress(model, ZIPBrain(), r=2)))
    assert channels.key() != recipe.key()
    assert "axis" not in channels.to_dict()
    with pytest.raises(OptionError, match="axis: got 'rows'"):
        Recipe({"name": "zipbrain"}, {"name": "constant", "r": 1}, axis="rows")


def test_what_makes_no_grid_is_refused_in_one_line() -> None:
    encoder, x = varied(Encoder(2, dim=16, heads=4)), grid(2, 7, 5, 16)
    with pytest.raises(OptionError, match="axis: got 'rows', but it must be 'channels' or 'time'"):
        zipbrain.compress(encoder, ZIPBrain(), r=1, axis="rows")
    sequence = nn.Sequential(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)).eval()
    with pytest.raises(OptionError, match="hold one sequence of tokens and no grid: leave it out"):
        zipbrain.compress(sequence, ZIPBrain(), r=1, axis="time")
    zipbrain.compress(encoder, ZIPBrain(), r=1)
    with pytest.raises(ShapeError, match=r"its grid can't be told.*\(B, channels, time steps, 16\)"):
        encoder(x.flatten(1, 2))
    other = nn.Sequential(PostNorm(dim=16, heads=4)).eval()
    with pytest.raises(UnsupportedModel, match="looks criss-cross, but its forward does something else"):
        zipbrain.compress(other, ZIPBrain(), r=1)


def test_gradients_reach_the_input_in_training() -> None:
    model, x = varied(CBraMod(2, 6, 400, depth=2)).train(), grid(2, 6, 400).requires_grad_()
    zipbrain.compress(model, ZIPBrain(), r=2, mass=True)
    model(x).square().sum().backward()
    assert x.grad is not None
    assert x.grad.abs().sum((1, 2)).min() > 0
