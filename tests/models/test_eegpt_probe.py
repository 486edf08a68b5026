"""EEGPT's probe head: each step against a plain reference, freezing, the paper's corpora, files, exports."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import zipbrain
from zipbrain.errors import OptionError
from zipbrain.models import EEGPT, load_official
from zipbrain.models.eegpt_probe import Probe, ProbeFrontEnd, to_256_hertz, truncated_positions
from zipbrain.seams.find import find_chain

_EEGMAT = "FP1 FP2 F3 F4 F7 F8 T3 T4 C3 C4 T5 T6 P3 P4 O1 O2"
CORPORA = {  # channels, their places in EEGPT's table, samples at 200 Hz, classes, patches
    "ISRUC": (["F3", "C3", "O1", "F4", "C4", "O2"], None, 6000, 5, 120),
    "EarEEG": (["RB", "RT", "LB", "LT"], ["TP8", "T8", "TP7", "T7"], 6000, 6, 120),
    "EEGMAT": (_EEGMAT.split(), None, 800, 2, 16),
}


@pytest.fixture
def model() -> EEGPT:
    """A small probe with weights of a size that lets every step show."""
    torch.manual_seed(0)
    made = EEGPT(3, ["C3", "CZ", "C4", "O1", "O2"], 200, head="probe")
    with torch.no_grad():
        for parameter in made.trainable_parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return made.eval()


@pytest.fixture
def short(model: EEGPT) -> EEGPT:
    """The same, compressed, with two blocks and one decoder layer: capturing all of them takes a minute."""
    model.target_encoder.blocks = model.target_encoder.blocks[:2]
    assert isinstance(model.head, Probe)
    model.head.decoder.layers = model.head.decoder.layers[:1]
    zipbrain.compress(model, zipbrain.ZIPBrain(), r=2, layers=[1, 2])
    return model


@pytest.fixture
def x() -> Tensor:
    return torch.randn(2, 5, 200, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("corpus", CORPORA)
def test_the_papers_corpora_fit(corpus: str) -> None:
    names, places, n_times, classes, patches = CORPORA[corpus]
    model = EEGPT(classes, names, n_times, head="probe", places=places).eval()
    with torch.inference_mode():
        assert model.features(torch.randn(1, len(names), n_times)).shape == (1, patches, 4, 512)
        assert model(torch.randn(1, len(names), n_times)).shape == (1, classes)
    assert model.n_tokens == len(names)


def test_positions_have_the_official_whole_number_frequencies() -> None:
    expected = torch.zeros(7, 64)
    for position in range(7):
        for pair in range(32):
            frequency = int(1 / 10_000 ** (pair / 32))
            expected[position, 2 * pair] = math.sin(position * frequency)
            expected[position, 2 * pair + 1] = math.cos(position * frequency)
    torch.testing.assert_close(truncated_positions(7, 64, expected), expected, rtol=0, atol=1e-7)
    assert torch.equal(expected[:, 2:], torch.tensor([0.0, 1.0]).repeat(7, 31)), "all but the first pair are constant"


@pytest.mark.parametrize(
    ("sfreq", "n_times"), [(100, 3000), (200, 6000), (200, 800), (250, 1000), (256, 512), (500, 2000)]
)
def test_the_rate_changes_as_nearest_neighbour_interpolation_does(sfreq: int, n_times: int) -> None:
    x = torch.randn(2, 3, n_times)
    assert torch.equal(to_256_hertz(x, sfreq), F.interpolate(x, n_times * 256 // sfreq, mode="nearest"))


def test_the_front_end_ignores_what_all_channels_share() -> None:
    front, x = ProbeFrontEnd(4, 6, 200), torch.randn(2, 4, 400)
    assert front(x).shape == (2, 6, 512)
    torch.testing.assert_close(front(x + torch.randn(2, 1, 400)), front(x), rtol=1e-4, atol=1e-5)


def attend(query: Tensor, memory: Tensor, weights: dict[str, Tensor], name: str) -> Tensor:
    """Attention of four heads, one by one: (n, 64), (m, 64) -> (n, 64)"""
    matrices, biases = weights[f"{name}.in_proj_weight"].chunk(3), weights[f"{name}.in_proj_bias"].chunk(3)
    q, k, v = (F.linear(x, w, b) for x, w, b in zip((query, memory, memory), matrices, biases, strict=True))
    heads = []
    for head in range(4):
        part = slice(16 * head, 16 * head + 16)
        heads.append((q[:, part] @ k[:, part].T / 4).softmax(1) @ v[:, part])
    return F.linear(torch.cat(heads, 1), weights[f"{name}.out_proj.weight"], weights[f"{name}.out_proj.bias"])


def test_the_decoder_reads_its_first_tokens_in_every_layer(model: EEGPT) -> None:
    probe = model.head
    assert isinstance(probe, Probe)
    with torch.no_grad():
        probe.reduce.weight.mul_(3)
        probe.classify.weight.mul_(3)
    weights = {name: value.double() for name, value in probe.state_dict().items()}
    summary = torch.randn(1, 6, 2048)
    reduce = torch.renorm(weights["reduce.weight"], 2, 0, 1.0)
    assert not torch.equal(reduce, weights["reduce.weight"]), "the clipping must show"
    tokens = F.linear(summary[0].double(), reduce, weights["reduce.bias"]) + truncated_positions(6, 64, summary)
    tokens = memory = torch.cat((weights["cls_token"][0], tokens))
    for layer in range(4):
        own = {n.removeprefix(f"decoder.layers.{layer}."): w for n, w in weights.items()}

        def norm(x: Tensor, number: int, own: dict[str, Tensor] = own) -> Tensor:
            return F.layer_norm(x, (64,), own[f"norm{number}.weight"], own[f"norm{number}.bias"])

        tokens = norm(tokens + attend(tokens, tokens, own, "self_attn"), 1)
        tokens = norm(tokens + attend(tokens, memory, own, "multihead_attn"), 2)
        hidden = F.gelu(F.linear(tokens, own["linear1.weight"], own["linear1.bias"]))
        assert hidden.shape == (7, 256)
        tokens = norm(tokens + F.linear(hidden, own["linear2.weight"], own["linear2.bias"]), 3)
    classify = torch.renorm(weights["classify.weight"], 2, 0, 0.25)
    expected = F.linear(tokens[:1], classify, weights["classify.bias"])
    torch.testing.assert_close(probe(summary).double(), expected, rtol=1e-4, atol=1e-5)


def test_clipping_changes_no_parameter_and_holds_at_any_scale(model: EEGPT, x: Tensor) -> None:
    layers = {"front_end.mix": 1.0, "head.reduce": 1.0, "head.classify": 0.25}
    with torch.no_grad():
        for name, limit in layers.items():
            layer: Any = model.get_submodule(name)
            assert layer.max_norm == limit
            layer.weight.mul_(10 * limit / layer.weight.norm(dim=1, keepdim=True))  # every row is too long
        before = {name: value.clone() for name, value in model.state_dict().items()}
        clipped = model(x)
        assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
        for name in layers:
            model.get_submodule(name).weight.mul_(3)
        torch.testing.assert_close(model(x), clipped, rtol=1e-4, atol=1e-6)


def test_the_encoder_is_frozen_and_stays_in_evaluation_mode(model: EEGPT, x: Tensor) -> None:
    model.train()
    assert model.training
    assert model.head.training
    assert not any(part.training for part in model.target_encoder.modules())
    names = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert names == {name for name, _ in model.named_parameters() if not name.startswith("target_encoder.")}
    assert len(model.trainable_parameters()) == len(names)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    optimiser = torch.optim.AdamW(model.trainable_parameters(), lr=0.01)
    F.cross_entropy(model(x), torch.tensor([0, 2])).backward()
    optimiser.step()
    moved = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert moved == names, "the channel projection learns through the frozen encoder"


def test_the_encoder_can_be_thawed_and_a_flat_head_frozen(model: EEGPT) -> None:
    model.train()
    assert model.freeze(False) is model
    assert model.target_encoder.training
    assert len(model.trainable_parameters()) == len(list(model.parameters()))
    flat = EEGPT(2, ["C3", "C4"], 128)
    assert flat.target_encoder.training
    assert len(flat.freeze().trainable_parameters()) == 2
    assert not flat.target_encoder.training


def test_any_length_from_one_patch_is_read_to_its_last_whole_patch(model: EEGPT) -> None:
    x = torch.randn(1, 5, 340)  # 435 samples at 256 Hz: six patches and a tail
    assert model.features(x).shape[1] == 6
    other = x.clone()
    other[:, :, 300:] = 0
    assert torch.equal(model(x), model(other))
    assert model(x[:, :, :50]).shape == (1, 3)


def test_compression_pools_the_channels_of_the_encoder(model: EEGPT, x: Tensor) -> None:
    assert find_chain(model).path == "target_encoder.blocks"
    with torch.no_grad():
        plain = model(x)
        zipbrain.compress(model, zipbrain.ZIPBrain(), r=1)
        with zipbrain.trace(model) as trace:
            pooled = model(x)
        assert trace.token_counts == [5, 5, 4, 4, 3, 3, 2, 2, 1]
        assert not torch.equal(pooled, plain)
        zipbrain.restore(model)
        assert torch.equal(model(x), plain)


@pytest.mark.parametrize("compressed", [False, True])
def test_a_probe_comes_back_from_its_folder(compressed: bool, tmp_path: Path) -> None:
    model = EEGPT(
        4, ["left", "right"], 250, head="probe", places=["T7", "C3", "C4", "T8"], sfreq=250, dropout=0.1
    ).eval()
    if compressed:
        zipbrain.compress(model, zipbrain.ToMe(), r=1)
    x = torch.randn(2, 2, 250)
    again = zipbrain.from_pretrained(zipbrain.save_pretrained(model, tmp_path))
    assert isinstance(again, EEGPT)
    assert again.config == model.config
    assert again.frozen
    assert torch.equal(again(x), model(x))


def official(model: EEGPT) -> Iterator[tuple[str, Tensor]]:
    """A probe's tensors under the names and shapes of the official sleep script."""
    names = {
        "front_end.mix.": "chan_conv.", "head.reduce.": "linear_probe1.", "head.classify.": "linear_probe2.",
        "head.decoder.": "decoder.", "head.cls_token": "cls_token",
        "target_encoder.proj.": "target_encoder.patch_embed.proj.", "target_encoder.": "target_encoder.",
    }  # fmt: skip
    for name, value in model.state_dict().items():
        old = next(place for place in names if name.startswith(place))
        value = value[:, :, None] if name == "front_end.mix.weight" else value
        value = value[:, None, None] if name == "target_encoder.proj.weight" else value
        yield names[old] + name.removeprefix(old), value


def test_a_lightning_checkpoint_of_the_official_script_loads_whole(model: EEGPT, x: Tensor, tmp_path: Path) -> None:
    torch.save({"state_dict": dict(official(model)), "epoch": 39}, tmp_path / "epoch=39.ckpt")
    other = EEGPT(3, model.config["ch_names"], 200, head="probe").eval()
    report = load_official(other, tmp_path / "epoch=39.ckpt")
    assert not report.initial
    assert not report.skipped
    assert torch.equal(other(x), model(x))


def test_a_checkpoint_of_other_channels_and_classes_fills_the_rest(model: EEGPT) -> None:
    state = dict(official(model)) | {"predictor.mask_token": torch.zeros(1), "predictor.norm.bias": torch.zeros(4)}
    other = EEGPT(6, ["C3", "C4"], 200, head="probe")
    report = load_official(other, state)
    assert {*report.initial} == {
        "front_end.mix.weight",
        "front_end.mix.bias",
        "head.classify.weight",
        "head.classify.bias",
    }
    assert "another number of channels" in report.skipped["front_end.mix.weight"]
    assert "another number of classes" in report.skipped["head.classify.bias"]
    assert "skipped 2 tensors of predictor: the model has no such tensor" in str(report)
    flat = EEGPT(3, model.config["ch_names"], 256)
    assert {*load_official(flat, state).initial} == {"head.weight", "head.bias"}


def test_the_probe_is_one_graph_for_the_compiler(short: EEGPT, x: Tensor) -> None:
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(short, fullgraph=True, backend="aot_eager")(x), short(x))


@pytest.mark.slow
def test_an_exported_probe_agrees_at_any_batch_size(short: EEGPT, x: Tensor, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    file = str(tmp_path / "probe.onnx")
    shapes = ({0: torch.export.Dim("batch", min=1, max=64)},)
    torch.onnx.export(short, (x,), file, dynamo=True, dynamic_shapes=shapes, input_names=["x"], verbose=False)
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    for windows in (x, torch.randn(7, 5, 200), x[:1]):
        (found,) = session.run(None, {"x": windows.numpy()})
        with torch.no_grad():
            torch.testing.assert_close(torch.from_numpy(found), short(windows), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"head": "linear"}, r"head: got 'linear', but it must be 'flat' or 'probe'"),
        ({"head": "probe", "front_end": "tuab"}, r"front_end: got 'tuab', but head='probe' brings its own"),
        ({"places": ["C3"]}, r"places: got \['C3'\], but only head='probe'"),
        ({"sfreq": 200}, r"sfreq: got 200, but only head='probe'"),
        ({"head": "probe", "sfreq": 512.5}, r"sfreq: got 512.5, but it must be a whole number of hertz"),
        ({"head": "probe", "sfreq": 0}, r"sfreq: got 0"),
        ({"head": "probe", "sfreq": math.nan}, r"sfreq: got nan"),
        ({"head": "probe", "n_times": 49}, r"n_times: got 49, but it must be a whole number of at least 50"),
        ({"head": "probe", "places": ["A1"]}, r"ch_names: got 'A1', but EEGPT does not know it"),
        ({"head": "probe", "places": []}, r"EEGPT needs at least one channel"),
    ],
)  # fmt: skip
def test_options_that_do_not_go_together_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        EEGPT(2, ["C3", "C4"], **options)
