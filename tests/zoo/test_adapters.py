"""Other libraries train, clone, score, save and quantise compressed models, which stay compressed and right."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("braindecode", reason="`make zoo` makes an environment with it", exc_type=ImportError)

import sys

sys.path.insert(0, str(Path(__file__).parent))
import zipbrain
from zipbrain.models import LaBraM
from zipbrain.seams import is_compressed
from zipbrain.training import EEGClassifier
from zoo import declare_torchvision, hugging_face_vit

declare_torchvision()  # before transformers imports it


def windows(count: int = 24) -> tuple[np.ndarray, np.ndarray]:
    """Two classes that differ in the first channel's amplitude."""
    y = np.arange(count) % 2
    x = np.random.default_rng(0).normal(size=(count, 4, 600)).astype("float32")
    x[:, 0] *= 1 + 3 * y[:, None]
    return x, y


def biot() -> nn.Module:
    from braindecode.models import BIOT

    torch.manual_seed(0)
    return BIOT(n_outputs=2, n_chans=4, n_times=600, sfreq=200, hop_length=100, embed_dim=32, num_heads=4, num_layers=2)


def tokens(model: nn.Module, x: Tensor) -> list[int]:
    with torch.inference_mode(), zipbrain.trace(model) as seen:
        model.eval()(x)
    return seen.token_counts


def test_skorch_trains_clones_pickles_and_searches_a_compressed_model() -> None:
    import braindecode
    from sklearn.base import clone
    from sklearn.model_selection import cross_val_score

    x, y = windows()
    model = zipbrain.compress(biot(), "zipbrain", ratio=0.6)
    start = {name: value.clone() for name, value in model.state_dict().items()}
    how = {"criterion": nn.CrossEntropyLoss, "max_epochs": 4, "batch_size": 8, "lr": 0.01, "train_split": None}
    net = braindecode.EEGClassifier(model, **how, classes=[0, 1], verbose=0)
    other = clone(net)
    assert other.module is not model
    assert is_compressed(other.module)
    net.fit(x, y)
    assert is_compressed(net.module_)
    counts = tokens(net.module_, torch.from_numpy(x[:2]))
    assert counts[-1] <= 0.45 * counts[0]
    assert any(not torch.equal(value, start[name]) for name, value in net.module_.state_dict().items())
    assert net.score(x, y) > 0.7
    proba = net.predict_proba(x)
    again = pickle.loads(pickle.dumps(net))
    assert np.array_equal(again.predict_proba(x), proba)
    scores = cross_val_score(other, x, y, cv=2)
    assert np.isfinite(scores).all()
    zipbrain.restore(net.module_)
    assert not is_compressed(net.module_)
    assert not np.array_equal(net.predict_proba(x), proba)
    zipbrain.compress(net.module_, "zipbrain", ratio=0.6)
    assert np.array_equal(net.predict_proba(x), proba)


def test_moabb_scores_our_estimator_and_tells_ratios_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("moabb")
    monkeypatch.setenv("HOME", str(tmp_path))
    from moabb.analysis.results import get_string_rep
    from moabb.datasets.fake import FakeDataset
    from moabb.evaluations import WithinSessionEvaluation
    from moabb.paradigms import LeftRightImagery

    small = {"options": {"dim": 16, "depth": 2}}
    how = {"ch_names": ["C3", "Cz", "C4"], "epochs": 1, "device": "cpu", "overrides": small}
    pipelines = {str(ratio): EEGClassifier("biot", **how, ratio=ratio) for ratio in (None, 0.4, 0.6)}
    assert len({get_string_rep(one) for one in pipelines.values()}) == 3
    dataset = FakeDataset(
        ["left_hand", "right_hand"], n_subjects=1, n_sessions=1, n_runs=1, n_events=30, duration=120, seed=0
    )
    paradigm = LeftRightImagery(resample=200, fmin=1, fmax=40, tmin=0, tmax=2)
    evaluation = WithinSessionEvaluation(paradigm, [dataset], hdf5_path=str(tmp_path), overwrite=True)
    results = evaluation.process(pipelines)
    assert sorted(set(results["pipeline"])) == ["0.4", "0.6", "None"]
    assert results["score"].between(0, 1).all()
    assert (results["channels"] == 3).all()


def test_trainer_trains_a_compressed_vit_and_saves_an_ordinary_checkpoint(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    from transformers import Trainer, TrainingArguments, ViTForImageClassification

    torch.manual_seed(0)
    model = hugging_face_vit()
    keys = list(model.state_dict())
    zipbrain.compress(model, "tome", ratio=0.6)
    start = {name: value.clone() for name, value in model.state_dict().items()}
    images = [{"pixel_values": torch.randn(3, 64, 64) + i % 2, "labels": i % 2} for i in range(16)]
    how = {"max_steps": 4, "per_device_train_batch_size": 8, "use_cpu": True, "report_to": "none", "save_steps": 2}
    trainer = Trainer(model, TrainingArguments(str(tmp_path / "runs"), **how), train_dataset=images)
    trainer.train()
    assert trainer.model is model
    assert all(not torch.equal(value, start[name]) for name, value in model.state_dict().items() if "layer" in name)
    x = torch.stack([image["pixel_values"] for image in images])
    counts = tokens(nn.Sequential(model), x)
    assert counts[-1] <= 0.45 * counts[0]
    answer = torch.from_numpy(trainer.predict(images).predictions)

    trainer.save_model(str(tmp_path / "vit"))
    plain = ViTForImageClassification.from_pretrained(tmp_path / "vit").eval()
    assert list(plain.state_dict()) == keys
    with torch.inference_mode():
        torch.testing.assert_close(zipbrain.compress(copy.deepcopy(plain), "tome", ratio=0.6)(x).logits, answer)
        expected = plain(x).logits
        assert torch.equal(zipbrain.restore(model).eval()(x).logits, expected)
    resumed = Trainer(
        zipbrain.compress(hugging_face_vit(), "tome", ratio=0.6),
        TrainingArguments(str(tmp_path / "runs"), **how),
        train_dataset=images,
    )
    resumed.train(resume_from_checkpoint=str(tmp_path / "runs" / "checkpoint-2"))
    assert resumed.state.global_step == 4


def quantised_by_torchao(model: nn.Module) -> nn.Module:
    quantization = pytest.importorskip("torchao.quantization")
    quantization.quantize_(model, quantization.Int8WeightOnlyConfig())
    return model


def quantised_by_torch(model: nn.Module) -> nn.Module:
    from torch.ao.quantization import quantize_dynamic

    return quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("quantise", [quantised_by_torchao, quantised_by_torch], ids=["torchao", "torch"])
@pytest.mark.parametrize("kind", ["ours", "braindecode", "transformers"])
@torch.inference_mode()
def test_what_is_quantised_after_compression_pools_and_answers_as_before(kind: str, quantise) -> None:
    torch.manual_seed(0)
    if kind == "ours":
        model, x = LaBraM(2, ["C3", "Cz", "C4", "O1"], 1000), torch.randn(8, 4, 1000)
    elif kind == "braindecode":
        model, x = biot(), torch.from_numpy(windows(8)[0])
    else:
        model, x = hugging_face_vit(), torch.randn(8, 3, 64, 64)
    zipbrain.compress(model.eval(), "zipbrain", ratio=0.6)
    answer = lambda network: getattr(out := network(x), "logits", out)  # noqa: E731
    before, counts = answer(model), tokens(model, x)
    quantised = quantise(copy.deepcopy(model))
    assert tokens(quantised, x) == counts
    after = answer(quantised)
    change = (after - before).norm() / before.norm()
    assert 0 < change < 0.25, f"{change:.3f}"
    assert torch.equal(answer(model), before)  # the copy was quantised, not the model
