"""`accelerate` on a CUDA device: the same answers from captured graphs, in half precision, compiled. Skipped elsewhere.

Also runs without pytest: ``python tests/test_gpu_accelerate.py``.
"""

from __future__ import annotations

import copy
import gc
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor, nn

import zipbrain
from zipbrain.acceleration import Accelerated
from zipbrain.errors import ZipbrainError
from zipbrain.models import BIOT, EEGPT, TFM, LaBraM, TokenEncoder
from zipbrain.pooling import DART, EViT, FreeSlicing, Method, ToFu, ToMe, Twins, ZIPBrain, ablations
from zipbrain.seams.second_look import margins

try:
    import pytest

    pytestmark = [
        pytest.mark.gpu,
        pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine"),
    ]
except ImportError:  # a machine with torch alone
    pass

METHODS: dict[str, Method] = {
    "zipbrain": ZIPBrain(), "kkk": ZIPBrain("k", "k", "k", 0.9), "per head": ZIPBrain("kh", "vh", "qh", 0.3),
    "tome": ToMe(), "tofu": ToFu(), "tofu pruning": ToFu(merge_from=None), "evit": EViT(fuse=False),
    "evit mean": EViT("mean", fuse=False), "evit fused": EViT(),
    "dart": DART(), "twins": Twins(), "slicing": FreeSlicing(), **ablations(seed=1),
}  # fmt: skip
QUICK: dict[str, Any] = {"compile": False, "measure": False}


def encoder(method: Method | None = None, seed: int = 0, **options: Any) -> nn.Module:
    torch.backends.cuda.matmul.allow_tf32 = False  # batches of other sizes agree to seven digits then
    torch.manual_seed(seed)
    model = TokenEncoder(dim=64, depth=4, heads=4).cuda().eval()
    return model if method is None else zipbrain.compress(model, method, ratio=0.8, **options)


def tokens(count: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, 100, 64, generator=generator).cuda()


def eager(model: nn.Module, x: Tensor) -> Tensor:
    with torch.inference_mode():
        answer: Tensor = model(x)
    return answer


def error(found: Tensor, expected: Tensor) -> float:
    """Relative squared error."""
    assert found.shape == expected.shape
    assert found.device == expected.device
    wide = expected.double()
    return float((found.double() - wide).square().sum() / wide.square().sum())


def test_graphs_answer_one_to_forty_windows_as_eager_execution_does() -> None:
    model = encoder()
    fast = zipbrain.accelerate(model, tokens(16), precision="float32", **QUICK)
    assert fast.batches == (1, 2, 4, 8, 16)
    step = fast.report.step("graphs")
    assert step is not None
    assert step.kept, fast.report
    for count in range(1, 41):
        x = tokens(count, seed=count)
        assert error(fast(x), eager(model, x)) < 1e-8, count


def test_windows_may_come_from_anywhere_in_any_form() -> None:
    model = encoder()
    fast = zipbrain.accelerate(model, tokens(8), precision="float32", **QUICK)
    x = tokens(5, seed=3)
    expected = eager(model, x)
    for given in (x.cpu(), x.cpu().pin_memory(), x.cpu().double(), tokens(5, seed=3).cpu().requires_grad_()):
        found = fast(given)
        assert found.device.type == "cpu"
        assert error(found, expected.cpu()) < 1e-8
        assert not found.requires_grad
    turned = x.transpose(1, 2).contiguous().transpose(1, 2)
    for given in (turned, x.double(), torch.stack((x, x))[1]):
        assert error(fast(given), expected) < 1e-8
    assert error(fast(x[:1].expand(19, -1, -1)), expected[:1].expand(19, -1)) < 1e-8
    many = tokens(50, seed=4)
    assert error(fast(many.cpu()), eager(model, many).cpu()) < 1e-8
    assert fast(x[:0]).shape == (0, 2)
    shorter = x[:, :60]
    assert torch.equal(fast(shorter), eager(model, shorter))


def test_half_precision_keeps_decisions_and_is_reported() -> None:
    torch.manual_seed(0)
    names = ["Fp1", "Fp2", "F3", "F4", "C3", "C4", "P3", "P4", "O1", "O2"]
    model = LaBraM(2, names, 1000).cuda().eval()
    with torch.no_grad():
        model.head.weight.mul_(1000)  # it starts out tiny
    x = torch.randn(32, 10, 1000, device="cuda")
    for compressed in (False, True):
        if compressed:
            zipbrain.compress(model, ZIPBrain("k", "k", "k", 0.9), ratio=0.8)
        fast = zipbrain.accelerate(model, x, compile=False)
        print(fast.report, flush=True)
        assert fast.report.checks["float16"].windows == 32
        if not compressed:
            assert fast.report.precision == "float16", fast.report
        assert fast.report.precision == "float32" or fast.report.checks[fast.report.precision].safe
        assert set(fast.report.ratios) == {1, 2, 4, 8, 16, 32}
        assert fast.report.ratios[1] < 1
        found, expected = fast(x), eager(model, x)
        assert found.dtype == torch.float32
        assert error(found, expected) < 1e-2
        assert next(model.parameters()).dtype == torch.float32


def test_every_method_is_captured_with_and_without_mass() -> None:
    for name, method in METHODS.items():
        for mass in (False, True):
            model = encoder(method, mass=mass)
            fast = zipbrain.accelerate(model, tokens(8), precision="float32", batches=(8,), **QUICK)
            step = fast.report.step("graphs")
            assert step is not None
            assert step.kept, (name, mass, step.reason)
            for seed in (1, 2):
                x = tokens(8, seed=seed)
                assert error(fast(x), eager(model, x)) < 1e-4, (name, mass)
                # Against a batch of the same size: another one rounds otherwise, which decides near ties.
                padded = torch.cat((x[:5], x[4:5].expand(3, -1, -1)))
                assert error(fast(x[:5]), eager(model, padded)[:5]) < 1e-4, (name, mass)


def test_two_models_at_once_and_inputs_that_change_do_not_disturb_each_other() -> None:
    models = [encoder(ZIPBrain(), seed=1), encoder(ToMe(), seed=2)]
    fast = [zipbrain.accelerate(model, tokens(4), precision="float32", **QUICK) for model in models]
    kept = []
    for round_ in range(10):
        x = tokens(4, seed=10 + round_)
        answers = [one(x) for one in fast]
        for model, answer in zip(models, answers, strict=True):
            kept.append((answer, eager(model, x).clone()))
    x = tokens(4, seed=50)
    for one, model in zip(fast, models, strict=True):
        for _ in range(3):  # written anew in the same memory
            x.mul_(0.7).add_(0.1)
            kept.append((one(x), eager(model, x).clone()))
    assert max(error(found, expected) for found, expected in kept) < 1e-4


def test_nothing_grows_over_two_hundred_calls_and_all_is_given_back() -> None:
    model = encoder(ZIPBrain())
    inputs = [tokens(count, seed=count) for count in (1, 3, 16, 40)] + [tokens(5).cpu()]
    left = []
    for _ in range(3):
        fast = zipbrain.accelerate(model, tokens(16), **QUICK)
        for number in range(len(inputs)):
            fast(inputs[number])
        torch.cuda.synchronize()
        start = torch.cuda.memory_allocated()
        for number in range(200):
            fast(inputs[number % len(inputs)])
        torch.cuda.synchronize()
        assert torch.cuda.memory_allocated() == start
        del fast
        gc.collect()
        left.append(torch.cuda.memory_allocated())
    assert left[1] == left[2], left  # after the first, which leaves the workspaces of CUDA's libraries behind


def test_odd_head_dimensions_run_in_half_precision() -> None:
    for heads in (8, 10, 40):  # 25, 20 and 5 features per head
        torch.manual_seed(0)
        model = TokenEncoder(dim=200, depth=2, heads=heads).cuda().eval()
        x = torch.randn(8, 50, 200, device="cuda")
        fast = zipbrain.accelerate(model, x, precision="float16", **QUICK)
        assert fast.report.precision == "float16", fast.report
        assert fast.batches, fast.report
        assert error(fast(x[:5]), eager(model, x[:5])) < 1e-3, heads


class Waiting(nn.Module):
    """Reads a value back from the GPU in the middle of a forward."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 3)

    def forward(self, x: Tensor) -> Tensor:
        scale = float(self.linear.weight.abs().max())
        logits: Tensor = self.linear(x.mean(1)) / scale
        return logits


class Comparing(Waiting):
    """A window's answer depends on the others of its batch."""

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.linear((x - x.mean(0)).mean(1))
        return logits


def test_a_model_that_waits_for_the_gpu_is_not_captured_and_harms_nothing() -> None:
    model = Waiting().cuda().eval()
    fast = zipbrain.accelerate(model, tokens(4), precision="float32", **QUICK)
    step = fast.report.step("graphs")
    assert step is not None
    assert not step.kept
    assert "waits for the GPU" in step.reason
    assert "test_gpu_accelerate.py" in step.reason
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    assert torch.rand(4, device="cuda").isfinite().all()
    x = tokens(3, seed=2)
    assert torch.equal(fast(x), eager(model, x))
    other = zipbrain.accelerate(encoder(), tokens(4), precision="float32", **QUICK)
    assert other.batches


def test_windows_that_depend_on_each_other_are_not_padded() -> None:
    model = Comparing().cuda().eval()
    fast = zipbrain.accelerate(model, tokens(6), precision="float32", **QUICK)
    assert not fast.batches
    x = tokens(5, seed=2)
    assert torch.equal(fast(x), eager(model, x))


class Overflowing(nn.Module):
    """Fine in float32 and bfloat16 but not in float16."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 3)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.linear((x * 1e6).mean(1) / 1e6)
        return logits


def test_float16_that_overflows_is_refused() -> None:
    torch.manual_seed(0)
    model = Overflowing().cuda().eval()
    fast = zipbrain.accelerate(model, tokens(16), tolerance=0.02, **QUICK)
    assert fast.report.precision in ("bfloat16", "float32"), fast.report
    assert fast.report.checks["float16"].lost == 16
    x = tokens(7, seed=1)
    assert error(fast(x), eager(model, x)) < 0.02


def test_weights_stay_as_long_as_the_graph_and_changes_in_place_count() -> None:
    model = encoder()
    fast = zipbrain.accelerate(model, tokens(4), precision="float32", **QUICK)
    x = tokens(4, seed=1)
    with torch.no_grad():
        model.head.weight.mul_(3)
        model.head.bias.add_(1)
    expected = eager(model, x)
    assert error(fast(x), expected) < 1e-8
    model.cpu()
    gc.collect()
    torch.cuda.empty_cache()
    filler = [
        torch.full((64, 256), torch.nan, device="cuda") for _ in range(100)
    ]  # where freed weights would have been
    assert error(fast(x), expected) < 1e-8
    del model, filler
    gc.collect()
    assert error(fast(x), expected) < 1e-8
    assert fast.to("cuda") is fast
    for change in (fast.cpu, fast.half):
        try:
            change()
        except ZipbrainError:
            continue
        raise AssertionError("it was moved")


def test_streams_and_threads_wait_for_each_other() -> None:
    model = encoder(ZIPBrain())
    fast = zipbrain.accelerate(model, tokens(8), precision="float32", **QUICK)
    inputs = [tokens(8, seed=seed) for seed in range(6)]
    expected = [eager(model, x).clone() for x in inputs]
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in inputs]
    for _ in range(20):
        answers = []
        for stream, x in zip(streams, inputs, strict=True):
            with torch.cuda.stream(stream):
                answers.append(fast(x))
        torch.cuda.synchronize()
        assert max(error(found, right) for found, right in zip(answers, expected, strict=True)) < 1e-4

    def right(number: int) -> bool:
        place = number % len(inputs)
        with torch.cuda.stream(streams[place]):
            found = fast(inputs[place].cpu() if number % 2 else inputs[place])
            return error(found.cpu(), expected[place].cpu()) < 1e-4

    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(right, range(120)))


def test_compilation_answers_alike_and_is_reported() -> None:
    model = encoder(ZIPBrain())
    fast = zipbrain.accelerate(model, tokens(8), compile=True, batches=(1, 4, 8))
    print(fast.report, flush=True)
    step = fast.report.step("compile")
    assert step is not None
    assert step.kept, step.reason
    for count in (1, 3, 8, 20):
        x = tokens(count, seed=count)
        found, expected = fast(x), eager(model, x)
        # Other rounding decides near ties otherwise: most windows agree, none is far off.
        close = [error(one, other) < 1e-3 for one, other in zip(found, expected, strict=True)]
        assert sum(close) >= 0.7 * count, (count, close)
        assert error(found, expected) < 0.1
    plain = zipbrain.accelerate(model, tokens(8), compile=True, graphs=False, precision="float32", batches=(8,))
    x = tokens(5, seed=5)
    assert error(plain(x), eager(model, x)) < 1e-3


def test_windows_that_look_twice_are_answered_by_captured_passes() -> None:
    x = tokens(16)
    order = margins(eager(encoder(ZIPBrain()), x)).sort().values
    for share in (0, 1, 5, 16):
        margin = 1e9 if share == 16 else 0.0 if share == 0 else float(order[share - 1 : share + 1].mean())
        model = encoder(ZIPBrain(), second_look=margin)
        fast = zipbrain.accelerate(model, x, precision="float32", batches=(1, 4, 16), **QUICK)
        step = fast.report.step("graphs")
        assert step is not None
        assert step.kept, step.reason
        for _ in range(3):  # graphs share their memory: what one leaves must not disturb the next
            for count in (16, 7, 1):
                found, expected = fast(x[:count]), eager(model, x[:count])
                assert torch.equal(found.argmax(1), expected.argmax(1)), (share, count)
                assert error(found, expected) < 1e-3, (share, count)
        half = zipbrain.accelerate(model, x, batches=(4, 16), **QUICK)
        assert error(half(x), eager(model, x)) < 1e-1
        compiled = zipbrain.accelerate(model, x, precision="float32", compile=True, measure=False, batches=(16,))
        assert error(compiled(x), eager(model, x)) < 1e-1


def test_our_four_models_are_answered_whatever_can_be_captured() -> None:
    torch.manual_seed(0)
    names = ["Fp1", "Fp2", "F3", "F4", "C3", "C4", "P3", "P4"]
    models = {
        "LaBraM": (LaBraM(2, names, 1000), 1000), "EEGPT": (EEGPT(2, names, 1024), 1024),
        "EEGPT probe": (EEGPT(2, names, 1000, head="probe"), 1000), "BIOT": (BIOT(2, 8, 1000), 1000),
        "TFM": (TFM(2, 8, 1000), 1000),
    }  # fmt: skip
    for name, (model, samples) in models.items():
        zipbrain.compress(model.cuda().eval(), ratio=0.5)
        x = torch.randn(8, 8, samples, device="cuda")
        fast = zipbrain.accelerate(model, x, precision="float32", **QUICK)
        step = fast.report.step("graphs")
        assert step is not None
        print(name, "captured" if step.kept else step.reason, flush=True)
        assert error(fast(x), eager(model, x)) < 1e-3, name
        assert isinstance(zipbrain.accelerate(model, x, compile=False, batches=(1, 8)), Accelerated)


def test_a_model_on_the_cpu_is_left_there_with_the_reason() -> None:
    model = copy.deepcopy(encoder()).cpu()
    fast = zipbrain.accelerate(model, tokens(4))
    assert fast.report.reason == "the model is on cpu: move it with model.to('cuda') first"
    x = tokens(3)
    assert fast(x).is_cuda
    assert torch.equal(fast(x.cpu()), eager(model, x.cpu()))


if __name__ == "__main__":
    if not torch.cuda.is_available():
        sys.exit("no CUDA device on this machine")
    for label, check in list(globals().items()):
        if label.startswith("test_"):
            check()
            print("ok", label, flush=True)
    sys.exit(0)
