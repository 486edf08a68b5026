"""Real windows of EEGMAT's test split for each model, and the models with weights that make their logits differ."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import conftest
from golden import formula
from seams.small_models import varied
from zipbrain.models import BIOT, EEGPT, TFM, LaBraM, load_official

MODELS = ("LaBraM", "EEGPT", "BIOT", "TFM-Tokenizer")  # EEGPT as the paper has it on this corpus: with the probe
RECORDINGS = tuple(f"Subject{subject}_{task}" for subject in range(31, 36) for task in (1, 2))

_ELECTRODES = "Fp1 Fp2 F3 F4 F7 F8 T3 T4 C3 C4 T5 T6 P3 P4 O1 O2"
_PAIRS = "Fp1-F7 F7-T3 T3-T5 T5-O1 Fp2-F8 F8-T4 T4-T6 T6-O2 Fp1-F3 F3-C3 C3-P3 P3-O1 Fp2-F4 F4-C4 C4-P4 P4-O2"
ELECTRODES, PAIRS = _ELECTRODES.split(), _PAIRS.split()

# Where the golden vectors list the tensors of each network under their official names: file, case.
_PARAMETERS = {
    "LaBraM": ("pooled_labram", "EEGMAT"),
    "EEGPT": ("pooled_eegpt", "ISRUC"),
    "BIOT": ("pooled_biot", "EEGMAT"),
    "tokenizer": ("tfm_tokenizer", "tuab"),
    "encoder": ("pooled_tfm", "EEGMAT"),
}
# What the official probe calls its parts.
_PROBE = {
    "front_end.mix.": "chan_conv.", "head.reduce.": "linear_probe1.", "head.decoder.": "decoder.",
    "head.cls_token": "cls_token", "head.classify.": "linear_probe2.",
}  # fmt: skip


def missing() -> str:
    """Why there are no real windows here; empty if there are."""
    for folder in (conftest.SHARED / "data" / "eegmat", conftest.SHARED / "golden"):
        if not folder.is_dir():
            return f"{folder} not found: set ZIPBRAIN_SHARED to the folder that holds data/eegmat and golden"
    return ""


@cache
def recording(name: str, bipolar: bool) -> np.ndarray:
    """29 windows of 4 s, 2 s apart, from second 2 to second 62: microvolt at 200 Hz, (29, 16, 800)."""
    import mne

    path = conftest.SHARED / "data" / "eegmat" / f"{name}.edf"
    raw = mne.io.read_raw_edf(path, preload=True, verbose="error")
    raw.rename_channels({channel: channel.removeprefix("EEG ") for channel in raw.ch_names})
    raw.pick(ELECTRODES).resample(200.0, verbose="error")
    if bipolar:
        anodes, cathodes = zip(*(pair.split("-") for pair in PAIRS), strict=True)
        raw = mne.set_bipolar_reference(raw, list(anodes), list(cathodes), verbose="error").pick(PAIRS)
    raw.crop(2, 62, include_tmax=False)
    epochs = mne.make_fixed_length_epochs(raw, 4, overlap=2, preload=True, verbose="error")
    values: np.ndarray = epochs.get_data(units="uV", verbose="error")
    assert epochs.ch_names == (PAIRS if bipolar else ELECTRODES)
    assert values.shape == (29, 16, 800)
    return values


def windows(model: str, recordings: tuple[str, ...] = RECORDINGS) -> Tensor:
    """What enters a model: (29 per recording, 16, 800), float32.

    LaBraM: microvolt / 100. EEGPT: every channel standardised. BIOT and TFM: bipolar, every channel divided by the
    95 % quantile of its absolute values.
    """
    bipolar = model in ("BIOT", "TFM-Tokenizer")
    x = np.concatenate([recording(name, bipolar) for name in recordings])
    if model == "LaBraM":
        x = x / 100
    elif bipolar:
        x = x / (np.quantile(np.abs(x), 0.95, axis=2, keepdims=True) + 1e-8)
    else:
        x = (x - x.mean(2, keepdims=True)) / x.std(2, keepdims=True)
    return torch.from_numpy(x).float()


def noise(count: int, seed: int = 0) -> Tensor:
    """Random windows in the shape of the real ones: (count, 16, 800)."""
    return torch.randn(count, 16, 800, generator=torch.Generator().manual_seed(seed))


def network(model: str, blocks: int | None = None) -> nn.Module:
    """Raw EEG -> 2 logits, in evaluation mode, if asked with its first blocks only.

    The weights follow the golden vectors' formula under official names; where those vectors are absent, a seed.
    """
    made = _build(model)
    if missing():
        varied(made)
    else:
        parts = {"tokenizer": made.tokenizer, "encoder": made.encoder} if isinstance(made, TFM) else {model: made}
        for name, part in parts.items():
            report = load_official(part, _official(name))
            assert report.initial == [], report
    if blocks is not None:
        owner, _, last = made.encoder_path.rpartition(".")
        inside = made.get_submodule(owner)
        setattr(inside, last, getattr(inside, last)[:blocks])
    return made.eval()


def _build(model: str) -> Any:
    if model == "LaBraM":
        return LaBraM(2, ELECTRODES, 800)
    if model == "EEGPT":
        return EEGPT(2, ELECTRODES, 800, head="probe")
    return BIOT(2, 16, 800) if model == "BIOT" else TFM(2, 16, 800)


@cache
def _official(name: str) -> dict[str, Tensor]:
    """Tensors under official names."""
    stem, case = _PARAMETERS[name]
    with np.load(conftest.SHARED / "golden" / f"{stem}.npz") as file:
        shapes: dict[str, Any] = json.loads(str(file[f"{case}/params"]))
        fill = formula(file)
    if name == "EEGPT":  # the vectors end before the head
        probe = EEGPT(2, ELECTRODES, 800, head="probe").state_dict()
        for ours, theirs in _PROBE.items():
            shapes |= {key.replace(ours, theirs): value.shape for key, value in probe.items() if key.startswith(ours)}
    return {key: torch.from_numpy(value) for key, value in fill(shapes).items()}
