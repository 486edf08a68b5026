"""Other people's models, as they are: compressed, restored, refused (needs the environment of ``make zoo``)."""

from __future__ import annotations

import copy
import inspect
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

import zipbrain
from zipbrain import UnsupportedModel, ZIPBrain

pytest.importorskip(
    "braindecode", reason="braindecode is not here: `make zoo` makes an environment with it", exc_type=ImportError
)

import sys

sys.path.insert(0, str(Path(__file__).parent))
from zoo import ENTRIES, IMPOSSIBLE, Entry, made, table

entries = pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name.replace(" ", "-"))
impossible = pytest.mark.parametrize("entry", IMPOSSIBLE, ids=lambda entry: entry.name.replace(" ", "-"))


def close(found: torch.Tensor, expected: torch.Tensor, bound: float) -> bool:
    return bool((found - expected).abs().max() <= bound * expected.abs().max().clamp_min(1.0))


@entries
@torch.inference_mode()
def test_a_foreign_model_is_compressed_and_restored(entry: Entry) -> None:
    model, x = made(entry), entry.input()
    before, keys = entry.run(model, x), list(model.state_dict())

    zipbrain.compress(model, ZIPBrain(), r=0)
    assert close(entry.run(model, x), before, 2e-6)

    zipbrain.compress(model, ZIPBrain(), ratio=0.8)
    with zipbrain.trace(model) as trace:
        after = entry.run(model, x)
    found = zipbrain.summary(model)
    assert found.dialect == entry.dialect
    assert trace.token_counts[0] == entry.tokens
    assert trace.token_counts == found.token_counts
    assert trace.token_counts[-1] < 0.4 * entry.tokens
    assert torch.isfinite(after).all()
    assert not torch.equal(after[:, :1], before[:, :1])
    assert torch.equal(entry.run(model, x), after)  # tracing changes nothing
    assert close(entry.run(copy.deepcopy(model), x), after, 0)
    assert list(model.state_dict()) == keys
    owners = trace.source_map()
    assert owners.shape[1] == entry.tokens
    assert owners.unique(dim=1).shape[1] <= entry.tokens
    assert all(len(set(window.tolist())) == trace.token_counts[-1] for window in owners)

    zipbrain.restore(model)
    assert torch.equal(entry.run(model, x), before)


@entries
@pytest.mark.parametrize("method", ["tome", "tofu", "dart", "zipbrain"])
@torch.inference_mode()
def test_other_methods_and_mass_run(entry: Entry, method: str) -> None:
    model, x = made(entry), entry.input()
    before = entry.run(model, x)
    for mass in (False, True):
        zipbrain.compress(model, method, ratio=0.5, mass=mass)
        after = entry.run(model, x)
        assert torch.isfinite(after).all()
        if mass:  # the readout gives every token back
            assert after.shape == before.shape
    beside = entry.run(model, torch.stack((x[0], entry.input(1, seed=5)[0])))
    assert torch.equal(beside[0], after[0])  # whatever stands beside it in the batch


@entries
def test_gradients_reach_the_input(entry: Entry) -> None:
    model, x = made(entry), entry.input(1).requires_grad_()
    zipbrain.compress(model, ZIPBrain(), ratio=0.6)
    entry.run(model, x).sum().backward()
    assert x.grad is not None
    assert torch.isfinite(x.grad).all()


@entries
@torch.inference_mode()
def test_a_wrapped_model_is_known_too(entry: Entry) -> None:
    class Wrapper(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return entry.run(self.inner, x)

    model, x = made(entry), entry.input()
    expected = entry.run(zipbrain.compress(copy.deepcopy(model), ZIPBrain(), ratio=0.5), x)
    assert torch.equal(zipbrain.compress(Wrapper(model), ZIPBrain(), ratio=0.5)(x), expected)


@entries
@pytest.mark.parametrize("with_example", [False, True])
def test_nothing_is_said_about_a_model_that_is_known(entry: Entry, with_example: bool) -> None:
    model, x = made(entry), entry.input()
    first = next(iter(inspect.signature(model.forward).parameters))
    options = {"example": {first: x, **entry.kwargs}} if with_example else {}
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        zipbrain.compress(model, ZIPBrain(), ratio=0.8, **options)
    assert bool(zipbrain.summary(model).head) == with_example


@impossible
def test_what_cannot_work_is_refused_in_one_sentence(entry: Entry) -> None:
    model = entry.make().eval()
    classes = [type(module) for module in model.modules()]
    for target in (model, nn.Sequential(model)):
        with pytest.raises(UnsupportedModel, match="can't be compressed: ") as refusal:
            zipbrain.compress(target, ZIPBrain(), ratio=0.5)
        assert "\n" not in str(refusal.value)
    assert [type(module) for module in model.modules()] == classes


def test_the_table_in_the_docs_is_what_happens() -> None:
    page = (Path(__file__).parents[2] / "docs" / "explanation" / "seams.md").read_text()
    assert table() in page, "put the output of `python tests/zoo/zoo.py` into docs/explanation/seams.md"
