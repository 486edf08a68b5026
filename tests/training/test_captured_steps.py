"""Captured steps: where they are refused and why, and on a CPU, with a stand-in for graphs, all that is around them."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import zipbrain
from training.small import BIOT, tiny_settings, windows
from zipbrain.errors import OptionError
from zipbrain.models import BIOT as Biot
from zipbrain.models import LaBraM
from zipbrain.training import EEGClassifier, Feed, Finetuned, captured_steps, finetune, train
from zipbrain.training.captured_steps import Captured, NotCaptured, StepCapture, capture
from zipbrain.training.checkpoints import weights_of
from zipbrain.training.finetune import classification_loss

CPU = torch.device("cpu")


def run(**options: Any) -> Finetuned:
    chosen = options.pop("settings", tiny_settings(epochs=2))
    return finetune("biot", windows(), windows(20, seed=1), settings=chosen, device="cpu", **options)


def equal(a: nn.Module, b: nn.Module) -> bool:
    one, other = weights_of(a), weights_of(b)
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


class Replays:
    """In place of graphs on a CPU: computes anew, but in fixed memory, behind a warm-up, as torch's graphs do."""

    def __init__(self) -> None:
        self.captures = self.replays = 0

    def __call__(self, call: Callable[..., Tensor], given: tuple[Tensor, ...]) -> Callable[..., Tensor]:
        self.captures += 1
        for _ in range(3):
            captured_steps._step(call, given)
        logits = call(*given)
        still = logits.detach().clone()
        found = torch.autograd.grad(logits, given[1:], torch.ones_like(logits), allow_unused=True)
        gradients = [None if one is None else one.clone() for one in found]
        last: list[Tensor] = []
        replays = self

        class Replay(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, *inputs: Tensor) -> Tensor:
                replays.replays += 1
                for place, new in zip(given, inputs, strict=True):
                    if place.data_ptr() != new.data_ptr():
                        place.copy_(new)
                with torch.enable_grad():
                    last[:] = [call(*given)]
                return still.copy_(last[0].detach()).detach()

            @staticmethod
            def backward(ctx: Any, *above: Tensor) -> tuple[Tensor | None, ...]:
                new = torch.autograd.grad(last[0], given[1:], above[0], allow_unused=True)
                for place, one in zip(gradients, new, strict=True):
                    assert (place is None) == (one is None)
                    if place is not None and one is not None:
                        place.copy_(one)
                return None, *(None if place is None else place.detach() for place in gradients)

        return lambda *inputs: Replay.apply(*inputs)  # type: ignore[no-untyped-call, no-any-return]


@pytest.fixture
def replays(monkeypatch: pytest.MonkeyPatch) -> Replays:
    stand_in = Replays()
    monkeypatch.setattr(captured_steps, "_graphs", stand_in)
    refusal = StepCapture._refusal

    def as_if_on_a_gpu(self: StepCapture) -> str | None:
        self.device = torch.device("cuda")
        return refusal(self)

    monkeypatch.setattr(StepCapture, "_refusal", as_if_on_a_gpu)
    return stand_in


@pytest.mark.parametrize(
    ("choice", "words"), [("auto", "training on cpu"), (True, "training on cpu"), (False, "not asked for")]
)
def test_without_cuda_a_run_goes_on_and_says_why(
    choice: Any, words: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "zipbrain"):
        result = run(capture=choice, out=tmp_path / "run")
    assert result.record["capture"].startswith(f"no: {words}")
    assert json.loads((tmp_path / "run" / "run.json").read_text())["capture"] == result.outcome.capture
    assert ("steps are not captured" in caplog.text) == (choice is True)
    again = run(capture=choice, out=tmp_path / "run", resume=True)  # nothing is left to train
    assert again.record["capture"] == result.record["capture"]


def test_capture_itself_refuses_a_cpu() -> None:
    with pytest.raises(NotCaptured, match="training on cpu"):
        capture(nn.Linear(4, 1), torch.randn(2, 4))


@pytest.mark.parametrize("choice", ["yes", 0, 1, np.False_, None])
def test_a_choice_that_is_none_is_refused_before_anything_is_written(choice: Any, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=re.escape(f"capture: got {choice!r}")):
        run(capture=choice, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_gradients_that_are_there_are_added_to_without_a_replay(replays: Replays) -> None:
    torch.manual_seed(0)
    module, x = nn.Linear(4, 3), torch.randn(5, 4)
    network = capture(module, x)
    for expected in (1, 1, 1):  # the second and the third add up
        network(x).square().sum().backward()
        assert replays.replays == expected
    found = module.weight.grad
    module.zero_grad()
    module(x).square().sum().backward()
    assert found is not None
    assert module.weight.grad is not None
    torch.testing.assert_close(found, 3 * module.weight.grad)
    module.zero_grad()
    network(x).sum().backward()
    assert replays.replays == 2


def test_a_backward_behind_another_call_is_refused(replays: Replays) -> None:
    network = capture(nn.Linear(4, 3), torch.randn(5, 4))
    first, second = network(torch.randn(5, 4)), network(torch.randn(5, 4))
    with pytest.raises(RuntimeError, match="backward of call 1 behind call 2"):
        first.sum().backward()
    second.sum().backward()


class Added(nn.Module):
    """Two weights with one gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Parameter(torch.ones(4)), nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        return x * (self.one + self.other)


def test_weights_that_share_a_gradient_are_refused(replays: Replays) -> None:
    with pytest.raises(NotCaptured, match="two of its weights get one gradient"):
        capture(Added(), torch.randn(5, 4))


def test_a_captured_run_gives_the_same_weights_with_dropout_and_a_smaller_last_batch(replays: Replays) -> None:
    plain = run(capture=False)
    assert replays.captures == 0
    result = run()
    assert result.record["capture"] == "yes"
    assert replays.captures == 1
    assert replays.replays == 2 * 2  # of 40 windows in batches of 16, the third batch of an epoch is no full one
    assert equal(result.model, plain.model)
    lines = [line["loss"] for line in result.outcome.history]
    assert lines == [line["loss"] for line in plain.outcome.history]


def test_a_stopped_captured_run_resumes_to_the_same_bits(replays: Replays, tmp_path: Path) -> None:
    def stop(step: Any) -> None:
        if (step.epoch, step.step) == (2, 1):
            raise KeyboardInterrupt

    plain = run(capture=False)
    with pytest.raises(KeyboardInterrupt):
        run(out=tmp_path / "run", on_step=stop)
    assert equal(run(out=tmp_path / "run", resume=True).model, plain.model)


def test_micro_batches_are_not_captured_because_their_gradients_add_up(replays: Replays) -> None:
    result = run(micro_batch=5)
    assert "micro_batch" in result.record["capture"]
    assert replays.captures == 0
    assert run(micro_batch=16).record["capture"] == "yes"  # one pass for a batch


def test_frozen_weights_stay_and_captured_ones_learn(replays: Replays) -> None:
    chosen = tiny_settings(epochs=1, frozen=("blocks.0",))
    plain, result = run(settings=chosen, capture=False), run(settings=chosen)
    assert result.record["capture"] == "yes"
    assert equal(result.model, plain.model)


def test_a_network_that_fails_to_be_captured_trains_as_before(
    replays: Replays, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tried = []

    def broken(call: Callable[..., Tensor], given: tuple[Tensor, ...]) -> Callable[..., Tensor]:
        tried.append(call(*given))
        raise RuntimeError("called a synchronizing CUDA operation\nsecond line")

    monkeypatch.setattr(captured_steps, "_graphs", broken)
    plain = run(capture=False)
    result = run(capture=True)
    assert "waits for the GPU" in result.record["capture"]
    assert "waits for the GPU" in caplog.text
    assert len(tried) == 1  # not once for every epoch
    assert equal(result.model, plain.model)


@pytest.mark.parametrize("setting", [None, ("k", "k", "k", 0.9), ("x", "v", "x", 0.4), "tome"])
@pytest.mark.parametrize("name", ["labram", "biot"])
def test_gradients_of_compressed_models_are_the_same(replays: Replays, name: str, setting: Any) -> None:
    torch.manual_seed(0)
    model = LaBraM(2, ["C3", "C4", "O1"], 800, drop_path=0.2) if name == "labram" else Biot(2, 3, 800, **BIOT)
    if setting is not None:
        method = setting if isinstance(setting, str) else zipbrain.ZIPBrain(*setting)
        zipbrain.compress(model, method, ratio=0.5)
    model.train()
    network = capture(model, torch.randn(4, 3, 800))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    for step in range(2):  # the second with other weights
        x, found = torch.randn(4, 3, 800), []
        for which in (model, network):
            torch.manual_seed(step)
            which(x).square().sum().backward()
            found.append([None if p.grad is None else p.grad.clone() for p in model.parameters()])
            if which is model:
                optimizer.zero_grad()
        for one, other in zip(*found, strict=True):
            assert (one is None) == (other is None)
            assert one is None or torch.equal(one, other)
        assert replays.replays == step + 1
        optimizer.step()
        optimizer.zero_grad()


def test_what_is_not_like_the_captured_batch_runs_as_before(replays: Replays) -> None:
    model = Biot(2, 3, 400, **BIOT).train()
    network, x = capture(model, torch.randn(4, 3, 400)), torch.randn(4, 3, 400)
    network(x)
    assert replays.replays == 1
    network(x[:3])
    network(torch.randn(4, 3, 500))
    network(x.clone().requires_grad_())
    with torch.no_grad():
        network(x)
    model.eval()
    assert torch.equal(network(x), model(x))
    assert replays.replays == 1
    network(torch.randn(4, 3, 400))
    model.train()
    assert network(x).grad_fn is not None
    assert replays.replays == 2


def test_a_capture_leaves_statistics_and_random_numbers_as_they_were(replays: Replays) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 1))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    generator = torch.get_rng_state()
    assert isinstance(capture(model, torch.randn(8, 4, generator=torch.Generator())), Captured)
    assert torch.equal(torch.get_rng_state(), generator)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_models_that_are_more_than_their_forward_are_refused(replays: Replays) -> None:
    x = torch.randn(2, 4)
    hooked = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    handle = hooked[0].register_forward_hook(lambda *_: None)
    with pytest.raises(NotCaptured, match="hooks"):
        capture(hooked, x)
    handle.remove()
    assert isinstance(capture(hooked, x), Captured)
    with pytest.raises(NotCaptured, match="without gradients"):
        capture(hooked.requires_grad_(False), x)
    with pytest.raises(NotCaptured, match="answers with a tuple"):
        capture(nn.LSTM(4, 4), x)


def test_a_model_that_is_changed_between_two_epochs_is_captured_anew(replays: Replays) -> None:
    def trained(choice: Any) -> tuple[nn.Module, str]:
        torch.manual_seed(0)
        model = Biot(1, 3, 400, **BIOT)
        chosen, feed = tiny_settings(epochs=3), Feed(windows(), "q95", CPU)

        def shrink(line: dict[str, Any]) -> None:
            if line["epoch"] == 2:
                zipbrain.compress(model, "zipbrain", ratio=0.5)

        outcome = train(model, feed, chosen, classification_loss(chosen, 2), capture=choice, on_epoch=shrink)
        return zipbrain.restore(model), outcome.capture

    plain, said = trained(False)
    assert said == "no: not asked for"
    model, said = trained("auto")
    assert (said, replays.captures) == ("yes", 2)
    assert equal(model, plain)


def test_the_estimator_hands_the_choice_on(replays: Replays) -> None:
    options: dict[str, Any] = {"epochs": 1, "ch_names": ["C3", "C4"], "overrides": {"options": {"dim": 16, "depth": 1}}}
    data = windows(8, channels=2)
    x, y = data.take(slice(None)), data.labels
    assert EEGClassifier("biot").get_params()["capture"] == "auto"
    EEGClassifier("biot", capture=False, device="cpu", **options).fit(x, y)
    assert replays.captures == 0
    EEGClassifier("biot", device="cpu", **options).fit(x, y)
    assert replays.captures == 1
