"""The four models, original and compressed, in torch.compile and ONNX Runtime: the same logits on real EEG.

A decision (which tokens stay, whom the others join, which code TFM gives a frame) can hang on the last bit of a score.
So logits are compared on the windows whose decisions are all the same; the others are counted, and each must show that
its first other decision was a near-tie. Error = largest absolute difference over the largest absolute expected logit.

Tests take the first blocks of each network and one or two recordings. The whole networks on all 290 windows, as a
table: ``python tests/models/test_export.py``.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import onnxruntime
import pytest
import torch
from torch import Tensor, nn

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # what tests share

import zipbrain
from real_windows import MODELS, RECORDINGS, missing, network, noise, windows
from zipbrain import ZIPBrain
from zipbrain.models import TFM
from zipbrain.pooling.grouping import take
from zipbrain.pooling.spaces import Spaces
from zipbrain.pooling.steps import pivot_count, score_redundancy, select_pivots
from zipbrain.pooling.tokens import Tokens
from zipbrain.seams.compress import is_compressed

BOUND = 1e-5  # on the error of logits whose decisions agree
NEAR_TIE = 1e-5  # how close the scores of a decision that differs must be
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


# -- a model that tells its decisions ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Watched(ZIPBrain):
    """ZIPBrain that keeps the tokens it saw, by block, for the margins of its decisions."""

    seen: ClassVar[dict[int, tuple[Tokens, ZIPBrain]]] = {}

    def __call__(self, tokens: Tokens) -> Any:
        self.seen[tokens.layer] = tokens, self
        return super().__call__(tokens)

    def fused(self, tokens: Tokens) -> Any:
        self.seen[tokens.layer] = tokens, self
        return super().fused(tokens)


class Told(nn.Module):
    """A model that also returns its decisions: logits, TFM's codes, then kept tokens and targets of every reduction."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.codes = model, []
        if isinstance(model, TFM):
            model.tokenizer.register_forward_hook(lambda module, args, ids: self.codes.append(ids.flatten(1)))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """(B, C, n_times) -> (B, 2), then integers (B or B patches, ...)"""
        told: list[Tensor] = []
        if not is_compressed(self.model):
            logits = self.model(x)
        else:
            with zipbrain.trace(self.model) as trace:
                logits = self.model(x)
            for layer in trace.layers:
                told += [layer.grouping.kept, layer.grouping.target] if layer.after < layer.before else []
        told = [*self.codes, *told]
        self.codes.clear()
        return logits, *told


def compress(model: nn.Module, name: str, setting: str, watched: bool = False) -> nn.Module:
    """Compress a model, whole or cut to its first blocks, in one of the settings."""
    method, ratio, mass = SETTINGS[setting]
    if method is None:
        return zipbrain.restore(model)
    chosen = ZIPBrain() if method == "default" else ZIPBrain.from_paper(name, "EEGMAT")
    if watched:
        chosen = Watched(chosen.z1, chosen.z2, chosen.z3, chosen.rho)
    depth = len(model.get_submodule(model.encoder_path))
    layers = [block for block in getattr(model, "reduce_at", range(1, depth + 1)) if block <= depth]
    return zipbrain.compress(model, chosen, ratio=ratio, mass=mass, layers=layers)


# -- how close a decision was ------------------------------------------------------------------------------------------


def token_gaps(tokens: Tokens, method: ZIPBrain) -> tuple[Tensor, Tensor]:
    """How far the scores at one reduction were from another decision, in float64.

    Returns
    -------
    kept : Tensor, shape (B, 1)
        The smaller of two gaps: last pivot to first other token (norm over the largest norm), last redundant token to
        first unique one (mean cosine).
    target : Tensor, shape (B, r)
        Best to second-best cosine of every redundant token.
    """
    source = method(tokens).source - tokens.leading
    exact = replace(tokens, **{name: getattr(tokens, name).double() for name in "xqkv"})
    spaces, count = Spaces(exact), pivot_count(tokens.count, tokens.r, method.parts.split.share)
    length = spaces.length(method.z1)
    pivots = select_pivots(length, count)
    kept = gap_after(length / length.amax(1, keepdim=True), count)
    if count < tokens.count - tokens.r:
        score = score_redundancy(spaces.unit(method.z2), pivots) / count
        kept = torch.minimum(kept, gap_after(score.masked_fill(pivots, -torch.inf), tokens.r))
    unit = spaces.unit(method.z3)
    cosine = torch.bmm(take(unit, source), unit.transpose(1, 2))
    closed = torch.zeros_like(pivots).scatter(1, source, True).unsqueeze(1)
    return kept.unsqueeze(1), gap_after(cosine.masked_fill(closed, -torch.inf), 1)


def code_gaps(model: TFM, x: Tensor) -> Tensor:
    """Squared distance to the second-nearest code minus that to the nearest, in float64: (B, C frames)."""
    table = model.tokenizer.quantizer.embedding.weight.double()
    encoded = model.tokenizer.encode(x).double().flatten(1, 2)
    return gap_after(2 * torch.matmul(encoded, table.t()) - table.square().sum(1), 1)


def gap_after(score: Tensor, count: int) -> Tensor:
    """The count-th highest score minus the next one: (..., N) -> (...); infinite where there is no next one."""
    if count >= score.shape[-1]:
        return torch.full(score.shape[:-1], torch.inf, dtype=score.dtype)
    best = score.topk(count + 1, dim=-1).values
    return best[..., count - 1] - best[..., count]


@torch.no_grad()
def reference(told: Told, x: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """What torch gives (logits and decisions) and the gap behind each decision; the model is compressed `watched`."""
    Watched.seen.clear()
    outputs = list(told(x))
    gaps = [code_gaps(told.model, x)] if isinstance(told.model, TFM) else []
    for tokens, method in list(Watched.seen.values()):
        gaps += token_gaps(tokens, method)
    assert len(gaps) == len(outputs) - 1
    return outputs, gaps


# -- comparing ---------------------------------------------------------------------------------------------------------


@dataclass
class Outcome:
    """A comparison: windows, largest error where decisions agree, and (window, margin) where they don't."""

    windows: int = 0
    difference: float = 0.0
    largest: float = 0.0
    flips: list[tuple[int, float]] = field(default_factory=list)

    @property
    def error(self) -> float:
        """As the golden vectors define it, over the windows whose decisions agree."""
        return self.difference / self.largest

    def add(self, expected: list[Tensor], gaps: list[Tensor], found: list[Tensor]) -> None:
        """Compare some more windows.

        Every row (a window; in EEGPT one of its patches, which are apart until the head) is judged by its first
        decision that differs, because all later ones follow from it.
        """
        count = expected[0].shape[0]
        rows = max(part.shape[0] for part in expected)
        same, margin = torch.ones(rows, dtype=torch.bool), torch.zeros(rows, dtype=torch.float64)
        for mine, theirs, gap in zip(expected[1:], found[1:], gaps, strict=True):
            differs = mine != theirs
            now = differs.any(1) & same
            margin = torch.where(now, torch.where(differs, gap, 0.0).amax(1), margin)
            same &= ~now
        agree = same.reshape(count, -1).all(1)
        worst = margin.reshape(count, -1).amax(1)
        self.flips += [(self.windows + window, worst[window].item()) for window in torch.where(~agree)[0].tolist()]
        self.windows += count
        self.largest = largest(self.largest, expected[0])
        self.difference = largest(self.difference, (found[0] - expected[0])[agree])

    def faults(self) -> list[str]:
        """What is out of bounds."""
        allowed = max(1, self.windows // 50)
        return [
            *([f"error {self.error:.1e} over {BOUND:g}"] if not self.error <= BOUND else []),
            *(f"window {w} differs at a margin of {margin:.1e}" for w, margin in self.flips if not margin < NEAR_TIE),
            *([f"{len(self.flips)} of {self.windows} windows differ"] if len(self.flips) > allowed else []),
        ]


def largest(before: float, values: Tensor) -> float:
    """The largest absolute value so far; NaN if there is any."""
    return torch.cat((torch.tensor([before]), values.abs().flatten())).max().item()


def export(model: nn.Module, x: Tensor, folder: Path, optimise: bool) -> onnxruntime.InferenceSession:
    """A session of the model with a free number of windows.

    torch's optimiser compares every node with every rule and takes most of the time; ONNX Runtime has its own.
    """
    free = ({0: torch.export.Dim("batch")},)
    with torch.no_grad():
        program = torch.onnx.export(
            model, (x,), dynamo=True, opset_version=18, verbose=False, dynamic_shapes=free, optimize=optimise
        )
    program.save(folder / "model.onnx")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    return onnxruntime.InferenceSession(folder / "model.onnx", options, providers=["CPUExecutionProvider"])


def run(session: onnxruntime.InferenceSession, x: Tensor) -> list[Tensor]:
    """All outputs for some windows."""
    return [torch.from_numpy(value) for value in session.run(None, {session.get_inputs()[0].name: x.numpy()})]


def onnx_parity(
    name: str, setting: str, x: Tensor, folder: Path, blocks: int | None = None, optimise: bool = False
) -> Outcome:
    """Export one model in one setting and compare it with torch on all windows."""
    told = Told(compress(network(name, blocks), name, setting))
    session = export(told, x[:3], folder, optimise)
    assert isinstance(session.get_inputs()[0].shape[0], str)  # free
    compress(told.model, name, setting, watched=True)
    outcome = Outcome()
    for some in x.split(CHUNK):
        outcome.add(*reference(told, some), run(session, some))
    return outcome


@torch.no_grad()
def compile_parity(
    name: str, setting: str, x: Tensor, blocks: int | None = None, backend: str = "aot_eager"
) -> Outcome:
    """Compile one model as one graph and compare it with eager torch on the windows without near-ties."""
    torch._dynamo.reset()
    model = compress(network(name, blocks), name, setting)
    found = torch.compile(model, backend=backend, fullgraph=True)(x)
    torch._dynamo.reset()
    return compare_clear(model, name, setting, x, found)


def compare_clear(model: nn.Module, name: str, setting: str, x: Tensor, found: Tensor) -> Outcome:
    """Compare logits of something that does not tell its decisions, on the windows without near-ties."""
    expected, gaps = reference(Told(compress(model, name, setting, watched=True)), x)
    clear = torch.ones(x.shape[0], dtype=torch.bool)
    for gap in gaps:
        clear &= gap.reshape(x.shape[0], -1).amin(1) >= NEAR_TIE
    outcome = Outcome()
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
def test_onnx_runtime_gives_the_same_logits_on_real_windows(
    name: str, setting: str, blocks: int, count: int, tmp_path: Path
) -> None:
    x = some_windows(name, count)
    outcome = onnx_parity(name, setting, x, tmp_path, blocks)
    assert outcome.windows == count
    assert outcome.faults() == []


@real
@pytest.mark.slow
def test_an_export_of_the_model_alone_gives_the_same_logits(tmp_path: Path) -> None:
    x, model = some_windows("BIOT", 58), compress(network("BIOT", 3), "BIOT", "paper max")
    (found,) = run(export(model, x[:3], tmp_path, optimise=True), x)
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
        assert torch.equal(Told(model)(x)[0], plain)


def test_gaps_are_those_between_the_scores_that_decide() -> None:
    angle, norm = torch.tensor([0.0, 0.4, 0.3, 1.0]), torch.tensor([4.0, 3.0, 2.0, 1.0])
    x = (norm * torch.stack((angle.cos(), angle.sin()))).T[None]
    heads = x.unsqueeze(1)
    tokens = Tokens(x, 1, heads, heads, heads)
    # rho 0.5: pivots 0 and 1, their norms decide. rho 0.3: pivot 0, the cosines to it decide. Token 2 goes to token 1.
    cosines = (angle[2].cos() - angle[1].cos()).item()
    for rho, expected in ((0.5, 0.25), (0.3, cosines)):
        kept, target = token_gaps(tokens, ZIPBrain("x", "x", "x", rho))
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
    outcome = Outcome()
    outcome.add([logits, first, second], gaps, found)
    assert outcome.error == 0
    assert outcome.flips == [(0, pytest.approx(1e-7)), (1, pytest.approx(2e-6))]
    assert outcome.faults() == ["2 of 3 windows differ"]
    found[2][2, 1] = 7  # window 2: no near-tie explains it
    clear = Outcome()
    clear.add([logits, first, second], gaps, found)
    assert "window 2 differs at a margin of 5.0e-01" in clear.faults()
    found = [logits + 1e-3, first, second]
    wrong = Outcome()
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
            with tempfile.TemporaryDirectory() as folder:
                optimise = setting in ("original", "paper max")  # minutes in LaBraM, so not for all
                found = onnx_parity(name, setting, x, Path(folder), optimise=optimise)
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
