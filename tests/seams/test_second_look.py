"""A second look: windows whose two best classes are close get the uncompressed model's answer."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import zipbrain
from zipbrain.errors import OptionError
from zipbrain.models import BIOT, EEGPT, TFM, LaBraM
from zipbrain.recipe import Recipe
from zipbrain.seams import Observer, observe
from zipbrain.seams.passes import FirstPass, SecondPass
from zipbrain.seams.second_look import is_doubtful, margins, rows_of

_CHANNELS = ["FP1", "FP2", "F3", "F4", "C3", "C4", "P3", "P4"]
_KINDS = {
    "labram": lambda: LaBraM(4, _CHANNELS, 800),
    "biot": lambda: BIOT(4, 8, 800),
    "eegpt": lambda: EEGPT(4, _CHANNELS, 1024),
    "tfm": lambda: TFM(4, 8, 800),
}


@pytest.fixture(scope="module", params=_KINDS)
def network(request: pytest.FixtureRequest) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    model = _KINDS[request.param]().eval()
    times = model.config.get("n_times") or 800
    return model, torch.randn(6, 8, times)


class Looks(Observer):
    def __init__(self) -> None:
        self.doubtful: list[Tensor] = []

    def looked(self, doubtful: Tensor) -> None:
        self.doubtful.append(doubtful)


@torch.no_grad()
def _answers(model: nn.Module, x: Tensor, margin: float | None) -> tuple[Tensor, Tensor]:
    model = zipbrain.compress(copy.deepcopy(model), "zipbrain", ratio=0.8, second_look=margin)
    seen = Looks()
    with observe(model, seen):
        logits = model(x)
    return logits, seen.doubtful[0] if seen.doubtful else torch.zeros(len(x), dtype=torch.bool)


@torch.no_grad()
@pytest.mark.parametrize("share", [0, 1, 3, 6])
def test_doubtful_windows_get_the_original_answer_and_others_keep_theirs(
    network: tuple[nn.Module, Tensor], share: int
) -> None:
    model, x = network
    original, first = model(x), _answers(model, x, None)[0]
    assert (first - original).abs().amax() > 1e-4
    order = margins(first).sort().values
    margin = [0.0, *((order[:-1] + order[1:]) / 2).tolist(), 1e9][share]
    logits, doubtful = _answers(model, x, margin)
    assert doubtful.sum() == share
    assert torch.equal(doubtful, is_doubtful(first, margin))
    torch.testing.assert_close(logits[doubtful], original[doubtful], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(logits[~doubtful], first[~doubtful], rtol=0, atol=1e-6)


@torch.no_grad()
def test_both_passes_as_modules_give_the_same(network: tuple[nn.Module, Tensor]) -> None:
    model, x = network
    model = zipbrain.compress(copy.deepcopy(model), "zipbrain", ratio=0.8, second_look=1e9)
    logits, tokens = FirstPass(model)(x)
    rows = torch.tensor([1, 4])
    again = SecondPass(model)(x[rows], rows_of(tokens, rows, len(x)))
    torch.testing.assert_close(again, model(x)[rows], rtol=1e-5, atol=1e-5)
    assert (logits[rows] - again).abs().amax() > 1e-4


@torch.no_grad()
def test_blocks_before_the_first_reduction_run_once() -> None:
    torch.manual_seed(0)
    model = LaBraM(4, _CHANNELS, 800).eval()
    zipbrain.compress(model, "zipbrain", r=[0] * 8 + [4, 4], second_look=1e9)
    ran: list[int] = []
    for block in model.blocks:
        block.attn.proj.register_forward_hook(lambda *_: ran.append(1))
    model(torch.randn(2, 8, 800))
    assert len(model.blocks) == 12
    assert len(ran) == 12 + 3  # the second pass begins behind the attention of the ninth block


def test_training_and_restored_models_look_once() -> None:
    torch.manual_seed(0)
    model, x = LaBraM(4, _CHANNELS, 800).eval(), torch.randn(2, 8, 800)
    with torch.no_grad():
        original = model(x)
    zipbrain.compress(model, ratio=0.8, second_look=1e9)
    model(x).sum().backward()  # gradients flow through a second look
    seen = Looks()
    with observe(model, seen):
        model.train()(x)
    assert not seen.doubtful
    with torch.no_grad():
        assert torch.equal(zipbrain.restore(model.eval())(x), original)


class Folding(nn.Module):
    """Windows (B, 2 patches, T, D) whose patches go into the batch, in this or the other order."""

    def __init__(self, is_patch_major: bool) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head, self.is_patch_major = nn.Linear(16, 3), is_patch_major

    def forward(self, x: Tensor) -> Tensor:
        folded = x.transpose(0, 1) if self.is_patch_major else x
        found = self.encoder(folded.flatten(0, 1)).mean(1).unflatten(0, folded.shape[:2])
        return self.head(found.mean(0 if self.is_patch_major else 1))


@torch.no_grad()
def test_patches_in_the_batch_are_those_of_their_window_or_refused() -> None:
    torch.manual_seed(0)
    x = torch.randn(5, 2, 12, 16)
    model = Folding(False).eval()
    original = model(x)
    zipbrain.compress(model, ratio=0.5)
    order = margins(model(x)).sort().values
    zipbrain.compress(model, ratio=0.5, second_look=float(order[1] + order[2]) / 2)
    again = model(x)
    seen = (again - original).abs().amax(1) < 1e-5
    assert seen.sum() == 2
    other = zipbrain.compress(Folding(True).eval(), ratio=0.5, second_look=1e9)
    with pytest.raises(OptionError, match="several windows"):
        other(x)


def test_not_a_number_looks_twice() -> None:
    logits = torch.tensor([[float("nan"), 0.0], [3.0, 0.0], [1.0, 1.0]])
    assert is_doubtful(logits, 0.0).tolist() == [True, False, False]
    assert is_doubtful(logits, 0.5).tolist() == [True, False, True]
    assert margins(torch.tensor([[-2.0], [0.5]])).tolist() == [2.0, 0.5]


def test_wrong_margins_and_models_without_decisions_are_refused() -> None:
    model = LaBraM(4, _CHANNELS, 800)
    for wrong in (-1, float("nan"), True, "much"):
        with pytest.raises(OptionError, match="second_look"):
            zipbrain.compress(model, ratio=0.5, second_look=wrong)
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    encoder = zipbrain.compress(nn.Sequential(nn.TransformerEncoder(layer, 2)).eval(), ratio=0.5, second_look=1.0)
    with pytest.raises(OptionError, match="windows, classes"):
        encoder(torch.randn(2, 12, 32))


def test_a_recipe_keeps_the_second_look(tmp_path) -> None:
    recipe = Recipe({"name": "zipbrain"}, {"name": "allocation", "r": [6, 4], "tokens": 32}, second_look=0.7)
    again = Recipe.load(recipe.save(tmp_path / "recipe.json"))
    assert again == recipe
    assert again.key() != Recipe(recipe.method, recipe.schedule).key()
    model = zipbrain.compress(LaBraM(4, _CHANNELS, 800), again)
    with pytest.warns(UserWarning, match="other weights"):
        zipbrain.compress(model, Recipe(recipe.method, recipe.schedule, weights="0" * 64))


def test_an_allocation_is_exact_for_its_tokens_and_in_proportion_for_others() -> None:
    from zipbrain.pooling.schedule import Allocation

    made = Allocation((46, 23, 12), 115)
    assert made.requested(115, 6) == (46, 23, 12, 0, 0, 0)
    assert sum(made.requested(230, 3)) == 162
    assert made.requested(230, 3) == (92, 46, 24)
    assert sum(made.requested(7, 3)) == round(7 * 81 / 115)
    with pytest.raises(OptionError, match="must stay"):
        Allocation((60, 60), 115)
