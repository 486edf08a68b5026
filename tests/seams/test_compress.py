"""compress, restore, trace and summary: in place, undone without a trace, and as many tokens as the contract says."""

from __future__ import annotations

import copy
import gc
import io
import logging
import math
import pickle
import subprocess
import sys
import warnings
import weakref
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import zipbrain
from seams.small_models import (
    DEPTH,
    DIALECTS,
    DIM,
    METHODS,
    PlainBlock,
    Stack,
    WithPrefix,
    dialect,
    tokens,
    torch_encoder,
    varied,
)
from zipbrain import EViT, OptionError, ToMe, ZIPBrain
from zipbrain.models import TokenEncoder
from zipbrain.pooling.schedule import FlopsBudget, LinearSchedule, PerLayer
from zipbrain.seams import Recognition, is_compressed
from zipbrain.seams.dialects import recognition
from zipbrain.seams.forward import plan_of


def encoder(depth: int = 4, **options: Any) -> TokenEncoder:
    model = varied(TokenEncoder(dim=DIM, depth=depth, heads=2, outputs=3, **options))
    assert isinstance(model, TokenEncoder)
    return model


def run(model: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        result: Tensor = model(x)
    return result


def traced_counts(model: nn.Module, x: Tensor) -> list[int]:
    with zipbrain.trace(model) as traced:
        run(model, x)
    return traced.token_counts


def anatomy(model: nn.Module) -> tuple[list[tuple[str, type]], dict[str, Tensor], list[str]]:
    """Classes of all parts, a copy of the state, and the names in every part's dictionary."""
    kinds = [(name, type(module)) for name, module in model.named_modules()]
    names = [f"{path}: {sorted(module.__dict__)}" for path, module in model.named_modules()]
    return kinds, {name: value.clone() for name, value in model.state_dict().items()}, names


def assert_same(found: Any, expected: Any) -> None:
    assert found[0] == expected[0]
    assert list(found[1]) == list(expected[1])
    assert all(torch.equal(found[1][name], value) for name, value in expected[1].items())
    assert found[2] == expected[2]


# -- in place and undone -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", DIALECTS)
def test_restore_gives_the_same_model_back(name: str) -> None:
    model, x = dialect(name), tokens()
    before, expected = anatomy(model), run(model, x)
    assert zipbrain.compress(model, ToMe(), r=3, mass=True) is model
    assert is_compressed(model)
    run(model, x)
    assert zipbrain.restore(model) is model
    assert not is_compressed(model)
    assert_same(anatomy(model), before)
    assert torch.equal(run(model, x), expected)


def test_restoring_twice_or_never_compressed_does_nothing() -> None:
    model = encoder()
    before = anatomy(model)
    assert zipbrain.restore(model) is model
    assert_same(anatomy(model), before)
    zipbrain.compress(model, r=2)
    zipbrain.restore(zipbrain.restore(model))
    assert_same(anatomy(model), before)


@pytest.mark.parametrize("name", ["labram", "linear", "post-norm"])
def test_compressing_again_replaces_the_first_time(name: str) -> None:
    model, x = dialect(name), tokens()
    before, expected = anatomy(model), run(zipbrain.compress(dialect(name), "tome", r=3), x)
    zipbrain.compress(model, ZIPBrain(), ratio="max", mass=True)
    run(model, x)
    zipbrain.compress(model, "tome", r=3)
    assert torch.equal(run(model, x), expected)
    assert zipbrain.summary(model).method["name"] == "tome"
    assert_same(anatomy(zipbrain.restore(model)), before)


def test_another_part_can_be_compressed_instead() -> None:
    model, x = varied(nn.Sequential(Stack(depth=2), Stack(depth=2))), tokens()
    zipbrain.compress(model, r=3, within="0")
    zipbrain.compress(model, r=2, within="1")
    assert not is_compressed(model[0])
    assert run(model, x).shape[1] == 10


@pytest.mark.parametrize("name", DIALECTS)
def test_state_dict_is_the_same_while_compressed(name: str) -> None:
    model = dialect(name)
    _, state, _ = anatomy(model)
    zipbrain.compress(model, r=2)
    found = model.state_dict()
    assert list(found) == list(state)
    assert all(torch.equal(found[key], value) for key, value in state.items())
    assert [name for name, _ in model.named_parameters()] == [name for name, _ in dialect(name).named_parameters()]


def test_weights_load_into_a_compressed_model() -> None:
    model, other, x = encoder(), varied(TokenEncoder(dim=DIM, depth=4, heads=2, outputs=3), seed=7), tokens()
    zipbrain.compress(model, r=2)
    model.load_state_dict(other.state_dict())
    assert torch.equal(run(model, x), run(zipbrain.compress(other, r=2), x))


def test_a_compressed_block_is_still_an_instance_of_its_class() -> None:
    model = zipbrain.compress(Stack(), r=1)
    assert all(isinstance(block, PlainBlock) for block in model.blocks)


@pytest.mark.parametrize("mass", [False, True])
def test_a_copy_is_independent(mass: bool) -> None:
    model, x = zipbrain.compress(encoder(), r=3, mass=mass), tokens()
    expected = run(model, x)
    twin = copy.deepcopy(model)
    assert torch.equal(run(twin, x), expected)
    assert plan_of(twin) is not plan_of(model)
    assert len({id(block.__dict__["_zipbrain"].plan) for block in twin.blocks}) == 1
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.zero_()
    zipbrain.restore(twin)
    assert is_compressed(model)
    assert torch.equal(run(model, x), expected)


@pytest.mark.parametrize("name", DIALECTS)
def test_a_restored_model_can_be_pickled(name: str) -> None:
    model, x = dialect(name), tokens()
    expected = run(model, x)
    zipbrain.restore(zipbrain.compress(model, r=2))
    assert torch.equal(run(pickle.loads(pickle.dumps(model)), x), expected)


@pytest.mark.parametrize("name", DIALECTS)
@pytest.mark.parametrize("mass", [False, True])
def test_a_compressed_model_can_be_pickled_and_restored(name: str, mass: bool) -> None:
    model, x = dialect(name), tokens()
    before = run(model, x)
    zipbrain.compress(model, "tome", r=2, mass=mass)
    expected = run(model, x)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    twin = torch.load(file, weights_only=False)
    assert torch.equal(run(twin, x), expected)
    assert torch.equal(run(zipbrain.restore(twin), x), before)


@pytest.mark.parametrize("mass", [False, True])
def test_a_pickled_compressed_model_runs_in_a_fresh_process(tmp_path: Path, mass: bool) -> None:
    """The class of a compressed block is made at run time, so the other process has to make it again."""
    model = nn.ModuleList([encoder(), torch_encoder(False, True)]).eval()
    for part, method in zip(model, (ZIPBrain(), EViT(fuse=True)), strict=True):
        zipbrain.compress(part, method, r=3, mass=mass)
    x = tokens()
    expected = [run(part, x) for part in model]
    torch.save((model, x), tmp_path / "model.pt")
    code = (
        "import sys, torch\n"
        "torch.set_num_threads(1)\n"
        "model, x = torch.load(sys.argv[1], weights_only=False)\n"
        "with torch.no_grad(): torch.save([part(x) for part in model], sys.argv[2])\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "model.pt"), str(tmp_path / "out.pt")]
    subprocess.run(command, check=True, timeout=120)
    for found, wanted in zip(torch.load(tmp_path / "out.pt"), expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-6)


# -- dtypes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("mass", [False, True])
def test_a_compressed_model_moves_to_other_dtypes(method: str, mass: bool) -> None:
    model, x = zipbrain.compress(encoder(), METHODS[method], r=4, mass=mass), tokens()
    single = run(model, x)
    assert single.dtype == torch.float32
    double = run(model.to(torch.float64), x.double())
    assert double.dtype == torch.float64
    torch.testing.assert_close(single.double(), double, rtol=1e-4, atol=1e-4)
    half = run(model.to(torch.bfloat16), x.bfloat16())
    assert half.dtype == torch.bfloat16
    assert half.isfinite().all()


@pytest.mark.parametrize("method", METHODS)
def test_autocast_changes_no_shape_and_makes_no_nan(method: str) -> None:
    model, x = zipbrain.compress(encoder(), METHODS[method], r=4, mass=True), tokens()
    with torch.autocast("cpu", torch.bfloat16):
        found = run(model, x)
    assert found.shape == (2, 3)
    assert found.isfinite().all()


# -- training ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", DIALECTS)
@pytest.mark.parametrize("method", ["zipbrain", "tome", "tofu"])
def test_gradients_reach_every_parameter(name: str, method: str) -> None:
    model = zipbrain.compress(dialect(name), METHODS[method], r=3).train()
    model(tokens()).square().sum().backward()
    for key, parameter in model.named_parameters():
        assert parameter.grad is not None, key
        assert parameter.grad.isfinite().all(), key
        if "k_norm.bias" not in key and "in_proj_bias" not in key:  # softmax ignores a shift of all keys
            assert parameter.grad.abs().max() > 0, key


@pytest.mark.parametrize("mass", [False, True])
@pytest.mark.parametrize("method", METHODS)
def test_gradients_match_finite_differences(method: str, mass: bool) -> None:
    """Groups do not change under a small step, so the merge is an ordinary function of its tokens."""
    model, x = varied(Stack(depth=2)).double(), tokens(1, 7).double().requires_grad_()
    zipbrain.compress(model, METHODS[method], r=2, mass=mass)
    weights = tokens(1, 7).double().cos()
    assert torch.autograd.gradcheck(lambda t: (model(t) * weights[:, : model(t).shape[1]]).sum(), (x,), eps=1e-7)


def test_gradients_of_the_parameters_match_finite_differences() -> None:
    model, x = zipbrain.compress(encoder(2).double(), r=3, mass=True), tokens(1, 8).double()
    model(x).sum().backward()
    step = 1e-6
    for key, parameter in model.named_parameters():
        flat, slope = parameter.detach().view(-1), parameter.grad
        assert slope is not None
        at = int(slope.abs().argmax())
        kept = flat[at].item()
        flat[at] = kept + step
        up = run(model, x).sum()
        flat[at] = kept - step
        down = run(model, x).sum()
        flat[at] = kept
        assert slope.view(-1)[at].item() == pytest.approx((up - down).item() / (2 * step), rel=1e-4, abs=1e-6), key


def test_gradients_are_the_same_with_and_without_the_compiled_kernel(path: str) -> None:
    model, x = zipbrain.compress(encoder(), r=3).train(), tokens()
    model(x).sum().backward()
    slope = model.blocks[0].attn.qkv.weight.grad
    double = zipbrain.compress(encoder().double(), r=3).train()
    double(x.double()).sum().backward()
    torch.testing.assert_close(slope.double(), double.blocks[0].attn.qkv.weight.grad, rtol=1e-3, atol=1e-4)


def test_one_step_of_training_lowers_the_loss() -> None:
    model, x = zipbrain.compress(encoder(), r=3).train(), tokens(8)
    wanted = torch.tensor([0, 1, 2, 0, 1, 2, 0, 1])
    optimiser = torch.optim.SGD(model.parameters(), 1e-3)
    losses = []
    for _ in range(5):
        loss = nn.functional.cross_entropy(model(x), wanted)
        losses.append(loss.item())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    assert losses[-1] < losses[0]


def test_dropout_acts_in_training_only() -> None:
    model, x = zipbrain.compress(dialect("pre-norm"), "free_slicing", r=2), tokens()
    assert torch.equal(run(model, x), run(model, x))
    model.train()
    assert not torch.equal(run(model, x), run(model, x))


def test_example_leaves_training_mode_as_it_was() -> None:
    model = encoder().train()
    model.blocks[1].eval()
    before = [module.training for module in model.modules()]
    zipbrain.compress(model, ratio=0.5, example=tokens())
    assert [module.training for module in model.modules()] == before
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_a_good_forward_follows_a_failed_one() -> None:
    model, x = zipbrain.compress(encoder(), "tome", r=3, mass=True), tokens()
    expected = run(model, x)
    handle = model.blocks[2].mlp.register_forward_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run(model, x)
    handle.remove()
    assert torch.equal(run(model, x), expected)
    handle = model.blocks[2].mlp.register_forward_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run(model, tokens(5, 20))
    handle.remove()
    assert traced_counts(model, x) == [14, 11, 8, 5, 3]
    assert torch.equal(run(model, x), expected)


# -- how many go -------------------------------------------------------------------------------------------------------


def planned(n: int, depth: int = 4, method: Any = "zipbrain", **options: Any) -> list[int]:
    model = zipbrain.compress(encoder(depth), method, tokens=n, **options)
    found = zipbrain.summary(model).token_counts
    assert found is not None
    assert traced_counts(model, tokens(1, n)) == found
    return found


@pytest.mark.parametrize(
    ("ratio", "n", "depth"), [(0.5, 20, 4), (0.8, 23, 3), (0.3, 25, 5), (0.1, 15, 1), (0.9, 17, 4), (1, 12, 3)]
)
def test_ratio_is_rounded_half_up_in_every_layer(ratio: float, n: int, depth: int) -> None:
    r = math.floor(Fraction(str(ratio)) * n / depth + Fraction(1, 2))
    expected = [n]
    for _ in range(depth):
        expected.append(max(expected[-1] - r, 1))
    assert planned(n, depth, ratio=ratio) == expected


def test_a_half_rounds_up() -> None:
    assert planned(10, 4, ratio=0.2) == [10, 9, 8, 7, 6]  # 0.2 * 10 / 4 = 0.5 -> 1
    assert planned(25, 2, ratio=0.2) == [25, 22, 19]  # 2.5 -> 3
    assert planned(30, 4, ratio=0.6) == [30, 25, 20, 15, 10]  # 4.5 -> 5


@pytest.mark.parametrize(("n", "depth"), [(23, 4), (24, 4), (4, 4), (3, 4), (5, 2), (1, 3)])
def test_max_is_the_papers_maximum(n: int, depth: int) -> None:
    r = max(1, math.ceil(n / depth) - 1)
    expected = [n]
    for _ in range(depth):
        expected.append(max(expected[-1] - r, 1))
    assert planned(n, depth, ratio="max") == expected


def test_one_unprotected_token_stays() -> None:
    assert planned(10, r=4) == [10, 6, 2, 1, 1]
    assert planned(6, r=100) == [6, 1, 1, 1, 1]
    assert planned(9, ratio=1.0, method=EViT(fuse=True)) == [9, 7, 5, 3, 1]


@pytest.mark.parametrize("method", ["tome", "tofu"])
def test_tome_and_tofu_remove_at_most_half(method: str) -> None:
    assert planned(15, r=9, method=method) == [15, 8, 4, 2, 1]
    assert planned(16, r=5, method=method) == [16, 11, 6, 3, 2]


def test_r_may_be_a_list_or_any_schedule() -> None:
    assert planned(20, r=[3, 0, 5, 1]) == [20, 17, 17, 12, 11]
    assert planned(20, r=[3, 4]) == [20, 17, 13, 13, 13]
    assert planned(20, schedule=[1, 2]) == [20, 19, 17, 17, 17]
    assert planned(20, schedule=PerLayer((2, 2, 2, 2))) == [20, 18, 16, 14, 12]
    assert planned(20, schedule=LinearSchedule(3)) == [20, 14, 10, 8, 8]
    assert planned(20, schedule={"name": "constant", "r": 3}) == [20, 17, 14, 11, 8]
    assert planned(20, r=0) == [20] * 5


def test_a_flops_budget_is_kept() -> None:
    model = zipbrain.compress(encoder(), schedule=FlopsBudget(0.6), tokens=40)
    found = zipbrain.summary(model)
    assert found.macs is not None
    assert found.original_macs is not None
    assert found.macs <= 0.6 * found.original_macs
    assert run(model, tokens(1, 40)).shape == (1, 3)
    free = zipbrain.compress(encoder(), schedule=FlopsBudget(0.6))
    assert traced_counts(free, tokens(1, 40)) == found.token_counts


def test_layers_choose_the_blocks_that_reduce() -> None:
    assert planned(20, r=3, layers=[2, 4]) == [20, 20, 17, 17, 14]
    assert planned(20, ratio=0.5, layers=(1,)) == [20, 10, 10, 10, 10]
    assert planned(20, ratio="max", layers=range(3, 5)) == [20, 20, 20, 11, 2]
    assert planned(20, r=[1, 5], layers=[4, 2]) == [20, 20, 19, 19, 14]


def test_every_length_has_its_own_schedule_whatever_was_declared() -> None:
    model = zipbrain.compress(encoder(), ratio=0.4, tokens=20)
    assert traced_counts(model, tokens(1, 20)) == [20, 18, 16, 14, 12]
    with pytest.warns(UserWarning, match="30 tokens, but 20 were declared"):
        assert traced_counts(model, tokens(1, 30)) == [30, 27, 24, 21, 18]
    assert traced_counts(model, tokens(1, 6)) == [6, 5, 4, 3, 2]


@pytest.mark.parametrize("form", [lambda x: x, lambda x: (x,), lambda x: {"tokens": x}], ids=["plain", "tuple", "dict"])
def test_example_counts_the_tokens(form: Any) -> None:
    model = zipbrain.compress(encoder(), ratio=0.4, example=form(tokens(1, 20)))
    assert zipbrain.summary(model).token_counts == [20, 18, 16, 14, 12]
    assert traced_counts(model, tokens(1, 20)) == [20, 18, 16, 14, 12]


def test_example_counts_on_a_compressed_model_too() -> None:
    model = zipbrain.compress(encoder(), ratio="max", tokens=50)
    zipbrain.compress(model, ratio=0.4, example=tokens(1, 20))
    assert zipbrain.summary(model).token_counts == [20, 18, 16, 14, 12]


@pytest.mark.parametrize("name", DIALECTS)
def test_example_counts_in_every_dialect(name: str) -> None:
    model = zipbrain.compress(dialect(name), ratio=0.5, example=tokens(5, 12))
    assert zipbrain.summary(model).token_counts == [12, 10, 8, 6]


def test_tokens_win_over_example() -> None:
    with pytest.warns(UserWarning, match="the example has 20 tokens, but tokens=40"):
        model = zipbrain.compress(encoder(), ratio=0.4, tokens=40, example=tokens(1, 20))
    assert zipbrain.summary(model).token_counts == [40, 36, 32, 28, 24]


def test_every_length_has_its_own_schedule_when_nothing_was_pinned() -> None:
    model = zipbrain.compress(encoder(), ratio=0.4)
    assert zipbrain.summary(model).token_counts is None
    for n in (20, 30, 10, 20):
        r = math.floor(Fraction(4, 10) * n / 4 + Fraction(1, 2))
        assert traced_counts(model, tokens(1, n)) == [n - i * r for i in range(5)]
        assert zipbrain.summary(model).token_counts == [n - i * r for i in range(5)]


def test_asking_about_another_length_does_not_change_what_is_reported() -> None:
    model = zipbrain.compress(encoder(), ratio=0.4)
    run(model, tokens(1, 20))
    assert zipbrain.summary(model, tokens=40).token_counts == [40, 36, 32, 28, 24]
    assert zipbrain.summary(model).token_counts == [20, 18, 16, 14, 12]


def test_a_ratio_that_rounds_to_nothing_warns() -> None:
    with pytest.warns(UserWarning, match=r"r = 0 for 5 tokens: 0 % are removed"):
        model = zipbrain.compress(encoder(), ratio=0.3, tokens=5)
    found = zipbrain.summary(model)
    assert found.token_counts == [5] * 5
    assert "(0.0% removed)" in str(found)
    assert found.pays is False
    model = zipbrain.compress(encoder(), ratio=0.3)
    with pytest.warns(UserWarning, match="r = 0 for 5 tokens"):
        run(model, tokens(1, 5))


def test_asking_for_nothing_does_not_warn() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        zipbrain.compress(encoder(), ratio=0, tokens=5)
        zipbrain.compress(encoder(), r=0, tokens=5)


# -- protected tokens --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("asked", [2, (2, 0), (0, 3), (1, 2)])
def test_protected_ends_are_never_touched(method: str, asked: Any) -> None:
    model, x = zipbrain.compress(varied(Stack()), METHODS[method], r=3, protected=asked), tokens(2, 17)
    leading, trailing = asked if isinstance(asked, tuple) else (asked, 0)
    with zipbrain.trace(model) as traced:
        run(model, x)
    n = 17 - leading - trailing
    assert traced.token_counts == [n, n - 3, n - 6, n - 9]
    for layer in traced.layers:
        grouping = layer.grouping
        safe = {*range(leading), *range(grouping.tokens - trailing, grouping.tokens)}
        assert grouping.kept[:, :leading].tolist() == [list(range(leading))] * 2
        last = list(range(grouping.tokens - trailing, grouping.tokens))
        assert grouping.kept[:, grouping.kept.shape[1] - trailing :].tolist() == [last] * 2
        assert safe.isdisjoint(grouping.source.flatten().tolist())
        assert safe.isdisjoint(grouping.target.flatten().tolist())


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("mass", [False, True])
def test_a_mask_protects_any_tokens_in_every_window(method: str, mass: bool) -> None:
    places = [0, 4, 5, 11]
    mask = torch.zeros(15, dtype=torch.bool)
    mask[places] = True
    model, x = zipbrain.compress(varied(Stack()), METHODS[method], r=3, protected=mask, mass=mass), tokens(3, 15)
    with zipbrain.trace(model) as traced:
        y = run(model, x)
    expected = [11, 8, 5, 5 - min(3, METHODS[method].limit(5))]
    assert traced.token_counts == expected
    assert y.shape[1] == (15 if mass else 4 + expected[-1])
    alive = torch.tensor([places] * 3)  # where the protected tokens stand now
    for layer in traced.layers:
        grouping = layer.grouping
        for row in range(3):
            safe = set(alive[row].tolist())
            assert safe <= set(grouping.kept[row].tolist())
            assert safe.isdisjoint(grouping.source[row].tolist())
            assert safe.isdisjoint(grouping.target[row].tolist())
        alive = grouping.places().gather(1, alive)
    owner = traced.source_map()
    assert owner.shape == (3, 11)
    assert owner.max() < 11 + 3


def test_a_protected_value_passes_through_attention_and_feed_forward_only() -> None:
    """In the first block a protected token must leave exactly as without pooling; other kept tokens may change."""
    mask = torch.zeros(14, dtype=torch.bool)
    mask[[3, 8]] = True
    model, x = varied(Stack(depth=1)), tokens()
    full = run(model, x)
    zipbrain.compress(model, ZIPBrain(), r=6, protected=mask)
    with zipbrain.trace(model) as traced:
        y = run(model, x)
    places = traced.layers[0].grouping.places()[:, [3, 8]]
    for row in range(2):
        torch.testing.assert_close(y[row, places[row]], full[row, [3, 8]], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("method", METHODS)
def test_a_mask_of_the_ends_equals_counts(method: str) -> None:
    mask = torch.zeros(14, dtype=torch.bool)
    mask[:2] = True
    x = tokens()
    by_mask = run(zipbrain.compress(varied(Stack()), METHODS[method], r=3, protected=mask), x)
    by_count = run(zipbrain.compress(varied(Stack()), METHODS[method], r=3, protected=2), x)
    torch.testing.assert_close(by_mask, by_count, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["pre-norm", "linear"])
@pytest.mark.parametrize("protected", [(0, 2), (1, 2)])
def test_evit_fuses_before_the_trailing_tokens(name: str, protected: tuple[int, int]) -> None:
    model, x = dialect(name), tokens()
    zipbrain.compress(model, EViT(fuse=True), r=3, layers=[DEPTH], protected=protected)
    with zipbrain.trace(model) as traced:
        y = run(model, x)
    kept = traced.layers[-1].grouping.kept
    assert (kept[:, -3] == 14).all()
    assert kept[:, -2:].tolist() == [[12, 13]] * 2
    full = run(zipbrain.restore(model), x)
    torch.testing.assert_close(y[:, -2:], full[:, -2:], rtol=1e-5, atol=1e-5)


def test_more_protected_tokens_than_there_are_leaves_all_in_place() -> None:
    model, x = varied(Stack()), tokens(2, 5)
    full = run(model, x)
    zipbrain.compress(model, r=2, protected=(3, 2))
    assert traced_counts(model, x) == [0, 0, 0, 0]
    torch.testing.assert_close(run(model, x), full, rtol=1e-5, atol=1e-6)


def test_a_mask_of_another_length_is_refused_when_it_meets_the_tokens() -> None:
    model = zipbrain.compress(varied(Stack()), r=2, protected=torch.tensor([True] + [False] * 9))
    with pytest.raises(OptionError, match=r"protected.*10 tokens.*14 tokens"):
        run(model, tokens())
    assert run(model, tokens(2, 10)).shape[1] == 4


# -- trace -------------------------------------------------------------------------------------------------------------


def owners(traced: Any, free: list[int], row: int) -> list[int]:
    """Follow every unprotected token through all layers by hand; new tokens are numbered from N on."""
    total = traced.layers[0].grouping.tokens
    now: list[int | None] = list(range(total))  # the original index of what stands at every place
    ends = {index: index for index in range(total)}  # token -> token it is part of
    new = total
    for layer in traced.layers:
        grouping = layer.grouping
        names = list(now)
        for _ in range(grouping.appended):
            names.append(new)
            ends[new] = new
            new += 1
        moves = dict(zip(grouping.source[row].tolist(), grouping.target[row].tolist(), strict=True))
        for source, target in moves.items():
            gone, into = names[source], -1 if target < 0 else names[target]
            for token, end in ends.items():
                if end == gone:
                    ends[token] = into
        now = [names[place] for place in grouping.kept[row].tolist()]
    number = {index: i for i, index in enumerate(free)} | {total + i: len(free) + i for i in range(new - total)}
    return [number.get(ends[index], -1) for index in free]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("protected", [0, (1, 2)])
@pytest.mark.parametrize("layers", [None, [1, 3]])
def test_source_map_is_the_composition_of_all_layers(method: str, protected: Any, layers: Any) -> None:
    model, x = varied(Stack()), tokens(2, 15)
    zipbrain.compress(model, METHODS[method], r=3, protected=protected, layers=layers)
    with zipbrain.trace(model) as traced:
        run(model, x)
    leading, trailing = protected or (0, 0)
    free = list(range(leading, 15 - trailing))
    found = traced.source_map()
    for row in range(2):
        assert found[row].tolist() == owners(traced, free, row)
    drops = method in ("evit", "evit-mean", "dart", "free_slicing", "tofu-prune")
    assert bool((found == -1).any()) == drops
    assert len(traced.layers) == DEPTH


def test_layers_that_do_not_reduce_are_traced_as_such() -> None:
    model = zipbrain.compress(varied(Stack()), r=4, layers=[2])
    with zipbrain.trace(model) as traced:
        run(model, tokens())
    assert traced.token_counts == [14, 14, 10, 10]
    assert [layer.block for layer in traced.layers] == [1, 2, 3]
    assert [layer.grouping.removed for layer in traced.layers] == [0, 4, 0]
    assert traced.layers[0].grouping.kept.tolist() == [list(range(14))] * 2


def test_tracing_changes_no_output(path: str) -> None:
    model, x = zipbrain.compress(encoder(), r=3), tokens()
    expected = run(model, x)
    with zipbrain.trace(model):
        found = run(model, x)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


def test_trace_holds_the_last_forward_and_ends_with_the_block() -> None:
    model = zipbrain.compress(encoder(), r=2)
    with zipbrain.trace(model) as outer:
        run(model, tokens(1, 20))
        run(model, tokens(3, 10))
        with zipbrain.trace(model) as inner:
            run(model, tokens(1, 12))
    assert outer.token_counts == inner.token_counts == [12, 10, 8, 6, 4]
    assert outer.source_map().shape == (1, 12)
    run(model, tokens(1, 30))
    assert outer.token_counts == [12, 10, 8, 6, 4]
    assert plan_of(model).flow.observer is None


def test_an_empty_trace_says_so() -> None:
    model = zipbrain.compress(encoder(), r=2)
    with zipbrain.trace(model) as traced:
        assert traced.token_counts == []
        with pytest.raises(RuntimeError, match="nothing was traced"):
            traced.source_map()


# -- summary and log ---------------------------------------------------------------------------------------------------


def test_summary_says_what_was_found() -> None:
    model = zipbrain.compress(encoder(), ZIPBrain("x", "v", "x", 0.4), ratio=0.8, tokens=20)
    found = zipbrain.summary(model)
    assert (found.model, found.where, found.dialect, found.blocks) == ("TokenEncoder", "blocks", "timm-like", 4)
    assert (found.leading, found.trailing) == (1, 0)
    assert found.method == ZIPBrain("x", "v", "x", 0.4).to_dict()
    assert found.token_counts == [20, 16, 12, 8, 4]
    assert found.mass == {"attention": False, "merge": False, "readout": False}
    assert found.cut is False
    assert found.pays is True
    text = str(found)
    assert "TokenEncoder: 4 timm-like blocks in blocks" in text
    assert "zipbrain(z1=x, z2=v, z3=x, rho=0.4)" in text
    assert "1 leading, 0 trailing" in text
    assert "20 16 12 8 4  (80.0% removed)" in text
    assert "not expected to pay" not in text
    assert "mass" not in text
    assert found.to_dict()["token_counts"] == [20, 16, 12, 8, 4]


def test_summary_counts_operations_as_one_can_with_a_pencil() -> None:
    found = zipbrain.summary(zipbrain.compress(encoder(2), r=4, tokens=10))

    def attention(t: int) -> int:
        return 4 * t * DIM * DIM + 2 * t * t * DIM

    def feed_forward(t: int) -> int:
        return 8 * t * DIM * DIM

    assert found.macs == attention(11) + feed_forward(7) + attention(7) + feed_forward(3)
    assert found.original_macs == 2 * (attention(11) + feed_forward(11))
    share = 1 - found.macs / found.original_macs
    assert f"{share:.1%} saved" in str(found)
    assert "for one sequence of 11 tokens" in str(found)  # what a window is, only the model knows


def test_summary_notes_what_will_not_pay_and_what_was_cut() -> None:
    little = zipbrain.summary(zipbrain.compress(encoder(), r=1, tokens=40))
    assert little.pays is False
    assert "not expected to pay" in str(little)
    cut = zipbrain.summary(zipbrain.compress(encoder(), "tome", r=10, tokens=24))
    assert cut.cut is True
    assert "fewer than asked" in str(cut)
    assert zipbrain.summary(zipbrain.compress(encoder(), "tome", r=3, tokens=24)).cut is False


def test_summary_names_the_uses_of_mass() -> None:
    assert "mass in attention, merge, readout" in str(zipbrain.summary(zipbrain.compress(encoder(), r=1, mass=True)))
    assert "mass in attention, merge" in str(zipbrain.summary(zipbrain.compress(encoder(), "tome", r=1)))


def test_summary_before_any_forward_asks_for_tokens() -> None:
    found = zipbrain.summary(zipbrain.compress(encoder(), ratio=0.5))
    assert found.token_counts is found.macs is found.pays is None
    assert "known after the first forward" in str(found)


def test_compress_logs_what_it_found(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "zipbrain"):
        zipbrain.compress(varied(WithPrefix(2, num_prefix_tokens=2)), r=1, layers=[1, 3])
    text = caplog.text
    for part in ("WithPrefix", "3 timm-like blocks in stack.blocks", "2 leading and 0 trailing", "[1, 3]"):
        assert part in text


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[nn.Module]:
    """The blocks that were run to see whether their forward is that of the dialect."""
    seen: list[nn.Module] = []
    real = recognition._try_forward

    def look(dialect: Any, block: nn.Module, *given: Any) -> Recognition:
        seen.append(block)
        return real(dialect, block, *given)

    monkeypatch.setattr(recognition, "_try_forward", look)
    return seen


@pytest.mark.parametrize("again", ["compressed", "restored", "moved to training"])
def test_a_block_that_was_tried_is_not_tried_again(again: str, tried: list[nn.Module]) -> None:
    model = zipbrain.compress(encoder(), r=1)
    assert len(tried) == 4
    if again == "restored":
        zipbrain.restore(model)
    if again == "moved to training":
        model.train()
    zipbrain.compress(model, "tome", r=2)
    assert len(tried) == 4
    copied = copy.deepcopy(model)
    zipbrain.compress(copied, r=1)
    assert len(tried) == 8
    assert {*tried[4:]} == {*copied.blocks}  # type: ignore[misc]


@pytest.mark.parametrize("change", ["weight", "dtype", "part", "attribute", "hook", "forward of a part"])
def test_a_block_that_changed_is_tried_again(change: str, tried: list[nn.Module]) -> None:
    model = varied(Stack())
    zipbrain.compress(model, r=1)
    block: Any = model.get_submodule("blocks.1")
    if change == "weight":
        with torch.no_grad():
            block.mlp.fc1.weight.mul_(2)
    elif change == "dtype":
        block.double()
    elif change == "part":
        block.norm1 = nn.LayerNorm(DIM)
    elif change == "attribute":
        block.attn.scale = 0.5
    elif change == "hook":
        block.mlp.register_forward_hook(lambda *_: None)
    else:
        block.mlp.forward = block.mlp.forward
    zipbrain.compress(model, r=1)
    assert tried[DEPTH:] == [block]


def test_a_class_whose_forward_changed_is_tried_again(monkeypatch: pytest.MonkeyPatch, tried: list[nn.Module]) -> None:
    model = varied(Stack())
    zipbrain.compress(model, r=1)
    monkeypatch.setattr(PlainBlock, "forward", lambda block, x: block.mlp(block.norm2(block.attn(block.norm1(x)))))
    for _ in range(2):  # a refusal is remembered too
        with pytest.raises(zipbrain.UnsupportedModel, match="its forward does something else"):
            zipbrain.compress(model, r=1)
    assert len(tried) == 2 * DEPTH
    monkeypatch.undo()
    zipbrain.compress(model, r=1)


def test_a_verdict_keeps_no_block_alive() -> None:
    model = zipbrain.compress(encoder(), r=1)
    blocks = [weakref.ref(block) for block in model.blocks]  # type: ignore[union-attr]
    del model
    gc.collect()
    assert not any(block() for block in blocks)
