"""Our LaBraM and BIOT against braindecode's, uncompressed, on a CPU, in one interleaved run.

make zoo                                                # makes .venv-zoo, which has braindecode
.venv-zoo/bin/python -m benchmarks.speed.versus_braindecode   # writes benchmarks/results/versus_braindecode.csv
"""

from __future__ import annotations

import argparse
import platform
from functools import partial

import torch
from benchmarks.shared.results import write_csv
from torch import Tensor, nn

from zipbrain.models import BIOT, LaBraM
from zipbrain.profiling import interleaved

_NAMES = "FP1 FP2 F3 F4 C3 C4 P3 P4 O1 O2 F7 F8 T3 T4 T5 T6 A1 A2 FZ CZ PZ T1 T2"


def pairs() -> dict[str, tuple[nn.Module, nn.Module, tuple[int, int], dict[str, list[str]]]]:
    """Ours, theirs, shape of a TUAB window, and what theirs is given beside it."""
    import braindecode.models as theirs

    names = _NAMES.split()
    return {
        "LaBraM": (
            LaBraM(2, names, 2000), theirs.Labram(n_chans=23, n_times=2000, n_outputs=2, use_mean_pooling=True),
            (23, 2000), {"ch_names": names},
        ),
        "BIOT": (
            BIOT(2, 16, 2000), theirs.BIOT(n_chans=16, n_times=2000, n_outputs=2, sfreq=200, hop_length=100),
            (16, 2000), {},
        ),
    }  # fmt: skip


def run(model: nn.Module, x: Tensor, **extra: list[str]) -> None:
    """One forward."""
    with torch.inference_mode():
        model(x, **extra)


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=24)
    arguments = parser.parse_args()
    rows = []
    for name, (ours, theirs, shape, extra) in pairs().items():
        for batch in (1, 32):
            x = torch.randn(batch, *shape)
            candidates = {"ours": partial(run, ours.eval(), x), "theirs": partial(run, theirs.eval(), x, **extra)}
            timings = interleaved(candidates, rounds=arguments.rounds)
            mine, other = timings["ours"], timings["theirs"]
            rows.append({
                "model": name, "batch": batch, "ours_ms": f"{1e3 * mine.median:.2f}",
                "braindecode_ms": f"{1e3 * other.median:.2f}", "ratio": f"{mine.ratio(other):.3f}",
                "rounds": arguments.rounds, "threads": torch.get_num_threads(), "torch": torch.__version__,
                "cpu": platform.processor() or platform.machine(),
            })  # fmt: skip
            print({key: rows[-1][key] for key in ("model", "batch", "ours_ms", "braindecode_ms", "ratio")}, flush=True)
    write_csv("versus_braindecode", rows)


if __name__ == "__main__":
    main()
