"""A bad option is named with its value and what is allowed, and the model is left exactly as it was."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import zipbrain
from seams.small_models import DIM, HEADS, PlainBlock, Stack, dialect, linear_transformer, tokens, varied
from zipbrain import EViT, OptionError, UnsupportedModel, ZIPBrain
from zipbrain.pooling.schedule import FlopsBudget
from zipbrain.seams import is_compressed
from zipbrain.seams.dialects.base import all_dialects
from zipbrain.seams.forward import plan_of


def run(model: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        result: Tensor = model(x)
    return result


BAD: list[tuple[str, dict[str, Any]]] = [
    # exactly one of ratio, r, schedule
    ("ratio, r, schedule", {}),
    ("ratio, r, schedule", {"ratio": 0.5, "r": 3}),
    ("ratio, r, schedule", {"r": 3, "schedule": [1]}),
    ("ratio, r, schedule", {"ratio": 0.5, "schedule": [1]}),
    # ratio
    ("ratio", {"ratio": -0.1}),
    ("ratio", {"ratio": 1.5}),
    ("ratio", {"ratio": float("nan")}),
    ("ratio", {"ratio": float("inf")}),
    ("ratio", {"ratio": "half"}),
    ("ratio", {"ratio": True}),
    ("ratio", {"ratio": [0.5]}),
    # r
    ("r", {"r": -1}),
    ("r", {"r": 1.5}),
    ("r", {"r": True}),
    ("r", {"r": "3"}),
    ("r", {"r": [1, -2]}),
    ("r", {"r": [1, 2.0]}),
    ("r", {"r": [1] * 4}),
    ("r", {"r": [1, 1], "layers": [2]}),
    # schedule
    ("schedule", {"schedule": 3}),
    ("schedule", {"schedule": "unheard-of"}),
    ("schedule", {"schedule": "tome"}),
    ("share", {"schedule": FlopsBudget(0.01), "tokens": 14}),
    # layers
    ("layers", {"r": 1, "layers": []}),
    ("layers", {"r": 1, "layers": [0]}),
    ("layers", {"r": 1, "layers": [4]}),
    ("layers", {"r": 1, "layers": [-1]}),
    ("layers", {"r": 1, "layers": [1.0]}),
    ("layers", {"r": 1, "layers": [True]}),
    ("layers", {"r": 1, "layers": 2}),
    ("layers", {"r": 1, "layers": "12"}),
    # protected
    ("protected", {"r": 1, "protected": -1}),
    ("protected", {"r": 1, "protected": True}),
    ("protected", {"r": 1, "protected": 1.0}),
    ("protected", {"r": 1, "protected": "cls"}),
    ("protected", {"r": 1, "protected": (1, 2, 3)}),
    ("protected", {"r": 1, "protected": (1, -1)}),
    ("protected", {"r": 1, "protected": torch.zeros(14)}),
    ("protected", {"r": 1, "protected": torch.zeros(2, 14, dtype=torch.bool)}),
    # tokens and example
    ("tokens", {"r": 1, "tokens": 0}),
    ("tokens", {"r": 1, "tokens": -5}),
    ("tokens", {"r": 1, "tokens": 14.0}),
    ("tokens", {"r": 1, "tokens": True}),
    ("example", {"ratio": 0.5, "example": tokens(1, 3), "protected": 3}),
    # within
    ("within", {"r": 1, "within": "encoder"}),
    ("within", {"r": 1, "within": "blocks.7"}),
    ("within", {"r": 1, "within": PlainBlock()}),
    ("within", {"r": 1, "within": 3}),
    # method
    ("method", {"r": 1, "method": "zipbrane"}),
    ("method", {"r": 1, "method": ZIPBrain}),
    ("method", {"r": 1, "method": None}),
    ("method", {"r": 1, "method": 3}),
    ("method", {"r": 1, "method": "mean"}),
    ("method", {"r": 1, "method": {"z1": "x"}}),
    ("method.pivot", {"r": 1, "method": {"name": "dart", "pivot": 3}}),
    ("rho", {"r": 1, "method": {"name": "zipbrain", "rho": 2}}),
    ("score", {"r": 1, "method": EViT("cls")}),
    # mass
    ("mass", {"r": 1, "mass": 1}),
    ("mass", {"r": 1, "mass": "yes"}),
    ("mass", {"r": 1, "mass": None}),
    ("mass", {"r": 1, "mass": {"readoff": True}}),
]


def described(option: tuple[str, dict[str, Any]]) -> str:
    return " ".join(f"{key}={value!r:.20}" for key, value in option[1].items()) or "nothing"


@pytest.mark.parametrize("before", ["as it was", "compressed"])
@pytest.mark.parametrize(("name", "options"), BAD, ids=map(described, BAD))
def test_a_bad_option_is_named_and_changes_nothing(name: str, options: dict[str, Any], before: str) -> None:
    model, x = varied(Stack()).train(), tokens()
    if before == "compressed":
        zipbrain.compress(model, "free_slicing", r=2)
    kinds = [type(module) for module in model.modules()]
    state = {key: value.clone() for key, value in model.state_dict().items()}
    plan = plan_of(model) if before == "compressed" else None
    expected = run(model.eval(), x)
    model.train()
    with pytest.raises(OptionError) as refused:
        zipbrain.compress(model, **options)
    assert refused.value.name == name
    assert isinstance(refused.value, ValueError)
    text = str(refused.value)
    assert text.startswith(f"{name}: got ")
    assert "\n" not in text
    assert [type(module) for module in model.modules()] == kinds
    assert list(model.state_dict()) == list(state)
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())
    assert all(module.training for module in model.modules())
    assert not any(module._forward_pre_hooks for module in model.modules())
    assert (plan_of(model) if is_compressed(model) else None) is plan
    assert torch.equal(run(model.eval(), x), expected)


@pytest.mark.parametrize(
    ("given", "meant"), [("zipbrane", "zipbrain"), ("tom", "tome"), ("evitt", "evit"), ("free slice", "free_slicing")]
)
def test_an_unknown_method_suggests_a_close_name(given: str, meant: str) -> None:
    with pytest.raises(OptionError, match=f"did you mean '{meant}'"):
        zipbrain.compress(Stack(), given, r=1)


@pytest.mark.parametrize(
    ("spelled", "name"), [("ToMe", "tome"), ("ZIPBrain", "zipbrain"), ("Free-Slicing", "free_slicing")]
)
def test_method_names_are_read_in_any_usual_spelling(spelled: str, name: str) -> None:
    assert zipbrain.summary(zipbrain.compress(Stack(), spelled, r=1)).method["name"] == name


def test_a_list_longer_than_the_reducing_layers_names_how_many_there_are() -> None:
    with pytest.raises(OptionError, match="there are 3 reducing layers"):
        zipbrain.compress(Stack(), r=[1] * 5)


# -- models ------------------------------------------------------------------------------------------------------------


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv1d(3, 8, 5), nn.ReLU(), nn.Conv1d(8, 8, 5))

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.layers(x)
        return result


def test_a_model_without_a_seam_is_refused_with_all_that_was_looked_for() -> None:
    model = Convolutions()
    with pytest.raises(UnsupportedModel, match="Convolutions has no transformer block") as refused:
        zipbrain.compress(model, r=1)
    text = str(refused.value)
    for kind in all_dialects():
        assert kind.name in text
        assert kind.looks_like in text
    assert "zipbrain.seams.register_dialect" in text
    assert isinstance(refused.value, TypeError)


def test_a_part_without_a_seam_is_named() -> None:
    with pytest.raises(UnsupportedModel, match=r"Stack.norm has no transformer block"):
        zipbrain.compress(Stack(), r=1, within="norm")


def test_a_refused_model_stays_compressed_as_before() -> None:
    model, x = varied(nn.Sequential(Stack(), nn.LayerNorm(DIM))), tokens()
    expected = run(zipbrain.compress(model, r=2), x)
    with pytest.raises(UnsupportedModel):
        zipbrain.compress(model, r=1, within="1")
    assert torch.equal(run(model, x), expected)


@pytest.mark.parametrize("given", [None, 3, PlainBlock, torch.zeros(3)])
def test_what_is_no_module_is_refused(given: Any) -> None:
    with pytest.raises(OptionError, match=r"model: got .* torch.nn.Module"):
        zipbrain.compress(given, r=1)


def test_a_module_that_is_itself_a_block_is_refused_with_its_reason() -> None:
    """A block has no chain around it; its parent has."""
    with pytest.raises(UnsupportedModel):
        zipbrain.compress(PlainBlock(), r=1)


def test_an_example_that_never_reaches_the_blocks_is_refused() -> None:
    class Detour(Stack):
        def forward(self, x: Tensor) -> Tensor:
            return x

    model = Detour()
    with pytest.raises(OptionError, match=r"example.*did not reach 3 timm-like blocks in blocks"):
        zipbrain.compress(model, ratio=0.5, example=tokens())
    assert not is_compressed(model)


def test_an_example_that_fails_leaves_the_model_alone() -> None:
    model = varied(Stack()).train()
    with pytest.raises(RuntimeError):
        zipbrain.compress(model, ratio=0.5, example=torch.zeros(1, 4, DIM + 1))
    assert not is_compressed(model)
    assert all(module.training for module in model.modules())
    assert not any(module._forward_pre_hooks for module in model.modules())


@pytest.mark.parametrize("verb", [zipbrain.summary, lambda model: zipbrain.trace(model).__enter__()])
def test_a_model_that_is_not_compressed_can_be_neither_traced_nor_summarised(verb: Any) -> None:
    with pytest.raises(UnsupportedModel, match=r"not compressed: call zipbrain\.compress"):
        verb(Stack())


# -- masks -------------------------------------------------------------------------------------------------------------


def padding(batch: int = 2, n: int = 14) -> Tensor:
    mask = torch.zeros(batch, n, dtype=torch.bool)
    mask[:, -3:] = True
    return mask


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize(
    "arguments",
    [
        {"src_key_padding_mask": padding()},
        {"src_key_padding_mask": torch.zeros(2, 14, dtype=torch.bool)},
        {"mask": torch.zeros(14, 14)},
        {"mask": nn.Transformer.generate_square_subsequent_mask(14), "is_causal": True},
    ],
    ids=["padding", "empty padding", "mask", "causal"],
)
def test_a_mask_is_refused_by_a_torch_encoder(
    norm_first: bool, training: bool, grad: bool, nested: bool, arguments: dict[str, Any]
) -> None:
    layer = nn.TransformerEncoderLayer(DIM, HEADS, 2 * DIM, batch_first=True, norm_first=norm_first)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=nested and not norm_first).train(training)
    zipbrain.compress(varied(model).train(training), r=2)
    kinds = [type(module) for module in model.modules()]
    with torch.set_grad_enabled(grad), pytest.raises(OptionError) as refused:
        model(tokens(), **arguments)
    assert refused.value.name == ("src_mask" if "mask" in arguments else "src_key_padding_mask")
    assert [type(module) for module in model.modules()] == kinds
    assert run(model, tokens()).shape[1] == 10


def test_is_causal_alone_is_refused() -> None:
    layer = zipbrain.compress(dialect("pre-norm"), r=2).layers[0]
    with pytest.raises(OptionError, match="is_causal"):
        layer(tokens(), is_causal=True)
    assert layer(tokens(), is_causal=False, src_mask=None).shape[1] == 12


@pytest.mark.parametrize("argument", ["input_mask", "pos_emb"])
def test_a_mask_is_refused_by_the_linear_transformer(argument: str) -> None:
    model = zipbrain.compress(varied(linear_transformer()), r=2)
    with pytest.raises(OptionError, match=f"{argument}.*compressed SequentialSequence takes no mask"):
        model(tokens(), **{argument: torch.ones(2, 14, dtype=torch.bool)})
    assert model(tokens(), **{argument: None}).shape[1] == 8


def test_any_further_argument_is_refused_by_a_timm_like_block() -> None:
    block = zipbrain.compress(varied(Stack()), r=2).blocks[0]
    with pytest.raises(OptionError, match=r"argument 2.*a Tensor.*compressed PlainBlock takes no mask"):
        block(tokens(), torch.zeros(14, 14))
    with pytest.raises(OptionError, match="rel_pos_bias"):
        block(tokens(), rel_pos_bias=torch.zeros(14, 14))
    assert block(tokens(), None, rel_pos_bias=None).shape[1] == 12


@pytest.mark.parametrize("name", ["linear", "pre-norm", "post-norm"])
def test_a_restored_model_takes_masks_again(name: str) -> None:
    argument = {"input_mask": ~padding()} if name == "linear" else {"src_key_padding_mask": padding()}
    model = dialect(name)
    with torch.no_grad():
        expected = model(tokens(), **argument)
        assert torch.equal(zipbrain.restore(zipbrain.compress(model, r=2))(tokens(), **argument), expected)


@pytest.mark.parametrize(("weights", "windows"), [("meta", "meta"), ("meta", "cpu"), ("cpu", "meta")])
def test_weights_and_windows_without_values_are_named(weights: str, windows: str) -> None:
    model, x = Stack().eval().to(weights), tokens().to(windows)
    zipbrain.compress(model, ratio=0.5)
    with pytest.raises(OptionError, match="on the meta device"):
        run(model, x)
    with pytest.raises(OptionError, match="on the meta device"):
        zipbrain.compress(model, ratio=0.5, example=x)


class _Headed(nn.Module):
    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body, self.head = body, nn.Linear(DIM, 2)

    def forward(self, x: Tensor) -> Tensor:
        answer: Tensor = self.head(self.body(x).mean(1))
        return answer


def test_blocks_that_another_compressed_model_has_too_are_said() -> None:
    body = Stack()
    first, second = _Headed(body).eval(), _Headed(body).eval()
    zipbrain.compress(first, ratio=0.5)
    with pytest.warns(UserWarning, match="also part of another compressed model"):
        zipbrain.compress(second, "tome", ratio=0.5)


def test_a_model_that_is_compressed_again_alone_or_in_a_wrapper_shares_nothing() -> None:
    inner = _Headed(Stack()).eval()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        zipbrain.compress(inner, ratio=0.5)
        zipbrain.compress(inner, "tome", ratio=0.5)
        zipbrain.compress(copy.deepcopy(inner), ratio=0.5)
        zipbrain.compress(nn.Sequential(inner), ratio=0.5)
