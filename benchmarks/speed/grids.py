"""What pooling whole channels or whole time steps saves a CBraMod, in PyTorch and ONNX Runtime on the CPU.

    python -m benchmarks.speed.grids            # twelve blocks, 64 channels x 4 s
    python -m benchmarks.speed.grids --quick    # two blocks and few rounds, to see that it runs; stores nothing
    python -m benchmarks.speed.grids --table    # the stored figures into docs/explanation/seams.md

Times are processor time on one core, in turns, as ratios to the original in the same runtime; operations are those of
the blocks. Weights are random: what a network costs does not depend on them. Writes grids.csv and .json into
benchmarks/results.
"""

from __future__ import annotations

import argparse
import copy
from typing import Any

import torch
from benchmarks.shared.results import cpu_name, fill, read_csv, write_csv, write_json
from benchmarks.speed.tail import processor_seconds, ratio
from torch import Tensor, nn

import zipbrain
from zipbrain.models import CBraMod

CASES = ((64, 4, "channels"),)  # channels, seconds, what is pooled
RATIOS, BATCHES, ORIGINAL = (0.6, 0.7), (1, 8), "original"


class InRuntime(nn.Module):
    """A network as ONNX Runtime runs it on one thread."""

    def __init__(self, network: nn.Module, example: Tensor) -> None:
        import onnxruntime

        from zipbrain.export.onnx_graph import export_graph

        super().__init__()
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        graph = export_graph(network, example).SerializeToString()
        self._session = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])

    def forward(self, x: Tensor) -> Tensor:
        return torch.from_numpy(self._session.run(None, {"eeg": x.numpy()})[0])


def measure(case: tuple[int, int, str], blocks: int, batch: int, rounds: int) -> list[dict[str, Any]]:
    """Rows of one shape and batch size, both runtimes."""
    channels, seconds, axis = case
    torch.manual_seed(0)
    model = CBraMod(2, channels, 200 * seconds, depth=blocks, head_layers=1).eval()
    x = torch.randn(batch, channels, 200 * seconds)
    variants: dict[str, nn.Module] = {ORIGINAL: model}
    for share in RATIOS:
        variants[f"{share:g}"] = zipbrain.compress(copy.deepcopy(model), ratio=share, axis=axis, example=x[:1])
    rows = []
    with torch.inference_mode():
        expected = {name: network(x) for name, network in variants.items()}
        for runtime in ("PyTorch", "ONNX Runtime"):
            ready = variants if runtime == "PyTorch" else {key: InRuntime(one, x) for key, one in variants.items()}
            spent = processor_seconds(ready, x, rounds)
            for share in RATIOS:
                name, found = f"{share:g}", zipbrain.summary(variants[f"{share:g}"])
                error = (ready[name](x) - expected[name]).abs().max() / expected[name].abs().max()
                row = {"channels": channels, "seconds": seconds, "axis": axis, "asked": share}
                row |= {"removed": round(found.removed, 4), "left": found.token_counts[-1], "runtime": runtime}
                row |= {"batch": batch, "operations": round(found.macs / found.original_macs, 4)}
                row |= {"time": round(ratio(spent[name], spent[ORIGINAL]), 4), "difference": f"{float(error):.1e}"}
                rows.append(row)
                print(row, flush=True)
    return rows


def table() -> str:
    """The stored figures as a table: times at both batch sizes."""
    head = "| grid | pooled | left | operations | PyTorch, batch 1 | batch 8 | ONNX Runtime, batch 1 | batch 8 |"
    lines, rows = [head, "|---|---|--:|--:|--:|--:|--:|--:|"], read_csv("grids")
    keys = ("channels", "seconds", "axis", "asked")
    for key in dict.fromkeys(tuple(row[name] for name in keys) for row in rows):
        same = [row for row in rows if tuple(row[name] for name in keys) == key]
        times = {(row["runtime"], row["batch"]): f"{float(row['time']):.2f}" for row in same}
        unit = "channels" if key[2] == "channels" else "seconds"
        whole = key[0] if unit == "channels" else key[1]
        cells = [f"{key[0]} channels x {key[1]} s", f"{unit}, {float(same[0]['removed']):.0%}"]
        cells += [f"{same[0]['left']} of {whole}", f"{float(same[0]['operations']):.2f}"]
        cells += [times[name, str(batch)] for name in ("PyTorch", "ONNX Runtime") for batch in BATCHES]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--table", action="store_true")
    given = parser.parse_args()
    if given.table:
        fill({"grids": table})
        return
    torch.set_num_threads(1)
    rows = []
    for case in CASES:
        for batch in BATCHES:
            rows += measure(case, 2 if given.quick else 12, batch, 2 if given.quick else given.rounds)
    if not given.quick:
        write_csv("grids", rows)
        about = {"cpu": cpu_name(), "threads": 1, "torch": torch.__version__, "zipbrain": zipbrain.__version__}
        write_json("grids", about | {"rounds": given.rounds, "blocks": 12})


if __name__ == "__main__":
    main()
