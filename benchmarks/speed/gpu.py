"""What pooling costs and brings on a GPU: every method against free slicing and against the original network.

    python -m benchmarks.speed.gpu  # everything; in parts if a call may not take that long:
    python -m benchmarks.speed.gpu --parts encoders --shapes LaBraM --dtypes float16
    python -m benchmarks.speed.gpu --parts kernels waterfall checks memory
    python -m benchmarks.speed.gpu --parts decisions --model FOLDER --windows FILE.npz  # a trained LaBraM
    python -m benchmarks.speed.gpu --dry  # tiny shapes on a CPU, to see that it runs

Needs torch, triton, numpy and the package (PYTHONPATH=src). Encoders have random weights and see other random tokens in
each round. All candidates of a block are captured in CUDA graphs and replayed in turn, each round in another order;
a ratio is the median over rounds of times taken right after each other. "Free slicing" is the same network whose
reducing layers slice tokens off: no method can be faster. Rows are appended to CSV files as they come, with the device
and the versions, and the bars that were met and missed are printed at the end.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from benchmarks.shared.results import RESULTS
from benchmarks.speed.gpu_bench import DRY, DTYPES, MANY, SHAPES, Bench, machine
from benchmarks.speed.gpu_checks import check, check_memory
from benchmarks.speed.gpu_encoders import compile_kernels, time_encoders, time_training
from benchmarks.speed.gpu_kernels import time_kernels
from benchmarks.speed.gpu_waterfall import STEPS, check_decisions, time_waterfall

from zipbrain.pooling.backends.triton import entry as triton_path


def report(bench: Bench) -> None:
    """Bars met and missed."""
    missed = [bar for bar in bench.bars if bar[1] > bar[2]]
    dry = "" if bench.gpu else " (a dry run: the numbers mean nothing)"
    print(f"\n{len(bench.bars) - len(missed)} of {len(bench.bars)} bars met{dry}")
    for what, found, allowed in bench.bars:
        print(f"  {'met   ' if found <= allowed else 'MISSED'} {found:8.4f} <= {allowed:6.4f}  {what}")
    if bench.bars:
        rows = [{"bar": w, "found": round(f, 5), "allowed": a, "met": f <= a} for w, f, a in bench.bars]
        bench.write("bars", rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = ["encoders", "kernels", "waterfall", "checks", "memory", "training"]
    parser.add_argument("--parts", nargs="+", choices=[*parts, "compile", "decisions"], default=parts)
    parser.add_argument("--shapes", nargs="+", help="LaBraM, BIOT, EEGPT, TFM, 'long 2049', 'long 8193'")
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 32, 256])
    parser.add_argument("--dtypes", nargs="+", choices=list(DTYPES), default=list(DTYPES))
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--model", type=Path, help="decisions: folder of a trained LaBraM")
    parser.add_argument(
        "--windows", type=Path, help="decisions: .npz with x (n, C, T), scaled for the model, and y (n,)"
    )
    parser.add_argument(
        "--steps", nargs="+", choices=list(STEPS), default=list(STEPS), help="decisions: the first is always there"
    )
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--dry", action="store_true", help="tiny shapes on a CPU")
    options = parser.parse_args()
    if (options.model is None) != (options.windows is None):
        raise SystemExit("--model and --windows belong together: a trained model, and what it is tried on")
    triton_path.interpret(options.dry)  # has an effect under TRITON_INTERPRET=1
    if not options.dry and not torch.cuda.is_available():
        raise SystemExit("no CUDA device: this measures a GPU (--dry runs tiny shapes on a CPU)")
    device = "cpu" if options.dry else "cuda"
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    bench = Bench(device, 3 if options.dry else options.rounds, options.out, machine(device))
    known = DRY if options.dry else SHAPES
    wanted = [shape for shape in known if options.shapes is None or shape.name in options.shapes]
    batches = [1, 2, 32] if options.dry else options.batches
    dtypes = ["float32", "bfloat16"] if options.dry else options.dtypes
    if not wanted:
        raise SystemExit(f"--shapes {options.shapes}: known are {', '.join(shape.name for shape in known)}")
    print(bench.about, "kernels:", triton_path.available(), flush=True)
    with torch.inference_mode():
        if "compile" in options.parts:
            compile_kernels([shape for shape in wanted if shape.tokens <= MANY], dtypes)
        if "checks" in options.parts:
            for shape in (s for s in wanted if s.tokens <= triton_path.MOST_TOKENS):
                check(bench, shape, dtypes)
        if "kernels" in options.parts and (bench.gpu or triton_path.interprets_cpu):
            time_kernels(bench, wanted, batches, dtypes)
        if "encoders" in options.parts:
            time_encoders(bench, wanted, batches, dtypes)
        if "memory" in options.parts:
            check_memory(bench, known[-1], dtypes)
        if "waterfall" in options.parts:
            time_waterfall(bench)
        if options.model is not None:
            check_decisions(bench, options.model, options.windows, options.steps)
    if "training" in options.parts:
        time_training(bench, [shape for shape in wanted if shape.name in ("LaBraM", "BIOT")], 4 if options.dry else 64)
    report(bench)


if __name__ == "__main__":
    main()
