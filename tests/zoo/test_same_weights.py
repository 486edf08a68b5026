"""The same weights in braindecode's class and in ours: the same logits, uncompressed and compressed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import zipbrain
from zipbrain import ToMe, ZIPBrain
from zipbrain.models import BIOT, EEGPT, LaBraM, load_official

pytest.importorskip(
    "braindecode", reason="braindecode is not here: `make zoo` makes an environment with it", exc_type=ImportError
)

sys.path.insert(0, str(Path(__file__).parent))
from zoo import NAMES, Entry, braindecode, made

RECIPES: dict[str, dict[str, Any]] = {
    "original": {},
    "zipbrain": {"method": ZIPBrain(), "ratio": 0.8},
    "zipbrain-max": {"method": ZIPBrain("v", "k", "kh", 0.3), "ratio": "max"},
    "tome": {"method": ToMe(), "ratio": 0.6},
    "mass": {"method": ZIPBrain("x", "v", "x", 0.4), "ratio": 0.8, "mass": True},
}


def labram() -> tuple[Entry, nn.Module, nn.Module]:
    options = {"n_chans": 19, "n_times": 2000, "use_mean_pooling": True, "init_values": 0.1}
    entry = Entry("Labram", braindecode("Labram", **options), (19, 2000), kwargs={"ch_names": NAMES})
    theirs = made(entry)
    state: dict[str, Tensor] = {}
    for name, value in theirs.state_dict().items():
        name = name.replace("patch_embed.temporal_conv.", "patch_embed.").replace("final_layer.", "head.")
        name = name.replace("mlp.0.", "mlp.fc1.").replace("mlp.2.", "mlp.fc2.")
        if name == "temporal_embedding":
            name, value = "time_embed", torch.nn.functional.pad(value[:, :10], (0, 0, 0, 6))  # 16 rows, 10 are used
        state["pos_embed" if name == "position_embedding" else name] = value
    ours = LaBraM(3, NAMES, 2000)
    return entry, theirs, loaded(ours, state)


def biot() -> tuple[Entry, nn.Module, nn.Module]:
    options = {"n_chans": 16, "n_times": 2000, "sfreq": 200, "hop_length": 100}
    entry = Entry("BIOT", braindecode("BIOT", **options), (16, 2000))
    theirs = made(entry)
    state: dict[str, Tensor] = {}
    for name, value in theirs.state_dict().items():
        name = name.replace("final_layer.classification_head.", "classifier.clshead.1.")
        state[name.replace("encoder.", "biot.", 1) if name.startswith("encoder.") else name] = value
    return entry, theirs, loaded(BIOT(3, 16, 2000), state)


def eegpt() -> tuple[Entry, nn.Module, nn.Module]:
    def head() -> nn.Module:
        return nn.Linear(8 * 2048, 3)  # 8 patches of 4 summary tokens of 512

    options = {"montage": True, "n_chans": 19, "n_times": 512, "chan_proj_type": "none", "patch_stride": 64}
    entry = Entry("EEGPT", braindecode("EEGPT", final_layer=head, **options), (19, 512))
    theirs = made(entry)
    state = {name.replace("final_layer.1.", "head.1."): value for name, value in theirs.state_dict().items()}
    with torch.no_grad():  # ours clips rows of the head to norm 1, theirs can't: stay below
        state["head.1.weight"].mul_(0.5 / state["head.1.weight"].norm(dim=1, keepdim=True))
    return entry, theirs, loaded(EEGPT(3, NAMES, 512), state)


def loaded(ours: nn.Module, state: dict[str, Tensor]) -> nn.Module:
    report = load_official(ours, state)
    assert not report.initial, report
    return ours.eval()


@pytest.fixture(scope="module", params=[labram, biot, eegpt], ids=["labram", "biot", "eegpt"])
def pair(request: pytest.FixtureRequest) -> tuple[Entry, nn.Module, nn.Module]:
    """braindecode's model and ours with its weights."""
    return request.param()


@pytest.mark.parametrize("recipe", RECIPES)
@torch.inference_mode()
def test_the_same_weights_give_the_same_logits(pair: tuple[Entry, nn.Module, nn.Module], recipe: str) -> None:
    entry, theirs, ours = pair
    x = entry.input(4, seed=3)
    plain = ours(x) if recipe == "original" else None
    for model in (theirs, ours):
        zipbrain.restore(model)
        if recipe != "original":
            zipbrain.compress(model, **RECIPES[recipe])
    expected, found = entry.run(theirs, x), ours(x)
    assert expected.std(dim=0).min() > 1e-3  # windows differ, so weights matter
    error = (found - expected).abs().max() / expected.abs().max().clamp_min(1.0)
    print(f"{entry.name} {recipe}: {error:.1e}")
    assert error <= 1e-5
    if plain is not None:
        assert torch.equal(plain, found)
