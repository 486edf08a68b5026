"""`accelerate` without a GPU, and what it decides on a stand-in for one."""

from __future__ import annotations

import copy
import json
import pickle
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import zipbrain
from acceleration.stand_in import Classifier, stand_in, windows
from zipbrain.acceleration import Accelerated, attempts, candidates, optimise
from zipbrain.acceleration.validation import find_device
from zipbrain.acceleration.weight_sharing import copy_modules
from zipbrain.errors import OptionError, ShapeError, ZipbrainError
from zipbrain.models import BIOT, LaBraM, TokenEncoder
from zipbrain.paper import COMPARED
from zipbrain.pooling.backends import cpu
from zipbrain.profiling.latency import Timing

needs_no_cuda = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")


def plain(model: nn.Module, x: Tensor) -> Tensor:
    with torch.inference_mode():
        answer: Tensor = model(x)
    return answer


# -- without CUDA ------------------------------------------------------------------------------------------------------


@needs_no_cuda
@pytest.mark.parametrize("options", [{}, {"precision": "float16"}, {"graphs": False}, {"measure": False}])
def test_without_cuda_the_model_answers_as_before_and_the_report_says_why(options: Any) -> None:
    model = zipbrain.compress(TokenEncoder(dim=32, depth=3, heads=4), ratio=0.8)
    x = torch.randn(5, 40, 32)
    fast = zipbrain.accelerate(model, x, **options)
    assert model.training
    assert torch.equal(fast(x), plain(model.eval(), x))
    assert torch.equal(fast(x[:2]), plain(model, x[:2]))
    assert "no CUDA" in (fast.report.reason or "")
    assert not any(step.kept for step in fast.report.steps if step.name != "pooling")
    assert "a model keeps its own precision" in str(fast.report)
    assert fast.batches == ()


def test_a_model_on_a_cpu_beside_a_gpu_is_told_to_move(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    reason = find_device(Classifier(), torch.device("cpu"))[1]
    assert reason == "the model is on cpu: move it with model.to('cuda') first"


def test_tensors_on_several_devices_are_a_reason() -> None:
    model = Classifier()
    model.last.to("meta")
    assert find_device(model, torch.device("cpu"))[1] == "its tensors lie on several devices (cpu, meta)"


@needs_no_cuda
def test_our_models_are_answered_in_any_shape_that_they_take() -> None:
    names = ["Fp1", "Fp2", "C3", "C4"]
    for model, x in (
        (LaBraM(2, names, 400), torch.randn(2, 4, 400)),
        (BIOT(3, 4, 400, dim=32, heads=4, depth=2), torch.randn(2, 4, 400)),
    ):
        fast = zipbrain.accelerate(model, x)
        longer = torch.randn(3, 4, 600)
        assert torch.equal(fast(longer), plain(model.eval(), longer))
        assert torch.equal(fast(x[:0]), plain(model, x[:0]))
        with pytest.raises(ShapeError, match="it must be"):
            fast(torch.randn(2, 7, 400))


def test_the_public_name_is_a_function_whatever_was_imported_before() -> None:
    code = "import zipbrain.acceleration.batch_buckets, zipbrain; print(zipbrain.accelerate)"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown.startswith("<function accelerate")
    code = "import sys, zipbrain; zipbrain.accelerate; print({'rich', 'typer', 'mne', 'onnx'} & set(sys.modules))"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown.strip() == "set()"


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("example", {"example": [1, 2]}),
        ("example", {"example": torch.zeros(5)}),
        ("example", {"example": torch.zeros(0, 3, 5)}),
        ("model", {"model": lambda x: x}),
        ("precision", {"precision": "int8"}),
        ("compile", {"compile": "max"}),
        ("tolerance", {"tolerance": 0}),
        ("tolerance", {"tolerance": "tight"}),
        ("batches", {"batches": []}),
        ("batches", {"batches": [0, 4]}),
        ("batches", {"batches": [True]}),
        ("batches", {"batches": 8}),
    ],
)
def test_bad_options_are_named(name: str, options: Any) -> None:
    with pytest.raises(OptionError, match=f"^{name}: got "):
        zipbrain.accelerate(**{"model": Classifier(), "example": windows(4), **options})


def test_an_accelerated_model_only_answers() -> None:
    model = Classifier()
    fast = zipbrain.accelerate(model, windows(4))
    assert fast.eval() is fast
    assert fast.to("cpu") is fast
    assert fast.float() is fast
    with pytest.raises(OptionError, match="only answers"):
        fast.train()
    for change in (lambda: fast.half(), lambda: fast.to("meta"), lambda: fast.load_state_dict({})):
        with pytest.raises(ZipbrainError, match=r"zipbrain\.accelerate again"):
            change()
    for duplicate in (copy.deepcopy, copy.copy, pickle.dumps):
        with pytest.raises(ZipbrainError, match="can't be copied or pickled"):
            duplicate(fast)
    with pytest.raises(ShapeError, match="torch tensor"):
        fast([[1.0]])
    with pytest.raises(zipbrain.UnsupportedModel):
        zipbrain.compress(fast, r=1)


def test_it_shows_the_weights_and_the_names_of_the_model() -> None:
    model = Classifier()
    fast = zipbrain.accelerate(model, windows(4))
    assert fast.state_dict().keys() == model.state_dict().keys()
    assert [name for name, _ in fast.named_parameters()] == [name for name, _ in model.named_parameters()]
    assert next(fast.parameters()).device == torch.device("cpu")
    assert repr(fast).startswith("Accelerated(Classifier in float32 on ")


# -- twins -------------------------------------------------------------------------------------------------------------


def test_a_twin_shares_the_weights_and_nothing_else() -> None:
    model = Classifier().train()
    same = copy_modules(model)
    assert not same.training
    assert model.training
    assert same.first.weight.data_ptr() == model.first.weight.data_ptr()
    assert not same.first.weight.requires_grad
    assert model.first.weight.requires_grad
    x = windows(2)
    before = plain(same, x)
    with torch.no_grad():
        model.first.weight.mul_(2)
    assert not torch.equal(plain(same, x), before)
    after = plain(same, x)
    model.double()  # the model's tensors are replaced, the copy keeps its own
    assert torch.equal(plain(same, x), after)


def test_a_twin_in_half_precision_has_tensors_of_its_own_and_leaves_the_model() -> None:
    model = Classifier()
    model.register_buffer("steps", torch.tensor([3]))
    model.tied = model.first.weight
    state = copy.deepcopy(model.state_dict())
    half = copy_modules(model, torch.float16)
    assert half.first.weight.dtype == torch.float16
    assert half.tied is half.first.weight
    assert half.steps.dtype == torch.int64
    assert all(torch.equal(model.state_dict()[name], values) for name, values in state.items())


def test_a_twin_of_a_compressed_model_pools_alike() -> None:
    model = zipbrain.compress(TokenEncoder(dim=32, depth=3, heads=4).eval(), ratio=0.8, mass=True)
    x = torch.randn(4, 40, 32)
    same = copy_modules(model)
    assert torch.equal(plain(same, x), plain(model, x))
    zipbrain.restore(model)
    assert zipbrain.summary(same, 40).token_counts[-1] < 40


class Locked(Classifier):
    """Can't be copied."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()


def test_a_model_that_cannot_be_copied_is_used_itself() -> None:
    with pytest.raises(OptionError, match=r"can't be copied .*: call model\.eval\(\) first"):
        zipbrain.accelerate(Locked().train(), windows(4))
    model = Locked().eval()
    fast = zipbrain.accelerate(model, windows(4))
    assert torch.equal(fast(windows(3)), plain(model, windows(3)))
    assert any("used itself" in note for note in fast.report.notes)


# -- decisions, on a stand-in for a GPU --------------------------------------------------------------------------------


def test_half_precision_and_graphs_are_kept_and_answer_any_number_of_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    captures = stand_in(monkeypatch)
    model, x = Classifier(), windows(12)
    fast = zipbrain.accelerate(model, x, compile=False, measure=False)
    assert captures.sizes == [12, 8, 4, 2, 1]
    assert fast.batches == (1, 2, 4, 8, 12)
    assert fast.report.precision == "float16"
    assert fast.report.reason is None
    assert fast.report.checks["float16"].safe
    assert next(fast.parameters()).dtype == torch.float16
    assert fast.state_dict()["first.weight"].dtype == torch.float32
    for count in range(1, 30):
        given = windows(count, seed=count)
        answer = fast(given)
        assert answer.dtype == torch.float32
        assert not answer.is_inference()
        torch.testing.assert_close(answer, plain(model.eval(), given), rtol=0.02, atol=0.02)


def test_other_shapes_and_integers_go_to_the_model_as_given(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch)
    model = Classifier()
    fast = zipbrain.accelerate(model, windows(4), compile=False, measure=False)
    flat = windows(3).reshape(3, 15)
    assert torch.equal(fast(flat), plain(model.eval(), flat))
    assert fast(windows(1)[:0]).shape == (0, 4)
    asking = windows(2).requires_grad_()
    assert not fast(asking).requires_grad


class Huge(Classifier):
    """Has values on its way that float16 can't hold, but bfloat16 can."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x * 1e6 / 1e6)


class Fine(nn.Module):
    """Tells apart what half precision can't: the digits behind a large offset."""

    def __init__(self) -> None:
        super().__init__()
        self.offset = nn.Parameter(torch.tensor(1000.0))

    def forward(self, x: Tensor) -> Tensor:
        values = (x.flatten(1)[:, :4] * 0.01 + self.offset) - self.offset
        return values * 100


def test_float16_that_overflows_gives_way_to_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch)
    fast = zipbrain.accelerate(Huge(), windows(8), compile=False, measure=False, tolerance=0.01)
    assert fast.report.precision == "bfloat16"
    assert fast.report.checks["float16"].lost == 8
    obeyed = zipbrain.accelerate(Huge(), windows(8), compile=False, measure=False, precision="float16")
    assert obeyed.report.precision == "float16"
    step = obeyed.report.step("precision")
    assert step is not None
    assert step.reason.startswith("asked for, though not safe: 8 of 8 windows have logits that are not finite")


def test_no_half_precision_that_is_safe_leaves_float32_with_the_reasons(monkeypatch: pytest.MonkeyPatch) -> None:
    captures = stand_in(monkeypatch)
    model, x = Fine(), windows(8)
    fast = zipbrain.accelerate(model, x, compile=False, measure=False)
    step = fast.report.step("precision")
    assert step is not None
    assert not step.kept
    assert step.what == "float32"
    assert "float16: " in step.reason
    assert "bfloat16: " in step.reason
    assert captures.sizes  # graphs are kept in float32
    assert torch.equal(fast(x), plain(model, x))


def test_a_model_given_in_half_precision_stays_so(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch)
    fast = zipbrain.accelerate(Classifier().half(), windows(4), compile=False, measure=False)
    assert fast.report.precision == "float16"
    assert fast(windows(2)).dtype == torch.float16
    step = fast.report.step("precision")
    assert step is not None
    assert step.reason == "given in half precision already"


def test_a_size_that_cannot_be_captured_is_called_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, refused=(2, 4))
    model, x = Classifier(), windows(4)
    fast = zipbrain.accelerate(model, x, compile=False, measure=False, precision="float32")
    assert fast.batches == (1, 2, 4)
    step = fast.report.step("graphs")
    assert step is not None
    assert step.what == "batch 1"
    assert "it waits for the GPU inside a forward" in step.reason
    torch.testing.assert_close(fast(x), plain(model.eval(), x))
    stand_in(monkeypatch, refused=(1, 2, 4))
    nothing = zipbrain.accelerate(model, x, compile=False, measure=False, precision="float32")
    assert nothing.batches == ()
    assert nothing.report.reason == "nothing that was tried is both safe and faster"
    assert torch.equal(nothing(x), plain(model, x))


class Comparing(Classifier):
    """A window's answer depends on the others of its batch."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x - x.mean(0))


def test_windows_that_depend_on_each_other_are_never_padded(monkeypatch: pytest.MonkeyPatch) -> None:
    captures = stand_in(monkeypatch)
    model, x = Comparing(), windows(6)
    fast = zipbrain.accelerate(model, x, compile=True, precision="float32")
    assert captures.sizes == []
    assert torch.equal(fast(x[:5]), plain(model.eval(), x[:5]))
    for name in ("graphs", "compile"):
        step = fast.report.step(name)
        assert step is not None
        assert "depends on the others in its batch" in step.reason


class Fixed(Classifier):
    """Takes batches of six."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.reshape(6, 3, 5))


def test_a_model_of_one_batch_size_is_called_with_that_one(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = Fixed(), windows(6)
    fast = zipbrain.accelerate(model, x)
    assert torch.equal(fast(x), plain(model.eval(), x))
    captures = stand_in(monkeypatch)
    fast = zipbrain.accelerate(model, x, compile=False, precision="float32")
    assert captures.sizes == []
    assert torch.equal(fast(x), plain(model, x))
    step = fast.report.step("graphs")
    assert step is not None
    assert step.reason.startswith("it fails with another number of windows: RuntimeError: shape '[6, 3, 5]'")
    assert "test_accelerate.py, line" in step.reason


class Pair(Classifier):
    """Answers with two tensors."""

    def forward(self, x: Tensor) -> Any:
        return super().forward(x), x


class Summing(Classifier):
    """Answers with one number for all windows."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).sum()


class Lost(Classifier):
    """Answers NaN."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * torch.nan


@pytest.mark.parametrize(
    ("model", "words"), [(Pair(), "with a tuple"), (Summing(), "not with logits"), (Lost(), "finite logits")]
)
def test_answers_that_cannot_be_checked_leave_the_model_as_given(
    model: nn.Module, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(monkeypatch)
    fast = zipbrain.accelerate(model, windows(4))
    assert words in (fast.report.reason or "")
    assert type(fast(windows(2))) is type(plain(model.eval(), windows(2)))


def test_a_window_of_nan_in_the_example_does_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch)
    x = windows(5)
    x[0] = torch.nan
    fast = zipbrain.accelerate(Classifier(), x, compile=False, measure=False)
    assert fast.report.precision == "float16"
    assert fast.report.checks["float16"].windows == 4
    answer = fast(x)
    assert answer[0].isnan().all()
    assert answer[1:].isfinite().all()


def compiling(monkeypatch: pytest.MonkeyPatch, change: Any) -> None:
    """`torch.compile` does this from now on."""
    monkeypatch.setattr(torch, "compile", change)


def test_compilation_is_kept_where_it_works(monkeypatch: pytest.MonkeyPatch) -> None:
    captures = stand_in(monkeypatch)
    compiling(monkeypatch, lambda network: lambda x: network(x))
    fast = zipbrain.accelerate(Classifier(), windows(4), compile=True, measure=False, batches=(4, 2, 4))
    assert captures.sizes == [4, 4, 2, 2]  # each with and without compilation
    step = fast.report.step("compile")
    assert step is not None
    assert (step.kept, step.what) == (True, "batch 2, 4")


def test_compilation_that_fails_or_answers_otherwise_is_dropped_with_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stand_in(monkeypatch)

    def fail(network: nn.Module) -> Any:
        raise RuntimeError("no compiler found\nand a long story")

    model, x = Classifier(), windows(4)
    for change, words in (
        (fail, "it failed: RuntimeError: no compiler found ("),
        (lambda network: lambda x: -network(x), "it answers otherwise"),
    ):
        compiling(monkeypatch, change)
        fast = zipbrain.accelerate(model, x, compile=True, measure=False, precision="float32")
        step = fast.report.step("compile")
        assert step is not None
        assert not step.kept
        assert step.reason.startswith(words)
        torch.testing.assert_close(fast(x), plain(model.eval(), x))


def test_a_process_can_compile_many_models_each_for_the_first_shape_it_sees() -> None:
    torch._dynamo.reset()
    shapes: list[list[str]] = []

    def backend(graph: Any, inputs: Any) -> Any:
        shapes.append([str(tuple(one.shape)) for one in inputs if isinstance(one, Tensor) and one.dim() == 3])
        return graph.forward

    for outputs in range(2, 14):
        compiled = torch.compile(attempts.with_code_of_its_own(Classifier(outputs).eval()), backend=backend)
        for count in (8, 4, 2, 1):
            assert plain(compiled, windows(count)).shape == (count, outputs)
    assert len(shapes) == 12 * 3  # the first size, one for all others, and one for single windows
    assert all(first == ["(8, 3, 5)"] for first in shapes[::3])
    torch._dynamo.reset()


@needs_no_cuda
def test_compilation_can_be_asked_for_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    compiling(monkeypatch, lambda network: lambda x: network(x))
    model, x = Classifier(), windows(3)
    fast = zipbrain.accelerate(model, x, compile=True)
    assert fast.batches == (1, 2, 3)
    torch.testing.assert_close(fast(windows(5)), plain(model.eval(), windows(5)))
    assert {one.way for one in fast.report.measured} == {"as given", "compiled"}
    step = fast.report.step("graphs")
    assert step is not None
    assert "no CUDA" in step.reason


# -- measuring ---------------------------------------------------------------------------------------------------------


def invented(monkeypatch: pytest.MonkeyPatch, milliseconds: dict[str, float]) -> None:
    """Timings by name of the way."""

    def time_ways(tried: list[candidates.Way], size: int, x: Any) -> None:
        for way in tried:
            if size in way.buckets:
                way.timings[size] = Timing(way.name, (1e-3 * milliseconds[way.name],) * 3)

    monkeypatch.setattr(optimise, "time_ways", time_ways)


def test_the_fastest_way_is_kept_and_the_table_shows_all(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch)
    compiling(monkeypatch, lambda network: lambda x: network(x))
    times = {"as given": 10.0, "graph": 4.0, "float16": 9.0, "float16, compiled": 6.0, "float16, graph": 2.0}
    invented(monkeypatch, {**times, "float16, compiled, graph": 1.0})
    fast = zipbrain.accelerate(Classifier(), windows(4), compile=True)
    assert fast.report.ratios == pytest.approx({1: 0.1, 2: 0.1, 4: 0.1})
    assert len(fast.report.measured) == 18
    shown = str(fast.report)
    assert "1.000 (0.10)*" in shown
    assert "10.000 (1.00) " in shown
    assert "float16, compiled, graph" in shown
    stored = json.loads(json.dumps(fast.report.as_dict()))
    assert stored["measured"][0] == {"batch": 1, "way": "as given", "seconds": 0.01, "ratio": 1.0, "kept": False}
    assert stored["checks"]["float16"]["safe"] is True


def test_compilation_that_is_not_faster_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    compiling(monkeypatch, lambda network: lambda x: network(x))
    times = {"as given": 10.0, "graph": 4.0, "float16": 9.0, "float16, compiled": 6.0, "float16, graph": 2.0}
    invented(monkeypatch, {**times, "float16, compiled, graph": 1.99})
    fast = zipbrain.accelerate(Classifier(), windows(2))
    step = fast.report.step("compile")
    assert step is not None
    assert (step.kept, step.reason) == (False, "not faster")
    assert {one.way for one in fast.report.measured if one.kept} == {"float16, graph"}
    asked = zipbrain.accelerate(Classifier(), windows(2), compile=True)
    assert {one.way for one in asked.report.measured if one.kept} == {"float16, compiled, graph"}


def test_half_precision_that_is_not_faster_is_dropped_unless_it_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch)
    invented(monkeypatch, {"as given": 10.0, "graph": 4.0, "float16": 30.0, "float16, graph": 12.0})
    model, x = Classifier(), windows(4)
    fast = zipbrain.accelerate(model, x, compile=False)
    assert fast.report.precision == "float32"
    step = fast.report.step("precision")
    assert step is not None
    assert step.reason == "float16 is safe, but not faster: 3.00 of the time, mean over the batches"
    torch.testing.assert_close(fast(x), plain(model.eval(), x))
    asked = zipbrain.accelerate(model, x, compile=False, precision="float16")
    assert asked.report.precision == "float16"


def test_graphs_that_are_not_faster_leave_windows_as_they_come(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch)
    invented(monkeypatch, {"as given": 10.0, "graph": 9.9})
    fast = zipbrain.accelerate(Classifier(), windows(4), compile=False, precision="float32")
    assert fast.batches == ()
    assert fast.report.reason == "nothing that was tried is both safe and faster"


def test_real_timings_are_taken_for_every_size(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch)
    monkeypatch.setattr(candidates, "_SECONDS", 0.01)
    seen: list[tuple[str, int, int]] = []
    fast = zipbrain.accelerate(
        Classifier(), windows(3), compile=False, progress=lambda what, done, total: seen.append((what, done, total))
    )
    assert {one.batch for one in fast.report.measured} == {1, 2, 3}
    assert all(one.seconds > 0 for one in fast.report.measured)
    assert sum(one.kept for one in fast.report.measured) == 3
    assert seen[0] == ("running the model as given", 0, 6)
    assert seen[-1] == ("done", 6, 6)
    assert [done for _, done, _ in seen] == list(range(7))


# -- compressed models and threads -------------------------------------------------------------------------------------


@pytest.mark.parametrize("mass", [False, True])
@pytest.mark.parametrize("method", [*COMPARED, "free_slicing"])
def test_compressed_models_keep_their_answers(method: str, mass: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch)
    torch.manual_seed(0)
    model = zipbrain.compress(TokenEncoder(dim=32, depth=3, heads=4).eval(), method, ratio=0.6, mass=mass)
    x = torch.randn(9, 30, 32)
    fast = zipbrain.accelerate(model, x, compile=False, measure=False, precision="float32", batches=(4,))
    torch.testing.assert_close(fast(x), plain(model, x), rtol=1e-4, atol=1e-5)
    assert fast.report.step("pooling") is not None


def test_accelerating_twice_or_a_compiled_model_takes_the_model_underneath(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch)
    model, x = Classifier(), windows(4)
    once = zipbrain.accelerate(model, x, compile=False, measure=False)
    again = zipbrain.accelerate(once, x, compile=False, measure=False, precision="float32")
    assert again.report.model == "Classifier"
    torch.testing.assert_close(again(x), plain(model.eval(), x))
    compiled = zipbrain.accelerate(torch.compile(model), x, compile=False, measure=False)
    assert compiled.report.model == "Classifier"


def test_threads_share_one_accelerated_model(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch)
    model = Classifier()
    fast = zipbrain.accelerate(model, windows(8), compile=False, measure=False, precision="float32")
    inputs = [windows(count, seed=count) for count in range(1, 20)]
    expected = [plain(model.eval(), x) for x in inputs]

    def right(number: int) -> bool:
        place = number % len(inputs)
        return bool(torch.allclose(fast(inputs[place]), expected[place], atol=1e-5))

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(right, range(200)))


def test_weights_changed_in_place_count_at_once_in_the_given_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch)
    model, x = Classifier(), windows(4)
    fast = zipbrain.accelerate(model, x, compile=False, measure=False, precision="float32")
    model.load_state_dict(Classifier(seed=7).state_dict())
    torch.testing.assert_close(fast(x), plain(model.eval(), x))


# -- which way pooling takes -------------------------------------------------------------------------------------------


def test_the_report_names_the_backend_that_pools_and_why_it_is_not_a_faster_one() -> None:
    encoder, tokens = TokenEncoder(dim=32, depth=2, heads=4).eval(), torch.randn(2, 20, 32)
    assert zipbrain.accelerate(encoder, tokens).report.step("pooling") is None
    model = zipbrain.compress(encoder, "tome", ratio=0.5)
    step = zipbrain.accelerate(model, tokens).report.step("pooling")
    assert step is not None
    assert (step.kept, step.what) == (False, "plain operators")
    assert "ZIPBrain" in step.reason
    model = zipbrain.compress(zipbrain.restore(encoder), ratio=0.5)
    before = cpu.switch(True)
    try:
        step = zipbrain.accelerate(model, tokens).report.step("pooling")
    finally:
        cpu.switch(before)
    assert step is not None
    assert step.what in ("C kernel", "plain operators")
    assert step.kept == (step.what == "C kernel") == (not step.reason)


def test_the_result_is_an_accelerated_module() -> None:
    assert isinstance(zipbrain.accelerate(Classifier(), windows(2)), Accelerated)
