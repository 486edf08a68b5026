"""Every dialect of transformer block is found, cut open and left exactly as it was in between."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import zipbrain
from seams.small_models import (
    DEPTH,
    DIALECTS,
    DIM,
    HEADS,
    METHODS,
    Attention,
    HandWrittenBlock,
    LabramBlock,
    LayerScaleBlock,
    PlainBlock,
    Stack,
    WithPrefix,
    dialect,
    linear_transformer,
    tokens,
    torch_encoder,
    varied,
)
from zipbrain import EViT, OptionError, UnsupportedModel, ZIPBrain
from zipbrain.pooling.flops import BlockShape
from zipbrain.seams import (
    MATCH,
    NO_MATCH,
    Attended,
    Dialect,
    Recognition,
    Seam,
    register_dialect,
    register_seam,
)
from zipbrain.seams.dialects import base
from zipbrain.seams.dialects.attention import join_heads, softmax_attention, split_heads
from zipbrain.seams.dialects.base import PairSeam
from zipbrain.seams.dialects.lucidrains import LinearAttentionPair


def counts(model: nn.Module, x: Tensor) -> list[int]:
    with zipbrain.trace(model) as traced, torch.no_grad():
        model(x)
    return traced.token_counts


@pytest.mark.parametrize("name", DIALECTS)
@pytest.mark.parametrize("method", ["zipbrain", "tome", EViT("mean")], ids=["zipbrain", "tome", "evit-mean"])
def test_removing_nothing_equals_the_original(name: str, method: Any) -> None:
    model, x = dialect(name), tokens()
    with torch.no_grad():
        expected = model(x)
        found = zipbrain.compress(model, method, r=0)(x)
    assert (found - expected).abs().max() <= 1e-6 * max(1.0, expected.abs().max().item())


@pytest.mark.parametrize("name", DIALECTS)
def test_removing_nothing_equals_the_original_in_double(name: str) -> None:
    """At double precision nothing but rounding may differ, so a scale or norm that is left out shows."""
    model, x = dialect(name).double(), tokens().double()
    expected = model(x)
    assert (zipbrain.compress(model, r=0)(x) - expected).abs().max() <= 1e-12 * max(1.0, expected.abs().max().item())


@pytest.mark.parametrize("name", DIALECTS)
@pytest.mark.parametrize("method", METHODS)
def test_every_method_runs_on_every_dialect(name: str, method: str) -> None:
    model, x = dialect(name), tokens(3)
    zipbrain.compress(model, METHODS[method], r=3)
    with torch.no_grad():
        y = model(x)
        assert counts(model, x) == [14, 11, 8, 5]
    assert y.shape == (3, 5, DIM)
    assert y.isfinite().all()


@pytest.mark.parametrize("name", DIALECTS)
@pytest.mark.parametrize("method", METHODS)
def test_windows_do_not_influence_each_other(name: str, method: str) -> None:
    model, x = zipbrain.compress(dialect(name), METHODS[method], r=3), tokens(3)
    with torch.no_grad():
        together, alone = model(x), torch.cat([model(x[i : i + 1]) for i in range(3)])
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("name", DIALECTS)
def test_the_seam_lies_between_attention_and_feed_forward(name: str) -> None:
    """One block that drops the last tokens: attention has seen all of them, so only the output is shorter."""
    model, x = dialect(name), tokens()
    with torch.no_grad():
        full = model(x)
        zipbrain.compress(model, "free_slicing", r=5, layers=[DEPTH])
        cut = model(x)
    torch.testing.assert_close(cut, full[:, :-5], rtol=0, atol=2e-6 * max(1.0, full.abs().max().item()))


@pytest.mark.parametrize("name", ["plain", "labram", "linear", "pre-norm", "post-norm"])
def test_the_seam_shows_what_the_model_computes(name: str) -> None:
    """q, k and v of `attend` rebuild the attention output, and x is the residual stream behind it."""
    model, x = dialect(name).double(), tokens().double()
    chain = zipbrain.seams.find.find_chain(model)
    seen = chain.dialect.attend(chain.blocks[0], x, None, False)
    assert seen.q.shape == seen.k.shape == seen.v.shape == (2, HEADS, 14, DIM // HEADS)
    if not seen.linear:
        _, attention = softmax_attention(seen.q, seen.k, seen.v, seen.scale, need_map=True)
        mapped = chain.dialect.attend(chain.blocks[0], x, None, True)
        assert mapped.attention is not None
        torch.testing.assert_close(mapped.attention, attention)
        torch.testing.assert_close(mapped.x, seen.x)
    if name == "labram":  # after the norm on queries and keys
        block = chain.blocks[0]
        torch.testing.assert_close(seen.q, block.attn.project(block.norm1(x))[0])
        assert seen.scale == 0.3


def test_a_single_window_without_batch_dimension_runs_as_in_torch() -> None:
    for name in ("pre-norm", "post-norm"):
        model, x = dialect(name), tokens(1)
        with torch.no_grad():
            expected = model(x[0])
            torch.testing.assert_close(zipbrain.compress(model, r=0)(x[0]), expected, rtol=1e-5, atol=1e-6)
            zipbrain.compress(model, r=2)
            assert torch.equal(model(x[0]), model(x)[0])
            zipbrain.compress(model, ratio=0.5, example=x[0])
            assert zipbrain.summary(model).token_counts == [14, 12, 10, 8]


# -- protected tokens --------------------------------------------------------------------------------------------------


def protected(model: nn.Module) -> tuple[int, int]:
    found = zipbrain.summary(model)
    return found.leading, found.trailing


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        ({}, 0),
        ({"cls_token": nn.Parameter(torch.zeros(1, 1, DIM))}, 1),
        ({"cls_token": nn.Parameter(torch.zeros(DIM))}, 1),
        ({"cls_token": nn.Parameter(torch.zeros(1, 1, DIM)), "dist_token": nn.Parameter(torch.zeros(1, 1, DIM))}, 2),
        ({"cls_token": nn.Parameter(torch.zeros(1, 1, DIM)), "reg_token": nn.Parameter(torch.zeros(1, 4, DIM))}, 5),
        ({"cls_token": None}, 0),
        ({"num_prefix_tokens": 3}, 3),
        ({"num_prefix_tokens": 0, "cls_token": nn.Parameter(torch.zeros(1, 1, DIM))}, 0),
        ({"prefix_tokens": 2, "suffix_tokens": 1}, (2, 1)),
    ],
)
def test_prefix_tokens_are_found(attributes: dict[str, Any], expected: Any) -> None:
    model = varied(WithPrefix(5, **attributes))
    zipbrain.compress(model, r=1)
    assert protected(model) == (expected if isinstance(expected, tuple) else (expected, 0))


def test_prefix_tokens_of_the_part_with_the_blocks_come_first() -> None:
    model = WithPrefix(1, cls_token=nn.Parameter(torch.zeros(1, 1, DIM)))
    model.stack.num_prefix_tokens = 2
    assert protected(zipbrain.compress(model, r=1)) == (2, 0)


def test_asked_protection_replaces_what_was_found() -> None:
    model = WithPrefix(1, cls_token=nn.Parameter(torch.zeros(1, 1, DIM)))
    assert protected(zipbrain.compress(model, r=1, protected=(0, 2))) == (0, 2)


@pytest.mark.parametrize("method", METHODS)
def test_a_protected_cls_is_touched_by_no_method(method: str) -> None:
    model, x = varied(WithPrefix(1, cls_token=nn.Parameter(torch.zeros(1, 1, DIM)))), tokens()
    zipbrain.compress(model, METHODS[method], r=3)
    with torch.no_grad(), zipbrain.trace(model) as traced:
        model(x)
    for layer in traced.layers:
        assert (layer.grouping.kept[:, 0] == 0).all()
        assert (layer.grouping.source != 0).all()
        assert (layer.grouping.target != 0).all()
    assert traced.token_counts == [14, 11, 8, 5]


# -- near misses -------------------------------------------------------------------------------------------------------


class WithPositionBias(PlainBlock):
    def __init__(self) -> None:
        super().__init__()
        self.attn.relative_position_bias_table = nn.Parameter(torch.zeros(9, HEADS))


class WithAdapter(PlainBlock):
    def __init__(self) -> None:
        super().__init__()
        self.adapter = nn.Linear(DIM, DIM)


class WithGate(PlainBlock):
    def __init__(self) -> None:
        super().__init__()
        self.attn.gate = nn.Linear(DIM, DIM)


class WithParameter(PlainBlock):
    def __init__(self) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.ones(()))


class WithoutHeads(PlainBlock):
    def __init__(self) -> None:
        super().__init__()
        self.attn.heads, self.attn.num_heads = self.attn.num_heads, None


class WithNarrowKeys(PlainBlock):
    def __init__(self) -> None:
        super().__init__()
        self.attn.qkv = nn.Linear(DIM, 2 * DIM + 1)


class PostNormBlock(PlainBlock):
    """The parts of a pre-norm block, run the other way round."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm1(x + self.attn(x))
        return self.norm2(x + self.mlp(x))


class ResidualPostNormBlock(PlainBlock):
    """Swin v2: the norm closes each branch."""

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.norm1(self.attn(x))
        return x + self.norm2(self.mlp(x))


class RotaryLayer(nn.TransformerEncoderLayer):
    def _sa_block(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return super()._sa_block(x.flip(-1), *args, **kwargs)


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (Stack(WithPositionBias), "relative_position_bias_table"),
        (Stack(WithAdapter), "'adapter'"),
        (Stack(WithGate), "'gate'"),
        (Stack(WithParameter), "'temperature'"),
        (Stack(WithoutHeads), "num_heads"),
        (Stack(WithNarrowKeys), "three equal parts"),
        (varied(Stack(PostNormBlock)), "forward does something else"),
        (varied(Stack(ResidualPostNormBlock)), "forward does something else"),
        (linear_transformer(causal=True), "causal"),
        (linear_transformer(n_local_attn_heads=1), "locally"),
        (linear_transformer(receives_context=True), "can't be cut open|another sequence"),
        (linear_transformer(attend_axially=True), "can't be cut open"),
        (nn.ModuleList([RotaryLayer(DIM, HEADS, 32)]), "own _sa_block"),
        (nn.Sequential(*[PlainBlock()] * 3), "several times"),
    ],
)
def test_a_near_miss_is_refused_with_its_reason(model: nn.Module, reason: str) -> None:
    before = {name: type(module) for name, module in model.named_modules()}
    with pytest.raises(UnsupportedModel, match=reason):
        zipbrain.compress(model, r=1)
    assert {name: type(module) for name, module in model.named_modules()} == before


def test_a_part_without_parameters_is_no_obstacle() -> None:
    model = varied(Stack())
    for block in model.blocks:
        block.probe = nn.Identity()
    zipbrain.compress(model, r=1)
    assert model(tokens()).shape == (2, 11, DIM)


def test_trying_a_block_leaves_its_modes_alone() -> None:
    model = varied(Stack(LayerScaleBlock)).train()
    model.blocks[1].attn.attn_drop.eval()
    before = [module.training for module in model.modules()]
    state = torch.get_rng_state()
    zipbrain.compress(model, r=1)
    assert [module.training for module in model.modules()] == before
    assert torch.equal(torch.get_rng_state(), state)


def test_a_fresh_layer_scale_does_not_hide_another_order() -> None:
    """With layer scale near zero both orders give almost x: what the block adds must be compared."""

    class Hidden(LayerScaleBlock):
        def forward(self, x: Tensor) -> Tensor:
            x = x + self.ls1(self.norm1(self.attn(x)))
            return x + self.ls2(self.norm2(self.mlp(x)))

    model = varied(Stack(Hidden))
    for block in model.blocks:
        nn.init.constant_(block.ls1.gamma, 1e-4)
        nn.init.constant_(block.ls2.gamma, 1e-4)
    with pytest.raises(UnsupportedModel, match="something else"):
        zipbrain.compress(model, r=1)


# -- which chain -------------------------------------------------------------------------------------------------------


class TwoStacks(nn.Module):
    def __init__(self, first: int = 3, second: int = 3) -> None:
        super().__init__()
        self.temporal, self.spectral = Stack(depth=first), Stack(depth=second)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat((self.temporal(x), self.spectral(x)), dim=1)


def test_several_equal_chains_ask_for_within() -> None:
    with pytest.raises(OptionError, match=r"within.*'temporal.blocks', 'spectral.blocks'"):
        zipbrain.compress(TwoStacks(), r=1)


@pytest.mark.parametrize("within", ["spectral", "spectral.blocks"])
@pytest.mark.parametrize("as_module", [False, True])
def test_within_chooses_a_chain(within: str, as_module: bool) -> None:
    model, x = varied(TwoStacks()), tokens()
    with torch.no_grad():
        before = model.temporal(x)
        zipbrain.compress(model, r=2, within=model.get_submodule(within) if as_module else within)
        assert torch.equal(model(x)[:, :14], before)
        assert model(x).shape[1] == 14 + 8
    assert zipbrain.summary(model).where == "spectral.blocks"


@pytest.mark.parametrize(("sizes", "where"), [((2, 4), "spectral.blocks"), ((4, 2), "temporal.blocks")])
def test_the_longest_chain_wins(sizes: tuple[int, int], where: str) -> None:
    assert zipbrain.summary(zipbrain.compress(TwoStacks(*sizes), r=1)).where == where


def test_the_longest_chain_wins_across_dialects() -> None:
    model = nn.ModuleDict({"a": torch_encoder(True, True, 2), "b": linear_transformer(4), "c": Stack(LabramBlock, 3)})
    found = zipbrain.summary(zipbrain.compress(model, r=1))
    assert (found.where, found.dialect) == ("b.layers.layers", "linear-attention-transformer")


def test_a_model_says_itself_where_its_blocks_are() -> None:
    model = TwoStacks(2, 4)
    model.encoder_path, model.reduce_at = "temporal.blocks", (2,)
    zipbrain.compress(model, r=3, tokens=14)
    assert zipbrain.summary(model).where == "temporal.blocks"
    assert zipbrain.summary(model).token_counts == [14, 14, 11]


def test_facts_about_foreign_models_are_found_by_class_name(monkeypatch: pytest.MonkeyPatch) -> None:
    from zipbrain.seams import model_facts

    name = f"{TwoStacks.__module__}.{TwoStacks.__qualname__}"
    monkeypatch.setitem(model_facts.DECLARED, name, model_facts.ClassFacts("spectral.blocks", 1, 2, (1, 3)))

    class Child(TwoStacks):
        pass

    for kind in (TwoStacks, Child):
        found = zipbrain.summary(zipbrain.compress(kind(), r=2, tokens=14))
        assert (found.where, found.leading, found.trailing) == ("spectral.blocks", 1, 2)
        assert found.token_counts == [14, 12, 12, 10]


# -- another dialect ---------------------------------------------------------------------------------------------------


class OddBlock(nn.Module):
    """Names that no dialect knows."""

    def __init__(self) -> None:
        super().__init__()
        self.look, self.mix, self.think = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM), nn.Linear(DIM, DIM)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (split_heads(part, HEADS) for part in self.look(x).chunk(3, 2))
        x = x + self.mix(join_heads((q @ k.transpose(2, 3)).softmax(-1) @ v))
        return x + self.think(x).tanh()


class OddDialect(Dialect):
    name = "odd"
    looks_like = "look, mix, think"

    @classmethod
    def recognise(cls, block: nn.Module) -> Recognition:
        return MATCH if isinstance(block, OddBlock) else NO_MATCH

    @classmethod
    def attend(cls, block: Any, x: Tensor, bias: Tensor | None, need_map: bool) -> Attended:
        q, k, v = (split_heads(part, HEADS) for part in block.look(x).chunk(3, 2))
        mixed, attention = softmax_attention(q, k, v, 1.0, bias, need_map=need_map)
        return Attended(x + block.mix(join_heads(mixed)), q, k, v, 1.0, attention=attention)

    @classmethod
    def feed_forward(cls, block: Any, x: Tensor) -> Tensor:
        return x + block.think(x).tanh()

    @classmethod
    def shape(cls, block: nn.Module) -> BlockShape:
        return BlockShape(DIM, HEADS, DIM // HEADS, DIM)


@pytest.fixture
def odd_dialect() -> Iterator[None]:
    register_dialect(OddDialect)
    yield
    base._DIALECTS.remove(OddDialect)


class EarlierOdd(Seam):
    """The same under the earlier names."""

    name, looks_like = OddDialect.name, OddDialect.looks_like
    attend, feed_forward, shape = OddDialect.attend, OddDialect.feed_forward, OddDialect.shape

    @classmethod
    def refuses(cls, block: nn.Module) -> str | None:
        if isinstance(block, nn.Linear):
            return "it is too simple"
        return None if isinstance(block, OddBlock) else ""


class EarlierPairs(PairSeam):
    """`LinearAttentionPair` under the earlier names."""

    name, looks_like = "pairs", "pairs"
    attend, feed_forward = LinearAttentionPair.attend, LinearAttentionPair.feed_forward
    shape, _attend = LinearAttentionPair.shape, LinearAttentionPair._attend  # type: ignore[assignment]

    @classmethod
    def refuses_pair(cls, pair: Any) -> str | None:
        return None if LinearAttentionPair.recognise_pair(pair).is_match else ""


def test_a_dialect_under_the_earlier_names_is_still_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "_DIALECTS", [])
    assert register_seam(EarlierOdd) is EarlierOdd
    assert zipbrain.summary(zipbrain.compress(Stack(OddBlock), r=1)).dialect == "odd"
    with pytest.raises(UnsupportedModel, match=r"looks odd, but it is too simple"):
        zipbrain.compress(nn.Sequential(nn.Linear(2, 2)), r=1)
    register_seam(EarlierPairs)
    assert zipbrain.summary(zipbrain.compress(linear_transformer(), r=1)).dialect == "pairs"


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("mass", [False, True])
@pytest.mark.usefixtures("odd_dialect")
def test_another_dialect_is_one_class(method: str, mass: bool) -> None:
    model, x = varied(Stack(OddBlock)), tokens()
    with torch.no_grad():
        expected = model(x)
        zipbrain.compress(model, METHODS[method], r=0, mass=mass)
        torch.testing.assert_close(model(x), expected, rtol=1e-5, atol=1e-5)
        zipbrain.compress(model, METHODS[method], r=3, mass=mass)
        assert model(x).shape == (2, 14 if mass else 5, DIM)
        assert "odd blocks in blocks" in str(zipbrain.summary(model))
        assert torch.equal(zipbrain.restore(model)(x), expected)


@pytest.mark.usefixtures("odd_dialect")
def test_registering_twice_changes_nothing() -> None:
    before = base.all_dialects()
    assert register_dialect(OddDialect) is OddDialect
    assert base.all_dialects() == before


def test_a_later_dialect_is_tried_first() -> None:
    class Special(zipbrain.seams.dialects.timm_like.TimmLike):
        name = "special"

    register_dialect(Special)
    try:
        assert zipbrain.summary(zipbrain.compress(Stack(), r=1)).dialect == "special"
    finally:
        base._DIALECTS.remove(Special)
    assert zipbrain.summary(zipbrain.compress(Stack(), r=1)).dialect == "timm-like"


def test_what_no_dialect_knows_is_named_with_all_of_them() -> None:
    with pytest.raises(UnsupportedModel, match="register_dialect") as refused:
        zipbrain.compress(Stack(OddBlock), ZIPBrain(), r=1)
    for kind in base.all_dialects():
        assert kind.name in str(refused.value)


def test_evit_without_cls_refuses_the_score_from_cls() -> None:
    model = Stack()
    with pytest.raises(OptionError, match="score"):
        zipbrain.compress(model, EViT("cls"), r=1)
    assert not zipbrain.seams.is_compressed(model)


def test_attention_of_timm_with_an_own_norm_is_known() -> None:
    """`attn.norm` stands between the heads and the projection."""
    model, x = varied(Stack(lambda: PlainBlock(Attention(norm=True)))).double(), tokens().double()  # type: ignore[arg-type]
    expected = model(x)
    torch.testing.assert_close(zipbrain.compress(model, r=0)(x), expected, rtol=1e-12, atol=1e-12)


# -- layer scale and stochastic depth ----------------------------------------------------------------------------------


class DropPath(nn.Module):
    """Stochastic depth as timm writes it."""

    def forward(self, x: Tensor) -> Tensor:
        return x * (torch.rand(x.shape[0], 1, 1) > 0.5) if self.training else x


class Scaled(LabramBlock):
    """A block with layer scale and ordinary stochastic depth."""

    def __init__(self) -> None:
        super().__init__()
        self.drop_path = DropPath()


def test_layer_scale_and_residual_in_one_operator_change_nothing_but_the_last_bits() -> None:
    model, x = Stack(Scaled).eval(), tokens()
    with torch.no_grad():
        for block in model.blocks:
            block.gamma_1.copy_(torch.randn(DIM))
            block.gamma_2.copy_(torch.randn(DIM))
        expected = model(x)
        zipbrain.compress(model, "zipbrain", r=0)
        torch.testing.assert_close(model(x), expected, rtol=1e-5, atol=1e-5)


def test_hooks_on_stochastic_depth_are_called_and_its_own_mode_counts() -> None:
    model, x, seen = Stack(Scaled).eval(), tokens(), []
    zipbrain.compress(model, "zipbrain", r=0)
    model.blocks[0].drop_path.register_forward_hook(lambda *_: seen.append(1))
    with torch.no_grad():
        model(x)
        assert seen == [1, 1]
        for block in model.blocks:
            block.drop_path.train()  # branches are dropped also in evaluation
        assert not torch.equal(model(x), model(x))


def test_norms_that_are_functions_and_scales_that_are_numbers_are_followed() -> None:
    model, x = Stack(Scaled).eval(), tokens()
    for block in model.blocks:
        del block.attn.q_norm, block.gamma_1
        block.attn.q_norm, block.gamma_1 = torch.tanh, 0.3
    with torch.no_grad():
        expected = model(x)
        zipbrain.compress(model, "zipbrain", r=0)
        torch.testing.assert_close(model(x), expected, rtol=1e-5, atol=1e-5)


class Parallel(HandWrittenBlock):
    """Attention and feed-forward side by side."""

    def forward(self, x: Tensor) -> Tensor:
        return x + self.mix(self.ln_1(x)) + self.mlp(self.ln_2(x))


class Causal(HandWrittenBlock):
    """Attention to earlier tokens alone."""

    def mix(self, x: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        mixed: Tensor = self.attend(x, x, x, attn_mask=mask, need_weights=False)[0]
        return mixed


class Nested(HandWrittenBlock):
    """A weight of the block's own."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(1))


@pytest.mark.parametrize("block", [Parallel, Causal, Nested, lambda: HandWrittenBlock(batch_first=False)])
def test_a_hand_written_block_that_does_something_else_is_refused(block: Any) -> None:
    with pytest.raises(UnsupportedModel):
        zipbrain.compress(varied(Stack(block)), "tome", ratio=0.5)


def test_a_hand_written_block_drops_both_branches_in_training_as_before() -> None:
    model, x = varied(Stack(HandWrittenBlock)).train(), tokens()
    expected = zipbrain.restore(zipbrain.compress(model, "tome", r=0))(x)
    for block in model.blocks:
        block.drop.p = 1.0  # all of it, so that no draw matters
    alone = model(x)
    zipbrain.compress(model, "tome", r=0)
    assert torch.allclose(model(x), alone, atol=1e-6)
    assert not torch.allclose(expected, alone, atol=1e-2)
