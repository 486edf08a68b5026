"""On a CUDA device: training steps captured in CUDA graphs have the gradients of steps launched one by one.

Also runs without pytest: ``python tests/test_gpu_training.py``.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import zipbrain
from training.small import BIOT as SMALL
from training.small import tiny_settings, windows
from zipbrain.models import BIOT, LaBraM
from zipbrain.pooling import DART, EViT, Method, ToFu, ToMe, Twins, ZIPBrain
from zipbrain.pooling.backends.triton import entry
from zipbrain.training import Feed, TrainingResult, finetune, paper_settings, scratch_settings, train
from zipbrain.training.captured_steps import NotCaptured, capture
from zipbrain.training.finetune import classification_loss

try:
    import pytest

    pytestmark = [
        pytest.mark.gpu,
        pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine"),
    ]
except ImportError:  # a machine with torch alone
    pass

_NAMES = "FP1 FP2 F3 F4 C3 C4 P3 P4 O1 O2 F7 F8 T3 T4 T5 T6"
SETTINGS: dict[str, Method | None] = {
    "original": None, "kkk": ZIPBrain("k", "k", "k", 0.9), "xvx": ZIPBrain("x", "v", "x", 0.4),
    "per head": ZIPBrain("kh", "vh", "qh", 0.3),
}  # fmt: skip
Gradients = dict[str, Tensor | None]

entry.switch(True)


def labram(method: Method | None, drop_path: float = 0.1, mass: bool = False) -> nn.Module:
    torch.manual_seed(0)
    model = LaBraM(3, _NAMES.split(), 800, drop_path=drop_path)
    for name, value in model.named_parameters():
        if "k_norm" in name or "head" in name:  # or all keys would be equally long, and all gradients tiny
            nn.init.normal_(value)
    return compressed(model, method, mass)


def biot(method: Method | None, dropout: float = 0.2, mass: bool = False) -> nn.Module:
    torch.manual_seed(0)
    return compressed(BIOT(3, 16, 800, dropout=dropout), method, mass)


def compressed(model: nn.Module, method: Method | None, mass: bool) -> nn.Module:
    if method is not None:
        zipbrain.compress(model, method, ratio=0.6, mass=mass)
    return model.cuda().train()


MODELS: dict[str, Callable[..., nn.Module]] = {"labram": labram, "biot": biot}


def draw(seed: int, count: int = 16) -> Tensor:
    return torch.randn(count, 16, 800, generator=torch.Generator().manual_seed(seed)).cuda()


def step(model: nn.Module, network: nn.Module, x: Tensor, seed: int, amp: torch.dtype | None = None) -> Gradients:
    """Gradients of one step; the same seed drops the same."""
    torch.manual_seed(seed)
    with torch.autocast("cuda", amp or torch.bfloat16, enabled=amp is not None):
        logits = network(x)
    (logits.float() - torch.arange(3.0, device="cuda")).square().mean().backward()
    found = {name: None if p.grad is None else p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad(set_to_none=True)
    return found


def distance(one: Gradients, other: Gradients) -> float:
    """Norm of the difference of all gradients over the norm of the first ones."""
    difference = size = 0.0
    for name, a in one.items():
        b = other[name]
        assert (a is None) == (b is None), name
        if a is not None and b is not None:
            difference += float((a.double() - b.double()).square().sum())
            size += float(a.double().square().sum())
    return float((difference / size) ** 0.5)


def refusal(model: nn.Module, x: Tensor) -> str | None:
    """Why a model can't be captured; None if it can."""
    try:
        capture(model, x)
    except NotCaptured as error:
        return str(error)
    return None


def exact() -> None:
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False


def test_captured_steps_of_compressed_models_have_the_gradients_of_steps_launched_one_by_one() -> None:
    exact()
    for name, build in MODELS.items():
        for setting, method in SETTINGS.items():
            model = build(method)
            network = capture(model, draw(0))
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
            for seed in (1, 2, 3):  # other inputs, other weights, other dropped tokens
                x = draw(seed)
                expected, found = step(model, model, x, seed), step(model, network, x, seed)
                assert distance(expected, found) < 1e-3, (name, setting, seed, distance(expected, found))
                few = step(model, network, x[:5], seed)  # a smaller last batch
                assert distance(step(model, model, x[:5], seed), few) < 1e-3, (name, setting, seed)
                again = step(model, network, x, seed)
                assert distance(found, again) < 1e-4, (name, setting, seed)  # nothing is left of the smaller one
                for parameter, gradient in zip(model.parameters(), again.values(), strict=True):
                    parameter.grad = gradient
                optimizer.step()
                optimizer.zero_grad()


def test_the_optimiser_changes_what_the_graph_reads() -> None:
    exact()
    model = biot(SETTINGS["xvx"], dropout=0.0)
    network, x = capture(model, draw(0)), draw(1)
    before = network(x).detach().clone()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
    for _ in range(3):
        network(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    after = network(x).detach().clone()
    assert (after - before).abs().max() > 1e-2
    torch.manual_seed(0)
    expected = model(x)
    torch.manual_seed(0)
    torch.testing.assert_close(network(x), expected, rtol=1e-4, atol=1e-4)


def test_dropout_differs_from_step_to_step_and_follows_the_seed() -> None:
    exact()
    for build in MODELS.values():
        model = build(SETTINGS["xvx"], 0.3)
        network, x = capture(model, draw(0)), draw(1)
        first, second = network(x).detach().clone(), network(x).detach().clone()
        assert not torch.allclose(first, second, rtol=1e-3, atol=1e-6)
        torch.manual_seed(7)
        expected = [model(x).detach().clone() for _ in range(3)]
        torch.manual_seed(7)
        found = [network(x).detach().clone() for _ in range(3)]
        for one, other in zip(expected, found, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)
        state = torch.cuda.get_rng_state()
        capture(model, draw(0))
        assert torch.equal(torch.cuda.get_rng_state(), state)


def test_half_precision_is_captured_with_its_casts() -> None:
    for build in MODELS.values():
        for setting in ("kkk", "xvx"):
            for amp, dtype in (("bf16", torch.bfloat16), ("fp16", torch.float16)):
                model = build(SETTINGS[setting])
                network, x = capture(model, draw(0), amp), draw(1)
                expected, found = step(model, model, x, 1, dtype), step(model, network, x, 1, dtype)
                assert distance(expected, found) < 2e-2, (setting, amp, distance(expected, found))


def test_a_replayed_step_never_waits_for_the_gpu() -> None:
    model = labram(SETTINGS["xvx"])
    network, x = capture(model, draw(0)), draw(1)
    torch.cuda.set_sync_debug_mode("error")
    try:
        network(x).square().mean().backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    model.zero_grad(set_to_none=True)


def test_other_methods_and_mass_are_captured_or_say_why() -> None:
    exact()
    methods: list[Method] = [ToMe(), ToFu(), ToFu(None), EViT(fuse=False), EViT(), DART(), Twins(), ZIPBrain()]
    for method in methods:
        for mass in (False, True):
            model = biot(method, mass=mass)
            reason = refusal(model, draw(0))
            print(f"{method}, mass {mass}: {reason or 'captured'}", flush=True)
            network = capture(model, draw(0)) if reason is None else model  # which trains as before
            x = draw(1)
            assert distance(step(model, model, x, 1), step(model, network, x, 1)) < 1e-2, (method, mass)


# -- whole runs --------------------------------------------------------------------------------------------------------


def trained(choice: Any, place: str = "auto", **settings: Any) -> tuple[list[float], TrainingResult]:
    """Losses of a compressed BIOT, two full batches and a smaller one in every epoch."""
    chosen = tiny_settings(epochs=3, **settings)
    torch.manual_seed(0)
    model = BIOT(1, 3, 400, **SMALL)
    zipbrain.compress(model, "zipbrain", ratio=0.5)
    feed = Feed(windows(), "q95", torch.device("cuda"), place)
    outcome = train(model.cuda(), feed, chosen, classification_loss(chosen, 2), capture=choice)
    return [line["loss"] for line in outcome.history], outcome


def test_a_captured_run_of_a_compressed_model_goes_as_without() -> None:
    exact()
    for amp, bound in (("no", 1e-3), ("bf16", 3e-2), ("fp16", 3e-2)):
        for place in ("device", "memory", "disk"):  # the latter two are read ahead by another thread
            expected, outcome = trained(False, place, amp=amp)
            assert outcome.capture == "no: not asked for"
            found, outcome = trained(True, place, amp=amp)
            assert outcome.capture == "yes", outcome.capture
            for one, other in zip(expected, found, strict=True):
                assert abs(one - other) < bound * one, (amp, place, expected, found)


def test_every_model_is_fine_tuned_captured_with_the_same_losses() -> None:
    exact()
    data = windows(40, classes=3)
    for name in ("labram", "biot", "eegpt", "tfm"):
        for chosen in (scratch_settings(name), paper_settings(name, "isruc")):
            short = chosen.override(epochs=2, batch_size=16, pretrain_steps=0)
            losses = []
            for choice in (False, "auto"):
                result = finetune(name, data, settings=short, device="cuda", capture=choice)
                losses.append([line["loss"] for line in result.outcome.history])
            said = result.record["capture"]
            print(f"{name}, {chosen.origin} ({short.amp}): captured {said}", flush=True)
            assert said == "yes" or name in ("eegpt", "tfm"), said
            for one, other in zip(*losses, strict=True):
                assert abs(one - other) < (2e-3 if short.amp == "no" else 3e-2) * abs(one), (name, losses)


def held() -> int:
    """Bytes on the GPU without what cuBLAS keeps for every stream that it has seen."""
    gc.collect()
    torch.cuda.synchronize()
    torch._C._cuda_clearCublasWorkspaces()
    return torch.cuda.memory_allocated()


def test_graphs_are_given_back_after_a_run() -> None:
    trained(True)
    before = held()
    for _ in range(3):
        trained(True)
    assert held() <= before + 2**20


# -- what can't be captured --------------------------------------------------------------------------------------------


class Waiting(nn.Module):
    """Drops, and waits for the GPU in a way that torch finds (a value read back) or does not (a synchronisation)."""

    def __init__(self, found: bool) -> None:
        super().__init__()
        self.found, self.linear, self.drop = found, nn.Linear(800, 3), nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        if self.found:
            x = x * float(x.max())
        else:
            torch.cuda.synchronize()
        logits: Tensor = self.linear(self.drop(x)).mean(1)
        return logits


def test_a_model_that_waits_for_the_gpu_is_refused_and_nothing_is_harmed() -> None:
    for found in (True, False):
        model, x = Waiting(found).cuda(), draw(0)
        state = torch.cuda.get_rng_state()
        reason = refusal(model, x)
        print(f"refused: {reason}", flush=True)
        assert reason is not None
        assert ("waits for the GPU" in reason) == found
        assert torch.cuda.current_stream() == torch.cuda.default_stream()
        assert torch.equal(torch.cuda.get_rng_state(), state)
        model(x).sum().backward()  # dropout draws as ever
        assert refusal(biot(SETTINGS["xvx"]), x) is None


def test_a_model_with_hooks_is_refused() -> None:
    model = biot(SETTINGS["xvx"])
    model.get_submodule("blocks.1.mlp").register_forward_hook(lambda *_: None)
    assert "hooks" in str(refusal(model, draw(0)))


if __name__ == "__main__":
    for label, check in list(globals().items()):
        if label.startswith("test_"):
            check()
            print("ok", label, flush=True)
    sys.exit(0)
