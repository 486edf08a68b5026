"""Lossless tail: where the head reads protected tokens only, the last block runs for them alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import zipbrain
from seams.small_models import DIALECTS, DIM, N, dialect, tokens, varied
from zipbrain.models import EEGPT, TFM, TFMEncoder
from zipbrain.profiling.flops import _torch_macs, torch_sees_attention
from zipbrain.seams.dialects.base import Dialect, Ends, all_dialects
from zipbrain.seams.dialects.timm_like import TimmLike
from zipbrain.seams.forward import plan_of
from zipbrain.seams.prefix_cache import Prefix

_CHANNELS = ["FP1", "FP2", "F3", "F4", "C3", "C4", "P3", "P4"]


class Reader(nn.Module):
    """CLS tokens in front of, and summary tokens behind, an encoder, and a head that reads them in some way."""

    def __init__(self, encoder: nn.Module, read: Any, leading: int = 1, trailing: int = 0) -> None:
        super().__init__()
        self.front = nn.Parameter(torch.randn(1, leading, DIM, generator=torch.Generator().manual_seed(3)))
        self.back = nn.Parameter(torch.randn(1, trailing, DIM, generator=torch.Generator().manual_seed(4)))
        self.encoder, self.read = encoder, read
        self.head = varied(nn.Linear(DIM, 3))

    def encode(self, x: Tensor) -> Tensor:
        front, back = self.front.expand(len(x), -1, -1), self.back.expand(len(x), -1, -1)
        encoded: Tensor = self.encoder(torch.cat((front, x, back), dim=1))
        return encoded

    def forward(self, x: Tensor, all_tokens: bool = False) -> Tensor:
        encoded = self.encode(x)
        logits: Tensor = self.head(encoded if all_tokens else self.read(encoded))
        return logits


READS: dict[str, Any] = {
    "first": (lambda x: x[:, 0], 1, 0),
    "last": (lambda x: x[:, -2:].mean(1), 0, 2),
    "both": (lambda x: x[:, 0] + x[:, -1], 1, 2),
}
NOT_ALONE: dict[str, Any] = {
    "mean": (lambda x: x.mean(1), 1, 0),
    "fixed place": (lambda x: x[:, N:].sum(1), 0, 1),
    "number of tokens": (lambda x: x[:, 0] * x.shape[1], 1, 0),
    "an order": (lambda x: x[:, 0] if bool((x[:1, 1:2, 0] > x[:1, 2:3, 0]).all()) else -x[:, 0], 1, 0),
}


def models() -> dict[str, tuple[Any, Any]]:
    """Models whose heads read protected tokens only, each with what to give to `compress`."""
    made: dict[str, tuple[Any, Any]] = {
        "eegpt": (lambda: EEGPT(4, _CHANNELS, 512), (3, 8, 512)),
        "eegpt-probe": (lambda: EEGPT(4, _CHANNELS, 300, head="probe"), (3, 8, 300)),
        "tfm": (lambda: TFM(4, 8, 800), (3, 8, 800)),
    }
    return made


def without_tail(model: nn.Module) -> nn.Module:
    """The plain twin."""
    plan_of(model).can_run_tail = False
    return model


def seen_tokens(model: nn.Module, x: Tensor, block: nn.Module) -> int:
    """Tokens in the feed-forward part of a block."""
    counts: list[int] = []
    part = next(module for name, module in block.named_modules() if name in ("mlp", "linear1", "1.fn"))
    hook = part.register_forward_hook(lambda module, args, output: counts.append(int(args[0].shape[-2])))
    with torch.no_grad():
        model(x)
    hook.remove()
    return counts[-1]


def both(model: nn.Module, x: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
    """Answers with and without the tail, after a look that watching changes neither."""
    zipbrain.compress(model, **options)
    assert plan_of(model).can_run_tail
    with torch.no_grad():
        found = model(x)
        with zipbrain.trace(model) as traced:
            assert torch.equal(model(x), found)
        counts, owners = traced.token_counts, traced.source_map()
        expected = without_tail(model)(x)
        with zipbrain.trace(model) as traced:
            model(x)
    assert traced.token_counts == counts
    assert torch.equal(traced.source_map(), owners)
    return found, expected


@pytest.mark.parametrize("mass", [False, True], ids=["", "mass"])
@pytest.mark.parametrize("amount", [{"r": 0}, {"ratio": 0.6}], ids=["r=0", "ratio"])
@pytest.mark.parametrize("name", models())
def test_our_models_answer_as_without_a_tail(name: str, amount: dict[str, Any], mass: bool) -> None:
    torch.manual_seed(0)
    make, shape = models()[name]
    model, x = make().eval(), torch.randn(shape)
    with torch.no_grad():
        original = model(x)
    found, expected = both(model, x, mass=mass, **amount)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
    if "r" in amount:
        torch.testing.assert_close(found, original, rtol=0, atol=1e-6)
    else:
        assert (found - original).abs().max() > 1e-5


@pytest.mark.parametrize("mass", [False, True], ids=["", "mass"])
@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("name", DIALECTS)
def test_a_head_that_an_example_shows_answers_as_without_a_tail(name: str, read: str, mass: bool) -> None:
    model, x = Reader(dialect(name), *READS[read]).eval(), tokens()
    ends = READS[read][1:]
    for r in (0, 3):
        found, expected = both(model, x, r=r, protected=ends, example=x, mass=mass)
        torch.testing.assert_close(found, expected, rtol=0, atol=2e-6)


@pytest.mark.parametrize("name", DIALECTS)
def test_the_last_block_feeds_protected_tokens_forward_and_no_others(name: str) -> None:
    model, x = Reader(dialect(name), *READS["both"]).eval(), tokens()
    zipbrain.compress(model, r=3, protected=(1, 2), example=x)
    blocks = plan_of(model), zipbrain.seams.find.find_chain(model).blocks
    assert seen_tokens(model, x, blocks[1][-1]) == 3
    assert seen_tokens(model, x, blocks[1][-2]) == N - 2 * 3 + 3
    assert seen_tokens(without_tail(model), x, blocks[1][-1]) == N - 3 * 3 + 3


@pytest.mark.parametrize("read", NOT_ALONE)
def test_a_head_that_needs_more_than_the_protected_tokens_gets_them(read: str) -> None:
    model, x = Reader(dialect("plain"), *NOT_ALONE[read]).eval(), tokens()
    with torch.no_grad():
        expected = model(x)
        zipbrain.compress(model, r=0, protected=NOT_ALONE[read][1:], example=x)
        assert not plan_of(model).can_run_tail
        assert zipbrain.summary(model).tail is None
        torch.testing.assert_close(model(x), expected, rtol=1e-5, atol=2e-6)


def test_other_methods_and_arguments_get_all_tokens() -> None:
    model, x = Reader(dialect("plain"), *READS["first"]).eval(), tokens()
    with torch.no_grad():
        encoded, every = model.encode(x), model(x, all_tokens=True)
        zipbrain.compress(model, r=0, example=x, protected=1)
        assert plan_of(model).can_run_tail
        for _ in range(2):
            torch.testing.assert_close(model.encode(x), encoded, rtol=0, atol=2e-6)
            torch.testing.assert_close(model(x, all_tokens=True), every, rtol=0, atol=2e-6)
            model(x)


def test_training_runs_every_token_through_the_last_block() -> None:
    model, x = Reader(dialect("plain"), *READS["first"]), tokens()
    zipbrain.compress(model, r=3, example=x, protected=1)
    last = model.encoder.blocks[-1]
    assert seen_tokens(model.eval(), x, last) == 1
    assert seen_tokens(model.train(), x, last) == 1 + N - 9


def test_gradients_are_those_without_a_tail() -> None:
    model, x = Reader(dialect("plain"), *READS["first"]).eval(), tokens()
    zipbrain.compress(model, r=3, example=x, protected=1)
    found = torch.autograd.grad(model(x).square().sum(), model.encoder.blocks[0].attn.qkv.weight)[0]
    expected = torch.autograd.grad(without_tail(model)(x).square().sum(), model.encoder.blocks[0].attn.qkv.weight)[0]
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_a_mask_and_a_model_that_is_its_own_block_list_have_no_tail() -> None:
    x = tokens()
    model = Reader(dialect("plain"), *READS["first"]).eval()
    zipbrain.compress(model, r=0, example=x, protected=torch.tensor([True, False, True] + [False] * (N - 2)))
    assert not plan_of(model).can_run_tail
    zipbrain.compress(model, r=0, protected=1)  # nothing says what the head reads
    assert not plan_of(model).can_run_tail


class Adapter(nn.Module):
    """A projection with a low-rank part, as adapters put it in the place of a linear layer."""

    def __init__(self, inner: nn.Linear) -> None:
        super().__init__()
        self.inner, self.weight = inner, inner.weight
        self.extra = nn.Linear(inner.in_features, inner.out_features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        projected: Tensor = self.inner(x) + self.extra(x)
        return projected


def test_an_adapter_put_in_later_counts() -> None:
    model, x = Reader(dialect("plain"), *READS["first"]).eval(), tokens()
    zipbrain.compress(model, r=0, example=x, protected=1)
    attn = model.encoder.blocks[-1].attn
    attn.qkv = Adapter(attn.qkv)
    with torch.no_grad():
        found = model(x)
        torch.testing.assert_close(found, without_tail(model)(x), rtol=0, atol=2e-6)


def test_a_dialect_with_its_own_attention_has_no_tail_by_inheritance() -> None:
    class Other(TimmLike):
        @classmethod
        def attend(cls, block: Any, x: Tensor, bias: Tensor | None, need_map: bool) -> Any:
            return super().attend(block, x, bias, need_map)

    assert TimmLike.can_attend_ends()
    assert not Other.can_attend_ends()
    assert not Dialect.can_attend_ends()
    assert {dialect.name for dialect in all_dialects() if dialect.can_attend_ends()} == {
        "hand-written post-norm",
        "hand-written pre-norm",
        "timm-like",
        "torch encoder layer",
        "linear-attention-transformer",
    }


def test_ends_are_leading_then_trailing_tokens() -> None:
    x = torch.arange(5.0).reshape(1, 5, 1)
    for ends, expected in {(2, 1): [0, 1, 4], (2, 0): [0, 1], (0, 2): [3, 4], (0, 0): []}.items():
        assert Ends(*ends).of(x).flatten().tolist() == expected


@pytest.mark.parametrize("amount", [{"r": 0}, {"ratio": 0.6}], ids=["r=0", "ratio"])
@pytest.mark.parametrize("name", ["eegpt", "tfm"])
def test_the_tail_saves_as_many_operations_as_the_summary_says(name: str, amount: dict[str, Any]) -> None:
    torch.manual_seed(0)
    make, shape = models()[name]
    model, x = make().eval(), torch.randn(1, *shape[1:])
    original = zipbrain.summary(zipbrain.compress(model, r=0)).original_macs
    zipbrain.compress(model, "free_slicing", **amount)
    found = zipbrain.summary(model)
    assert found.original_macs == original
    assert found.tail
    assert "last block runs for protected tokens alone" in str(found)
    with_tail = _torch_macs(lambda: model(x))
    saved = _torch_macs(lambda: without_tail(model)(x)) - with_tail
    expected = found.tail * found.original_macs
    if name == "eegpt" and not torch_sees_attention():  # its counter leaves fused attention out on some CPUs
        count = found.token_counts[-2] + 4
        expected -= 2 * 512 * count * (count - 4)
    assert saved == pytest.approx((shape[2] // 64 if name == "eegpt" else 1) * expected)
    plain = zipbrain.summary(model)
    assert plain.tail is None
    assert plain.macs - found.macs == pytest.approx(found.tail * found.original_macs)


@torch.no_grad()
@pytest.mark.parametrize("name", ["eegpt", "tfm"])
def test_a_second_look_has_a_tail_too(name: str) -> None:
    torch.manual_seed(0)
    make, shape = models()[name]
    model, x = make().eval(), torch.randn(shape)
    original = model(x)
    zipbrain.compress(model, ratio=0.6, second_look=1e9)
    torch.testing.assert_close(model(x), original, rtol=0, atol=2e-6)
    with_tail = _torch_macs(lambda: model(x))
    sequences = shape[0] * (shape[2] // 64 if name == "eegpt" else 1)
    shares = []
    for amount in ({"r": 0}, {"ratio": 0.6}):
        shares.append(zipbrain.summary(zipbrain.compress(model, second_look=1e9, **amount)).tail)
    saved = _torch_macs(lambda: without_tail(model)(x)) - with_tail
    whole = zipbrain.summary(model).original_macs
    assert saved == pytest.approx(sequences * whole * sum(shares), rel=0.01)


@torch.no_grad()
def test_nothing_is_looked_at_twice_where_the_last_block_alone_would_reduce() -> None:
    torch.manual_seed(0)
    model, ids = TFMEncoder(3, 4, 400).eval(), torch.randint(0, 8192, (2, 4, 3))
    original = model(ids)
    zipbrain.compress(model, r=2, layers=[4], second_look=1e9)
    torch.testing.assert_close(model(ids), original, rtol=0, atol=1e-6)
    ran: list[int] = []
    model.blocks[0].attn.proj.register_forward_hook(lambda *_: ran.append(1))
    model(ids)
    assert len(ran) == 1


@torch.no_grad()
def test_a_compressed_model_is_compressed_anew_with_a_tail_and_a_second_look() -> None:
    torch.manual_seed(0)
    model, ids = TFMEncoder(3, 4, 400).eval(), torch.randint(0, 8192, (2, 4, 3))
    original = model(ids)
    for _ in range(2):
        zipbrain.compress(model, ratio=0.5, second_look=1e9)
        assert plan_of(model).can_run_tail
        torch.testing.assert_close(model(ids), original, rtol=0, atol=1e-6)


@torch.no_grad()
def test_one_graph_holds_the_tail() -> None:
    torch.compiler.reset()
    model, x = Reader(dialect("plain"), *READS["both"]).eval(), tokens()
    zipbrain.compress(model, r=3, protected=(1, 2), example=x)
    expected = model(x)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), expected, rtol=0, atol=2e-6)
    program = torch.export.export(model, (x,)).module()
    torch.testing.assert_close(program(x), expected, rtol=0, atol=2e-6)
    assert _torch_macs(lambda: program(x)) < _torch_macs(lambda: without_tail(model)(x))


@torch.no_grad()
def test_a_kept_prefix_gives_the_same_bits() -> None:
    torch.manual_seed(0)
    model, ids = TFMEncoder(3, 4, 400).eval(), torch.randint(0, 8192, (2, 4, 3))
    prefix = Prefix(2**20)
    for options in ({"r": 2, "layers": [2, 4]}, {"r": 3, "layers": [3]}, {"r": 2, "layers": [4]}):
        zipbrain.compress(model, **options)
        expected = model(ids)
        for _ in range(2):
            with prefix.batch(model, 0):
                assert torch.equal(model(ids), expected)
    assert len(prefix) == 1
