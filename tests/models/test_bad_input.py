"""Bad windows, bad options and bad files for all models: refused in one line, or harmless where that can be."""

from __future__ import annotations

import contextlib
import io
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import zipbrain
from zipbrain.errors import OptionError, ShapeError
from zipbrain.models import BIOT, EEGPT, TFM, LaBraM, TFMEncoder, TFMTokenizer, load_official, read_checkpoint

TWENTY_THREE = [f"channel {i}" for i in range(23)]
MODELS: dict[str, tuple[Callable[[], nn.Module], int, int]] = {  # how to make it, channels, samples
    "labram": (lambda: LaBraM(2, ["C3", "C4", "O1"], 400), 3, 400),
    "biot": (lambda: BIOT(2, 4, 400), 4, 400),
    "eegpt": (lambda: EEGPT(2, ["C3", "C4", "CZ", "O1", "O2"], 128), 5, 128),
    "eegpt-tuab": (lambda: EEGPT(2, TWENTY_THREE, 150, front_end="tuab"), 23, 150),
    "eegpt-tuev": (lambda: EEGPT(2, TWENTY_THREE, 128, front_end="tuev"), 23, 128),
    "eegpt-probe": (lambda: EEGPT(2, ["C3", "C4", "CZ", "O1", "O2"], 100, head="probe"), 5, 100),
    "tfm": (lambda: TFM(2, 4, 400), 4, 400),
}


@pytest.fixture(params=MODELS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def made(name: str, compressed: bool = False, batch: int = 3) -> tuple[nn.Module, Tensor]:
    """A model in evaluation mode, and windows for it."""
    make, channels, samples = MODELS[name]
    torch.manual_seed(0)
    model = make().eval()
    if compressed:
        zipbrain.compress(model, zipbrain.ZIPBrain(), r=1)
    return model, torch.randn(batch, channels, samples)


def refusal(model: nn.Module, x: Any) -> str:
    with pytest.raises(ShapeError) as refused:
        model(x)
    assert "\n" not in str(refused.value)
    return str(refused.value)


# --- windows ----------------------------------------------------------------------------------------------------------


def test_a_window_of_the_wrong_kind_is_refused_with_what_to_do(name: str) -> None:
    model, x = made(name)
    assert "got 'torch.int32', but it must be floating point: use x.to(torch.float32)" in refusal(model, x.int())
    assert "got 'torch.float64', but the model computes in torch.float32" in refusal(model, x.double())
    assert "got 'ndarray', but it must be a torch tensor" in refusal(model, x.numpy())
    assert f"got {tuple(x.shape[1:])}, but it must be (B, " in refusal(model, x[0])


def test_a_window_of_another_size_is_refused(name: str) -> None:
    model, x = made(name)
    assert "but it must be (B, " in refusal(model, x.repeat(1, 5, 1))
    assert "but it must be (B, " in refusal(model, x[:, :0])
    assert "n_times >= " in refusal(model, x[:, :, :40])
    assert "n_times >= " in refusal(model, x[:, :, :0])


def test_a_model_in_double_precision_takes_doubles_and_nothing_else(name: str) -> None:
    model, x = made(name)
    assert model.double()(x.double()).dtype == torch.float64
    assert "the model computes in torch.float64" in refusal(model, x)


def test_autocast_takes_floats_and_half_floats(name: str) -> None:
    model, x = made(name)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert torch.isfinite(model(x)).all()
        assert torch.isfinite(model(x.bfloat16())).all()


@pytest.mark.parametrize(("name", "extra"), [("biot", 99), ("tfm", 99), ("eegpt", 63), ("eegpt-probe", 49)])
def test_a_tail_shorter_than_a_step_is_not_read(name: str, extra: int) -> None:
    model, x = made(name)
    tail = torch.randn(*x.shape[:2], extra)
    with torch.no_grad():
        torch.testing.assert_close(model(torch.cat((x, tail), 2)), model(x))


def test_labram_refuses_a_part_of_a_second_and_a_flat_head_another_number_of_patches() -> None:
    model, x = made("labram")
    assert "n_times: got 399, but LaBraM reads whole seconds" in refusal(model, x[:, :, :399])
    assert "but it must be (B, 3, n_times)" in refusal(model, x.reshape(3, 3, 4, 100))
    model, x = made("eegpt")
    assert "the flat head reads 2 patches of 64 samples and not 3" in refusal(model, x.repeat(1, 1, 2)[:, :, :192])


def test_an_empty_batch_gives_an_empty_answer(name: str) -> None:
    model, x = made(name)
    assert model(x[:0]).shape == (0, 2)


@pytest.mark.parametrize("compressed", [False, True])
def test_gradients_reach_the_input_in_evaluation_mode(name: str, compressed: bool) -> None:
    model, x = made(name, compressed)
    x.requires_grad_()
    model(x).square().sum().backward()
    if name == "tfm":
        assert x.grad is None, "token ids are whole numbers"
        return
    assert x.grad is not None
    assert torch.isfinite(x.grad).all()
    assert x.grad.abs().sum((1, 2)).min() > 0, "every window has its own"


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("compressed", [False, True])
def test_nan_stays_in_its_own_window(name: str, compressed: bool, value: float) -> None:
    model, x = made(name, compressed)
    bad = x.clone()
    bad[1, 0, 7] = value
    with torch.inference_mode():
        expected, found = model(x), model(bad)
    assert torch.equal(found[[0, 2]], expected[[0, 2]])
    assert torch.isnan(found[1]).all(), "an answer would be made up"


# --- options ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LaBraM(0, ["C3"]), "n_outputs: got 0, but it must be a whole number of at least 1"),
        (lambda: LaBraM(2, ["C3"], 150), "n_times: got 150"),
        (lambda: LaBraM(2, ["C3"], size="giant"), "size: got 'giant', but it must be one of base, large, huge"),
        (lambda: BIOT(-1), "n_outputs: got -1"),
        (lambda: BIOT(2, 0), "n_chans: got 0"),
        (lambda: BIOT(2, 4, 100), "n_times: got 100, but it must be a whole number of at least 200"),
        (lambda: BIOT(2, 4, 400.0), "n_times: got 400.0"),
        (lambda: EEGPT(0, ["C3"]), "n_outputs: got 0"),
        (lambda: EEGPT(2, ["C3"], 63), "n_times: got 63, but it must be a whole number of at least 64"),
        (lambda: EEGPT(2, TWENTY_THREE, 77, front_end="tuab"), "n_times: got 77, but .* at least 78"),
        (lambda: TFM(2, 17), "n_chans: got 17, but it must be a whole number from 1 to 16"),
        (lambda: TFMEncoder(2, 16, 199), "n_times: got 199"),
        (lambda: TFMEncoder(True), "n_outputs: got True"),
    ],
)  # fmt: skip
def test_options_that_make_no_model_are_refused(make: Callable[[], nn.Module], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        make()


def test_token_ids_must_be_whole_numbers() -> None:
    assert "it must hold whole numbers" in refusal(TFMEncoder(2).eval(), torch.zeros(1, 2, 3))


@pytest.mark.parametrize(
    ("size", "depth", "width", "heads", "parameters"),
    [("base", 12, 200, 10, 5_820_338), ("large", 24, 400, 16, 46_259_522), ("huge", 48, 800, 16, 369_237_314)],
)
def test_labrams_sizes_are_the_official_ones(size: str, depth: int, width: int, heads: int, parameters: int) -> None:
    with torch.device("meta"):  # shapes without values: huge would take 1.5 GB
        model = LaBraM(2, ["C3", "C4"], 2000, size=size)
        assert model(torch.empty(3, 2, 2000)).shape == (3, 2)
        assert model.tokens(torch.empty(3, 2, 2000)).shape == (3, 21, width)
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters
    assert len(model.blocks) == depth
    block: Any = model.blocks[0]
    assert block.attn.num_heads == heads
    assert block.attn.q_norm.weight.shape == (width // heads,)
    assert block.mlp.fc1.weight.shape == (4 * width, width)


# --- checkpoints ------------------------------------------------------------------------------------------------------

LOADED: dict[str, tuple[Callable[[], nn.Module], dict[str, Tensor]]] = {  # with a tensor of each one's official file
    "labram": (lambda: LaBraM(2, ["C3"], 400), {"pos_embed": torch.zeros(1, 129, 200)}),
    "biot": (lambda: BIOT(2, 4), {"biot.patch_embedding.projection.weight": torch.zeros(256, 101)}),
    "eegpt": (lambda: EEGPT(2, ["C3"], 64), {"target_encoder.summary_token": torch.zeros(1, 4, 512)}),
    "eegpt-probe": (
        lambda: EEGPT(2, ["C3"], 64, head="probe"), {"target_encoder.summary_token": torch.zeros(1, 4, 512)}
    ),
    "tfm-encoder": (lambda: TFMEncoder(2), {"eeg_token_embedding.weight": torch.zeros(8193, 64)}),
    "tfm-tokenizer": (TFMTokenizer, {"quantizer.embedding.weight": torch.zeros(8192, 64)}),
}  # fmt: skip


def refused(model: nn.Module, source: Any) -> str:
    """The line with which a checkpoint is refused; the model must be as it was."""
    before = {key: value.clone() for key, value in model.state_dict().items()}
    with pytest.raises(OptionError, match="checkpoint: got") as error:
        load_official(model, source)
    assert "\n" not in str(error.value)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    return str(error.value)


@pytest.mark.parametrize("kind", LOADED)
def test_weights_that_can_not_be_are_refused(kind: str) -> None:
    make, state = LOADED[kind]
    model = make()
    load_official(model, state)
    ((key, value),) = state.items()
    assert "holds NaN or infinite values" in refused(model, {key: torch.full_like(value, torch.nan)})
    assert "holds NaN or infinite values" in refused(model, {key: torch.full_like(value, -torch.inf)})
    assert "is it of another size?" in refused(model, {key: torch.zeros(*value.shape[:-1], 2 * value.shape[-1])})
    assert "the model needs torch.float32" in refused(model, {key: value.to(torch.int8)})
    for odd in (value.to_sparse(), value.to("meta"), value.to(torch.complex64)):
        assert "save plain tensors" in refused(model, {key: odd})
    assert "no tensor of it belongs to" in refused(model, {})
    assert "no tensor of it belongs to" in refused(model, {"key": 3})


@pytest.mark.parametrize("kind", LOADED)
@pytest.mark.parametrize("other", LOADED)
def test_a_checkpoint_of_another_model_is_refused(kind: str, other: str) -> None:
    if kind.split("-probe")[0] != other.split("-probe")[0]:
        assert "no tensor of it belongs to" in refused(LOADED[kind][0](), LOADED[other][1])


def test_shapes_that_can_not_be_joined_are_refused() -> None:
    stack = "biot.transformer.layers.layers.0.0.fn."
    odd = {
        f"{stack}to_q.weight": torch.zeros(8, 8),
        f"{stack}to_k.weight": torch.zeros(8, 9),
        f"{stack}to_v.weight": torch.zeros(8, 8),
    }
    assert "its shapes are not those of BIOT" in refused(BIOT(2, 4), odd)
    assert "its shapes are not those of EEGPT" in refused(EEGPT(2, ["C3"], 64), {"chan_conv.3.weight": torch.zeros(20)})


def test_nan_in_a_tensor_that_is_not_used_is_harmless_and_every_tensor_is_accounted_for() -> None:
    state = LOADED["eegpt"][1] | {"reconstructor.mask_token": torch.tensor([torch.nan]), "norm.weight": torch.ones(2)}
    model = EEGPT(2, ["C3"], 64)
    report = load_official(model, state)
    assert report.loaded == ["target_encoder.summary_token"]
    assert {*report.skipped} == {"reconstructor.mask_token", "norm.weight"}
    assert {*report.loaded, *report.initial} == {*model.state_dict()}


def test_half_precision_weights_are_widened() -> None:
    model, values = BIOT(2, 4), torch.randn(256, 101).half()
    load_official(model, {"biot.patch_embedding.projection.weight": values})
    assert torch.equal(model.projection.weight, values.float())


class Call:
    """Pickles to a call of a function."""

    def __init__(self, *call: Any) -> None:
        self.call = call

    def __reduce__(self) -> Any:
        return self.call[0], self.call[1:]


@pytest.mark.parametrize("form", ["zip", "legacy", "bare pickle"])
def test_code_in_a_file_never_runs(form: str, tmp_path: Path) -> None:
    make, state = LOADED["biot"]
    file, trap = tmp_path / "weights.ckpt", tmp_path / "trap"
    code = Call(os.mkdir, str(trap))
    if form == "bare pickle":
        file.write_bytes(pickle.dumps({"state_dict": code}, protocol=2))
    else:
        torch.save({"state_dict": state | {"more": code}}, file, _use_new_zipfile_serialization=form == "zip")
    message = refused(make(), file)
    assert "not loaded" in message
    assert "mkdir" in message
    assert "weights_only" not in message, "no advice to load it unsafely"
    assert not trap.exists()


def test_files_cut_off_or_damaged_anywhere_are_refused_in_one_line(tmp_path: Path) -> None:
    state = {"biot.channel_tokens.weight": torch.randn(4, 8), "count": torch.tensor(3)}
    files = {"zip.pth": io.BytesIO(), "legacy.pth": io.BytesIO()}
    torch.save(state, files["zip.pth"])
    torch.save(state, files["legacy.pth"], _use_new_zipfile_serialization=False)
    save_file(state, tmp_path / "whole.safetensors")
    contents = {key: file.getvalue() for key, file in files.items()}
    contents["cut.safetensors"] = (tmp_path / "whole.safetensors").read_bytes()
    draw = np.random.default_rng(0)
    for key, content in contents.items():
        file = tmp_path / key
        for length in range(0, len(content), max(1, len(content) // 40)):
            file.write_bytes(content[:length])
            with pytest.raises(OptionError, match="checkpoint: got") as error:
                read_checkpoint(file)
            assert "\n" not in str(error.value)
        for _ in range(60):
            damaged = bytearray(content)
            for place in draw.integers(0, len(content), 4):
                damaged[place] = draw.integers(256)
            file.write_bytes(damaged)
            with contextlib.suppress(OptionError):  # damage in a value or a name can't be seen
                read_checkpoint(file)


def test_a_file_under_the_wrong_name_or_no_file_is_refused(tmp_path: Path) -> None:
    torch.save(LOADED["biot"][1], tmp_path / "model.safetensors")
    assert "it can't be read" in refused(BIOT(2, 4), tmp_path / "model.safetensors")
    assert "there is no such file" in refused(BIOT(2, 4), tmp_path)
    with pytest.raises(OptionError, match="model: got 'Linear'"):
        load_official(nn.Linear(2, 2), {})


def test_create_names_an_option_that_the_model_does_not_have_or_that_is_missing() -> None:
    with pytest.raises(OptionError, match=r"n_classes.*n_outputs"):
        zipbrain.models.create("biot", n_classes=2)
    with pytest.raises(OptionError, match="n_outputs"):
        zipbrain.models.create("biot")
