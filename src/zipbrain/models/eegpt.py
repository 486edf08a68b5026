"""EEGPT (Wang et al., NeurIPS 2024): attention across channels inside each time patch, read from summary tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor, nn

from zipbrain.channels import find_channels
from zipbrain.errors import OptionError, ShapeError
from zipbrain.models.blocks import Block
from zipbrain.models.checks import check_option, check_rate, check_window
from zipbrain.models.eegpt_probe import RATE, Probe, ProbeFrontEnd
from zipbrain.models.max_norm import MaxNormLinear

_NAMES: Final = """
FP1 FPZ FP2 AF7 AF3 AF4 AF8 F7 F5 F3 F1 FZ F2 F4 F6 F8 FT7 FC5 FC3 FC1 FCZ FC2 FC4 FC6 FT8 T7 C5 C3 C1 CZ C2 C4 C6
T8 TP7 CP5 CP3 CP1 CPZ CP2 CP4 CP6 TP8 P7 P5 P3 P1 PZ P2 P4 P6 P8 PO7 PO5 PO3 POZ PO4 PO6 PO8 O1 OZ O2
"""
CHANNELS: Final = tuple(_NAMES.split())

PATCH: Final = 64  # samples

# The 20 places to which the front ends of TUAB and TUEV project 23 channels.
_FRONT_NAMES: Final = "FP1 FPZ FP2 F7 F3 FZ F4 F8 T7 C3 CZ C4 T8 P7 P3 PZ P4 P8 O1 O2"
FRONT_CHANNELS: Final = tuple(_FRONT_NAMES.split())


class Encoder(nn.Module):
    """The target encoder: patches of 64 samples, channel embedding, 4 summary tokens at the end, 8 blocks, norm."""

    rows: Tensor

    def __init__(
        self, ch_names: Sequence[str], dim: int = 512, heads: int = 8, depth: int = 8, summary: int = 4
    ) -> None:
        super().__init__()
        self.summary = summary
        self.register_buffer("rows", torch.tensor(find_channels(ch_names, CHANNELS, "EEGPT")), persistent=False)
        self.proj = nn.Linear(PATCH, dim)
        self.chan_embed = nn.Embedding(len(CHANNELS), dim)
        self.summary_token = nn.Parameter(torch.zeros(1, summary, dim))
        self.blocks = nn.ModuleList([Block(dim, heads, qkv_bias=True) for _ in range(depth)])
        self.norm = nn.LayerNorm(dim, eps=1e-6)
        nn.init.trunc_normal_(self.summary_token, std=0.02)

    def tokens(self, x: Tensor) -> Tensor:
        """(B, C, n_times) -> (B patches, C + 4, D): time patches go into the batch."""
        count = x.shape[2] // PATCH  # floored
        patches = x[:, :, : count * PATCH].reshape(x.shape[0], x.shape[1], count, PATCH)
        embedded = self.proj(patches).transpose(1, 2) + self.chan_embed(self.rows)  # (B, P, C, D)
        embedded = embedded.flatten(0, 1)
        return torch.cat((embedded, self.summary_token.expand(embedded.shape[0], -1, -1)), dim=1)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, n_times) -> (B, patches, 4, D)"""
        batch, count = x.shape[0], x.shape[2] // PATCH
        x = self.tokens(x)
        for block in self.blocks:
            x = block(x)
        summary: Tensor = self.norm(x[:, -self.summary :])
        return summary.reshape(batch, count, self.summary, summary.shape[2])


class FrontEnd(nn.Module):
    """23 channels -> 20: clipped 1x1 projection, BatchNorm, GELU, depthwise convolution in time, BatchNorm, Dropout.

    TUAB: convolution of width 15 without padding and a second GELU. TUEV: width 55, same length, no second GELU.
    """

    def __init__(self, n_chans: int, kind: str) -> None:
        super().__init__()
        width, padding = (15, 0) if kind == "tuab" else (55, 27)
        self.mix = MaxNormLinear(n_chans, 20, 1.0)
        self.norm1 = nn.BatchNorm1d(20)
        self.conv = nn.Conv1d(20, 20, width, groups=20, padding=padding)
        self.norm2 = nn.BatchNorm1d(20)
        self.last = nn.GELU() if kind == "tuab" else nn.Identity()
        self.drop = nn.Dropout(0.25 if kind == "tuab" else 0.8)

    def forward(self, x: Tensor) -> Tensor:
        """(B, 23, n_times) -> (B, 20, n_times or n_times - 14)"""
        x = self.mix(x.transpose(1, 2)).transpose(1, 2)
        x = self.conv(nn.functional.gelu(self.norm1(x)))
        out: Tensor = self.drop(self.last(self.norm2(x)))
        return out


class EEGPT(nn.Module):
    """EEGPT classifier: optional front end, encoder, and a flat head on all summary tokens or a probe.

    Parameters
    ----------
    n_outputs : int
        Number of logits.
    ch_names : sequence of str
        Channels of a window. Where a front end or `places` follow, only their number counts.
    n_times : int
        Samples of a window; the probe takes any other length as well.
    front_end : {"tuab", "tuev"}, optional
        Project the channels to 20 places first, as the official scripts for these corpora do.
    head : {"flat", "probe"}
        ``"flat"``: one linear layer on the summary tokens of all patches (TUAB, TUEV). ``"probe"``: the official sleep
        script, which the paper uses on ISRUC, EarEEG and EEGMAT. The mean over channels is subtracted, the window
        brought to 256 Hz by repeating samples, a channel projection learned, the encoder frozen (see `freeze`), and a
        small transformer decoder reads the patches.
    places : sequence of str, optional
        Probe only: the encoder's channels to which the window's are projected; `ch_names` if not given.
    sfreq : int, optional
        Probe only: sampling rate of a window in whole hertz; 200 if not given.
    dropout : float, optional
        Before the head; 0.5 (TUEV: 0.8) if not given.

    Notes
    -----
    Input: (B, C, n_times), microvolt / 100; for the probe z-scored per window and channel, as its script does.
    Attention runs across channels inside each patch of 64 samples, so the tokens to pool are the channels, and a window
    of P patches counts as P windows. Samples after the last whole patch are not read.
    """

    encoder_path = "target_encoder.blocks"
    prefix_tokens = 0
    suffix_tokens = 4
    reads_protected = True  # the head reads the summary tokens only
    batch_fold = "window"  # patches of a window follow each other in the batch
    reduce_at = (2, 4, 6, 8)

    def __init__(
        self,
        n_outputs: int,
        ch_names: Sequence[str],
        n_times: int = 2000,
        *,
        front_end: str | None = None,
        head: str = "flat",
        places: Sequence[str] | None = None,
        sfreq: float | None = None,
        dropout: float | None = None,
    ) -> None:
        super().__init__()
        probe = _check_options(front_end, head, places, sfreq)
        rate = int(sfreq or 200)
        self.shortest = -(-PATCH * rate // RATE) if probe else PATCH + 14 * (front_end == "tuab")
        check_option("n_outputs", n_outputs)
        check_option("n_times", n_times, self.shortest)
        if dropout is not None:
            check_rate("dropout", dropout)
        shape = {"n_outputs": n_outputs, "ch_names": list(ch_names), "n_times": n_times, "front_end": front_end}
        named = {"head": head, "places": None if places is None else list(places)}
        self.config: dict[str, Any] = {**shape, **named, "sfreq": sfreq, "dropout": dropout}
        self.frozen, self.n_chans = False, len(ch_names)
        names = FRONT_CHANNELS if front_end is not None else places if places is not None else ch_names
        self.target_encoder = Encoder(names)
        self.n_tokens = len(names)
        self.head_drop = nn.Dropout(dropout if dropout is not None else 0.8 if front_end == "tuev" else 0.5)
        self.front_end: nn.Module | None = None
        self.patches: int | None = None
        self.head: nn.Module
        if probe:
            self.front_end = ProbeFrontEnd(self.n_chans, self.n_tokens, rate)
            self.head = Probe(n_outputs)
            self.freeze()
            return
        if front_end is not None:
            self.front_end = FrontEnd(self.n_chans, front_end)
        self.patches = (n_times - 14 if front_end == "tuab" else n_times) // PATCH
        self.head = MaxNormLinear(self.patches * 4 * 512, n_outputs, 1.0)

    def freeze(self, frozen: bool = True) -> EEGPT:
        """Freeze the encoder, or thaw it with ``freeze(False)``. A probe starts frozen.

        A frozen encoder's parameters ask for no gradient, and `train` leaves it in evaluation mode; gradients still
        pass through it to the front end. What is left to train: `trainable_parameters`.
        """
        self.frozen = frozen
        self.target_encoder.requires_grad_(not frozen)
        return self.train(self.training)

    def trainable_parameters(self) -> list[nn.Parameter]:
        """The parameters for the optimiser: all but a frozen encoder's."""
        return [parameter for parameter in self.parameters() if parameter.requires_grad]

    def train(self, mode: bool = True) -> EEGPT:
        """Training mode, or evaluation mode, for all but a frozen encoder, which stays in evaluation mode."""
        super().train(mode)
        if self.frozen:
            self.target_encoder.eval()
        return self

    def features(self, x: Tensor) -> Tensor:
        """Summary tokens of all patches: (B, patches, 4, D). Any length from one patch is fine."""
        check_window(x, self.target_encoder.summary_token, self.shortest, channels=self.n_chans)
        summary: Tensor = self.target_encoder(x if self.front_end is None else self.front_end(x))
        return summary

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, n_times) -> (B, n_outputs)"""
        summary = self.features(x)
        if self.patches is not None and summary.shape[1] != self.patches:
            needed = f"the flat head reads {self.patches} patches of {PATCH} samples and not {summary.shape[1]}"
            raise ShapeError("x", tuple(x.shape), f"{needed}: make the model with this n_times")
        summary = self.head_drop(summary).flatten(2)  # (B, patches, 4 D)
        logits: Tensor = self.head(summary if self.patches is None else summary.flatten(1))
        return logits


def _check_options(front_end: str | None, head: str, places: object, sfreq: float | None) -> bool:
    """Refuse options that do not go together; say whether the head is a probe."""
    if front_end not in (None, "tuab", "tuev"):
        raise OptionError("front_end", front_end, "it must be 'tuab', 'tuev' or None")
    if head not in ("flat", "probe"):
        raise OptionError("head", head, "it must be 'flat' or 'probe'")
    if head == "flat":
        for name, value in (("places", places), ("sfreq", sfreq)):
            if value is not None:
                raise OptionError(name, value, "only head='probe' projects channels and changes the sampling rate")
        return False
    if front_end is not None:
        raise OptionError("front_end", front_end, "head='probe' brings its own channel projection")
    if sfreq is not None and not (sfreq >= 1 and float(sfreq).is_integer()):
        raise OptionError("sfreq", sfreq, "it must be a whole number of hertz, such as 200")
    return True
