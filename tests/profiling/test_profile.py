"""What a profile says: counts that add up, ratios from one run, and a refusal for what can't be run here."""

from __future__ import annotations

import copy
import functools
import json
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import zipbrain
from export.tiny import biot, network, samples, windows
from zipbrain.cli import main
from zipbrain.edge.runtimes import RUNTIMES, OnnxRuntime
from zipbrain.errors import OptionError
from zipbrain.evaluation.plots.runtimes import waterfall
from zipbrain.evaluation.plots.timeline import profile_timeline
from zipbrain.export.onnx_graph import fix_batch
from zipbrain.pretrained import save_pretrained
from zipbrain.profiling import hand_flops
from zipbrain.profiling.flops import count_window
from zipbrain.profiling.process_memory import peak_of_process
from zipbrain.profiling.profile import ORIGINAL, SLICING, Profile, profile, repeated
from zipbrain.profiling.runners import RUNNERS, Candidate
from zipbrain.recipe import Recipe
from zipbrain.training.cuda_graphs import capture_forward
from zipbrain.training.inference import run_inference

pytest.importorskip("onnxscript")

RECIPE = Recipe(method={"name": "tome"}, schedule={"name": "per_layer", "r": [4, 1]}, mass=True)

_OPTIONS = """
--methods zipbrain --ratio 0.6 --batch 1,2 --threads 1 --rounds 3 --warmup 1 --runtimes torch,ort,ort-int8 --no-memory
--json
"""


def scaled(count: int) -> np.ndarray:
    return (samples(count) / 50).astype(np.float32)


@pytest.fixture(scope="module")
def candidate() -> Candidate:
    """A compressed network with its graphs."""
    model = zipbrain.compress(biot(), "zipbrain", ratio=0.6)
    return Candidate("ZIPBrain", model, (3, 600), scaled(8))


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[Profile, Path, str]:
    """One small profile through the command line: what was found, the folder of files, and what was printed."""
    import io
    from contextlib import redirect_stdout

    import zipbrain.profiling.profile as module

    pytest.importorskip("matplotlib")
    folder, kept = tmp_path_factory.mktemp("profile"), []
    save_pretrained(biot(), folder / "model")
    command = ["profile", str(folder / "model"), "--out", str(folder / "out"), *_OPTIONS.split()]

    def keeping(*args: Any, **options: Any) -> Profile:
        kept.append(profile(*args, **options))
        return kept[-1]

    with pytest.MonkeyPatch.context() as patch, redirect_stdout(io.StringIO()) as printed:
        patch.setattr(module, "profile", keeping)
        assert main(command) == 0
    return kept[0], folder / "out", printed.getvalue()


@pytest.fixture(scope="module")
def found(ran: tuple[Profile, Path, str]) -> Profile:
    """One small profile, for all that only reads it."""
    return ran[0]


# -- counts ------------------------------------------------------------------------------------------------------------


def test_the_hand_count_is_the_sum_over_layers_of_the_true_tokens(found: Profile) -> None:
    model = biot()
    for variant, method in zip(found.variants, (None, "free_slicing", "zipbrain"), strict=True):
        network = model if method is None else zipbrain.compress(copy.deepcopy(model), method, ratio=0.6)
        assert variant.counts.hand == hand_flops(network).macs
        tokens = [layer.tokens_attention for layer in variant.counts.layers]
        assert tokens == list(variant.counts.token_counts[:-1])
    assert found.variants[1].counts.hand == found.variants[2].counts.hand < found.variants[0].counts.hand


def test_eegpt_counts_every_patch_of_a_window() -> None:
    model = network("EEGPT")
    counts = count_window(model, (3, 512), None)
    assert counts.sequences == 512 // 64
    assert counts.hand == counts.sequences * hand_flops(model).macs


def test_onnx_tool_counts_more_than_the_blocks_and_says_what_it_can_not_count(found: Profile) -> None:
    pytest.importorskip("onnx_tool")
    for variant in found.variants:
        assert variant.counts.graph.macs is not None
        assert variant.counts.graph.macs > variant.counts.hand
    assert any("onnx-tool on ZIPBrain counts as nothing" in note for note in found.notes)


def test_torch_counts_the_products_of_linear_attention_too() -> None:
    counts = count_window(biot(), (3, 600), None)
    assert counts.torch > counts.hand  # the spectrum and the projections come on top


# -- times -------------------------------------------------------------------------------------------------------------


def test_every_pair_of_runtime_and_network_is_timed_at_every_batch(found: Profile) -> None:
    rows = found.rows()
    assert len(rows) == 3 * 3 * 2
    assert {row["runtime"] for row in rows} == {"torch", "ort", "ort-int8"}
    assert all(len(speed.seconds) == 3 and 0 < speed.p50 <= speed.p95 for speed in found.speeds)


def test_every_pair_is_compared_with_the_networks_answer(found: Profile) -> None:
    for speed in found.speeds:
        assert 0 <= speed.error <= (1e-5 if RUNNERS[speed.runtime].precision == "float32" else 0.1)
    assert not any("answers otherwise" in note for note in found.notes)


def test_a_runtime_that_answers_otherwise_is_named_and_its_time_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    torch_runner = RUNNERS["torch"]

    def wrong(candidate: Candidate, x: np.ndarray, threads: int) -> Any:
        call = torch_runner.open(candidate, x, threads)
        return (lambda: call() + 5) if candidate.name == "ToMe" else call  # type: ignore[operator]

    monkeypatch.setitem(RUNNERS, "torch", replace(torch_runner, open=wrong))
    got = profile(
        biot(), scaled(2), ratio=0.6, methods=["tome"], batches=(2,), threads=1, runtimes=["torch"], rounds=1, warmup=0,
        memory=False, onnx_tool=False, timeline=False,
    )  # fmt: skip
    assert [speed.variant for speed in got.speeds] == [ORIGINAL, SLICING]
    named = [note for note in got.notes if "answers otherwise" in note]
    assert len(named) == 1
    assert "with ToMe" in named[0]


def test_ratios_compare_calls_of_the_same_round(found: Profile) -> None:
    by_key = {(speed.runtime, speed.variant, speed.batch): speed for speed in found.speeds}
    for (runtime, _, batch), speed in by_key.items():
        base = by_key[runtime, ORIGINAL, batch]
        pairs = sorted(a / b for a, b in zip(speed.seconds, base.seconds, strict=True))
        assert speed.to_original == pytest.approx(pairs[1])
        slicing = by_key[runtime, SLICING, batch]
        pairs = sorted(a / b for a, b in zip(speed.seconds, slicing.seconds, strict=True))
        assert speed.to_slicing == pytest.approx(pairs[1])
    assert by_key["ort", ORIGINAL, 1].to_reference == 1


def test_the_fastest_is_never_free_slicing(found: Profile) -> None:
    assert sorted(found.fastest) == [1, 2]
    for batch, best in found.fastest.items():
        others = [s for s in found.speeds if s.batch == batch and s.variant != SLICING]
        assert best.variant != SLICING
        assert best.to_reference == min(s.to_reference for s in others if s.to_reference is not None)


def test_a_third_of_wrong_windows_is_wrong_and_one_near_tie_is_not() -> None:
    from zipbrain.profiling.timing import _error

    expected = np.linspace(-1, 1, 32, dtype=np.float32)[:, None]
    answer = expected.copy()
    answer[7] += 0.5
    assert _error(answer, expected) == 0
    answer[::3] += 0.5
    assert _error(answer, expected) == pytest.approx(0.5)


def test_what_answers_otherwise_is_never_the_fastest(found: Profile) -> None:
    best = found.fastest[1]
    others = [replace(speed, error=2.0) if speed is best else speed for speed in found.speeds]
    next_best = replace(found, speeds=others).fastest[1]
    assert (next_best.runtime, next_best.variant) != (best.runtime, best.variant)
    assert all(replace(best, error=error).wrong for error in (float("nan"), 2.0))
    assert not replace(best, runtime="openvino-bf16", error=0.02).wrong  # few bits, not another network
    assert replace(best, runtime="openvino", error=0.02).wrong


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="only Linux tells a process's peak memory")
@pytest.mark.parametrize("runtime", ["torch", "ort", "openvino"])
def test_memory_holds_the_weights_at_least(candidate: Candidate, runtime: str, tmp_path: Path) -> None:
    if reason := RUNNERS[runtime].find_missing():
        pytest.skip(reason)
    file = tmp_path / "network"
    if runtime == "torch":
        torch.save(candidate.network, file)
    else:
        file.write_bytes(fix_batch(candidate.graph("float32"), 2).SerializeToString())
    taken = peak_of_process(file, runtime, 2, candidate.shape, 1)
    assert taken is not None
    assert taken > 4 * sum(parameter.numel() for parameter in candidate.network.parameters())


def test_memory_of_a_file_that_can_not_be_run_is_unknown(tmp_path: Path) -> None:
    (tmp_path / "network").write_bytes(b"nothing")
    assert peak_of_process(tmp_path / "network", "ort", 1, (3, 600), 1) is None


def test_the_model_stays_as_it_was() -> None:
    model = zipbrain.compress(biot(), "tome", ratio=0.6)
    before = copy.deepcopy(model.state_dict())
    model.train()
    got = profile(
        model, torch.from_numpy(scaled(1)), ratio=0.6, methods=[], batches=(1,), threads=1, runtimes=["torch"],
        rounds=1, warmup=0, memory=False, onnx_tool=False, timeline=False,
    )  # fmt: skip
    assert any("came compressed" in note for note in got.notes)
    assert model.training
    assert zipbrain.summary(model).method["name"] == "tome"
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_recipe_and_free_slicing_have_the_same_tokens() -> None:
    got = profile(
        biot(), scaled(1), recipe=RECIPE, batches=(1,), threads=1, runtimes=["torch"], rounds=1, warmup=0, memory=False,
        onnx_tool=False, timeline=False,
    )  # fmt: skip
    assert [variant.name for variant in got.variants] == [ORIGINAL, SLICING, "ToMe"]
    assert got.variants[1].counts.token_counts == got.variants[2].counts.token_counts == (15, 11, 10)


def test_a_recipe_with_a_second_look_is_profiled_as_its_first_pass() -> None:
    got = profile(
        biot(), scaled(1), recipe=replace(RECIPE, second_look=1.0), batches=(1,), threads=1, runtimes=["torch"],
        rounds=1, warmup=0, memory=False, onnx_tool=False, timeline=False,
    )  # fmt: skip
    assert got.variants[2].counts.token_counts == (15, 11, 10)
    assert any("first pass" in note for note in got.notes)


def test_further_methods_are_run_in_the_first_runtime_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager"))
    got = profile(
        biot(), scaled(1), ratio=0.6, methods=["zipbrain"], in_first_only=["tome"], batches=(1,), threads=1,
        runtimes=["torch", "torch-compile"], rounds=1, warmup=0, memory=False, onnx_tool=False, timeline=False,
    )  # fmt: skip
    ran = [(speed.runtime, speed.variant) for speed in got.speeds]
    assert ("torch", "ToMe") in ran
    assert ("torch-compile", "ToMe") not in ran
    assert ("torch-compile", "ZIPBrain") in ran


# -- runtimes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("runtime", [name for name in RUNNERS if name != "torch-compile"])
def test_every_runtime_gives_the_networks_answer(candidate: Candidate, runtime: str) -> None:
    if reason := RUNNERS[runtime].find_missing():
        pytest.skip(f"{runtime}: {reason}")
    x = scaled(3)
    with torch.inference_mode():
        expected = candidate.network(torch.from_numpy(x)).numpy()
    answer = RUNNERS[runtime].open(candidate, x, 1)()
    found = np.asarray(answer.cpu() if isinstance(answer, torch.Tensor) else answer)
    assert found.shape == expected.shape
    assert np.isfinite(found).all()
    if "bf16" not in runtime:
        bound = 0.1 if RUNNERS[runtime].precision != "float32" else 1e-5
        assert np.abs(found - expected).max() <= bound * np.abs(expected).max()
        return
    # Eight bits change who joins whom, and with it the answer: rounding is seen where nobody has to choose.
    for model, bound in ((biot(), 0.02), (zipbrain.compress(biot(), "free_slicing", ratio=0.6), 0.1)):
        candidate = Candidate("without a choice", model, (3, 600), scaled(8))
        with torch.inference_mode():
            expected = candidate.network(torch.from_numpy(x)).numpy()
        found = np.asarray(RUNNERS[runtime].open(candidate, x, 1)())
        assert np.abs(found - expected).max() <= bound * np.abs(expected).max()


def test_a_runtime_registered_from_outside_is_profiled_under_its_own_name(monkeypatch: pytest.MonkeyPatch) -> None:
    class Other(OnnxRuntime):
        name, title = "other", "Other"

    monkeypatch.setitem(RUNTIMES, "other", Other)
    monkeypatch.delitem(RUNNERS, "other", raising=False)
    options: dict[str, Any] = {"memory": False, "onnx_tool": False, "timeline": False, "rounds": 1, "warmup": 0}
    got = profile(biot(), scaled(1), methods=["tome"], batches=[1], threads=1, runtimes=["other"], **options)
    assert {speed.runtime for speed in got.speeds} == {"other"}
    assert {row["title"] for row in got.rows()} == {"Other, float32"}
    RUNNERS.pop("other")


def test_a_compiled_network_gives_the_networks_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    quick = functools.partial(torch.compile, backend="aot_eager")  # captures the same, needs no C++ compiler
    monkeypatch.setattr(torch, "compile", quick)
    x = scaled(2)
    model = biot()
    with torch.inference_mode():
        expected = model(torch.from_numpy(x))
    answer = RUNNERS["torch-compile"].open(Candidate("original", model, (3, 600), x), x, 1)()
    assert isinstance(answer, torch.Tensor)
    assert torch.allclose(answer, expected, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_captured_network_answers_for_what_its_input_holds_now() -> None:
    model = zipbrain.compress(biot(), "zipbrain", ratio=0.6).cuda()
    x = torch.from_numpy(scaled(4)).cuda()
    call = capture_forward(functools.partial(run_inference, model), x)
    x.copy_(x.flip(0))
    with torch.inference_mode():
        expected = model(x)
    assert torch.allclose(call(), expected, atol=1e-5)


def test_a_graph_can_be_fixed_to_a_batch(candidate: Candidate) -> None:
    proto = candidate.graph("float32")
    fixed = fix_batch(proto, 7)
    assert fixed.graph.input[0].type.tensor_type.shape.dim[0].dim_value == 7
    assert not proto.graph.input[0].type.tensor_type.shape.dim[0].HasField("dim_value")


def test_too_few_windows_are_repeated() -> None:
    x = scaled(2)
    assert np.array_equal(repeated(x, 5), x[[0, 1, 0, 1, 0]])


# -- bad input ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"runtimes": ["tensorrt"]}, "known ones are torch"),
        ({"runtimes": []}, "at least one is needed"),
        ({"batches": [0]}, "integer of at least 1"),
        ({"batches": []}, "at least one is needed"),
        ({"rounds": 0}, "integer of at least 1"),
        ({"threads": True}, "integer of at least 1"),
        ({"methods": ["free_slicing"]}, "it is always there"),
        ({"methods": ["tomme"]}, "did you mean 'tome'"),
        ({"methods": ["tome"], "in_first_only": ["tome"]}, "among the methods already"),
        ({"recipe": 3}, "a Recipe or the path"),
        ({"recipe": RECIPE, "in_first_only": ["tome"]}, "a recipe stands alone"),
    ],
)
def test_bad_options_are_refused(options: dict[str, object], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        profile(biot(), scaled(1), **options)  # type: ignore[arg-type]


def test_windows_must_have_three_axes() -> None:
    for none in (scaled(1)[0], scaled(0), windows(3).select([])):
        with pytest.raises(OptionError, match=r"\(n, channels, samples\)"):
            profile(biot(), none)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_cuda_is_refused_where_there_is_none() -> None:
    with pytest.raises(OptionError, match="torch sees no CUDA device"):
        profile(biot(), scaled(1), runtimes=["torch-cuda-graph"])


# -- pictures and the command ------------------------------------------------------------------------------------------


def test_pictures_hold_every_runtime_and_network(found: Profile) -> None:
    figure = waterfall(found.rows(), "title")
    words = " ".join(text.get_text() for text in figure.findobj(lambda part: hasattr(part, "get_text")))
    for word in ("PyTorch eager", "ONNX Runtime", "int8 (dynamic)", "ZIPBrain", "free slicing", "batch 2"):
        assert word in words
    assert len(figure.axes[0].patches) == 9
    drawn = profile_timeline([track.to_dict() for track in found.tracks], "title")
    words = " ".join(text.get_text() for text in drawn.findobj(lambda part: hasattr(part, "get_text")))
    for word in ("original", "ZIPBrain", "pooling", "attention", "feed-forward"):
        assert word in words


def test_no_label_of_a_picture_covers_another(found: Profile) -> None:
    tracks = [track.to_dict() for track in found.tracks]
    for figure in (waterfall(found.rows(), "title"), profile_timeline(tracks, "title")):
        figure.canvas.draw()
        boxes = [text.get_window_extent() for text in _labels(figure) if text.get_text().strip()]
        for number, box in enumerate(boxes):
            for other in boxes[number + 1 :]:
                across = min(box.x1, other.x1) - max(box.x0, other.x0)
                down = min(box.y1, other.y1) - max(box.y0, other.y0)
                assert across <= 1 or down <= 1


def _labels(figure: Any) -> list[Any]:
    """All texts but the numbers along axes."""
    from matplotlib.legend import Legend

    texts = [text for legend in figure.findobj(Legend) for text in legend.get_texts()]
    for ax in figure.axes:
        texts += [*ax.texts, ax.title, ax._left_title, ax.xaxis.label, ax.yaxis.label]
        if ax.yaxis.get_tick_params()["labelleft"]:
            texts += [label for label in ax.get_yticklabels() if not label.get_text()[:1].isdigit()]
    return texts


def test_the_command_writes_tables_pictures_and_a_trace(ran: tuple[Profile, Path, str]) -> None:
    _, folder, printed = ran
    content = json.loads(printed)
    assert [variant["name"] for variant in content["variants"]] == [ORIGINAL, SLICING, "ZIPBrain"]
    names = {Path(file).name for file in content["files"]}
    assert {"profile.csv", "profile.md", "waterfall.png", "timeline.svg", "trace.json"} <= names
    assert all(Path(file).stat().st_size for file in content["files"])
    assert "| ONNX Runtime, float32 | original |" in (folder / "profile.md").read_text()
    rows = (folder / "profile.csv").read_text().splitlines()
    assert len(rows) == 1 + 3 * 3 * 2


def test_the_command_prints_tables(found: Profile, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import zipbrain.profiling.profile as module
    from zipbrain.cli.profile import tables_of

    words = "\n".join(grid.to_markdown() for grid in tables_of(found, "a network"))
    assert "PyTorch eager, float32" in words
    assert "5/15" in words
    monkeypatch.setattr(module, "profile", lambda *args, **options: found)
    save_pretrained(biot(), tmp_path / "model")
    (tmp_path / "file").write_text("in the way")
    assert main(["profile", str(tmp_path / "model"), "--out", str(tmp_path / "out")]) == 0
    monkeypatch.setattr(module, "profile", lambda *args, **options: pytest.fail("it measured"))
    assert main(["profile", str(tmp_path / "model"), "--out", str(tmp_path / "file")]) == 1


def test_numbers_are_on_the_disk_before_a_picture_fails(
    found: Profile, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import zipbrain.profiling.profile as module

    command = import_module("zipbrain.cli.profile")  # the package has a function of that name

    def fail(*_: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(module, "profile", lambda *args, **options: found)
    monkeypatch.setattr(command, "_pictures", fail)
    save_pretrained(biot(), tmp_path / "model")
    with pytest.raises(ZeroDivisionError):
        main(["profile", str(tmp_path / "model"), "--out", str(tmp_path / "out")])
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "profile.json", "profile.csv", "profile.md", "trace.json",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([], "give either the folder of a model or --model"),
        (["--model", "labram", "--corpus", "folder"], "--corpus"),
        (["--model", "nobody"], "it must be one of"),
        (["--model", "labram", "--data", "synthetic-events"], "run on noise"),
        (["--model", "labram", "--batch", "one"], "whole numbers"),
        (["--model", "labram", "--ratio", "much"], "such as 0.8"),
        (["--model", "labram", "--recipe", "nowhere.json"], "no such file"),
    ],
)
def test_the_command_refuses_what_it_can_not_do(
    given: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["profile", *given]) == 2
    assert words in capsys.readouterr().err
