"""TFM-Tokenizer (Pradeepkumar et al., 2025): discrete tokens of every channel, and a small transformer on them."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zipbrain.errors import ShapeError
from zipbrain.models.biot import sine_positions
from zipbrain.models.blocks import Block
from zipbrain.models.checks import check_option, check_rate, check_window
from zipbrain.models.stft import Stft


def _stack(depth: int, dim: int = 64, dropout: float = 0.2) -> nn.Sequential:
    options: dict[str, Any] = {"eps": 1e-5, "qkv_bias": False, "linear": True, "dropout": dropout}
    return nn.Sequential(*[Block(dim, 8, **options) for _ in range(depth)])


def _convolutions(first: nn.Conv1d, last: int) -> nn.Sequential:
    """Three convolutions, each followed by GELU and then GroupNorm (LaBraM has the opposite order)."""
    layers = (first, nn.Conv1d(64, 64, 1), nn.Conv1d(64, last, 1))
    widths = (64, 64, last)
    stages = [(layer, nn.GELU(), nn.GroupNorm(16, width)) for layer, width in zip(layers, widths, strict=True)]
    return nn.Sequential(*(module for stage in stages for module in stage))


class Codebook(nn.Module):
    """Nearest of 8,192 vectors by Euclidean distance. The moving averages of its training travel along, unused."""

    cluster_size: Tensor
    ema_w: Tensor

    def __init__(self, size: int = 8192, dim: int = 64) -> None:
        super().__init__()
        self.embedding = nn.Embedding(size, dim)
        nn.init.uniform_(self.embedding.weight, -1 / size, 1 / size)
        self.register_buffer("cluster_size", torch.zeros(size))
        self.register_buffer("ema_w", self.embedding.weight.detach().clone())

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(..., 64) -> ids (...), vectors (..., 64)"""
        table = self.embedding.weight
        # |x|^2 is the same for all entries of a row and can't change the nearest one.
        distance = table.square().sum(1) - 2 * torch.matmul(x, table.t())
        ids = distance.argmin(-1)
        return ids, self.embedding(ids)


class TFMTokenizer(nn.Module):
    """Raw EEG -> discrete tokens, one per channel and half second, each channel on its own.

    Notes
    -----
    Input: (B, C, n_times) at 200 Hz, every channel divided by the 95 % quantile of its absolute values. A frequency
    branch (spectrum of a frame, 5 Hz at a time) and a time branch (raw samples of the frame) are joined, passed through
    a transformer over time and quantised. A tail shorter than half a second is not read. Token ids are whole numbers:
    no gradient reaches the input, and a window with NaN gets ids that mean nothing (`TFM` answers NaN to it).
    """

    def __init__(self) -> None:
        super().__init__()
        self.stft = Stft(100, hann=True)
        self.freq_patch_embedding = _convolutions(nn.Conv1d(1, 64, 5, stride=5), 64)
        self.trans_freq_encoder = _stack(2)
        self.freq_patch_embedding_2_atten = nn.Sequential(nn.Conv1d(64, 8, 5, stride=5), nn.Sigmoid())
        self.freq_patch_embedding_2 = nn.Sequential(nn.Conv1d(64, 8, 5, stride=5))
        self.temporal_patch_embedding = _convolutions(nn.Conv1d(1, 64, 200, stride=100), 32)
        self.trans_temporal_encoder = _stack(2)
        self.quantizer = Codebook()
        self.trans_decoder = _stack(8)
        self.decoder = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 100))

    def encode(self, x: Tensor, keep: Tensor | None = None) -> Tensor:
        """(B, C, n_times) -> unit vectors before the codebook, (B, C, frames, 64)

        Token learning hides parts of the spectrum, never of the raw samples: `keep` (frames, 100) is 1 or 0.
        """
        check_window(x, self.quantizer.embedding.weight, self.stft.size)
        batch, channels, _ = x.shape
        raw = x.flatten(0, 1)
        spectrum = self.stft(raw)  # (B C, frames, 100)
        if keep is not None:
            spectrum = spectrum * keep
        frames = int(spectrum.shape[1])
        bands = self.freq_patch_embedding(spectrum.reshape(-1, 1, 100)).transpose(1, 2)  # (B C frames, 20, 64)
        bands = self.trans_freq_encoder(bands).transpose(1, 2)
        bands = self.freq_patch_embedding_2_atten(bands) * self.freq_patch_embedding_2(bands)  # (B C frames, 8, 4)
        samples = self.temporal_patch_embedding(raw.unsqueeze(1)).transpose(1, 2)  # (B C, frames, 32)
        joined = torch.cat((bands.reshape(-1, frames, 32), samples), dim=2)
        encoded = F.normalize(self.trans_temporal_encoder(joined), dim=2)
        return encoded.reshape(batch, channels, frames, 64)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, n_times) -> token ids (B, C, frames)"""
        ids: Tensor = self.quantizer(self.encode(x))[0]
        return ids

    def reconstruct(self, x: Tensor) -> Tensor:
        """(B, C, n_times) -> spectrum decoded from the tokens, (B, C, frames, 100)"""
        return self.decode(self.quantizer(self.encode(x))[1])

    def decode(self, vectors: Tensor) -> Tensor:
        """Vectors of tokens (B, C, frames, 64) -> spectrum (B, C, frames, 100)"""
        decoded: Tensor = self.decoder(self.trans_decoder(vectors.flatten(0, 1)))
        return decoded.reshape(*vectors.shape[:3], 100)


class TFMEncoder(nn.Module):
    """Classifier on token ids: embeddings, CLS, four linear-attention blocks, linear head on CLS.

    Parameters
    ----------
    n_outputs : int
        Number of logits.
    n_chans : int
        Channels of a window, at most 16.
    n_times : int
        Samples of a window, for `n_tokens`.
    dropout : float
        On the output of attention (training only).
    """

    encoder_path = "blocks"
    prefix_tokens = 1
    reads_protected = True  # the head reads CLS only
    max_chans = 16

    def __init__(self, n_outputs: int, n_chans: int = 16, n_times: int = 2000, *, dropout: float = 0.2) -> None:
        super().__init__()
        sizes = {"n_outputs": n_outputs, "n_chans": n_chans, "n_times": n_times}
        self.config: dict[str, Any] = {**sizes, "dropout": dropout}
        check_option("n_outputs", n_outputs)
        check_option("n_chans", n_chans, 1, self.max_chans)
        check_option("n_times", n_times, 200)
        check_rate("dropout", dropout)
        self.n_tokens = n_chans * ((n_times - 200) // 100 + 1)
        self.eeg_token_embedding = nn.Embedding(8193, 64)  # the last one is the mask of pretraining
        self.channel_embed = nn.Embedding(self.max_chans, 64)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, 64))
        self.embed_drop = nn.Dropout(0.1)
        self.blocks = _stack(4, dropout=dropout)
        self.head = nn.Linear(64, n_outputs)

    def tokens(self, ids: Tensor) -> Tensor:
        """Ids (B, C, frames) -> tokens with CLS (B, 1 + C frames, 64); CLS has no position."""
        if ids.dim() != 3 or not 1 <= ids.shape[1] <= self.max_chans:
            wanted = f"it must be (B, C, frames) with at most {self.max_chans} channels"
            raise ShapeError("ids", tuple(ids.shape), wanted)
        if ids.is_floating_point():
            raise ShapeError("ids", str(ids.dtype), "it must hold whole numbers, which the tokenizer gives")
        time = sine_positions(int(ids.shape[2]), 64, self.cls_token)
        embedded = self.eeg_token_embedding(ids) + self.channel_embed.weight[: ids.shape[1], None] + time
        embedded = self.embed_drop(embedded).flatten(1, 2)
        return torch.cat((self.cls_token.expand(ids.shape[0], -1, -1), embedded), dim=1)

    def forward(self, ids: Tensor) -> Tensor:
        """(B, C, frames) -> (B, n_outputs)"""
        logits: Tensor = self.head(self.blocks(self.tokens(ids))[:, 0])
        return logits


class TFM(nn.Module):
    """Raw EEG -> logits: the tokenizer, frozen and always in evaluation mode, and the classifier on its tokens.

    Parameters
    ----------
    n_outputs, n_chans, n_times, dropout
        As in `TFMEncoder`.

    Notes
    -----
    Input as in `TFMTokenizer`. The logits of a window that holds NaN or infinite values are NaN.
    """

    encoder_path = "encoder.blocks"
    prefix_tokens = 1
    reads_protected = True

    def __init__(self, n_outputs: int, n_chans: int = 16, n_times: int = 2000, *, dropout: float = 0.2) -> None:
        super().__init__()
        self.tokenizer = TFMTokenizer().requires_grad_(False).eval()
        self.encoder = TFMEncoder(n_outputs, n_chans, n_times, dropout=dropout)
        self.config, self.n_tokens = self.encoder.config, self.encoder.n_tokens

    def train(self, mode: bool = True) -> TFM:
        """Training mode for the classifier; the tokenizer stays in evaluation mode."""
        super().train(mode)
        self.tokenizer.eval()
        return self

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, n_times) -> (B, n_outputs)"""
        check_window(x, self.encoder.cls_token, 200, most=self.encoder.max_chans)
        with torch.no_grad():
            ids = self.tokenizer(x)
            lost = ~torch.isfinite(x.sum((1, 2)))  # quantising would hide it
        logits: Tensor = self.encoder(ids)
        return logits.masked_fill(lost[:, None], torch.nan)
