"""Resuming from what was computed before the first reduction gives the same answers, to the last bit."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import zipbrain
from seams import small_models
from seams.small_models import DIALECTS, DIM, Stack, dialect, tokens, varied
from zipbrain import DART, EViT, ToMe, Twins, ZIPBrain
from zipbrain.errors import OptionError
from zipbrain.models import create
from zipbrain.pooling.methods.ablations import ablations
from zipbrain.seams.forward import plan_of
from zipbrain.seams.prefix_cache import Prefix

LARGE = 2**30
_NAMES = "FP1 FP2 C3 C4 O1 O2"
_CHANNELS = _NAMES.split()
METHODS = {
    **small_models.METHODS,
    "dart": DART(pivots=2),
    "twins": Twins(),
    **{name: method for name, method in ablations().items() if name != "full"},
}
MODELS = {
    "labram": {"ch_names": _CHANNELS, "n_times": 400},
    "biot": {"n_chans": 6, "n_times": 600, "dim": 32, "heads": 4, "depth": 3},
    "tfm": {"n_chans": 6, "n_times": 400},
    "eegpt": {"ch_names": _CHANNELS, "n_times": 128},
    "eegpt-probe": {"ch_names": _CHANNELS, "n_times": 200, "head": "probe"},
}


def model_of(name: str) -> nn.Module:
    """One of our models, of four blocks at most."""
    model: Any = varied(create(name.split("-")[0], n_outputs=3, **MODELS[name]))
    if name != "tfm":
        owner = model.target_encoder if "eegpt" in name else model
        owner.blocks = owner.blocks[:4]
    return model


def batches_for(name: str) -> list[Tensor]:
    generator = torch.Generator().manual_seed(5)
    shape = (len(_CHANNELS), MODELS[name]["n_times"])
    return [torch.randn(size, *shape, generator=generator) for size in (3, 2)]


@torch.inference_mode()
def in_full(model: nn.Module, batches: Iterable[Tensor]) -> list[Tensor]:
    return [model(x) for x in batches]


@torch.inference_mode()
def resumed(model: nn.Module, batches: Iterable[Tensor], prefix: Prefix) -> list[Tensor]:
    found = []
    for number, x in enumerate(batches):
        with prefix.batch(model, number):
            found.append(model(x))
    return found


@torch.inference_mode()
def fail(model: nn.Module, x: Tensor, prefix: Prefix) -> None:
    with prefix.batch(model, 0):
        model(x)
        raise KeyError


def same(first: list[Tensor], second: list[Tensor]) -> bool:
    return len(first) == len(second) and all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("mass", [False, True])
@pytest.mark.parametrize("name", [name for name in MODELS if name != "eegpt-probe"])
def test_every_method_gives_the_same_bits_from_one_shared_prefix(name: str, mass: bool) -> None:
    model, batches, prefix = model_of(name), batches_for(name), Prefix(LARGE)
    for label, method in METHODS.items():
        zipbrain.compress(model, method, ratio=0.6, mass=mass)
        expected = in_full(model, batches)
        assert same(resumed(model, batches, prefix), expected), label  # the first time, notes down
        assert same(resumed(model, batches, prefix), expected), label
    assert len(prefix) == 2
    assert 0 < prefix.held <= LARGE
    assert prefix.seconds > 0


@pytest.mark.parametrize("name", [name for name in MODELS if name != "tfm"])
def test_a_resumed_pass_computes_nothing_from_its_input(name: str) -> None:
    model, batches, prefix = zipbrain.compress(model_of(name), ratio=0.6), batches_for(name), Prefix(LARGE)
    expected = resumed(model, batches, prefix)
    assert same(resumed(model, [torch.zeros_like(x) for x in batches], prefix), expected)


def test_tfm_reads_only_whether_its_input_is_finite() -> None:
    model, batches, prefix = zipbrain.compress(model_of("tfm"), ratio=0.6), batches_for("tfm"), Prefix(LARGE)
    batches[0][1, 2, 7] = torch.nan
    expected = resumed(model, batches, prefix)
    assert torch.equal(expected[0].isnan().all(1), torch.tensor([False, True, False]))
    again = resumed(model, batches, prefix)
    assert torch.equal(again[0].nan_to_num(7), expected[0].nan_to_num(7))
    assert torch.equal(again[1], expected[1])
    blank = [torch.zeros_like(x) for x in batches]
    assert torch.equal(resumed(model, blank, prefix)[1], expected[1])


def test_recipes_that_reduce_first_at_other_blocks_share_the_earliest_prefix() -> None:
    model, batches, prefix = model_of("labram"), batches_for("labram"), Prefix(LARGE)
    sizes = []
    for layers in ((3, 4), (4,), (2, 3), (3,), None, (4,)):
        for method in (ZIPBrain(), EViT("mean")):
            zipbrain.compress(model, method, r=2, layers=layers)
            expected = in_full(model, batches)
            assert same(resumed(model, batches, prefix), expected), layers
            assert same(resumed(model, batches, prefix), expected), layers
            sizes.append(prefix.held)
    assert sizes[1] == sizes[3] > sizes[5] == sizes[7] > sizes[9] == sizes[11]  # fewer blocks before an earlier one


def test_a_recipe_that_removes_nothing_leaves_no_prefix_but_may_resume() -> None:
    model, batches, prefix = model_of("biot"), batches_for("biot"), Prefix(LARGE)
    expected = in_full(zipbrain.compress(model, r=0), batches)
    assert same(resumed(model, batches, prefix), expected)
    assert len(prefix) == prefix.held == 0
    resumed(zipbrain.compress(model, r=2), batches, prefix)
    assert same(resumed(zipbrain.compress(model, r=0), batches, prefix), expected)


@pytest.mark.parametrize("share", [0.0, 0.7, 1.0])
def test_batches_that_do_not_fit_are_run_in_full(share: float) -> None:
    model, batches, whole = zipbrain.compress(model_of("biot"), ratio=0.6), batches_for("biot"), Prefix(LARGE)
    expected = resumed(model, batches, whole)
    prefix = Prefix(int(share * whole.held))
    for _ in range(2):
        assert same(resumed(model, batches, prefix), expected)
        assert prefix.held <= prefix.budget
        assert len(prefix) == {0.0: 0, 0.7: 1, 1.0: 2}[share]


def test_an_attention_map_that_does_not_fit_is_computed_every_time() -> None:
    model, batches, whole = model_of("labram"), batches_for("labram"), Prefix(LARGE)
    resumed(zipbrain.compress(model, ratio=0.6), batches, whole)
    prefix = Prefix(whole.held)
    resumed(model, batches, prefix)
    expected = in_full(zipbrain.compress(model, EViT("mean"), ratio=0.6), batches)
    for _ in range(2):
        assert same(resumed(model, batches, prefix), expected)
        assert prefix.held == whole.held
    assert same(resumed(zipbrain.compress(model, ratio=0.6), batches, prefix), resumed(model, batches, whole))


@pytest.mark.parametrize("name", [*MODELS, *DIALECTS])
def test_the_model_is_afterwards_what_it_was_even_if_the_batch_fails(name: str) -> None:
    if name in DIALECTS:
        model, batches = dialect(name), [tokens(3), tokens(2, seed=9)]
    else:
        model, batches = model_of(name), batches_for(name)
    zipbrain.compress(model, ratio=0.5)
    before = [(type(module), {**module.__dict__}) for module in model.modules()]
    state = copy.deepcopy(model.state_dict())
    expected, prefix = in_full(model, batches), Prefix(LARGE)
    for _ in range(2):  # while noting down, and while resuming
        with pytest.raises(KeyError):
            fail(model, batches[0], prefix)
        assert same(resumed(model, batches, prefix), expected)
        assert before == [(type(module), {**module.__dict__}) for module in model.modules()]
        assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())
        assert same(in_full(model, batches), expected)
    assert len(prefix) == 2


def test_a_trace_of_a_resumed_pass_is_the_trace_of_a_full_one() -> None:
    model, batches, prefix = zipbrain.compress(model_of("eegpt"), r=1), batches_for("eegpt"), Prefix(LARGE)
    resumed(model, batches, prefix)
    with zipbrain.trace(model) as full:
        in_full(model, batches[:1])
    with zipbrain.trace(model) as short:
        resumed(model, batches[:1], prefix)
    assert short.token_counts == full.token_counts == [6, 6, 5, 5, 4]
    assert torch.equal(short.source_map(), full.source_map())


def test_training_and_gradients_run_in_full() -> None:
    model, (x, _), prefix = zipbrain.compress(model_of("biot"), ratio=0.6), batches_for("biot"), Prefix(LARGE)
    with prefix.batch(model, 0):
        model(x).sum().backward()
    assert model.head.weight.grad is not None  # type: ignore[union-attr]
    model.train()
    with torch.no_grad(), prefix.batch(model, 0):
        model(x)
    assert len(prefix) == 0


class InPlace(nn.Module):
    """A foreign model that goes on in place, reads its embedding again behind the blocks, and has no `tokens`."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.pair, self.stack = nn.Linear(DIM, DIM), nn.LSTM(DIM, DIM, batch_first=True), Stack()

    def forward(self, x: Tensor) -> Tensor:
        embedded = self.embed(x)
        embedded += 1
        hidden, _ = self.pair(embedded)  # no tensor, but a tuple
        blocks = self.stack(self.embed(hidden))
        result: Tensor = blocks.mean(1) + self.embed(embedded).mean(1)
        return result


class Twice(nn.Module):
    """A model that runs its blocks twice in a forward."""

    def __init__(self) -> None:
        super().__init__()
        self.stack = Stack()

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.stack(x) - self.stack(x.flip(1) * 2)
        return result


@pytest.mark.parametrize(("kind", "held"), [(InPlace, 2), (Twice, 0)])
def test_foreign_models_are_resumed_where_that_is_right(kind: Any, held: int) -> None:
    model, batches, prefix = varied(kind()), [tokens(3), tokens(2, seed=9)], Prefix(LARGE)
    for method in (ZIPBrain(), ToMe(), EViT("mean")):
        for layers in ((2, 3), None):
            zipbrain.compress(model, method, r=2, layers=layers, mass=True)
            expected = in_full(model, batches)
            for _ in range(2):
                assert same(resumed(model, batches, prefix), expected)
    assert len(prefix) == held


def test_other_blocks_of_the_same_model_have_another_prefix() -> None:
    model = varied(nn.ModuleDict({"a": Stack(), "b": Stack()}))
    model.forward = lambda x: model["b"](model["a"](x))  # type: ignore[method-assign]
    batches, prefix = [tokens(3)], Prefix(LARGE)
    for within in ("a", "b", "a"):
        zipbrain.compress(model, r=3, within=within)
        expected = in_full(model, batches)
        for _ in range(2):
            assert same(resumed(model, batches, prefix), expected)


def test_the_other_axis_of_a_grid_has_another_prefix() -> None:
    model, prefix = varied(create("cbramod", n_outputs=3, n_chans=6, n_times=1200, depth=2)), Prefix(LARGE)
    batches = [torch.randn(3, 6, 1200, generator=torch.Generator().manual_seed(5))]
    for axis in ("channels", "time", "channels"):
        zipbrain.compress(model, r=2, axis=axis)
        expected = in_full(model, batches)
        for _ in range(2):
            assert same(resumed(model, batches, prefix), expected), axis


def test_a_last_block_that_runs_for_protected_tokens_alone_has_another_prefix() -> None:
    model, batches, prefix = model_of("eegpt"), batches_for("eegpt"), Prefix(LARGE)
    for protected in ((1, 4), None, (1, 4)):
        zipbrain.compress(model, r=1, layers=[4], protected=protected)
        assert plan_of(model).can_run_tail == (protected is None)
        expected = in_full(model, batches)
        for _ in range(2):
            assert same(resumed(model, batches, prefix), expected), protected


def test_a_recipe_that_does_not_fit_fails_as_in_a_full_pass() -> None:
    model, batches, prefix = model_of("biot"), batches_for("biot"), Prefix(LARGE)
    resumed(zipbrain.compress(model, r=2), batches, prefix)
    zipbrain.compress(model, r=2, protected=1000)
    with pytest.raises(OptionError, match="protected"):
        resumed(model, batches, prefix)
    assert same(resumed(zipbrain.compress(model, r=2), batches, prefix), in_full(model, batches))
