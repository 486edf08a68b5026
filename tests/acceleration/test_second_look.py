"""A second look compiled, captured and accelerated: every way answers as eager mode does."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import zipbrain
from acceleration.stand_in import stand_in
from zipbrain.acceleration import optimise
from zipbrain.acceleration.two_passes import LookingTwice, SecondBucket, TwoPasses
from zipbrain.errors import OptionError
from zipbrain.models import EEGPT, TokenEncoder
from zipbrain.seams.second_look import margins

QUICK: dict[str, Any] = {"compile": False, "measure": False}


def encoder(margin: float | None, **options: Any) -> nn.Module:
    torch.manual_seed(0)
    model = TokenEncoder(dim=16, depth=2, heads=2, outputs=3).eval()
    return zipbrain.compress(model, **{"ratio": 0.6, **options}, second_look=margin)


def windows(count: int, seed: int = 1) -> Tensor:
    return torch.randn(count, 20, 16, generator=torch.Generator().manual_seed(seed))


def plain(model: nn.Module, x: Tensor) -> Tensor:
    with torch.inference_mode():
        answer: Tensor = model(x)
    return answer


def margin_for(share: int, x: Tensor) -> float:
    """The margin below which so many windows of x are doubtful."""
    order = margins(plain(encoder(None), x)).sort().values.tolist()
    return [0.0, *((low + high) / 2 for low, high in itertools.pairwise(order)), 1e9][share]


# -- torch.compile, torch.export, torch.jit ----------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0, 3, 6])
def test_a_compiled_model_answers_as_eager_mode_does_at_any_batch_size(share: int) -> None:
    torch.compiler.reset()
    x = windows(6)
    model = encoder(margin_for(share, x))
    compiled = torch.compile(model, backend="eager")
    for count in (6, 1):
        torch.testing.assert_close(plain(compiled, x[:count]), plain(model, x[:count]), rtol=0, atol=2e-6)
    other = windows(5, seed=2)  # other rows are doubtful
    torch.testing.assert_close(plain(compiled, other), plain(model, other), rtol=0, atol=2e-6)


def test_a_graph_that_would_keep_the_doubtful_windows_of_its_example_is_refused() -> None:
    x = windows(2)
    model = encoder(1e9)
    with pytest.raises(OptionError, match=r"second_look.*zipbrain\.export"):
        torch.export.export(model, (x,))
    with pytest.raises(OptionError, match=r"second_look.*zipbrain\.export"):
        torch.jit.trace(model, (x,))
    plain(model, x)  # still answers


# -- accelerate --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("share", [0, 1, 4, 8])
def test_captured_passes_answer_as_eager_mode_does(share: int, precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    captures, x = stand_in(monkeypatch), windows(8)
    model = encoder(margin_for(share, x))
    fast = zipbrain.accelerate(model, x, precision=precision, batches=[1, 4], **QUICK)
    assert fast.batches == (1, 4)
    assert sorted(captures.sizes) == [1, 1, 4, 4]  # of both passes
    expected = plain(fast.network, x.to(torch.bfloat16) if precision == "bfloat16" else x).float()
    for count in (8, 3, 1):
        found = fast(x[:count])
        assert torch.equal(found.argmax(1), expected[:count].argmax(1))
        torch.testing.assert_close(found, expected[:count], rtol=0, atol=2e-2 if precision == "bfloat16" else 2e-6)
    if precision == "float32":
        torch.testing.assert_close(fast(x), plain(model, x), rtol=0, atol=2e-6)


def test_patches_that_are_folded_into_the_batch_stay_with_their_window(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch)
    torch.manual_seed(0)
    names = ["FP1", "FP2", "F3", "F4", "C3", "C4", "P3", "P4"]
    model, x = EEGPT(3, names, 192).eval(), torch.randn(5, 8, 192)
    first = plain(zipbrain.compress(model, ratio=0.6), x)
    margin = float(margins(first).median()) + 1e-4
    zipbrain.compress(model, ratio=0.6, second_look=margin)
    fast = zipbrain.accelerate(model, x, precision="float32", batches=[2, 3], **QUICK)
    torch.testing.assert_close(fast(x), plain(model, x), rtol=0, atol=2e-6)
    assert (fast(x) - first).abs().amax(1).gt(1e-4).sum() == 3


def test_a_model_in_which_nothing_goes_is_captured_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    captures, x = stand_in(monkeypatch), windows(2)
    model = encoder(1.0, ratio=None, r=0)
    fast = zipbrain.accelerate(model, x, precision="float32", batches=[2], **QUICK)
    assert captures.sizes == [2]
    torch.testing.assert_close(fast(x), plain(model, x), rtol=0, atol=2e-6)


def test_both_passes_are_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda call: call)  # the compiler itself: below, and in the GPU's tests
    monkeypatch.setattr(optimise, "run_inference", lambda network, x: plain(network, x))
    x = windows(6)
    model = encoder(margin_for(3, x))
    fast = zipbrain.accelerate(model, x, compile=True, measure=False, batches=[2, 6])
    assert fast.report.step("compile").kept  # type: ignore[union-attr]
    assert all(isinstance(bucket, LookingTwice) for bucket in fast._buckets.buckets.values())  # type: ignore[union-attr]
    torch.testing.assert_close(fast(x), plain(model, x), rtol=0, atol=2e-6)
    torch.testing.assert_close(fast(x[:3]), plain(model, x[:3]), rtol=0, atol=2e-6)


def test_compiled_passes_answer_as_eager_mode_does() -> None:
    torch.compiler.reset()
    x = windows(4)
    model = encoder(margin_for(2, x))
    fast = zipbrain.accelerate(model, x, compile=True, measure=False, batches=[4])
    if not fast.report.step("compile").kept:  # type: ignore[union-attr]
        pytest.skip(f"no compiler here: {fast.report.step('compile')}")
    torch.testing.assert_close(fast(x), plain(model, x), rtol=0, atol=1e-5)
    torch.testing.assert_close(fast(x[:3]), plain(model, x[:3]), rtol=0, atol=1e-5)


def test_second_buckets_are_padded_and_split() -> None:
    ran: list[int] = []

    def bucket(size: int) -> SecondBucket:
        held, seen = torch.zeros(size, 2), torch.zeros(2 * size, 1, 1)

        def answer() -> Tensor:
            ran.append(size)
            return held + seen.reshape(size, 2)

        return SecondBucket(held, seen, answer)

    x = torch.arange(10.0).reshape(5, 2)
    logits = torch.tensor([[0.0, 9.0], [1.0, 1.0], [1.0, 1.0], [float("nan"), 0.0], [7.0, 7.0]])
    tokens = 100 * torch.arange(10.0).reshape(10, 1, 1)  # two patches a window
    buffer = torch.zeros(5, 2)
    looking = LookingTwice(buffer, lambda: (logits, tokens), {1: bucket(1), 3: bucket(3)}, 0.5, torch.float32)
    expected = x + tokens.reshape(5, 2)
    expected[0] = logits[0]
    assert torch.equal(looking(x), expected)
    assert ran == [3, 1]
    assert torch.equal(looking(x[:2]), expected[:2])  # windows that fill the buffer up are not looked at
    assert ran == [3, 1, 1]


def test_the_passes_called_as_one_answer_as_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    x = windows(6)
    model = encoder(margin_for(3, x))
    passes = TwoPasses.of(model, x)
    assert passes is not None
    torch.testing.assert_close(plain(passes, x), plain(model, x), rtol=0, atol=2e-6)  # type: ignore[arg-type]
    assert TwoPasses.of(encoder(None), x) is None
    assert TwoPasses.of(nn.Linear(3, 2), x) is None
