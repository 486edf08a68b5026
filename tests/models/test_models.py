"""Our models: golden vectors, token counts of the paper, channel names, checkpoints good and bad."""

from __future__ import annotations

import argparse
import csv
import os
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import conftest
import zipbrain
from golden import check
from zipbrain.channels import electrode, find_channels
from zipbrain.errors import OptionError, ShapeError
from zipbrain.models import BIOT, EEGPT, TFM, CBraMod, LaBraM, TFMEncoder, TFMTokenizer, create, load_official
from zipbrain.models.labram import CHANNELS

TEN_TWENTY = "FP1 FP2 F3 F4 C3 C4 P3 P4 O1 O2 F7 F8 T3 T4 T5 T6 A1 A2 FZ CZ PZ T1 T2"
TUAB = TEN_TWENTY.split()
SUBSET = Path(__file__).resolve().parents[1] / "golden"  # what lies in the repository
WINDOWS = {"TUAB": (23, 10), "TUEV": (23, 5), "ISRUC": (6, 30), "EarEEG": (4, 30), "EEGMAT": (16, 4)}


@pytest.mark.parametrize("name", ["labram", "biot", "eegpt", "tfm_tokenizer", "tfm_encoder", "cbramod"])
def test_plain_models_agree_with_the_official_ones(golden: Path, name: str) -> None:
    outcomes = check(golden / f"{name}.npz")
    assert [f"{o.case}: {o.fault} ({o.error:.1e})" for o in outcomes if o.fault] == []


@pytest.mark.parametrize("name", ["pooled_labram", "pooled_biot", "pooled_eegpt", "pooled_tfm"])
def test_pooled_models_agree_with_the_official_ones_at_every_block(golden: Path, name: str, path: str) -> None:
    outcomes = check(golden / f"{name}.npz")
    assert len(outcomes) >= (1 if golden == SUBSET else 4)
    assert [f"{o.case}: {o.fault} ({o.error:.1e})" for o in outcomes if o.fault] == []


def model_for(name: str, dataset: str) -> tuple[nn.Module, torch.Tensor]:
    """A model as the paper uses it on a dataset, and a window."""
    channels, seconds = WINDOWS[dataset]
    samples = 200 * seconds
    if name == "LaBraM":
        return LaBraM(2, TUAB[:channels], samples), torch.randn(1, channels, samples)
    if name == "EEGPT":
        if dataset in ("TUAB", "TUEV"):
            return EEGPT(2, TUAB, samples, front_end=dataset.lower()), torch.randn(1, 23, samples)
        names = [n for n in TUAB if n not in ("A1", "A2", "T1", "T2")][:channels]
        return EEGPT(2, names, samples, head="probe"), torch.randn(1, channels, samples)
    bipolar = min(channels, 16)
    if name == "BIOT":
        return BIOT(2, bipolar, samples), torch.randn(1, bipolar, samples)
    return TFM(2, bipolar, samples), torch.randn(1, bipolar, samples)


@pytest.mark.parametrize("name", ["LaBraM", "EEGPT", "BIOT", "TFM-Tokenizer"])
@pytest.mark.parametrize("dataset", WINDOWS)
def test_tokens_that_enter_the_first_block_are_the_papers(name: str, dataset: str) -> None:
    table = conftest.SHARED / "spec" / "tables" / "initial_tokens.csv"
    if not table.exists():
        pytest.skip(f"the paper's table was not found at {table}")
    with Path(table).open() as lines:
        row = next(r for r in csv.DictReader(lines) if (r["model"], r["dataset"]) == (name, dataset))
    model, x = model_for(name, dataset)
    model.eval()
    count, depth = int(row["paper_N"]), int(row["reductions_l"])
    for ratio in (0.2, 0.4, 0.6, 0.8, "max"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # EEGPT with few channels: a small ratio rounds to nothing
            zipbrain.compress(model, zipbrain.ZIPBrain.from_paper(name, dataset), ratio=ratio)
            with torch.inference_mode(), zipbrain.trace(model) as trace:
                assert model(x).shape == (1, 2)
        assert trace.token_counts[0] == count == model.n_tokens
        r = max(1, -(-count // depth) - 1) if ratio == "max" else int(row[f"r_{round(100 * ratio)}pct"])
        left, expected = count, [count]
        for block in range(1, len(trace.layers) + 1):
            left -= min(r, left - 1) if name != "EEGPT" or block % 2 == 0 else 0
            expected.append(left)
        assert trace.token_counts == expected
    assert trace.token_counts[-1] == int(row["tokens_left"])


def test_channel_names_in_any_order_case_and_decoration() -> None:
    assert [electrode(n) for n in ("EEG FP1-REF", "Fp1.", " fc5. ", "EEG T3-LE", "fp1-f7", "EEG A2-A1")] == [
        "FP1", "FP1", "FC5", "T3", "FP1-F7", "A2-A1",
    ]  # fmt: skip
    # LaBraM's table has T3 and T7 as different rows: the exact name first, the other only where it is missing.
    assert find_channels(["T3", "T7"], CHANNELS, "LaBraM") == [CHANNELS.index("T3"), CHANNELS.index("T7")]
    from zipbrain.models.eegpt import CHANNELS as EEGPT_CHANNELS

    assert find_channels(["EEG T3-REF"], EEGPT_CHANNELS, "EEGPT") == [EEGPT_CHANNELS.index("T7")]
    with pytest.raises(OptionError, match=r"ch_names: got 'FP9', but LaBraM does not know it: close ones are P9"):
        find_channels(["FP9"], CHANNELS, "LaBraM")
    with pytest.raises(OptionError, match=r"ch_names: got \[\], but LaBraM needs at least one channel"):
        find_channels([], CHANNELS, "LaBraM")
    with pytest.raises(OptionError, match="same electrode as 'T3'"):
        find_channels(["T3", "T7"], EEGPT_CHANNELS, "EEGPT")


def test_labram_does_not_care_about_the_order_of_channels() -> None:
    torch.manual_seed(0)
    model = LaBraM(2, ["C3", "O1", "FP1"], 400).eval()
    other = LaBraM(2, ["FP1", "C3", "O1"], 400).eval()
    other.load_state_dict(model.state_dict())
    x = torch.randn(2, 3, 400)
    torch.testing.assert_close(model.features(x), other.features(x[:, [2, 0, 1]]), rtol=1e-4, atol=1e-5)


def test_labram_takes_thirty_seconds_by_stretching_its_time_embedding(caplog: pytest.LogCaptureFixture) -> None:
    short, long = LaBraM(2, ["C3", "C4"], 2000), LaBraM(2, ["C3", "C4"], 6000)
    report = load_official(long, short.state_dict())
    assert "linear interpolation" in report.resized["time_embed"]
    assert torch.allclose(long.time_embed[0, [0, 29]], short.time_embed[0, [0, 15]], atol=1e-6)
    with caplog.at_level("WARNING", "zipbrain"):
        assert short.eval()(torch.randn(1, 2, 6000)).shape == (1, 2)
    assert "stretched from 16 to 30 s" in caplog.text


@pytest.mark.parametrize(
    ("make", "x", "message"),
    [
        (lambda: LaBraM(2, ["C3"], 400), torch.zeros(1, 2, 400), r"x: got \(1, 2, 400\), but it must be \(B, 1, n"),
        (lambda: LaBraM(2, ["C3"], 400), torch.zeros(1, 1, 450), r"n_times: got 450.*multiple of 200"),
        (lambda: CBraMod(2, 3, 400, depth=1), torch.zeros(1, 3, 450), r"n_times: got 450.*multiple of 200"),
        (lambda: CBraMod(2, 3, 400, depth=1), torch.zeros(1, 2, 400), r"it must be \(B, 3, n_times\)"),
        (lambda: LaBraM(2, ["C3"], 400), torch.zeros(1, 1, 400, dtype=torch.int64), r"x: got 'torch.int64'"),
        (lambda: BIOT(2, 4, 400), torch.zeros(1, 5, 400), r"C <= 4"),
        (lambda: BIOT(2, 4, 400), torch.zeros(1, 4, 150), r"n_times >= 200"),
        (lambda: BIOT(2, 4, 400), torch.zeros(1, 4, 400, dtype=torch.int32), r"floating point"),
        (lambda: EEGPT(2, ["C3", "C4"], 128), torch.zeros(1, 3, 128), r"\(B, 2, n_times\)"),
        (lambda: EEGPT(2, ["C3", "C4"], 128), torch.zeros(1, 2, 63), r"n_times >= 64"),
        (lambda: TFMTokenizer(), torch.zeros(1, 2, 100), r"n_times >= 200"),
        (lambda: TFMEncoder(2), torch.zeros(1, 17, 5, dtype=torch.int64), r"at most 16 channels"),
    ],
)  # fmt: skip
def test_a_window_that_does_not_fit_is_refused_by_name(make: Any, x: torch.Tensor, message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        make().eval()(x)


def test_models_are_made_by_name() -> None:
    assert isinstance(create("LaBraM", n_outputs=2, ch_names=["C3"], n_times=400), LaBraM)
    assert isinstance(create("tfm", n_outputs=2), TFM)
    with pytest.raises(OptionError, match="known models are labram"):
        create("bendr", n_outputs=2)


def small_labram() -> LaBraM:
    return LaBraM(2, ["C3", "C4"], 400)


def test_a_checkpoint_with_a_namespace_and_a_prefix_loads_and_reports(tmp_path: Path) -> None:
    other = LaBraM(4, ["C3", "C4"], 400)
    state = {f"student.{name}": value for name, value in other.state_dict().items()} | {"other.x": torch.zeros(1)}
    torch.save({"model": state, "args": argparse.Namespace(lr=1e-3), "epoch": 3}, tmp_path / "labram.pth")
    model = small_labram()
    before = model.head.weight.clone()
    report = load_official(model, tmp_path / "labram.pth")
    assert torch.equal(model.pos_embed, other.pos_embed)
    assert torch.equal(model.head.weight, before)
    assert set(report.initial) == {"head.weight", "head.bias"}
    assert "another number of classes" in report.skipped["head.weight"]
    assert "tensors loaded" in str(report)


def test_a_lightning_prefix_and_fewer_channels_load(tmp_path: Path) -> None:
    state = {
        "biot.patch_embedding.projection.weight": torch.randn(256, 101),
        "biot.channel_tokens.weight": torch.randn(18, 256),
    }
    torch.save({"state_dict": {f"model.{name}": value for name, value in state.items()}}, tmp_path / "biot.ckpt")
    model = BIOT(2, 6)
    report = load_official(model, tmp_path / "biot.ckpt")
    assert torch.equal(model.channel_tokens.weight, state["biot.channel_tokens.weight"][:6])
    assert "first 6 channels" in report.resized["channel_tokens.weight"]
    assert "blocks.0.norm1.weight" in report.initial


@pytest.mark.parametrize("layers", [0, 1, 2, 3])
def test_a_fine_tuned_cbramod_loads_and_its_head_too(layers: int) -> None:
    theirs = CBraMod(3, 4, 400, depth=1, head_layers=layers)
    places = {"blocks.0.spatial.qkv.": "backbone.encoder.layers.0.self_attn_s.in_proj_"}
    places |= {"blocks.0.spatial.proj.": "backbone.encoder.layers.0.self_attn_s.out_proj."}
    places |= {
        "embed.conv3.": "backbone.patch_embedding.proj_in.6.",
        "embed.norm1.": "backbone.patch_embedding.proj_in.1.",
    }
    places |= {"head.": "classifier.3." if layers == 0 else "classifier.1."} if layers < 2 else {}
    places |= {f"head.{3 * number}.": f"classifier.{1 + 3 * number}." for number in range(3)} if layers > 1 else {}
    state = {"backbone.patch_embedding.mask_encoding": torch.zeros(200)}
    for name, value in theirs.state_dict().items():
        if old := next((place for place in places if name.startswith(place)), None):
            state[places[old] + name.removeprefix(old)] = value
    model = CBraMod(3, 4, 400, depth=1, head_layers=layers)
    report = load_official(model, state)
    assert {*report.loaded} == {name for name in theirs.state_dict() if name.startswith(tuple(places))}
    assert [*report.skipped] == ["backbone.patch_embedding.mask_encoding"]
    assert all(torch.equal(model.state_dict()[name], theirs.state_dict()[name]) for name in report.loaded)
    other = load_official(CBraMod(5, 4, 400, depth=1, head_layers=layers), state)
    assert any("another number of classes" in why for why in other.skipped.values())


def test_cbramod_reads_whole_seconds_and_as_many_as_its_head() -> None:
    flat, mean = CBraMod(2, 3, 400, depth=1).eval(), CBraMod(2, 3, 400, depth=1, head_layers=0).eval()
    x = torch.randn(2, 3, 600)
    assert mean(x).shape == (2, 2)
    assert torch.equal(mean(x.unflatten(2, (-1, 200))), mean(x))
    with pytest.raises(ShapeError, match=r"n_times: got 600, but the head reads 2 seconds and not 3"):
        flat(x)


class Bomb:
    """Pickles to a call that would leave a file behind."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize(
    "kind", ["malicious", "cut", "text", "missing", "wrong model", "wrong width", "nan", "no mapping"]
)
def test_a_bad_checkpoint_is_refused_runs_nothing_and_changes_nothing(kind: str, tmp_path: Path) -> None:
    model, file, trap = small_labram(), tmp_path / "file.pth", tmp_path / "trap"
    good = model.state_dict()
    if kind == "malicious":
        torch.save({"model": good, "args": Bomb(trap)}, file)
    elif kind == "cut":
        torch.save(good, file)
        file.write_bytes(file.read_bytes()[:-5000])
    elif kind == "text":
        file.write_text("not a checkpoint")
    elif kind == "wrong model":
        torch.save({"biot.channel_tokens.weight": torch.zeros(18, 256)}, file)
    elif kind == "wrong width":
        torch.save({"pos_embed": torch.zeros(1, 129, 400)}, file)
    elif kind == "nan":
        torch.save(good | {"pos_embed": torch.full_like(good["pos_embed"], torch.nan)}, file)
    elif kind == "no mapping":
        torch.save([1, 2], file)
    before = {name: value.clone() for name, value in good.items()}
    with pytest.raises(OptionError, match="checkpoint: got") as refusal:
        load_official(model, file)
    assert "\n" not in str(refusal.value)
    assert not trap.exists()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_the_tokenizer_stays_in_evaluation_mode_and_frozen() -> None:
    model = TFM(2, 2, 400).train()
    assert not model.tokenizer.training
    assert model.encoder.training
    model(torch.randn(1, 2, 400)).sum().backward()
    assert all(p.grad is None for p in model.tokenizer.parameters())
    assert model.encoder.cls_token.grad is not None


def test_eegpts_clipping_is_functional() -> None:
    model = EEGPT(3, ["C3", "C4"], 128)
    with torch.no_grad():
        model.head.weight.mul_(100)
    before = model.head.weight.clone()
    model.eval()(torch.randn(1, 2, 128))
    assert torch.equal(model.head.weight, before)
    from zipbrain.models.max_norm import clip_rows

    expected = torch.renorm(before.detach(), 2, 0, 1.0)
    torch.testing.assert_close(clip_rows(before.detach(), 1.0), expected, rtol=1e-6, atol=0)
