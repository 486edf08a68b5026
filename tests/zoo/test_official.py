"""The official classes of LaBraM, BIOT, EEGPT and TFM-Tokenizer as targets of `compress`.

Their repositories are not part of this one: set ZIPBRAIN_OFFICIAL to a folder with checkouts named LaBraM, BIOT, EEGPT
and TFM-Tokenizer, and run ``make zoo``.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import zipbrain
from zipbrain import ToMe, ZIPBrain
from zipbrain.models import BIOT, EEGPT, LaBraM, TFMEncoder, load_official
from zipbrain.models.eegpt import FRONT_CHANNELS

pytest.importorskip(
    "braindecode", reason="braindecode is not here: `make zoo` makes an environment with it", exc_type=ImportError
)

sys.path.insert(0, str(Path(__file__).parent))
from zoo import declare_torchvision

_NAMES = "FP1 FP2 F3 F4 C3 C4 P3 P4 O1 O2 F7 F8 T3 T4 T5 T6 A1 A2 FZ CZ PZ T1 T2"
NAMES = _NAMES.split()


def official(repository: str, file: str) -> Any:
    """A module of an official repository."""
    root = os.environ.get("ZIPBRAIN_OFFICIAL")
    path = Path(root or ".") / repository / file
    if root is None or not path.exists():
        pytest.skip(f"set ZIPBRAIN_OFFICIAL to a folder with a checkout of {repository} (looked for {file})")
    declare_torchvision()
    spec = importlib.util.spec_from_file_location(f"official_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)  # timm's registry looks there
    spec.loader.exec_module(module)
    return module


def labram() -> tuple[nn.Module, nn.Module, Any, Tensor]:
    module = official("LaBraM", "modeling_finetune.py")
    theirs = module.labram_base_patch200_200(num_classes=3, init_values=0.1)
    ours = LaBraM(3, NAMES, 1000)
    rows = [0, *(int(row) + 1 for row in ours_rows(NAMES))]
    return theirs, ours, lambda x: theirs(x.unflatten(2, (-1, 200)), input_chans=rows), torch.randn(2, 23, 1000)


def ours_rows(names: list[str]) -> list[int]:
    from zipbrain.channels import find_channels
    from zipbrain.models.labram import CHANNELS

    return find_channels(names, CHANNELS, "LaBraM")


def biot() -> tuple[nn.Module, nn.Module, Any, Tensor]:
    theirs = official("BIOT", "model/biot.py").BIOTClassifier(n_classes=3, n_channels=16, n_fft=200, hop_length=100)
    return theirs, BIOT(3, 16, 1000), theirs, torch.randn(2, 16, 1000)


def eegpt() -> tuple[nn.Module, nn.Module, Any, Tensor]:
    module = official("EEGPT", "downstream_tueg/Modules/models/EEGPT_mcae_finetune_change.py")
    theirs = module.EEGPTClassifier(
        num_classes=3, in_channels=23, img_size=[20, 2000], use_channels_names=list(FRONT_CHANNELS), use_chan_conv=True
    )
    return theirs, EEGPT(3, NAMES, 2000, front_end="tuab"), theirs, torch.randn(2, 23, 2000)


def tfm() -> tuple[nn.Module, nn.Module, Any, Tensor]:
    theirs = official("TFM-Tokenizer", "models/tfm_token.py").TFM_TOKEN_Classifier(
        emb_size=64, code_book_size=8192, num_heads=8, depth=4, max_seq_len=2048, n_classes=3
    )
    ids = torch.randint(0, 8192, (2, 16, 19), generator=torch.Generator().manual_seed(0))
    return theirs, TFMEncoder(3, 16), theirs, ids


@pytest.mark.parametrize("make", [labram, biot, eegpt, tfm])
@torch.no_grad()
def test_the_official_class_is_compressed_as_it_is(make: Any) -> None:
    torch.manual_seed(0)
    theirs, ours, run, x = make()
    for parameter in theirs.parameters():
        if parameter.requires_grad and parameter.dim() > 1:
            parameter.normal_(std=parameter.shape[-1] ** -0.5)
    theirs.eval()
    for _ in range(3):  # the official EEGPT clips its weights in place, until nothing is left to clip
        before = run(x)
    report = load_official(ours.eval(), theirs.state_dict())
    assert not report.initial, report
    for method in (ZIPBrain(), ZIPBrain("v", "k", "x", 0.2), ToMe()):
        zipbrain.compress(theirs, method, ratio=0.8)
        zipbrain.compress(ours, method, ratio=0.8)
        after, expected = run(x), ours(x)
        assert zipbrain.summary(theirs).leading == zipbrain.summary(ours).leading
        assert zipbrain.summary(theirs).trailing == zipbrain.summary(ours).trailing
        assert zipbrain.summary(theirs).tail == zipbrain.summary(ours).tail
        assert (zipbrain.summary(theirs).tail is None) == (make in (labram, biot))
        assert (after - expected).abs().max() <= 1e-5 * expected.abs().max().clamp_min(1.0)
        assert not torch.equal(after, before)
    zipbrain.restore(theirs)
    assert torch.equal(run(x), before)
