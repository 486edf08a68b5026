"""The four models, original and compressed, in torch.compile and ONNX Runtime: the same logits on real EEG.

Windows are compared as `zipbrain.export.parity` says. Error = largest absolute difference over the largest absolute
expected logit.

Tests take the first blocks of each network and one or two recordings. The whole networks on all 290 windows, as a
table: ``python tests/models/test_export.py``.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnxruntime
import pytest
import torch
from torch import Tensor, nn

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # what tests share

import zipbrain
from real_windows import MODELS, RECORDINGS, missing, network, noise, windows
from zipbrain import ZIPBrain
from zipbrain.export.decision_outputs import WithDecisions, gaps_of, reference
from zipbrain.export.onnx_graph import export_graph
from zipbrain.export.parity import BOUND, NEAR_TIE, Groupings
from zipbrain.pooling.tokens import Tokens

CHUNK = 29  # windows that run at once: a recording

# name -> method (None: original), ratio, mass
SETTINGS: dict[str, tuple[str | None, Any, bool]] = {
    "original": (None, None, False),
    "paper 0.8": ("paper", 0.8, False),
    "paper max": ("paper", "max", False),
    "default 0.8": ("default", 0.8, False),
    "default max": ("default", "max", False),
    "paper max mass": ("paper", "max", True),
}

real = pytest.mark.skipif(bool(missing()), reason=missing())


def compress(model: nn.Module, name: str, setting: str) -> nn.Module:
    """Compress a model, whole or cut to its first blocks, in one of the settings."""
    method, ratio, mass = SETTINGS[setting]
    if method is None:
        return zipbrain.restore(model)
    chosen = ZIPBrain() if method == "default" else ZIPBrain.from_paper(name, "EEGMAT")
    depth = len(model.get_submodule(model.encoder_path))
    layers = [block for block in getattr(model, "reduce_at", range(1, depth + 1)) if block <= depth]
    return zipbrain.compress(model, chosen, ratio=ratio, mass=mass, layers=layers)


def export(model: nn.Module, x: Tensor) -> onnxruntime.InferenceSession:
    """A session of the model with a free number of windows."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    graph = export_graph(model, x, free_batch=True).SerializeToString()
    return onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])


def run(session: onnxruntime.InferenceSession, x: Tensor) -> list[Tensor]:
    """All outputs for some windows."""
    return [torch.from_numpy(value) for value in session.run(None, {session.get_inputs()[0].name: x.numpy()})]


def onnx_parity(name: str, setting: str, x: Tensor, blocks: int | None = None) -> Groupings:
    """Export one model in one setting and compare it with torch on all windows."""
    told = WithDecisions(compress(network(name, blocks), name, setting))
    session = export(told, x[:3])
    assert isinstance(session.get_inputs()[0].shape[0], str)  # free
    outcome = Groupings()
    for some in x.split(CHUNK):
        outcome.add(*reference(told, some), run(session, some))
    return outcome


@torch.no_grad()
def compile_parity(
    name: str, setting: str, x: Tensor, blocks: int | None = None, backend: str = "aot_eager"
) -> Groupings:
    """Compile one model as one graph and compare it with eager torch on the windows without near-ties."""
    torch._dynamo.reset()
    model = compress(network(name, blocks), name, setting)
    found = torch.compile(model, backend=backend, fullgraph=True)(x)
    torch._dynamo.reset()
    return compare_clear(model, name, setting, x, found)


def compare_clear(model: nn.Module, name: str, setting: str, x: Tensor, found: Tensor) -> Groupings:
    """Compare logits of something that does not tell its decisions, on the windows without near-ties."""
    expected, gaps = reference(WithDecisions(compress(model, name, setting)), x)
    clear = torch.ones(x.shape[0], dtype=torch.bool)
    for gap in gaps:
        clear &= gap.reshape(x.shape[0], -1).amin(1) >= NEAR_TIE
    outcome = Groupings()
    outcome.add([expected[0][clear]], [], [found[clear]])
    return outcome


# -- tests -------------------------------------------------------------------------------------------------------------


def some_windows(name: str, count: int) -> Tensor:
    """Real windows spread over two recordings, or noise where there are none."""
    return noise(count) if missing() else windows(name, RECORDINGS[:2])[:: 58 // count][:count]


@pytest.mark.parametrize(
    ("name", "setting"),
    [
        *((name, "original") for name in MODELS),
        ("LaBraM", "default 0.8"),
        ("EEGPT", "paper max"),
        ("BIOT", "paper max mass"),
        ("TFM-Tokenizer", "paper max"),
    ],
)
def test_compiles_as_one_graph(name: str, setting: str) -> None:
    outcome = compile_parity(name, setting, some_windows(name, 6), blocks=2)
    assert outcome.windows >= 2  # the others have near-ties
    assert outcome.faults() == []


@pytest.mark.slow
@pytest.mark.skipif(
    shutil.which(os.environ.get("CXX", "g++")) is None and shutil.which("clang++") is None, reason="no C++ compiler"
)
def test_inductor_gives_the_same_logits() -> None:
    """The smallest of the four; ``--backend inductor`` below takes them all, a minute each."""
    outcome = compile_parity("LaBraM", "paper max", some_windows("LaBraM", 4), blocks=1, backend="inductor")
    assert outcome.windows >= 2
    assert outcome.faults() == []


@real
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "setting", "blocks", "count"),
    [
        ("LaBraM", "original", 1, 6),
        ("EEGPT", "original", 1, 6),
        ("BIOT", "original", 1, 6),
        ("LaBraM", "paper max", 3, 58),
        ("EEGPT", "default 0.8", 2, 6),
        ("BIOT", "paper max mass", 2, 58),
        ("TFM-Tokenizer", "default 0.8", 2, 29),  # its tokenizer holds blocks that do not pool
    ],
)
def test_onnx_runtime_gives_the_same_logits_on_real_windows(name: str, setting: str, blocks: int, count: int) -> None:
    x = some_windows(name, count)
    outcome = onnx_parity(name, setting, x, blocks)
    assert outcome.windows == count
    assert outcome.faults() == []


@real
@pytest.mark.slow
def test_an_export_of_the_model_alone_gives_the_same_logits() -> None:
    x, model = some_windows("BIOT", 58), compress(network("BIOT", 3), "BIOT", "paper max")
    (found,) = run(export(model, x[:3]), x)
    outcome = compare_clear(model, "BIOT", "paper max", x, found)
    assert outcome.windows >= 50
    assert outcome.faults() == []


@real
@pytest.mark.parametrize("name", MODELS)
def test_logits_really_vary_between_windows(name: str) -> None:
    """Otherwise the comparisons would show nothing."""
    with torch.no_grad():
        logits = network(name)(some_windows(name, 6))
    spread = logits.amax(0) - logits.amin(0)
    assert spread.min() > 1e4 * BOUND * logits.abs().max()


def test_a_model_that_tells_its_decisions_gives_the_same_logits() -> None:
    x = some_windows("BIOT", 4)
    model = compress(network("BIOT"), "BIOT", "paper max")
    with torch.no_grad():
        plain = model(x)
        assert torch.equal(WithDecisions(model)(x)[0], plain)


def test_gaps_are_those_between_the_scores_that_decide() -> None:
    angle, norm = torch.tensor([0.0, 0.4, 0.3, 1.0]), torch.tensor([4.0, 3.0, 2.0, 1.0])
    x = (norm * torch.stack((angle.cos(), angle.sin()))).T[None]
    heads = x.unsqueeze(1)
    tokens = Tokens(x, 1, heads, heads, heads)
    # rho 0.5: pivots 0 and 1, their norms decide. rho 0.3: pivot 0, the cosines to it decide. Token 2 goes to token 1.
    cosines = (angle[2].cos() - angle[1].cos()).item()
    for rho, expected in ((0.5, 0.25), (0.3, cosines)):
        kept, target = gaps_of(tokens, ZIPBrain("x", "x", "x", rho))
        assert kept.item() == pytest.approx(expected, abs=1e-6)
        assert target.item() == pytest.approx(((angle[1] - angle[2]).cos() - angle[2].cos()).item(), abs=1e-6)


def test_windows_that_differ_are_judged_by_their_first_other_decision() -> None:
    logits = torch.tensor([[1.0], [2.0], [4.0]])
    first, second = torch.tensor([[0, 1], [0, 1], [0, 1]]), torch.tensor([[5, 6], [5, 6], [5, 6]])
    gaps = [torch.tensor([[1e-7], [1e-3], [1e-3]]), torch.tensor([[0.5, 0.5], [2e-6, 0.5], [0.5, 0.5]])]
    found = [logits.clone(), first.clone(), second.clone()]
    found[0][:2] += 1
    found[1][0, 0] = 3  # window 0: first decision, margin 1e-7; what follows from it does not count
    found[2][0, 1] = 9
    found[2][1, 0] = 9  # window 1: second decision, margin 2e-6
    outcome = Groupings()
    outcome.add([logits, first, second], gaps, found)
    assert outcome.error == 0
    assert outcome.flips == [(0, pytest.approx(1e-7)), (1, pytest.approx(2e-6))]
    assert outcome.faults() == ["2 of 3 windows differ"]
    found[2][2, 1] = 7  # window 2: no near-tie explains it
    clear = Groupings()
    clear.add([logits, first, second], gaps, found)
    assert "window 2 differs at a margin of 5.0e-01" in clear.faults()
    found = [logits + 1e-3, first, second]
    wrong = Groupings()
    wrong.add([logits, first, second], gaps, found)
    assert wrong.faults() == ["error 2.5e-04 over 1e-05"]
    wrong.add([logits, first, second], gaps, [logits * torch.nan, first, second])
    wrong.add([logits, first, second], gaps, [logits, first, second])
    assert wrong.faults() == ["error nan over 1e-05"]


# -- the whole networks on all windows ---------------------------------------------------------------------------------


def table(names: list[str], recordings: int, settings: list[str], backend: str) -> Iterator[tuple[str, list[str]]]:
    """Lines of the table, with what is out of bounds."""
    head = f"{'model':14s} {'setting':17s} {'windows':>7s} {'agree':>5s} {'error':>8s} {'compile':>8s} {'s':>5s}"
    yield f"{head}  others (margin)", []
    for name in names:
        x = windows(name, RECORDINGS[:recordings])
        for setting in settings:
            if name == "EEGPT" and setting in ("paper 0.8", "default max"):
                continue  # of 16 channels, 0.8 and max both remove 3 in each layer: same as the other two
            start = time.perf_counter()
            found = onnx_parity(name, setting, x)
            compiled = compile_parity(name, setting, x[:: len(x) // 6][:6], backend=backend)
            seconds = time.perf_counter() - start
            others = ", ".join(f"{window} ({margin:.0e})" for window, margin in found.flips) or "-"
            agree = found.windows - len(found.flips)
            yield (
                f"{name:14s} {setting:17s} {found.windows:7d} {agree:5d} {found.error:8.1e} {compiled.error:8.1e} "
                f"{seconds:5.0f}  {others}",
                found.faults() + compiled.faults(),
            )


def main() -> int:
    """Print the table; exit code 1 if anything is out of bounds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"any of {', '.join(MODELS)} (default: all)")
    parser.add_argument("--recordings", type=int, default=len(RECORDINGS), help="how many of the 10, 29 windows each")
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, default=list(SETTINGS))
    parser.add_argument(
        "--backend", default="aot_eager", help="of torch.compile, such as inductor (default: %(default)s)"
    )
    options = parser.parse_args()
    names = options.models or list(MODELS)
    if not set(names) <= set(MODELS):
        parser.error(f"MODEL must be one of {', '.join(MODELS)}, not {', '.join(sorted(set(names) - set(MODELS)))}")
    if missing():
        print(missing(), file=sys.stderr)
        return 1
    failed = False
    for line, faults in table(names, options.recordings, options.settings, options.backend):
        print(line, *(f"    {fault}" for fault in faults), sep="\n", flush=True)
        failed |= bool(faults)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
