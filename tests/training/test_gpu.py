"""Training on a CUDA device: half precision with loss scaling, resuming, where windows wait."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from training.small import tiny_settings, windows
from zipbrain.training import Feed, Step, finetune, paper_settings, predict, scratch_settings
from zipbrain.training.loader import pick_device

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize("model", ["labram", "eegpt", "biot", "tfm"])
@pytest.mark.parametrize("whose", ["paper", "scratch"])
def test_every_setting_trains_in_its_precision(model: str, whose: str, tmp_path: Path) -> None:
    chosen = paper_settings(model, "isruc") if whose == "paper" else scratch_settings(model)
    chosen = chosen.override(epochs=2, batch_size=16, pretrain_steps=min(1, chosen.pretrain_steps))
    data = windows(40, classes=3)
    result = finetune(model, data, windows(20, classes=3, seed=1), settings=chosen, out=tmp_path / "run", device="cuda")
    assert result.record["precision"] == ("fp32" if chosen.amp == "no" else chosen.amp)
    assert next(result.model.parameters()).is_cuda
    assert json.loads((tmp_path / "run" / "run.json").read_text())["finished"]
    difference = abs(predict(result.model, data, device="cpu") - predict(result.model, data, device="cuda")).max(1)
    # Rounding may move a window's vector to another entry of TFM's random codebook; few windows, never most.
    assert (difference < 1e-2).mean() >= (0.75 if model == "tfm" else 1)


def test_a_stopped_run_goes_on_where_it_was(tmp_path: Path) -> None:
    def stop(step: Step) -> None:
        if (step.epoch, step.step) == (3, 1):
            raise KeyboardInterrupt

    data, chosen = windows(), tiny_settings()
    unbroken = finetune("biot", data, settings=chosen, device="cuda", deterministic=True)
    with pytest.raises(KeyboardInterrupt):
        finetune("biot", data, settings=chosen, out=tmp_path, device="cuda", deterministic=True, on_step=stop)
    resumed = finetune("biot", data, settings=chosen, out=tmp_path, device="cuda", deterministic=True, resume=True)
    for one, other in zip(unbroken.outcome.history, resumed.outcome.history, strict=True):
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-4)


def test_windows_wait_where_they_are_told_to() -> None:
    data, device = windows(), pick_device("cuda")
    feeds = [Feed(data, "q95", device, place) for place in ("device", "memory", "disk")]
    order = torch.randperm(len(data)).numpy()
    for batches in zip(*(feed.batches(order, 7) for feed in feeds), strict=True):
        for x, y in batches[1:]:
            assert x.is_cuda
            assert torch.equal(x, batches[0][0])
            assert torch.equal(y, batches[0][1])
    assert Feed(data, "q95", device).place == "device"
