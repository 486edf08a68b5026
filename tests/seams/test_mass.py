"""Mass: how many original tokens a token stands for, in attention, in the merge and in the readout."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import zipbrain
from seams.small_models import DIM, HEADS, METHODS, PlainBlock, Stack, dialect, tokens, varied
from zipbrain import Mass, ToMe, ZIPBrain
from zipbrain.models import TokenEncoder
from zipbrain.seams.dialects.attention import linear_attention, softmax_attention, widen_heads
from zipbrain.seams.forward import Plan, plan_of

MERGING = ["zipbrain", "zipbrain-heads", "tome", "evit-fuse"]
PRUNING = ["evit", "evit-mean", "dart", "free_slicing"]


def run(model: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        result: Tensor = model(x)
    return result


def watch_mass(monkeypatch: pytest.MonkeyPatch) -> list[Tensor | None]:
    """Collect the mass after every block that pooled."""
    seen: list[Tensor | None] = []
    pool = Plan._pool

    def spy(self: Plan, *given: Any) -> Tensor:
        result = pool(self, *given)
        seen.append(self.flow.mass)
        return result

    monkeypatch.setattr(Plan, "_pool", spy)
    return seen


def heads(batch: int, n: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(2)
    q, k, v = torch.randn(3, batch, HEADS, n, 8, generator=generator).to(dtype).unbind(0)
    return q, k, v


def masses(batch: int, n: int) -> Tensor:
    return torch.randint(1, 6, (batch, n), generator=torch.Generator().manual_seed(4)).float()


def duplicated(values: Tensor, mass: Tensor) -> Tensor:
    """One window's (1, H, T, d) with every token repeated as often as its mass says."""
    return values.repeat_interleave(mass[0].long(), dim=2)


# -- attention ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float64, 1e-12), (torch.float32, 2e-6), (torch.bfloat16, 3e-2)])
@pytest.mark.parametrize("scale", [8**-0.5, 1.0, 0.05])
def test_log_mass_in_a_key_channel_equals_a_bias(dtype: torch.dtype, bound: float, scale: float) -> None:
    q, k, v = heads(3, 11, dtype)
    bias = masses(3, 11).to(torch.promote_types(dtype, torch.float32)).log()
    found, none = softmax_attention(q, k, v, scale, bias)
    assert none is None
    logits = scale * q.double() @ k.double().transpose(2, 3) + bias.double()[:, None, None, :]
    expected = logits.softmax(-1) @ v.double()
    assert found.shape == q.shape
    assert found.dtype == dtype
    assert (found.double() - expected).abs().max() <= bound


def test_asking_for_the_map_changes_no_output() -> None:
    q, k, v = heads(3, 11)
    for bias in (None, masses(3, 11).log()):
        fused, _ = softmax_attention(q, k, v, 0.4, bias)
        explicit, attention = softmax_attention(q, k, v, 0.4, bias, need_map=True)
        torch.testing.assert_close(fused, explicit, rtol=0, atol=2e-6)
        assert attention is not None
        torch.testing.assert_close(attention.sum(-1), torch.ones(3, HEADS, 11))


def test_softmax_attention_with_mass_equals_duplicated_tokens() -> None:
    q, k, v = heads(1, 11)
    mass = masses(1, 11)
    found, _ = softmax_attention(q, k, v, 0.3, mass.log())
    expected, _ = softmax_attention(q, duplicated(k, mass), duplicated(v, mass), 0.3)
    assert (found - expected).abs().max() <= 2e-6


def test_linear_attention_with_mass_equals_duplicated_tokens() -> None:
    q, k, v = heads(1, 11)
    mass = masses(1, 11)
    found = linear_attention(q, k, v, mass.log())
    assert (found - linear_attention(q, duplicated(k, mass), duplicated(v, mass))).abs().max() <= 2e-6
    assert (found - linear_attention(q, k, v)).abs().max() > 1e-3


@pytest.mark.parametrize("name", ["plain", "labram", "linear", "pre-norm", "post-norm"])
def test_a_block_with_mass_equals_the_block_on_duplicated_tokens(name: str) -> None:
    """A whole block, not attention alone: its scale, its norms and its heads must meet the mass in the right place."""
    model, x = dialect(name).double(), tokens(1, 9).double()
    mass = masses(1, 9).double()
    chain = zipbrain.seams.find.find_chain(model)
    found = chain.dialect.attend(chain.blocks[0], x, mass.log(), False).x
    long = x.repeat_interleave(mass[0].long(), dim=1)
    expected = chain.dialect.attend(chain.blocks[0], long, None, False).x
    first = (mass.cumsum(1) - mass).long()[0]
    torch.testing.assert_close(found, expected[:, first], rtol=1e-10, atol=1e-10)


# -- conservation ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["labram", "linear", "post-norm"])
@pytest.mark.parametrize("method", MERGING)
def test_merging_conserves_mass(name: str, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = zipbrain.compress(dialect(name), METHODS[method], r=3, mass=True), tokens(3)
    seen = watch_mass(monkeypatch)
    with zipbrain.trace(model) as traced:
        run(model, x)
    assert len(seen) == 3
    for mass, left in zip(seen, (11, 8, 5), strict=True):
        assert mass is not None
        assert mass.shape == (3, left)
        torch.testing.assert_close(mass.sum(1), torch.full((3,), 14.0))
    owner = traced.source_map()
    for row in range(3):  # mass is the number of original tokens that ended in each group
        ends = owner[row].unique(return_counts=True)[1]
        assert sorted(ends.tolist()) == sorted(seen[-1][row].tolist())  # type: ignore[index]


@pytest.mark.parametrize("method", PRUNING)
def test_pruning_loses_the_mass_of_what_is_dropped(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = zipbrain.compress(dialect("plain"), METHODS[method], r=3, mass=True)
    seen = watch_mass(monkeypatch)
    run(model, tokens())
    assert [mass.tolist() for mass in seen if mass is not None] == [[[1.0] * n] * 2 for n in (11, 8, 5)]


def test_without_mass_nothing_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = watch_mass(monkeypatch)
    run(zipbrain.compress(dialect("plain"), "zipbrain", r=3), tokens())
    assert seen == [None] * 3


# -- readout -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "method"),
    [(name, method) for name in ("labram", "linear", "pre-norm", "post-norm-time-first") for method in MERGING]
    # Dropped tokens get the survivors' mean: exact for a mean taken right behind the blocks, with no norm between.
    + [("linear", method) for method in [*PRUNING, "tofu"]],
)
def test_a_mean_over_unmerged_tokens_is_the_mass_weighted_mean(
    name: str, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For methods that drop tokens: over the survivors, weighted by their mass."""
    x = tokens(3)
    model = zipbrain.compress(dialect(name), METHODS[method], r=3, mass=Mass(attention=True, merge=True))
    seen = watch_mass(monkeypatch)
    short = run(model, x)
    mass = seen[-1]
    assert mass is not None
    expected = (short * mass.unsqueeze(2)).sum(1) / mass.sum(1, keepdim=True)
    long = run(zipbrain.compress(model, METHODS[method], r=3, mass=True), x)
    assert long.shape == x.shape
    torch.testing.assert_close(long.mean(1), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("method", METHODS)
def test_a_mean_head_behind_the_blocks_reads_the_mass_weighted_mean(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TokenEncoder takes the mean right behind its blocks, CLS left out."""
    model, x = varied(TokenEncoder(dim=DIM, depth=3, heads=HEADS)), tokens(3)
    seen, inputs = watch_mass(monkeypatch), []
    zipbrain.compress(model, METHODS[method], r=3, mass=Mass(attention=True, merge=True))
    handle = model.blocks[-1].register_forward_hook(lambda _, __, output: inputs.append(output))
    run(model, x)
    mass = seen[-1]
    assert mass is not None
    handle.remove()
    weight = mass[:, 1:, None]
    mean = (inputs[0][:, 1:] * weight).sum(1) / weight.sum(1)
    with torch.no_grad():
        expected = model.head(model.fc_norm(mean))
    found = run(zipbrain.compress(model, METHODS[method], r=3, mass=True), x)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_unmerging_puts_every_value_back_where_its_tokens_were() -> None:
    model, x = dialect("labram"), tokens(3)
    zipbrain.compress(model, ZIPBrain(), r=3, protected=(1, 1), mass=Mass(readout=True))
    with zipbrain.trace(model) as traced:
        long = run(model, x)
    short = run(zipbrain.compress(model, ZIPBrain(), r=3, protected=(1, 1), mass=False), x)
    places = zipbrain.pooling.grouping.compose(layer.grouping for layer in traced.layers).places()
    for row in range(3):
        torch.testing.assert_close(long[row], short[row, places[row]], rtol=1e-5, atol=1e-5)


def test_protected_tokens_do_not_enter_the_value_of_dropped_ones() -> None:
    model, x = varied(nn.Sequential(PlainBlock(), PlainBlock())), tokens()
    zipbrain.compress(model, "free_slicing", r=4, protected=(1, 2), mass=Mass(readout=True))
    with zipbrain.trace(model) as traced:
        long = run(model, x)
    short = run(zipbrain.compress(model, "free_slicing", r=4, protected=(1, 2)), x)
    dropped = (traced.source_map() < 0).nonzero()[:, 1].unique() + 1
    assert dropped.tolist() == list(range(4, 12))
    expected = short[:, 1:4].mean(1, keepdim=True).expand(-1, 8, -1)
    torch.testing.assert_close(long[:, dropped], expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(long[:, -2:], short[:, -2:], rtol=1e-5, atol=1e-5)


# -- each use alone ----------------------------------------------------------------------------------------------------


def outputs(mass: bool | Mass, method: Any = None, depth: int = 2) -> Tensor:
    model = varied(Stack(depth=depth))
    return run(zipbrain.compress(model, method or ZIPBrain(), r=4, mass=mass), tokens())


def test_each_use_of_mass_changes_only_its_part() -> None:
    base = outputs(False)
    attention, merge, readout = (
        outputs(Mass(attention=True)),
        outputs(Mass(merge=True)),
        outputs(Mass(readout=True)),
    )
    assert base.shape == attention.shape == merge.shape == (2, 6, DIM)
    assert (attention - base).abs().max() > 1e-4
    assert (merge - base).abs().max() > 1e-4
    assert (attention - merge).abs().max() > 1e-4
    assert readout.shape == (2, 14, DIM)
    for row in range(2):  # the same values, spread
        distance = torch.cdist(readout[row], base[row])
        assert distance.amin(1).max() < 1e-4
        assert distance.amin(0).max() < 1e-4


def test_in_the_first_block_every_token_weighs_the_same() -> None:
    base = outputs(False, depth=1)
    for use in ({"attention": True}, {"merge": True}, {"attention": True, "merge": True}):
        torch.testing.assert_close(outputs(Mass(**use), depth=1), base, rtol=0, atol=1e-5)


def test_mass_in_attention_alone_sees_the_sizes_of_the_block_before() -> None:
    """The second block of two, by hand: log of the group sizes on its keys and nothing else."""
    model, x = varied(Stack(depth=2)).double(), tokens().double()
    zipbrain.compress(model, "zipbrain", r=[4], mass=Mass(attention=True))
    with zipbrain.trace(model) as traced:
        found = run(model, x)
    grouping = traced.layers[0].grouping
    sizes = grouping.merge(torch.ones(2, 14, dtype=torch.float64), "sum")
    zipbrain.restore(model)
    first, second = model.blocks
    with torch.no_grad():
        middle = first.norm2(merged := grouping.merge(x + first.attn(first.norm1(x)), "largest_norm"))
        middle = merged + first.mlp(middle)
        q, k, v = second.attn.project(second.norm1(middle))
        logits = second.attn.scale * q @ k.transpose(2, 3) + sizes.log()[:, None, None, :]
        mixed = (logits.softmax(-1) @ v).transpose(1, 2).reshape(middle.shape)
        y = middle + second.attn.proj(mixed)
        expected = model.norm(y + second.mlp(second.norm2(y)))
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("method", METHODS)
def test_with_nothing_removed_mass_changes_nothing(method: str) -> None:
    model, x = dialect("labram"), tokens()
    expected = run(model, x)
    found = run(zipbrain.compress(model, METHODS[method], r=0, mass=True), x)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


# -- state -------------------------------------------------------------------------------------------------------------


def held(model: nn.Module) -> list[str]:
    """Names of the tensors that the carry holds."""
    return [name for name, value in vars(plan_of(model).flow).items() if isinstance(value, Tensor)]


def test_no_tensor_is_left_after_the_forward() -> None:
    mask = torch.zeros(14, dtype=torch.bool)
    mask[3] = True
    for protected in (0, (1, 1), mask):
        model = zipbrain.compress(dialect("labram"), "tome", r=3, mass=True, protected=protected)
        run(model, tokens())
        assert held(model) == []


def test_the_first_block_starts_anew_and_a_copy_is_fresh() -> None:
    model, x = zipbrain.compress(dialect("labram"), "tome", r=3, mass=True), tokens()
    expected = run(model, x)
    handle = model.blocks[1].mlp.register_forward_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run(model, tokens(5, 20))
    handle.remove()
    assert held(model) == ["mass", "places"]  # what a broken forward left
    assert held(copy.deepcopy(model)) == []
    assert torch.equal(run(model, x), expected)
    assert held(model) == []


def test_two_models_of_one_method_do_not_share_state() -> None:
    method, x = ToMe(), tokens()
    one, other = (zipbrain.compress(dialect("plain"), method, r=3, mass=True) for _ in range(2))
    expected = run(one, x)

    def between(*_: Any) -> None:
        run(other, tokens(1, 20))

    hook = one.blocks[1].register_forward_pre_hook(between)
    assert torch.equal(run(one, x), expected)
    hook.remove()


# -- ToMe --------------------------------------------------------------------------------------------------------------


def tome_merge(x: Tensor, key: Tensor, size: Tensor, r: int, protected: int) -> tuple[Tensor, Tensor]:
    """One window of ToMe as its paper tells it, token by token: x (T, D), key (T, d), size (T,)."""
    count = len(x)
    evens = [i for i in range(protected, count) if i % 2 == 0]
    odds = [i for i in range(protected, count) if i % 2 == 1]
    unit = key / key.norm(dim=1, keepdim=True)
    best = {i: max(odds, key=lambda j, i=i: float(unit[i] @ unit[j])) for i in evens}
    gone = sorted(evens, key=lambda i: -float(unit[i] @ unit[best[i]]))[:r]
    total, mass = x * size[:, None], size.clone()
    for i in gone:
        total[best[i]] += x[i] * size[i]
        mass[best[i]] += size[i]
    stays = [i for i in range(count) if i not in gone]
    return (total / mass[:, None])[stays], mass[stays]


@pytest.mark.parametrize("protected", [0, 1, 2])
@pytest.mark.parametrize("proportional", [True, False])
def test_tome_keeps_sizes_by_itself(protected: int, proportional: bool) -> None:
    model, x = varied(Stack(depth=3)).double(), tokens(2, 15).double()
    expected = []
    for window in x:
        stream, size = window, torch.ones(15, dtype=torch.float64)
        for block in model.blocks:
            with torch.no_grad():
                q, k, v = (part[0] for part in block.attn.project(block.norm1(stream[None])))
                logits = block.attn.scale * q @ k.transpose(1, 2)
                if proportional:
                    logits = logits + size.log()
                mixed = (logits.softmax(-1) @ v).transpose(0, 1).reshape(stream.shape)
                stream = stream + block.attn.proj(mixed)
                stream, size = tome_merge(stream, k.mean(0), size, 3, protected)
                stream = stream + block.mlp(block.norm2(stream))
        expected.append(model.norm(stream))
    zipbrain.compress(model, ToMe(proportional), r=3, protected=protected)
    assert (run(model, x) - torch.stack(expected)).abs().max() < 1e-10


def test_tome_without_readout_stays_short() -> None:
    model = zipbrain.compress(dialect("plain"), "tome", r=3)
    assert zipbrain.summary(model).mass == {"attention": True, "merge": True, "readout": False}
    assert run(model, tokens()).shape[1] == 5
    model = zipbrain.compress(model, "tome", r=3, mass=Mass(readout=True))
    assert zipbrain.summary(model).mass == {"attention": True, "merge": True, "readout": True}
    assert run(model, tokens()).shape[1] == 14


@pytest.mark.parametrize("more", [1, 4, 8])
def test_more_channels_than_one_change_nothing(more: int) -> None:
    (q, k, v), bias = heads(2, 9), masses(2, 9).log()
    widened = widen_heads(q, k, v, bias, 0.3, more)
    found = torch.nn.functional.scaled_dot_product_attention(*widened, scale=0.3)[..., : v.shape[3]]
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, bias[:, None, None, :], scale=0.3)
    torch.testing.assert_close(found, expected)
