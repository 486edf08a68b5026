"""The loop: exact resume, accumulation, freezing, stopping, and how it fails."""

from __future__ import annotations

import copy
import csv
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import zipbrain
from data import tiny_corpora
from training.small import BIOT, tiny_settings, windows
from zipbrain.data import convention, open_prepared, prepare
from zipbrain.data.windows import Windows
from zipbrain.errors import OptionError
from zipbrain.models import BIOT as Biot
from zipbrain.models import Task, task_of
from zipbrain.training import (
    Feed,
    Finetuned,
    Step,
    TrainingFailed,
    TrainingResult,
    checkpoints,
    finetune,
    loop,
    paper_settings,
    predict,
    train,
)  # fmt: skip
from zipbrain.training.checkpoints import last_checkpoint, load_checkpoint, save_checkpoint, weights_of
from zipbrain.training.finetune import classification_loss
from zipbrain.training.loader import scaling_of

CPU = torch.device("cpu")


def run(out: Path | None = None, **options: Any) -> Finetuned:
    chosen = options.pop("settings", tiny_settings())
    return finetune("biot", windows(), windows(20, seed=1), settings=chosen, out=out, device="cpu", **options)


def equal(a: nn.Module, b: nn.Module) -> bool:
    one, other = a.state_dict(), b.state_dict()
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Finetuned:
    return run(tmp_path_factory.mktemp("unbroken") / "run")


def test_it_learns_and_leaves_a_folder_that_tells_all(unbroken: Finetuned) -> None:
    folder, record = unbroken.folder, unbroken.record
    assert folder is not None
    history = unbroken.outcome.history
    assert [line["epoch"] for line in history] == [1, 2, 3, 4]
    assert history[-1]["loss"] < history[0]["loss"]
    assert max(line["val_auroc"] for line in history) == unbroken.outcome.best_score
    assert unbroken.outcome.best_score is not None
    assert unbroken.outcome.best_score > 0.9
    assert record == json.loads((folder / "run.json").read_text())
    assert (record["settings"], record["finished"], record["seed"]) == ("scratch", True, 0)
    assert record["recipe"]["changed"]
    assert record["versions"]["torch"] == torch.__version__
    assert len(record["weights_sha256"]) == len(record["train"]["fingerprint"]) == 64
    with (folder / "log.csv").open() as lines:
        assert [float(row["loss"]) for row in csv.DictReader(lines)] == [line["loss"] for line in history]
    assert equal(zipbrain.from_pretrained(folder / "model"), unbroken.model)
    train = record["train"]
    assert task_of(zipbrain.from_pretrained(folder / "model")) == Task(
        tuple(train["classes"]), train["name"], tuple(train["ch_names"]), train["sfreq"], record["scaling"]
    )
    assert [path.name for path in (folder / "checkpoints").iterdir()] == ["epoch-00004"]
    weights, _, state = load_checkpoint(folder)  # safetensors, and torch.load with weights_only=True
    assert state["epoch"] == 4
    assert set(weights) == set(unbroken.model.state_dict())


def test_the_same_seed_gives_the_same_weights_and_another_does_not(unbroken: Finetuned) -> None:
    before = torch.get_rng_state()
    assert equal(run().model, unbroken.model)
    assert torch.equal(torch.get_rng_state(), before)
    assert not equal(run(settings=tiny_settings(seed=1)).model, unbroken.model)


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
@pytest.mark.parametrize("where", [(1, 1), (2, 2), (4, 1)])
def test_a_run_stopped_in_the_middle_resumes_to_the_same_bits(
    unbroken: Finetuned, tmp_path: Path, where: tuple[int, int], error: type[BaseException]
) -> None:
    def stop(step: Step) -> None:
        if (step.epoch, step.step) == where:
            raise error

    with pytest.raises(error):
        run(tmp_path / "run", on_step=stop)
    assert last_checkpoint(tmp_path / "run") is not None
    assert json.loads((tmp_path / "run" / "run.json").read_text())["finished"] is False
    resumed = run(tmp_path / "run", resume=True)
    assert equal(resumed.model, unbroken.model)
    without = [{k: v for k, v in line.items() if k != "seconds"} for line in resumed.outcome.history]
    assert without == [{k: v for k, v in line.items() if k != "seconds"} for line in unbroken.outcome.history]
    assert resumed.record["weights_sha256"] == unbroken.record["weights_sha256"]


def test_a_run_killed_between_its_last_checkpoint_and_its_log_row_gets_the_row_back(
    unbroken: Finetuned, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "write_log", _fail_at(4, checkpoints.write_log))
        with pytest.raises(KeyboardInterrupt):
            run(out)
    (out / "checkpoints" / "epoch-00003").mkdir()  # half removed when the kill came
    (out / "checkpoints" / ".writing-0123abcd").mkdir()
    assert len((out / "log.csv").read_text().splitlines()) == 1 + 3
    resumed = run(out, resume=True)
    with (out / "log.csv").open() as lines:
        assert [float(row["loss"]) for row in csv.DictReader(lines)] == [
            line["loss"] for line in unbroken.outcome.history
        ]
    assert equal(resumed.model, unbroken.model)
    assert [path.name for path in (out / "checkpoints").iterdir()] == ["epoch-00004"]


def _fail_at(call: int, function: Any) -> Any:
    """The function, which raises KeyboardInterrupt at its nth call."""
    count = [0]

    def wrapped(*arguments: Any) -> Any:
        count[0] += 1
        if count[0] == call:
            raise KeyboardInterrupt
        return function(*arguments)

    return wrapped


def test_a_run_killed_before_its_record_was_written_can_be_started(tmp_path: Path) -> None:
    out = tmp_path / "run"
    out.mkdir()
    (out / ".run.json.0123abcd.part").write_text("{")
    run(out, settings=tiny_settings(epochs=1))
    assert {path.name for path in out.iterdir()} == {"run.json", "log.csv", "model", "checkpoints"}


def test_a_run_without_a_checkpoint_does_not_block_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "run"
    with monkeypatch.context() as broken:
        broken.setattr(loop, "rates", _fail_at(1, loop.rates))
        with pytest.raises(KeyboardInterrupt):
            run(out)
    assert [path.name for path in out.iterdir()] == ["run.json"]
    run(out, settings=tiny_settings(epochs=1, lr=1e-3))
    assert json.loads((out / "run.json").read_text())["recipe"]["lr"] == 1e-3
    shutil.rmtree(out / "checkpoints")
    for left in ("model", "log.csv", None):  # a finished run is never overwritten
        with pytest.raises(OptionError, match="it holds a run already"):
            run(out)
        if left == "model":
            shutil.rmtree(out / left)
        elif left is not None:
            (out / left).unlink()


KILLED = """
import sys, time, torch
torch.set_num_threads(1)
from pathlib import Path
from training.small import tiny_settings, windows
from zipbrain.training import finetune
finetune("biot", windows(), windows(20, seed=1), settings=tiny_settings(), out=Path(sys.argv[1]), device="cpu",
         on_step=lambda step: time.sleep(0.3 if step.epoch == 3 else 0))
"""


def test_a_killed_process_resumes_to_the_same_bits(unbroken: Finetuned, tmp_path: Path) -> None:
    out = tmp_path / "run"
    path = os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(out)], env={**os.environ, "PYTHONPATH": path})
    limit = time.monotonic() + 120
    while not (out / "checkpoints" / "epoch-00002").exists():
        assert process.poll() is None, "it ended before it could be killed"
        assert time.monotonic() < limit
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert (out / "checkpoints" / "epoch-00002").exists()
    assert equal(run(out, resume=True).model, unbroken.model)


def test_a_finished_run_can_be_resumed_without_training(unbroken: Finetuned) -> None:
    def never(_: Step) -> None:
        raise AssertionError("it trained")

    again = run(unbroken.folder, resume=True, on_step=never)
    assert equal(again.model, unbroken.model)


def test_what_does_not_belong_together_is_refused(unbroken: Finetuned, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="it holds a run already"):
        run(unbroken.folder)
    with pytest.raises(OptionError, match=r"another settings: lr 0.1 instead of 0.002"):
        run(unbroken.folder, resume=True, settings=tiny_settings(lr=0.1))
    with pytest.raises(OptionError, match="another train: windows 30 instead of 40"):
        finetune("biot", windows(30), windows(20, seed=1), settings=tiny_settings(), out=unbroken.folder, resume=True)
    (tmp_path / "letter.txt").write_text("dear reader")
    with pytest.raises(OptionError, match="not empty and holds no run"):
        run(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["letter.txt"]
    with pytest.raises(OptionError, match="resume: got True"):
        run(None, resume=True)
    with pytest.raises(OptionError, match="it holds no run to resume"):
        run(tmp_path / "none", resume=True)
    assert not (tmp_path / "none").exists()
    with pytest.raises(OptionError, match="it is a file"):
        run(tmp_path / "letter.txt")
    shifted = windows(20, seed=1)
    shifted.ch_names = ("C4", "C3", "O1")
    faster = windows(20, seed=1)
    faster.sfreq = 256.0
    for other, words in (
        (windows(classes=3), r"classes of validation: got \('class 0', 'class 1', 'class 2'\)"),
        (shifted, "validation: got 'channels C4, C3, O1', but the training windows have C3, .*in another order"),
        (faster, "sfreq of validation: got 256.0"),
        (windows(20, seconds=3), "n_times of validation: got 600, but the training windows have 400"),
    ):
        with pytest.raises(OptionError, match=words):
            finetune("biot", windows(), other, settings=tiny_settings(), device="cpu")
    with pytest.raises(OptionError, match="device: got 'tpu'"):
        finetune("biot", windows(), settings=tiny_settings(), device="tpu")
    with pytest.raises(OptionError, match="settings: got 'BIOT', but the model is labram"):
        finetune("labram", windows(), settings=tiny_settings())


def test_validation_windows_may_have_their_classes_in_another_order() -> None:
    given = windows(20, seed=1)
    swapped = given.reorder(given.classes[::-1])
    assert swapped.classes != given.classes
    one, two = (
        finetune("biot", windows(), validation, settings=tiny_settings(epochs=1), device="cpu").outcome.history
        for validation in (given, swapped)
    )
    assert one[0]["val_loss"] == two[0]["val_loss"]


def test_a_broken_checkpoint_is_refused_in_one_line(tmp_path: Path) -> None:
    result = run(tmp_path / "run", settings=tiny_settings(epochs=1))
    assert result.folder is not None
    path = last_checkpoint(result.folder)
    assert path is not None
    (path / "state.pt").write_bytes(b"no state")
    with pytest.raises(OptionError, match="this checkpoint can't be read"):
        run(result.folder, resume=True, settings=tiny_settings(epochs=1))


def test_a_checkpoint_is_what_was_written_or_refused(tmp_path: Path) -> None:
    result = run(tmp_path / "run", settings=tiny_settings(epochs=1))
    assert result.folder is not None
    path = last_checkpoint(result.folder)
    assert path is not None
    whole = load_checkpoint(result.folder)
    for name in ("weights.safetensors", "state.pt"):
        before = (path / name).read_bytes()
        for place in np.linspace(0, len(before) - 1, 12, dtype=int):
            content = bytearray(before)
            content[place] ^= 16
            (path / name).write_bytes(content)
            with pytest.raises(OptionError, match=rf"{name} is not what was written .its hash differs"):
                load_checkpoint(result.folder)
        (path / name).write_bytes(before)
    (path / "sha256.json").unlink()  # as checkpoints were before they had hashes
    again = load_checkpoint(result.folder)
    assert all(torch.equal(again[0][name], value) for name, value in whole[0].items())
    content = bytearray((path / "state.pt").read_bytes())
    content[len(content) // 2] ^= 16
    (path / "state.pt").write_bytes(content)
    with pytest.raises(OptionError, match="this checkpoint can't be read"):
        load_checkpoint(result.folder)


def model_and_feed(data: Windows, place: str = "memory") -> tuple[nn.Module, Feed]:
    torch.manual_seed(0)
    return Biot(len(data.classes), 3, 400, dropout=0.0, **BIOT), Feed(data, "q95", CPU, place)


def without_dropout(model: nn.Module) -> nn.Module:
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    return model


@pytest.mark.parametrize("size", [1, 3, 16, 100])
def test_small_passes_add_up_to_the_whole_batch(size: int) -> None:
    data = windows(40, classes=3)
    chosen = tiny_settings(dropout=0.0, epochs=2, drop_last=False)
    states = []
    for micro_batch in (None, size):
        model, feed = model_and_feed(data)
        train(without_dropout(model), feed, chosen, classification_loss(chosen, 3), micro_batch=micro_batch)
        states.append(model.state_dict())
    for name in states[0]:
        torch.testing.assert_close(states[0][name], states[1][name], rtol=1e-4, atol=1e-5)


def test_windows_in_memory_and_on_disk_train_alike() -> None:
    chosen, states = tiny_settings(epochs=2), []
    for place in ("memory", "disk", "device"):
        model, feed = model_and_feed(windows(40, classes=3), place)
        train(model, feed, chosen, classification_loss(chosen, 3))
        states.append(weights_of(model))
    assert all(torch.equal(states[0][name], other[name]) for other in states[1:] for name in states[0])


def test_the_loop_is_plain_adamw_on_shuffled_batches() -> None:
    """A twin of a few lines: same order, same rates, same loss, same weights."""
    data = windows(40, classes=3)
    chosen = tiny_settings(dropout=0.0, epochs=2, warmup_epochs=0, schedule="constant", grad_clip=None, decay_all=True)
    model, feed = model_and_feed(data)
    twin = without_dropout(copy.deepcopy(model))
    train(without_dropout(model), feed, chosen, classification_loss(chosen, 3))
    optimizer = torch.optim.AdamW(twin.parameters(), lr=2e-3, weight_decay=0.05)
    assert feed.stored is not None
    for epoch in range(2):
        order = torch.from_numpy(np.random.default_rng([0, epoch]).permutation(40))
        for part in order[:32].split(16):
            loss = nn.functional.cross_entropy(twin(feed.stored[part]), feed.labels[part], label_smoothing=0.1)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    for name, value in twin.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], value, rtol=1e-4, atol=1e-6)


def test_an_encoder_that_is_frozen_stays_as_it_was() -> None:
    chosen = paper_settings("eegpt", "eegmat").override(epochs=1, batch_size=8, warmup_epochs=0)
    data = windows(8, channels=2, seconds=1)
    one, other = (finetune("eegpt", data, settings=chosen.override(lr=lr), device="cpu").model for lr in (1e-2, 0.0))
    before, after = other.state_dict(), one.state_dict()
    moved = {name.split(".")[0] for name in after if not torch.equal(after[name], before[name])}
    assert moved == {"front_end", "head"}


@pytest.mark.parametrize("bad", ["window", "rate"])
def test_a_loss_that_is_not_finite_names_epoch_and_step(bad: str, tmp_path: Path) -> None:
    data = windows()
    if bad == "window":
        x = data.take(slice(None))
        x[7, 0, 5] = np.nan
        data = Windows.from_arrays(x, data.labels, ch_names=data.ch_names, sfreq=200, classes=data.classes)
    chosen = tiny_settings(lr=1e30 if bad == "rate" else 1e-3, warmup_epochs=0, grad_clip=None, drop_last=False)
    with pytest.raises(TrainingFailed, match=r"the loss became \S+ in epoch 1, step \d+: lower lr") as failure:
        finetune("biot", data, settings=chosen, out=tmp_path / "run", device="cpu")
    order = np.random.default_rng([0, 0]).permutation(40)
    if bad == "window":
        assert f"step {int(np.flatnonzero(order == 7)[0]) // 16 + 1}:" in str(failure.value)
    assert load_checkpoint(tmp_path / "run")[2]["epoch"] == 0


def test_validation_windows_with_nan_are_refused_by_number(tmp_path: Path) -> None:
    given = windows(20, seed=1)
    x = given.take(slice(None))
    x[[7, 9], 0, 5] = np.nan
    broken = Windows.from_arrays(x, given.labels, ch_names=given.ch_names, sfreq=200, classes=given.classes)
    with pytest.raises(TrainingFailed, match=r"2 of 20 validation windows \(the first is 7\).*leave out"):
        finetune("biot", windows(), broken, settings=tiny_settings(), device="cpu")


@pytest.mark.parametrize("given", [np.zeros((4, 3, 400), np.float32), "synthetic-events", None])
def test_what_is_no_windows_is_refused_in_one_line(given: Any) -> None:
    words = f"got '{type(given).__name__}', but it must be Windows: make them with Windows.from_arrays"
    with pytest.raises(OptionError, match=f"windows: {words}"):
        finetune("biot", given, settings=tiny_settings())
    with pytest.raises(OptionError, match=f"windows: {words}"):
        predict(Biot(n_chans=3, n_outputs=1, **BIOT), given)
    if given is not None:
        with pytest.raises(OptionError, match=f"validation: {words}"):
            finetune("biot", windows(), given, settings=tiny_settings())


def test_predict_refuses_windows_of_another_kind_than_the_model_was_trained_on(unbroken: Finetuned) -> None:
    given = windows(6)
    x = given.take(slice(None))

    def answer(names: list[str], sfreq: float = 200, x: Any = x) -> Any:
        unlabelled = Windows.from_arrays(x, np.zeros(len(x), int), ch_names=names, sfreq=sfreq)
        return predict(unbroken.model, unlabelled, device="cpu")

    assert np.array_equal(answer(["C3", "C4", "O1"]), predict(unbroken.model, given, device="cpu"))
    for names, rate, words in (
        (["O1", "C4", "C3"], 200, "channels O1, C4, C3"),
        (["F3", "F4", "O2"], 200, "channels F3, F4, O2"),
        (["C3", "C4", "O1"], 100, "100 Hz"),
    ):
        with pytest.raises(OptionError, match=f"windows: got '{words}', but the model was trained"):
            answer(names, rate)
    with pytest.raises(OptionError, match="windows: got 'channels C3, C4', but the model was trained"):
        answer(["C3", "C4"], x=x[:, :2])
    broken = x.copy()
    broken[4, 0, 0] = np.nan
    with pytest.warns(UserWarning, match=r"1 of 6 windows \(the first is 4\)"):
        logits = answer(["C3", "C4", "O1"], x=broken)
    assert np.isnan(logits[4]).all()
    assert np.isfinite(np.delete(logits, 4, 0)).all()


def scores_of(values: list[float]) -> Any:
    left = iter(values)
    return lambda _: {"val_kappa": next(left)}


def quick(values: list[float], **settings: Any) -> tuple[TrainingResult, list[dict[str, Tensor]], nn.Module]:
    model, feed = model_and_feed(windows(16, classes=3))
    seen: list[dict[str, Tensor]] = []
    chosen = tiny_settings(**{"epochs": len(values), "warmup_epochs": 0} | settings)
    names = {"select_by": None if chosen.selection == "last" else "val_kappa", "stop_by": "val_kappa"}
    outcome = train(
        model, feed, chosen, classification_loss(chosen, 3), evaluate=scores_of(values),
        on_epoch=lambda _: seen.append(weights_of(model)), **names,
    )  # fmt: skip
    return outcome, seen, model


def same(model: nn.Module, weights: dict[str, Tensor]) -> bool:
    return all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())


def test_the_first_of_the_best_epochs_is_kept() -> None:
    outcome, seen, model = quick([0.1, 0.4, 0.4, 0.2])
    assert (outcome.best_epoch, outcome.best_score, outcome.stopped_early) == (2, 0.4, False)
    assert same(model, seen[1])
    assert not model.training


def test_a_score_that_is_not_defined_never_wins() -> None:
    outcome, seen, model = quick([float("nan"), -0.5, float("nan")])
    assert outcome.best_epoch == 2
    assert same(model, seen[1])


def test_the_best_weights_are_kept_in_one_place_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    places: list[set[int]] = []
    real = loop.keep_weights

    def look(module: nn.Module, kept: dict[str, Tensor] | None = None) -> dict[str, Tensor]:
        found = real(module, kept)
        assert same(module, found)
        places.append({value.data_ptr() for value in found.values()})
        return found

    def never(_: nn.Module) -> None:
        raise AssertionError("weights are taken to the CPU for a checkpoint only")

    monkeypatch.setattr(loop, "keep_weights", look)
    monkeypatch.setattr(loop, "weights_of", never)
    outcome, seen, model = quick([0.1, 0.4, 0.2, 0.5, 0.3])
    assert same(model, seen[3])
    assert outcome.best_epoch == 4
    assert len(places) == 1 + 3  # before the first epoch, and after every one that was the best so far
    assert all(place == places[0] for place in places)
    assert not places[0] & {value.data_ptr() for value in model.state_dict().values()}


def test_patience_stops_and_the_last_epoch_is_kept_where_the_settings_say_so() -> None:
    outcome, seen, model = quick([0.1, 0.3, 0.2, 0.3, 0.9, 0.9], selection="last", patience=2)
    assert outcome.stopped_early
    assert len(outcome.history) == outcome.best_epoch == 4
    assert outcome.best_score is None
    assert same(model, seen[3])


def test_without_validation_the_last_epoch_is_kept(caplog: pytest.LogCaptureFixture) -> None:
    result = finetune("biot", windows(8), settings=tiny_settings(epochs=2, batch_size=64), device="cpu")
    assert result.outcome.best_epoch == 2
    assert result.record["batch_size"] == 8
    assert "the last epoch is kept" in caplog.text
    assert "batch of 8 windows" in caplog.text


def test_predict_is_the_model_in_evaluation_mode_and_changes_nothing() -> None:
    data = windows(21)
    model = Biot(1, 3, 400, **BIOT).train()
    model.head.eval()
    found = predict(model, data, batch_size=8, device="cpu", tick=lambda _: None)
    assert found.shape == (21, 1)
    assert found.dtype == np.float32
    assert model.training
    assert not model.head.training
    feed = Feed(data, "q95", CPU)
    assert feed.stored is not None
    with torch.inference_mode():
        expected = model.eval()(feed.stored).numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    with pytest.raises(OptionError, match="batch_size"):
        predict(model, data, batch_size=0)


def test_a_trained_model_can_start_another_with_other_classes_and_seconds(unbroken: Finetuned, tmp_path: Path) -> None:
    assert unbroken.folder is not None
    start = unbroken.folder / "model"
    data = windows(8, classes=3, seconds=3)
    result = finetune("biot", data, settings=tiny_settings(epochs=1, lr=0.0), init=[start], device="cpu")
    old, new = unbroken.model.state_dict(), result.model.state_dict()
    assert all(torch.equal(new[name], old[name]) for name in old if not name.startswith("head."))
    assert new["head.weight"].shape == (3, 16)
    assert any("head.weight" in line for line in result.record["init_report"][0])
    assert result.record["init"] == [str(start)]
    with pytest.raises(OptionError, match="it holds BIOT and not LaBraM"):
        finetune("labram", data, init=[start])


def test_the_papers_settings_are_the_default_with_a_checkpoint_and_ours_without() -> None:
    from zipbrain.training.model_setup import choose_settings

    data = windows()
    assert choose_settings("biot", data, None, started=True).origin == "paper"
    assert choose_settings("biot", data, None, started=True).dataset == "ISRUC"  # a corpus the paper does not have
    assert choose_settings("biot", data, None, started=False).origin == "scratch"
    data.name = "TUAB"
    assert choose_settings("tfm", data, "paper", started=False).origin == "official"
    with pytest.raises(OptionError, match="'paper' or 'scratch'"):
        choose_settings("biot", data, "best", started=False)


BARE = """
import sys
for name in ("rich", "typer", "mne", "scipy", "matplotlib", "joblib"):
    sys.modules[name] = None
import torch
from training.small import tiny_settings, windows
from zipbrain.training import finetune
from zipbrain.training.window_sources import WindowSource
print(finetune("biot", windows(8), settings=tiny_settings(epochs=1), device="cpu").outcome.best_epoch)
"""


def test_torch_numpy_and_safetensors_are_enough() -> None:
    path = os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run([sys.executable, "-c", BARE], env=environment, capture_output=True, text=True)
    assert done.stdout.strip() == "1", done.stderr


@pytest.mark.parametrize("writes", [1, 8, 12, 13])  # of the record, a checkpoint, the log, the model
def test_a_disk_that_fills_up_is_one_line_and_the_run_goes_on_later(
    unbroken: Finetuned, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writes: int
) -> None:
    sync, left = os.fsync, [writes]

    def full(handle: int) -> None:
        left[0] -= 1
        if left[0] == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sync(handle)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(TrainingFailed, match=r"run: can't be written \(No space .*\); .* run again") as failure:
            run(tmp_path / "run")
    assert str(failure.value).endswith("with --resume") == (writes > 1)
    assert (last_checkpoint(tmp_path / "run") is None) == (writes == 1)
    assert not list((tmp_path / "run").rglob(".*"))  # nothing half written is left
    assert equal(run(tmp_path / "run", resume=writes > 1).model, unbroken.model)
    (tmp_path / "letter.txt").write_text("dear reader")
    with pytest.raises(TrainingFailed, match=r"can't be written \(Not a directory\); name a folder that can be"):
        run(tmp_path / "letter.txt" / "run")


def test_the_older_checkpoint_goes_when_the_newer_one_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    sync, remove = os.fsync, shutil.rmtree

    def note_sync(handle: int) -> None:
        events.append("sync")
        sync(handle)

    def note_removal(path: Path, **options: Any) -> None:
        events.append(f"remove {Path(path).name}")
        remove(path, **options)

    save_checkpoint(tmp_path, 0, {"a": torch.ones(2)}, None, {"epoch": 0})
    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(shutil, "rmtree", note_removal)
    save_checkpoint(tmp_path, 1, {"a": torch.ones(2)}, {"a": torch.zeros(2)}, {"epoch": 1})
    assert events == ["sync"] * 6 + ["remove epoch-00000"]  # four files, the folder, the folder of folders
    weights, best, state = load_checkpoint(tmp_path)
    assert best is not None
    assert (weights["a"].tolist(), best["a"].tolist(), state) == ([1, 1], [0, 0], {"epoch": 1})


def test_files_are_as_open_as_the_umask_lets_them_be(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        run(tmp_path / "run", settings=tiny_settings(epochs=1))
    finally:
        os.umask(before)
    modes = {path.stat().st_mode & 0o777 for path in (tmp_path / "run").rglob("*") if path.is_file()}
    assert modes == {0o644}
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "run").rglob("*") if path.is_dir()} == {0o755}


def test_a_second_run_in_the_same_folder_is_kept_out(unbroken: Finetuned, tmp_path: Path) -> None:
    refused: list[str] = []

    def intrude(step: Step) -> None:
        if (step.epoch, step.step) == (2, 1):
            with pytest.raises(TrainingFailed) as failure:
                run(tmp_path / "run", resume=True)
            refused.append(str(failure.value))

    assert equal(run(tmp_path / "run", on_step=intrude).model, unbroken.model)
    assert refused == [f"{tmp_path / 'run'}: another process is training there; wait for it to end"]


def test_a_folder_prepared_with_another_scaling_is_read_with_it(tmp_path: Path) -> None:
    root = tiny_corpora.folder(tmp_path / "raw")
    wanted = replace(convention("biot", "folder"), montage=("C3", "C4"), ch_names=("C3", "C4"), scaling="zscore")
    prepare("folder", root, tmp_path / "out", convention=wanted)
    data = open_prepared(tmp_path / "out").split("train")
    assert data.scaling == data.select([0]).scaling == "zscore"
    assert scaling_of("BIOT", data) == "zscore"
    assert scaling_of("eegpt", data) == "zscore-average"  # it was prepared for another model
    assert scaling_of("biot", windows()) == "q95"
    trained = finetune("biot", data, settings=tiny_settings(epochs=1, batch_size=2), device="cpu")
    assert trained.record["scaling"] == "zscore"
    plain, own = (predict(trained.model, data, device="cpu", scaling=given) for given in (None, "zscore"))
    np.testing.assert_array_equal(plain, own)
    with pytest.raises(OptionError, match="known scalings are none"):
        prepare("folder", root, tmp_path / "wrong", convention=replace(wanted, scaling="zcore"))
