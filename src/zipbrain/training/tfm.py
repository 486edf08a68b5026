"""TFM-Tokenizer's two pretraining stages: token learning (masked spectra) and masked-token prediction."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zipbrain.errors import OptionError
from zipbrain.models import TFM, TFMEncoder, TFMTokenizer
from zipbrain.models.tfm import Codebook
from zipbrain.training import checkpoints
from zipbrain.training.loader import Feed
from zipbrain.training.loop import Loss, Step, train
from zipbrain.training.settings import TrainingSettings, masked_tokens_settings, token_learning_settings

_DECAY: Final = 0.99  # of the codebook's moving averages
_EPS: Final = 1e-5
_BAND: Final = 5  # bins masked together


def spectrum_mask(frames: int, bins: int, device: torch.device) -> Tensor:
    """What to keep of a spectrum, 1 or 0: (frames, bins). Half of the bands and half of the frames are hidden.

    A bin is kept if neither its band of five nor its frame is hidden; the complement is the second mask. One mask is
    drawn for a whole batch.
    """
    band, frame = torch.ones(bins // _BAND, device=device), torch.ones(frames, device=device)
    band[torch.randperm(len(band), device=device)[: len(band) // 2]] = 0
    frame[torch.randperm(frames, device=device)[: frames // 2]] = 0
    return frame[:, None] * band.repeat_interleave(_BAND)


def update_codebook(codebook: Codebook, vectors: Tensor, ids: Tensor) -> None:
    """Move a codebook towards vectors (m, 64) that were given its entries `ids` (m,), by moving averages; in place."""
    size = len(codebook.cluster_size)
    with torch.no_grad():
        vectors = vectors.detach().float()
        counts = torch.bincount(ids, minlength=size).to(vectors)
        sums = torch.zeros_like(codebook.ema_w).index_add_(0, ids, vectors)
        codebook.cluster_size.mul_(_DECAY).add_(counts, alpha=1 - _DECAY)
        codebook.ema_w.mul_(_DECAY).add_(sums, alpha=1 - _DECAY)
        total = codebook.cluster_size.sum()
        smoothed = (codebook.cluster_size + _EPS) / (total + size * _EPS) * total
        codebook.embedding.weight.copy_(codebook.ema_w / smoothed[:, None])


def token_loss(tokenizer: nn.Module, x: Tensor, _: Tensor) -> Tensor:
    """Reconstruct the full spectrum from each of two complementary masked ones, through the codebook.

    In training mode the codebook follows by moving averages. Codebook and commitment terms have equal weights and are
    taken after the straight-through step, as in the official code: they count in the loss, but their gradients cancel.
    """
    assert isinstance(tokenizer, TFMTokenizer)
    target = tokenizer.stft(x)  # (B, C, frames, 100)
    keep = spectrum_mask(target.shape[2], target.shape[3], x.device)
    total = torch.zeros((), device=x.device)
    for mask in (keep, 1 - keep):
        encoded = tokenizer.encode(x, mask)
        ids, vectors = tokenizer.quantizer(encoded)
        if tokenizer.training:
            update_codebook(tokenizer.quantizer, encoded.flatten(0, 2), ids.flatten())
        through = encoded + (vectors - encoded).detach()
        codebook, commitment = F.mse_loss(through, encoded.detach()), F.mse_loss(encoded, through.detach())
        total = total + F.mse_loss(tokenizer.decode(through), target) + codebook + commitment
    return total


class MaskedTokens(nn.Module):
    """An encoder with a head that names hidden tokens; the codebook's vectors become its token embeddings."""

    def __init__(self, encoder: TFMEncoder, codebook: Codebook) -> None:
        super().__init__()
        self.encoder = encoder
        size, dim = codebook.embedding.weight.shape
        self.predict = nn.Linear(dim, size)
        with torch.no_grad():
            encoder.eeg_token_embedding.weight[:size] = codebook.embedding.weight
            encoder.eeg_token_embedding.weight[size:] = 0

    def forward(self, ids: Tensor, hidden: Tensor) -> Tensor:
        """Ids (B, C, frames) and which of them are hidden -> logits of the hidden ones (hidden, 8192)."""
        size = self.predict.out_features
        tokens = self.encoder.blocks(self.encoder.tokens(ids.masked_fill(hidden, size)))[:, 1:]
        logits: Tensor = self.predict(tokens[hidden.flatten(1)])
        return logits


def masked_token_loss(tokenizer: TFMTokenizer) -> Loss:
    """Hide half of the tokens at random, then the other half; cross-entropy of the hidden ones, both added."""

    def loss(module: nn.Module, x: Tensor, _: Tensor) -> Tensor:
        with torch.no_grad():
            ids = tokenizer(x)
        hidden = torch.rand(ids.shape, device=x.device) < 0.5
        total = torch.zeros((), device=x.device)
        for mask in (hidden, ~hidden):
            total = total + F.cross_entropy(module(ids, mask), ids[mask])
        return total

    return loss


class Callbacks(NamedTuple):
    """What a run tells its caller: every step, every epoch, and the name and epochs of every stage."""

    on_step: Callable[[Step], object] | None = None
    on_epoch: Callable[[dict[str, Any]], object] | None = None
    on_stage: Callable[[str, int], object] | None = None

    def begin(self, stage: str, epochs: int) -> None:
        """Tell which stage begins."""
        if self.on_stage is not None:
            self.on_stage(stage, epochs)


def pretrain(
    model: TFM,
    feed: Feed,
    steps: int | None = None,
    folder: Path | None = None,
    resume: bool = False,
    micro_batch: int | None = None,
    callbacks: Callbacks = Callbacks(),  # noqa: B008 - a tuple can't be changed
) -> TFM:
    """Token learning, then masked-token prediction, on unlabelled windows; in place, but for the classification head.

    `steps` are optimiser steps of token learning, and half as many of masked tokens, rounded up to whole epochs; the
    official 100 and 50 epochs if not given. Checkpoints of both stages go into `folder`; `resume` goes on there.
    """
    if steps is not None and steps < 1:
        raise OptionError("steps", steps, "it must be at least 1")

    def run_stage(name: str, module: nn.Module, settings: TrainingSettings, loss: Loss, share: int) -> None:
        chosen = replace(settings, batch_size=min(settings.batch_size, len(feed)))
        if steps is not None:
            an_epoch = math.ceil(len(feed) / chosen.batch_size)
            chosen = chosen.override(epochs=math.ceil(steps / (share * an_epoch)))
        home = None if folder is None else folder / name.replace(" ", "-")
        started = resume and home is not None and checkpoints.last_checkpoint(home) is not None
        callbacks.begin(name, chosen.epochs)
        options: dict[str, Any] = {"on_step": callbacks.on_step, "on_epoch": callbacks.on_epoch}
        train(module, feed, chosen, loss, folder=home, resume=started, micro_batch=micro_batch, **options)

    run_stage("token learning", model.tokenizer, token_learning_settings(), token_loss, 1)
    model.tokenizer.requires_grad_(False).eval()
    with torch.random.fork_rng([feed.device] if feed.device.type == "cuda" else []):
        torch.manual_seed(masked_tokens_settings().seed)
        masked = MaskedTokens(model.encoder, model.tokenizer.quantizer).to(feed.device)
    run_stage("masked tokens", masked, masked_tokens_settings(), masked_token_loss(model.tokenizer), 2)
    return model
