"""Other people's models with random weights, and what `compress` does with each: the rows of a table in the docs.

``python tests/zoo/zoo.py`` prints the table; ``make zoo`` makes the environment and runs the tests.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import zipbrain
from zipbrain import UnsupportedModel, ZIPBrain

_NAMES = "Fp1 Fp2 F3 F4 C3 C4 P3 P4 O1 O2 F7 F8 T7 T8 P7 P8 Fz Cz Pz"
NAMES = _NAMES.split()
os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing is downloaded


@dataclass(frozen=True)
class Entry:
    """One model: how it is made, what it is given, and what is expected of `compress`."""

    name: str
    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    dialect: str = ""
    tokens: int = 0
    protected: str = "none"
    note: str = ""
    kwargs: dict[str, Any] = field(default_factory=dict)
    vary: bool = True  # random norms and biases too; not for a model without norms, whose values would grow

    def input(self, batch: int = 2, seed: int = 0) -> Tensor:
        """Random windows."""
        return torch.randn(batch, *self.shape, generator=torch.Generator().manual_seed(seed))

    def run(self, model: nn.Module, x: Tensor) -> Tensor:
        """Logits, or the tokens of a model without a head."""
        out = model(x, **self.kwargs)
        for name in ("logits", "last_hidden_state"):
            out = getattr(out, name, out)
        return out


def made(entry: Entry, seed: int = 0) -> nn.Module:
    """The model in eval mode with every parameter random, so that no part can hide."""
    torch.manual_seed(seed)
    model = entry.make()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if not parameter.requires_grad or not entry.vary:
                continue  # a fixed table, or its own first values are wanted
            noise = torch.randn(parameter.shape, generator=generator)
            matrix = parameter.dim() > 1
            parameter.copy_(noise * parameter.shape[-1] ** -0.5 if matrix else 0.7 + 0.3 * noise)
    return model.eval()


def montage() -> list[dict[str, Any]]:
    """The 19 electrodes as MNE describes them."""
    import mne

    info = mne.create_info(NAMES, 200.0, "eeg")
    info.set_montage("standard_1020")
    return list(info["chs"])


def reve_positions() -> None:
    """Put electrode positions where REVE looks before it downloads them."""
    folder = Path(tempfile.mkdtemp())
    places = {channel["ch_name"]: [float(value) for value in channel["loc"][:3]] for channel in montage()}
    (folder / "reve_positions.json").write_text(json.dumps(places))
    os.environ["REVE_POSITIONS_PATH"] = str(folder)


def braindecode(kind: str, **options: Any) -> Callable[[], nn.Module]:
    """A maker of one of braindecode's classes."""

    def make() -> nn.Module:
        import braindecode.models

        if kind == "REVE":
            reve_positions()
        if options.pop("montage", False):
            options["chs_info"] = montage()
        return getattr(braindecode.models, kind)(n_outputs=3, **options)

    return make


def declare_torchvision() -> None:
    """Declare the operators that torchvision's native library, which is not there, would bring."""
    for name in ("nms", "qnms"):
        if not hasattr(torch.ops.torchvision, name):
            torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


def timm_vit() -> nn.Module:
    """A small ViT of timm."""
    declare_torchvision()
    import timm

    return timm.create_model("vit_tiny_patch16_224", num_classes=3, img_size=64, depth=4)


def hugging_face_vit() -> nn.Module:
    """A small ViT of transformers."""
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=64, num_hidden_layers=4, num_attention_heads=4, intermediate_size=128, image_size=64, patch_size=8
    )
    return ViTForImageClassification(config)


def torch_encoder() -> nn.Module:
    """PyTorch's own encoder."""
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    return nn.TransformerEncoder(layer, 4)


GRID = "tokens are put back into their places before the head"
ENTRIES = (
    Entry(
        "braindecode Labram", braindecode("Labram", n_chans=19, n_times=2000), (19, 2000), "timm-like", 190, "CLS",
        kwargs={"ch_names": NAMES},
    ),
    Entry(
        "braindecode BIOT", braindecode("BIOT", n_chans=16, n_times=2000, sfreq=200, hop_length=100), (16, 2000),
        "linear-attention-transformer", 304,
    ),
    Entry(
        "braindecode EEGPT", braindecode("EEGPT", montage=True, n_chans=19, n_times=512, chan_proj_type="none"),
        (19, 512), "timm-like", 19, "4 summary tokens at the end", "reduces at blocks 2, 4, 6, 8",
    ),
    Entry(
        "braindecode STEEGFormer", braindecode("STEEGFormer", n_chans=19, n_times=256), (19, 256), "residual pair", 304,
        "CLS",
    ),
    Entry("braindecode PBT", braindecode("PBT", n_chans=19, n_times=512), (19, 512), "patched transformer", 152, "CLS"),
    Entry(
        "braindecode BENDR", braindecode("BENDR", n_chans=20, n_times=3000), (20, 3000), "torch encoder layer", 32,
        "start token", "no layer drop in training", vary=False,
    ),
    Entry(
        "braindecode SignalJEPA", braindecode("SignalJEPA", montage=True, n_chans=19, n_times=512, sfreq=128),
        (19, 512), "torch encoder layer", 57, note="gives fewer tokens",
    ),
    Entry(
        "braindecode SignalJEPA_Contextual",
        braindecode("SignalJEPA_Contextual", montage=True, n_chans=19, n_times=512, sfreq=128), (19, 512),
        "torch encoder layer", 57, note=GRID,
    ),
    Entry(
        "braindecode EEGDINO", braindecode("EEGDINO", n_chans=19, n_times=1000), (19, 1000), "timm-like", 95,
        "1 global token from block 2 on", GRID,
    ),
    Entry(
        "braindecode LUNA", braindecode("LUNA", montage=True, n_chans=19, n_times=2000), (19, 2000), "rotary", 50,
        note="positions travel with the kept tokens",
    ),
    Entry(
        "braindecode REVE",
        braindecode("REVE", montage=True, n_chans=19, n_times=1000, sfreq=200, depth=4, embed_dim=64, heads=4),
        (19, 1000), "fused pair", 95, note=GRID,
    ),
    Entry(
        "braindecode REVE, attention pooling",
        braindecode(
            "REVE", montage=True, n_chans=19, n_times=1000, sfreq=200, depth=4, embed_dim=64, heads=4,
            attention_pooling=True,
        ),
        (19, 1000), "fused pair", 95, note=GRID,
    ),
    Entry(
        "braindecode EEGConformer", braindecode("EEGConformer", n_chans=19, n_times=1000), (19, 1000), "residual pair",
        61, note=GRID,
    ),
    Entry(
        "braindecode CBraMod", braindecode("CBraMod", n_chans=19, n_times=2000), (19, 2000), "criss-cross", 19,
        note="pools whole channels; the grid is put together again before the head",
    ),
    Entry("timm VisionTransformer", timm_vit, (3, 64, 64), "timm-like", 16, "CLS"),
    Entry("Hugging Face ViT (transformers 5)", hugging_face_vit, (3, 64, 64), "Hugging Face ViT", 64, "CLS"),
    Entry("torch nn.TransformerEncoder", torch_encoder, (40, 32), "torch encoder layer", 40, note="gives fewer tokens"),
)  # fmt: skip
IMPOSSIBLE = (
    Entry("braindecode MVPFormer", braindecode("MVPFormer", montage=True, n_chans=19, n_times=2000), (19, 2000)),
    Entry("braindecode ZUNA", braindecode("ZUNA", montage=True, n_chans=19, n_times=1024, sfreq=256), (19, 1024)),
    Entry("braindecode CodeBrain", braindecode("CodeBrain", n_chans=19, n_times=2000), (19, 2000)),
)


def row(entry: Entry) -> str:
    """What `compress` really does with a model, as a line of the table in the docs."""
    model = made(entry)
    try:
        zipbrain.compress(model, ZIPBrain(), ratio=0.8)
    except UnsupportedModel as refusal:
        reason = str(refusal).split(": ", 1)[1]
        return f"| {entry.name} | no: {reason} | | |"
    with torch.inference_mode(), zipbrain.trace(model) as trace:
        entry.run(model, entry.input())
    found = zipbrain.summary(model)
    works = "yes" if not entry.note else f"yes; {entry.note}"
    counts = f"{trace.token_counts[0]} to {trace.token_counts[-1]}"
    return f"| {entry.name} | {works} | {found.dialect}; protects {entry.protected} | {counts} |"


def table() -> str:
    """The table of docs/explanation/seams.md."""
    head = ["| model | compress | blocks found | tokens at ratio 0.8 |", "|---|---|---|---|"]
    return "\n".join(head + [row(entry) for entry in (*ENTRIES, *IMPOSSIBLE)])


if __name__ == "__main__":
    print(table())
