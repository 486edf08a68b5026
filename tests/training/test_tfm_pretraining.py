"""TFM-Tokenizer's pretraining: masks, moving averages, losses, both stages."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from training.small import windows
from zipbrain.errors import OptionError
from zipbrain.models import TFM, TFMEncoder, TFMTokenizer
from zipbrain.models.tfm import Codebook
from zipbrain.training import Feed, Step, TrainingSettings, finetune, scratch_settings
from zipbrain.training.checkpoints import load_checkpoint, weights_of
from zipbrain.training.tfm import (
    Callbacks,
    MaskedTokens,
    masked_token_loss,
    pretrain,
    spectrum_mask,
    token_loss,
    update_codebook,
)

CPU = torch.device("cpu")


@pytest.mark.parametrize("frames", [1, 3, 19])
def test_a_mask_hides_half_of_the_bands_and_frames(frames: int) -> None:
    torch.manual_seed(0)
    keep = spectrum_mask(frames, 100, CPU)
    assert keep.shape == (frames, 100)
    bands = keep.reshape(frames, 20, 5)
    assert ((bands == bands[..., :1]).all()).item()  # five bins together
    kept_frames = [row for row in bands[..., 0] if row.any()]
    assert len(kept_frames) == frames - frames // 2
    assert all(int(row.sum()) == 10 for row in kept_frames)
    assert all(torch.equal(row, kept_frames[0]) for row in kept_frames)


def test_the_codebook_moves_as_its_formula_says() -> None:
    torch.manual_seed(0)
    codebook = Codebook(6, 4)
    codebook.cluster_size.copy_(torch.rand(6))
    vectors, ids = F.normalize(torch.randn(10, 4), dim=1), torch.tensor([0, 0, 1, 5, 5, 5, 2, 2, 0, 1])
    chosen = F.one_hot(ids, 6).float()
    size = 0.99 * codebook.cluster_size + 0.01 * chosen.sum(0)
    sums = 0.99 * codebook.ema_w + 0.01 * chosen.t() @ vectors
    smoothed = (size + 1e-5) / (size.sum() + 6 * 1e-5) * size.sum()
    update_codebook(codebook, vectors, ids)
    torch.testing.assert_close(codebook.cluster_size, size)
    torch.testing.assert_close(codebook.ema_w, sums)
    torch.testing.assert_close(codebook.embedding.weight.detach(), sums / smoothed[:, None])


def tokenizer() -> TFMTokenizer:
    torch.manual_seed(0)
    return TFMTokenizer()


def test_token_learning_reconstructs_the_full_spectrum_from_both_masks() -> None:
    model, x = tokenizer().eval(), torch.randn(2, 3, 500)
    torch.manual_seed(5)
    found = token_loss(model, x, torch.zeros(2))
    torch.manual_seed(5)
    keep = spectrum_mask(4, 100, CPU)
    expected = torch.zeros(())
    for mask in (keep, 1 - keep):
        encoded = model.encode(x, mask)
        vectors = model.quantizer(encoded)[1]
        expected += F.mse_loss(model.decode(vectors), model.stft(x)) + 2 * F.mse_loss(vectors, encoded)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert torch.equal(model.encode(x, torch.ones(4, 100)), model.encode(x))
    assert not torch.allclose(model.encode(x, keep), model.encode(x))


def test_gradients_pass_the_codebook_and_the_codebook_gets_none() -> None:
    model = tokenizer().train()
    before = model.quantizer.embedding.weight.detach().clone()
    token_loss(model, torch.randn(2, 2, 400), torch.zeros(2)).backward()
    assert model.quantizer.embedding.weight.grad is None
    assert not torch.equal(model.quantizer.embedding.weight, before)  # moved by averages alone
    gradient = model.freq_patch_embedding[0].weight.grad
    assert gradient is not None
    assert float(gradient.abs().max()) > 0
    still = tokenizer().eval()
    token_loss(still, torch.randn(2, 2, 400), torch.zeros(2))
    assert torch.equal(still.quantizer.embedding.weight, before)


def test_masked_tokens_start_from_the_codebook_and_are_scored_where_hidden() -> None:
    torch.manual_seed(0)
    model = TFM(2, 3, 400)
    module = MaskedTokens(model.encoder, model.tokenizer.quantizer).eval()
    table = model.encoder.eeg_token_embedding.weight
    assert torch.equal(table[:8192], model.tokenizer.quantizer.embedding.weight)
    assert not table[8192].any()
    x = torch.randn(2, 3, 400)
    ids = model.tokenizer(x)
    hidden = torch.rand(ids.shape, generator=torch.Generator().manual_seed(1)) < 0.5
    logits = module(ids, hidden)
    assert logits.shape == (int(hidden.sum()), 8192)
    other = torch.where(hidden, (ids + 17) % 8192, ids)
    assert torch.equal(module(other, hidden), logits)  # what is hidden can't be seen
    torch.manual_seed(7)
    found = masked_token_loss(model.tokenizer)(module, x, torch.zeros(2))
    torch.manual_seed(7)
    drawn = torch.rand(ids.shape) < 0.5
    expected = F.cross_entropy(module(ids, drawn), ids[drawn]) + F.cross_entropy(module(ids, ~drawn), ids[~drawn])
    torch.testing.assert_close(found, expected)


def spectra(model: TFM, feed: Feed) -> float:
    assert feed.stored is not None
    with torch.inference_mode():
        return float(F.mse_loss(model.tokenizer.reconstruct(feed.stored), model.tokenizer.stft(feed.stored)))


def test_both_stages_train_and_resume_to_the_same_bits(tmp_path: Path) -> None:
    feed = Feed(windows(12, channels=2), "q95", CPU)
    stages: list[tuple[str, int]] = []

    def fresh() -> TFM:
        torch.manual_seed(0)
        return TFM(2, 2, 400)

    model = fresh()
    before = spectra(model, feed)
    pretrain(model, feed, 5, callbacks=Callbacks(on_stage=lambda name, epochs: stages.append((name, epochs))))
    assert stages == [("token learning", 5), ("masked tokens", 3)]
    assert spectra(model, feed) < before
    assert torch.equal(model.encoder.head.weight, fresh().encoder.head.weight)
    assert not any(p.requires_grad for p in model.tokenizer.parameters())
    assert isinstance(model.encoder, TFMEncoder)

    def stop(step: Step) -> None:
        seen.append(step)
        if len(seen) == 7:  # in the second stage
            raise KeyboardInterrupt

    seen: list[Step] = []
    with pytest.raises(KeyboardInterrupt):
        pretrain(fresh(), feed, 5, folder=tmp_path, callbacks=Callbacks(on_step=stop))
    again = pretrain(fresh(), feed, 5, folder=tmp_path, resume=True)
    one, other = weights_of(model), weights_of(again)
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_from_scratch_the_tokenizer_is_pretrained_first_and_then_kept(tmp_path: Path) -> None:
    chosen = scratch_settings("tfm").override(epochs=1, pretrain_steps=1, batch_size=8)
    names: list[str] = []

    def note(name: str, _: int) -> None:
        names.append(name)

    result = finetune("tfm", windows(8, channels=2), settings=chosen, out=tmp_path / "run", device="cpu", on_stage=note)
    assert names == ["reading windows", "token learning", "masked tokens", "fine-tuning"]
    assert isinstance(result.model, TFM)
    torch.manual_seed(chosen.seed)
    before = weights_of(TFM(1, 2, 400).tokenizer)
    assert not torch.equal(before["decoder.0.weight"], result.model.tokenizer.decoder[0].weight)
    kept = load_checkpoint(tmp_path / "run" / "pretraining" / "token-learning")[0]
    after = weights_of(result.model.tokenizer)
    assert all(torch.equal(kept[name], after[name]) for name in kept)


@pytest.mark.parametrize(
    ("n", "steps", "epochs"),
    [(1508, 600, (100, 100)), (1508, 601, (101, 101)), (12, 5, (5, 3)), (512, 3, (2, 2)), (10_000, None, (100, 50))],
)
def test_steps_are_rounded_up_to_whole_epochs(
    monkeypatch: pytest.MonkeyPatch, n: int, steps: int | None, epochs: tuple[int, int]
) -> None:
    found: list[tuple[int, int]] = []

    def note(_: object, feed: Feed, settings: TrainingSettings, *others: object, **more: object) -> None:
        found.append((settings.epochs, settings.batch_size))

    monkeypatch.setattr("zipbrain.training.tfm.train", note)
    feed = Feed(windows(n, channels=1, seconds=1), "q95", CPU, "disk")
    pretrain(TFM(2, 1, 200), feed, steps)
    assert found == [(epochs[0], min(256, n)), (epochs[1], min(512, n))]
    with pytest.raises(OptionError, match="at least 1"):
        pretrain(TFM(2, 1, 200), feed, 0)


def test_from_scratch_the_tokenizer_gets_the_steps_that_worked() -> None:
    assert scratch_settings("tfm").pretrain_steps == 80
    assert all(scratch_settings(model).pretrain_steps == 0 for model in ("labram", "eegpt", "biot"))
