"""What compression does with other people's models: ``python tests/zoo/outcomes.py [--tune] [NAME ...]`` prints it.

Random weights, one thread; only models whose name holds one of the given words. Time is the processor time of the
compressed model over the original's, median of interleaved calls on eight windows. Tuning takes minutes a model.
"""

from __future__ import annotations

import copy
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

import zipbrain
from zipbrain import ZIPBrain
from zipbrain.models import CBraMod

sys.path.insert(0, str(Path(__file__).parent))
from zoo import ENTRIES, Entry, braindecode, made

RATIO, BATCH, ROUNDS, PEOPLE = 0.7, 8, 5, 40
GRIDS = (
    Entry("our CBraMod, 64 channels", lambda: CBraMod(3, 64, 800, head_layers=1), (64, 800)),
    Entry("braindecode CBraMod, 64 channels", braindecode("CBraMod", n_chans=64, n_times=800), (64, 800)),
)
HEAD = ("model", "compress", "restore", "mass", "tune", "export: difference", "time")


class Wrapper(nn.Module):
    """A model that takes windows and nothing else."""

    def __init__(self, entry: Entry) -> None:
        super().__init__()
        self.entry, self.inner = entry, made(entry)
        self.middle: float | Tensor = 0.0  # of its logits, so that random weights decide for several classes

    def forward(self, x: Tensor) -> Tensor:
        return self.entry.run(self.inner, x) - self.middle


def answer(outcome: Callable[[], str]) -> str:
    """What was found, or the first line of what was said against it."""
    try:
        return outcome()
    except Exception as error:  # every row shall be printed
        return f"no: {(str(error).splitlines() or [type(error).__name__])[0][:110]}"


def row(entry: Entry, has_tune: bool) -> list[str]:
    """One model's line of the table."""
    model, x = Wrapper(entry).eval(), entry.input(BATCH)
    with torch.inference_mode():
        before = model(x)
        pooled = copy.deepcopy(model)

        def compress() -> str:
            zipbrain.compress(pooled, ZIPBrain(), ratio=RATIO)
            pooled(x)
            found = zipbrain.summary(pooled)
            counts = found.token_counts or [0]
            return f"{counts[0]} to {counts[-1]} {found.units}"

        def restore() -> str:
            again = zipbrain.restore(zipbrain.compress(copy.deepcopy(model), ZIPBrain(), ratio=RATIO))
            return "bit-equal" if torch.equal(again(x), before) else "no: other bits"

        def mass() -> str:
            after = zipbrain.compress(copy.deepcopy(model), ZIPBrain(), ratio=RATIO, mass=True)(x)
            return "yes" if after.shape == before.shape and bool(torch.isfinite(after).all()) else "no: other shape"

        cells = [answer(compress), answer(restore), answer(mass)]
    cells.append(answer(lambda: tuned(model, entry)) if has_tune else "not asked")
    with torch.inference_mode():
        cells += [answer(lambda: exported(pooled, x)), answer(lambda: share_of_time(pooled, model, x))]
    return [entry.name, *cells]


def tuned(model: Wrapper, entry: Entry) -> str:
    """Tokens that the tuned recipe removes; half of the decisions may change, because random weights decide nothing."""
    x = entry.input(PEOPLE, seed=9)
    centred = copy.deepcopy(model)
    with torch.inference_mode():
        centred.middle = model(x).mean(0)
    found = zipbrain.tune(centred, x.numpy(), agree=0.5, methods=("zipbrain",), groups=list(range(PEOPLE)), threads=1)
    zipbrain.compress(centred, found.recipe)
    return f"{sum(found.recipe.schedule.get('r', ()))} go" if found.recipe.layers else "nothing goes"


def exported(model: nn.Module, x: Tensor) -> str:
    """Largest difference of ONNX Runtime's answer, relative to the largest value."""
    import onnxruntime

    from zipbrain.export.onnx_graph import export_graph

    session = onnxruntime.InferenceSession(export_graph(model, x[:2]).SerializeToString())
    found, expected = torch.from_numpy(session.run(None, {"eeg": x[:2].numpy()})[0]), model(x[:2])
    return f"{float((found - expected).abs().max() / expected.abs().max()):.0e}"


def share_of_time(pooled: nn.Module, model: nn.Module, x: Tensor) -> str:
    """Median processor time of the compressed model over the original's."""
    spent: dict[nn.Module, list[float]] = {pooled: [], model: []}
    for _ in range(ROUNDS + 1):  # the first is a warm-up
        for one, seconds in spent.items():
            began = time.process_time()
            one(x)
            seconds.append(time.process_time() - began)
    return f"{statistics.median(spent[pooled][1:]) / statistics.median(spent[model][1:]):.2f}"


def main() -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    words = [word for word in sys.argv[1:] if word != "--tune"]
    chosen = [entry for entry in (*GRIDS, *ENTRIES) if not words or any(word in entry.name for word in words)]
    print("| " + " | ".join(HEAD) + " |\n" + "|---" * len(HEAD) + "|")
    for entry in chosen:
        print("| " + " | ".join(row(entry, "--tune" in sys.argv)) + " |", flush=True)


if __name__ == "__main__":
    main()
