"""Learning rates and parameter groups, against their formulas."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from training.small import tiny_settings, windows
from zipbrain.errors import OptionError
from zipbrain.models import BIOT, EEGPT, LaBraM
from zipbrain.models.max_norm import MaxNormLinear
from zipbrain.training import TrainingSettings, paper_settings, scratch_settings
from zipbrain.training.model_setup import build_model
from zipbrain.training.param_groups import (
    clip_weights,
    freeze,
    layer_of,
    make_optimizer,
    parameter_groups,
)
from zipbrain.training.rates import rates


def test_cosine_rises_linearly_and_falls_along_a_cosine() -> None:
    lr = rates(tiny_settings(epochs=5, warmup_epochs=2, lr=1.0, final_lr=0.1), 10).lr
    assert len(lr) == 50
    for step in range(20):
        assert lr[step] == pytest.approx(step / 19)
    for step in range(30):
        assert lr[20 + step] == pytest.approx(0.1 + 0.5 * 0.9 * (1 + math.cos(math.pi * step / 30)))


def test_tfms_rate_goes_on_rising_after_the_warm_up() -> None:
    lr = rates(paper_settings("tfm", "isruc"), 20).lr
    assert lr[0] == 0
    assert lr[99] == pytest.approx(1e-3)
    assert lr[-1] == pytest.approx(5e-3, rel=1e-3)
    assert (np.diff(lr) >= -1e-12).all()


def test_one_cycle_is_torchs_with_its_defaults() -> None:
    chosen = paper_settings("eegpt", "isruc")
    found = rates(chosen, 5)
    optimizer = torch.optim.AdamW([nn.Parameter(torch.zeros(1))], lr=1.0)
    twin = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=4e-4, total_steps=200, pct_start=0.2)
    assert found.beta1 is not None
    for step in range(200):
        group = optimizer.param_groups[0]
        assert (found.lr[step], found.beta1[step]) == pytest.approx((group["lr"], group["betas"][0]))
        optimizer.step()
        twin.step()
    assert found.lr.argmax() in (39, 40)  # 8 of 40 epochs rise
    assert found.lr.max() == pytest.approx(4e-4, rel=1e-2)
    assert found.lr[0] == pytest.approx(4e-4 / 25)


def test_a_constant_rate_is_constant() -> None:
    assert set(rates(paper_settings("biot", "tuab"), 3).lr) == {5e-4}


def test_labrams_layers_and_spared_parameters_are_the_official_ones() -> None:
    chosen = paper_settings("labram", "tuev")
    model = LaBraM(6, ["C3", "C4"], 400)
    names = dict(model.named_parameters())
    where = {
        id(parameter): (group["share"], group["weight_decay"])
        for group in parameter_groups(model, chosen)
        for parameter in group["params"]
    }
    assert len(where) == len(names)
    for name, share, decay in (
        ("cls_token", 0.65**13, 0.0),
        ("pos_embed", 0.65**13, 0.0),
        ("patch_embed.conv1.weight", 0.65**13, 0.05),
        ("patch_embed.conv1.bias", 0.65**13, 0.0),
        ("patch_embed.norm1.weight", 0.65**13, 0.0),
        ("time_embed", 1.0, 0.0),
        ("blocks.0.attn.qkv.weight", 0.65**12, 0.05),
        ("blocks.11.mlp.fc2.weight", 0.65, 0.05),
        ("blocks.11.gamma_1", 0.65, 0.0),
        ("blocks.3.attn.q_norm.weight", 0.65**9, 0.0),
        ("fc_norm.weight", 1.0, 0.0),
        ("head.weight", 1.0, 0.05),
        ("head.bias", 1.0, 0.0),
    ):
        assert where[id(names[name])] == pytest.approx((share, decay)), name


def test_eegpts_layer_decay_is_inert_until_it_is_asked_for() -> None:
    chosen = paper_settings("eegpt", "tuab")
    model = EEGPT(1, ["C3", "C4"], 128)
    assert {group["share"] for group in parameter_groups(model, chosen)} == {1.0}
    shares = {group["share"] for group in parameter_groups(model, chosen.override(layer_decay=0.5))}
    assert shares == {0.5**i for i in range(10)}
    assert layer_of("target_encoder.summary_token", "EEGPT", 8) == 0
    assert layer_of("target_encoder.norm.weight", "EEGPT", 8) == 9


def test_biot_decays_everything_with_plain_adam() -> None:
    chosen = paper_settings("biot", "tuab")
    model = BIOT(1, 2, 400, dim=16, heads=2, depth=1)
    optimizer = make_optimizer(model, chosen)
    assert type(optimizer) is torch.optim.Adam
    assert len(optimizer.param_groups) == 1
    assert optimizer.param_groups[0]["weight_decay"] == 1e-5


def test_frozen_parts_are_named_and_stay_in_evaluation_mode() -> None:
    model = EEGPT(2, ["C3", "C4"], 128, head="probe")
    still = freeze(model, ("target_encoder.",))
    assert model.target_encoder in still
    assert model.target_encoder.blocks[3].attn.qkv in still
    assert model.head not in still
    assert not any(p.requires_grad for p in model.target_encoder.parameters())
    assert all(p.requires_grad for p in model.head.parameters())
    freeze(model, ())
    assert all(p.requires_grad for p in model.parameters())
    with pytest.raises(OptionError, match=r"frozen: got 'decoder\.'"):
        freeze(model, ("decoder.",))
    with pytest.raises(OptionError, match="nothing is left"):
        freeze(model, ("target_encoder.", "head.", "front_end."))


def test_rows_are_clipped_in_place() -> None:
    layer = MaxNormLinear(5, 3, 0.5)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[3.0, 4, 0, 0, 0], [0.1, 0, 0, 0, 0], [0, 0, 0, 0, 7]]))
    x = torch.randn(2, 5)
    before = layer(x)
    clip_weights([layer])
    assert torch.allclose(layer.weight.norm(dim=1), torch.tensor([0.5, 0.1, 0.5]), atol=1e-5)
    assert torch.allclose(layer(x), before, atol=1e-5)


def test_models_get_their_drop_path_dropout_and_heads() -> None:
    data = windows(channels=2)
    torch.manual_seed(0)
    paper, ours = (build_model(r, data) for r in (paper_settings("labram", "tuab"), scratch_settings("labram")))
    assert [block.drop_path.p for block in paper.blocks] == pytest.approx([0.1 * i / 11 for i in range(12)])
    assert float(paper.head.weight.detach().std()) == pytest.approx(2e-5, rel=0.2)
    assert float(ours.head.weight.detach().std()) == pytest.approx(2e-2, rel=0.2)
    assert paper.config["n_outputs"] == 1
    probe = build_model(paper_settings("eegpt", "eegmat"), data)
    assert (probe.config["n_outputs"], probe.config["head"], probe.config["sfreq"]) == (2, "probe", 200.0)
    assert build_model(tiny_settings(dropout=0.7), data).blocks[0].attn.proj_drop.p == 0.7


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        (tiny_settings(drop_path=0.1), "BIOT has no drop path"),
        (tiny_settings(options={"size": 3}), r"size.*biot takes"),
        (scratch_settings("tfm").override(head_scale=1.0), "not a linear layer"),
    ],
)
def test_settings_a_model_does_not_have_are_refused(chosen: TrainingSettings, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        build_model(chosen, windows())


def test_derivations_against_an_ear_are_their_electrodes_and_unknown_places_are_projected() -> None:
    data: Any = windows(channels=2)
    data.ch_names = ("F3-A2", "EEG O1-M2")
    assert build_model(scratch_settings("labram"), data).config["ch_names"] == ["F3", "O1"]
    data.ch_names = ("A1", "T1")
    assert build_model(scratch_settings("eegpt"), data).config["front_end"] == "tuab"
    assert len(build_model(paper_settings("eegpt", "isruc"), data).config["places"]) == 20
    data.sfreq = 250.0
    with pytest.raises(OptionError, match="reads 200 Hz"):
        build_model(scratch_settings("labram"), data)
