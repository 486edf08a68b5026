"""Parts of modules are found and run as `nn.Module` itself would, at less cost."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune

import zipbrain
from zipbrain import ZIPBrain
from zipbrain.models.blocks import Block
from zipbrain.pooling.module_hooks import hooked
from zipbrain.pooling.tokens import Branch
from zipbrain.seams import Attended
from zipbrain.seams.fast_modules import part, run, step


class Odd(nn.Module):
    plain = 3

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.nothing = None
        self.child = nn.Linear(2, 2)
        self.register_parameter("no_parameter", None)
        self.register_buffer("kept", torch.zeros(2))
        self.number = 7

    @property
    def made(self) -> int:
        return self.number + 1


def test_parts_are_what_the_module_would_answer() -> None:
    module = Odd()
    for name in ("weight", "child", "kept", "number", "made", "plain", "nothing", "no_parameter"):
        assert part(module, name) is getattr(module, name), name
    assert part(module, "missing") is None


@pytest.mark.parametrize(
    "module",
    [
        nn.LayerNorm(6), nn.LayerNorm(6, elementwise_affine=False), nn.LayerNorm(6, bias=False), nn.Linear(6, 4),
        nn.Linear(6, 4, bias=False), nn.Identity(), nn.Dropout(0.5).eval(), nn.Dropout(0.0), nn.GELU(), nn.RMSNorm(6),
    ],
)  # fmt: skip
def test_running_equals_calling(module: nn.Module) -> None:
    x = torch.randn(2, 5, 6)
    assert torch.equal(run(module, x), module(x))


def test_dropout_in_training_drops() -> None:
    torch.manual_seed(0)
    found = run(nn.Dropout(0.5), torch.ones(1000))
    assert 300 < int((found == 0).sum()) < 700


def doubled(module: nn.Module, x: tuple[Tensor], y: Tensor) -> Tensor:
    return 2 * y


def other_forward(module: nn.Module) -> None:
    module.forward = lambda x: x.new_zeros(4)  # type: ignore[method-assign]


CHANGES: dict[str, Any] = {
    "hook": lambda module: module.register_forward_hook(doubled),
    "hook before": lambda module: module.register_forward_pre_hook(lambda _, x: (x[0] + 1,)),
    "another forward": other_forward,
    "spectral norm": lambda module: parametrizations.spectral_norm(module),
    "pruned": lambda module: prune.l1_unstructured(module, "weight", 0.5),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_whatever_was_done_to_a_module_counts(change: Any) -> None:
    torch.manual_seed(0)
    module = nn.Linear(6, 4).eval()
    x = torch.randn(3, 6)
    before = module(x)
    change(module)
    assert torch.equal(run(module, x), module(x))
    assert not torch.equal(module(x), before)


def test_hooks_for_all_modules_and_compiled_ones_are_heard() -> None:
    module = nn.Linear(6, 4)
    assert not hooked(module)
    handle = nn.modules.module.register_module_forward_hook(doubled)
    try:
        assert hooked(module)
        assert torch.equal(run(module, torch.ones(2, 6)), module(torch.ones(2, 6)))
    finally:
        handle.remove()
    assert not hooked(module)
    module.compile(backend="eager")
    assert hooked(module)


@pytest.mark.parametrize("name", ["norm1", "norm2", "attn.qkv", "attn.q_norm", "attn.proj", "attn.proj_drop", "mlp"])
def test_a_hook_inside_a_compressed_block_is_called_once_per_forward(name: str) -> None:
    model = nn.Sequential(*(Block(24, 3, qk_norm=True, layer_scale=0.1) for _ in range(2))).eval()
    small = zipbrain.compress(model, ZIPBrain("x", "v", "x", 0.4), r=5)
    calls = []
    small[1].get_submodule(name).register_forward_hook(lambda *_: calls.append(1))
    small(torch.randn(1, 30, 24))
    assert len(calls) == 1


class Outside(nn.Module):
    """Looks for what it does not have in another module, as compiled and checkpointed ones do."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("inner"), name)


def test_parts_are_found_through_a_wrapper() -> None:
    model = nn.Sequential(*(Block(24, 3, qk_norm=True, layer_scale=0.1) for _ in range(2))).eval()
    small = zipbrain.compress(model, ZIPBrain("x", "v", "x", 0.4), r=5)
    x = torch.randn(1, 30, 24)
    expected = small(x)
    small[0].attn = Outside(small[0].attn)
    small[1].attn = torch.compile(small[1].attn, backend="eager")
    assert torch.equal(small(x), expected)


def test_weights_kept_outside_of_the_parameters_are_used() -> None:
    # as in the copies of DataParallel
    for module in (nn.Linear(6, 4), nn.LayerNorm(6)):
        x = torch.randn(2, 6)
        expected = module(x)
        for name in ("weight", "bias"):
            value = module._parameters.pop(name)
            object.__setattr__(module, name, value)
        assert torch.equal(run(module, x), expected)


def test_other_things_under_the_names_of_steps_are_not_taken_for_them() -> None:
    class Named(nn.Module):
        def norm(self) -> None:
            """No norm."""

    module = Named()
    module.register_buffer("proj_drop", torch.zeros(1))
    module.q_norm = True
    module.k_norm = torch.tanh  # type: ignore[assignment]
    assert step(module, "norm") is step(module, "proj_drop") is step(module, "q_norm") is None
    assert step(module, "k_norm") is torch.tanh


def test_a_forward_changed_for_all_modules_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    module = nn.Linear(6, 4)
    monkeypatch.setattr(nn.Linear, "forward", lambda self, x: x.new_zeros(2, 4))
    assert torch.equal(run(module, torch.ones(2, 6)), torch.zeros(2, 4))


@pytest.mark.parametrize("scaled", [True, False])
def test_a_branch_is_added_once_when_x_is_asked_for(scaled: bool) -> None:
    x, y = torch.randn(2, 5, 6), torch.randn(2, 5, 6)
    scale = torch.randn(6) if scaled else None
    attended = Attended(x, x, x, x, 1.0, branch=Branch(y, scale))
    expected = x + y * (1 if scale is None else scale)
    torch.testing.assert_close(attended.x, expected)
    assert attended.x is attended.x
    assert attended.branch is None
    assert attended.stream is attended.x


def test_a_branch_asks_for_gradients_if_any_part_of_it_does() -> None:
    y, scale = torch.ones(1, 2, 3), torch.ones(3)
    assert not Branch(y).requires_grad
    assert not Branch(y, scale).requires_grad
    assert Branch(y, scale.clone().requires_grad_()).requires_grad
    assert Branch(y.clone().requires_grad_()).requires_grad
