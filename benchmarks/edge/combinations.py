"""Pooling x quantisation x weight pruning, one table for each network: score, agreement, size and time.

    python -m benchmarks.edge.combinations  # the demo model
    python -m benchmarks.edge.combinations --eyes MODELS --pack eyes.npz  # and eyes-labram-0, eyes-biot-0 in MODELS
    python -m benchmarks.edge.combinations --eegmat MODEL PREPARED  # and a LaBraM of EEGMAT, on its test windows
    python -m benchmarks.edge.combinations --only NAME ...  # one network; the other stored rows stay
    python -m benchmarks.edge.combinations --table  # write the tables of docs/benchmarks/onnx_runtime.md anew

No weight is retrained after it was pruned, and none after tokens were pooled. Unstructured pruning sets the smallest
weights of every linear layer of the blocks to zero; no runtime here skips zeros, so it brings no speed, only a file
that compresses better. Structured pruning takes a quarter of the hidden units out of every feed-forward part, those
whose weights into and out of the unit are smallest, so that products are really smaller. Everything runs in ONNX
Runtime, all combinations of a network in one interleaved run per batch; times are medians, over rounds, of the ratio to
the float32 original's call of the same round. Intervals are of the change from the float32 original, by resampling
subjects, the same ones for both.
"""

from __future__ import annotations

import argparse
import copy
import csv
import os
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmarks.shared.packing import for_model, unpack
from benchmarks.shared.results import DEMO, RESULTS, fill
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import Progress
from torch import nn

import zipbrain
from zipbrain.data.windows import Windows
from zipbrain.edge.runtimes import OnnxRuntime
from zipbrain.evaluation.bootstrap import resample
from zipbrain.evaluation.tables import csv_text
from zipbrain.export.onnx_graph import export_graph, fix_batch
from zipbrain.export.quantise import to_int8
from zipbrain.metrics import decisions, main_metric, probabilities, score
from zipbrain.models import model_name
from zipbrain.pretrained import from_pretrained
from zipbrain.profiling import interleaved
from zipbrain.profiling.profile import repeated
from zipbrain.seams import restore
from zipbrain.seams.find import find_chain
from zipbrain.signal.scaling import scale
from zipbrain.training.loader import scaling_of
from zipbrain.training.window_sources import WindowSource

RATIO, THREADS, BATCHES, LIMIT = 0.8, 1, (1, 8), 192
POOLING = ("none", "ZIPBrain", "Twins")
PRUNING = ("none", "30 % of weights", "50 % of weights", "25 % of hidden units")
PRECISION = ("float32", "int8-dynamic", "int8-static")
BRIEF = (PRUNING[0], *PRUNING[2:]), PRECISION[:2]  # pruning and precision of a quicker run

Array = NDArray[np.float32]


# -- pruning -----------------------------------------------------------------------------------------------------------


def prune_weights(model: nn.Module, share: float) -> nn.Module:
    """A copy in which this share of the weights of every linear layer of the blocks is zero, the smallest ones."""
    from torch.nn.utils import prune

    pruned = copy.deepcopy(model)
    for block in find_chain(pruned).blocks:
        for layer in block.modules():
            if isinstance(layer, nn.Linear):
                prune.l1_unstructured(layer, "weight", share)
                prune.remove(layer, "weight")
    return pruned


def prune_units(model: nn.Module, share: float) -> nn.Module:
    """A copy whose feed-forward parts have fewer hidden units: those with the largest weights in and out stay."""
    pruned = copy.deepcopy(model)
    for block in find_chain(pruned).blocks:
        feed: Any = block.mlp
        first, second = feed.fc1, feed.fc2
        size = first.weight.norm(dim=1) * second.weight.norm(dim=0)
        stays = first.out_features - round(share * first.out_features)
        kept = size.topk(stays).indices.sort().values
        feed.fc1, feed.fc2 = nn.Linear(first.in_features, stays), nn.Linear(stays, second.out_features)
        with torch.no_grad():
            feed.fc1.weight.copy_(first.weight[kept])
            feed.fc1.bias.copy_(first.bias[kept])
            feed.fc2.weight.copy_(second.weight[:, kept])
            feed.fc2.bias.copy_(second.bias)
    return pruned.eval()


def pruned(model: nn.Module, how: str) -> nn.Module:
    """A copy, pruned as one of `PRUNING` says."""
    if how == "none":
        return copy.deepcopy(model)
    share = int(how.split()[0]) / 100
    return prune_units(model, share) if how.endswith("units") else prune_weights(model, share)


def pooled(model: nn.Module, how: str) -> nn.Module:
    """A copy, pooled as one of `POOLING` says."""
    network = copy.deepcopy(model)
    return network if how == "none" else zipbrain.compress(network, how.lower(), ratio=RATIO)


def exchange_weights(proto: Any, before: nn.Module, after: nn.Module) -> Any:
    """The same graph with the linear weights of another network of the same shape: quicker than exporting again."""
    from onnx import numpy_helper

    new: dict[tuple[Any, bytes], Array] = {}
    pairs = zip(before.modules(), after.modules(), strict=True)
    for old_layer, new_layer in pairs:
        if isinstance(old_layer, nn.Linear) and isinstance(new_layer, nn.Linear):
            old, weight = (layer.weight.detach().float().numpy() for layer in (old_layer, new_layer))
            new[old.shape, old.tobytes()], new[old.T.shape, old.T.tobytes()] = weight, weight.T
    changed = type(proto)()
    changed.CopyFrom(proto)
    for value in changed.graph.initializer:
        held = numpy_helper.to_array(value)
        weight = new.get((held.shape, held.tobytes()))
        if weight is not None:
            value.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(weight), value.name))
    return changed


# -- one network -------------------------------------------------------------------------------------------------------


def graphs(
    model: nn.Module, x: Array, calibration: Array, tell: Callable[[str], None], brief: bool
) -> dict[tuple[str, ...], Any]:
    """All graphs by (pooling, pruning, precision), or those of `BRIEF` only."""
    found: dict[tuple[str, ...], Any] = {}
    for pooling in POOLING:
        base_network, base = pooled(model, pooling), None
        for pruning in BRIEF[0] if brief else PRUNING:
            tell(f"exporting: pooling {pooling}, pruning {pruning}")
            network = pooled(pruned(model, pruning), pooling)
            if pruning.endswith("of weights"):
                proto = exchange_weights(base, base_network, network)
            else:
                proto = export_graph(network, torch.zeros(2, *x.shape[1:]), free_batch=True)
            base = proto if pruning == "none" else base
            check(network, proto, x[:4])
            for precision in BRIEF[1] if brief else PRECISION:
                made = proto
                if precision != "float32":
                    made = to_int8(proto, network, *([calibration] if precision == "int8-static" else []))
                found[pooling, pruning, precision] = made
    return found


def check(network: nn.Module, proto: Any, x: Array) -> None:
    """Refuse a graph that is not the network's."""
    with torch.inference_mode():
        expected = network(torch.from_numpy(x)).numpy()
    errors = np.abs(session(proto, len(x)).run(x) - expected).max(1) / np.abs(expected).max()
    error = float(np.median(errors))  # a near-tie may group one window in another way
    if not error < 1e-4:
        raise SystemExit(f"the graph answers otherwise than PyTorch: relative error {error:.1e}")


def session(proto: Any, batch: int) -> OnnxRuntime:
    """A graph that is ready to run at a fixed batch."""
    content = fix_batch(proto, batch).SerializeToString()
    return OnnxRuntime(content, "graph", threads=THREADS, provider="cpu", spinning=False)


def logits(proto: Any, x: Array) -> Array:
    """Of all windows, by fives."""
    ready = session(proto, 5)
    whole = repeated(x, -(-len(x) // 5) * 5)
    return np.concatenate([ready.run(whole[i : i + 5]) for i in range(0, len(whole), 5)])[: len(x)]


def measure(
    name: str, model: nn.Module, windows: Windows, train: Windows, rounds: int, brief: bool = False
) -> list[dict[str, Any]]:
    """The rows of one network."""
    restore(model)
    scaling = scaling_of(model_name(model), windows)
    x = np.asarray(scale(windows.take(np.arange(len(windows))), scaling), dtype=np.float32)
    calibration = np.asarray(scale(train.take(np.arange(len(train))), scaling), dtype=np.float32)
    with Progress(console=Console(stderr=True)) as progress:
        task = progress.add_task(name, total=None)
        tell: Callable[[str], None] = lambda what: progress.update(task, description=f"{name}: {what}")  # noqa: E731
        made = graphs(model, x, calibration, tell, brief)
        tell("scoring")
        found = {key: logits(proto, x) for key, proto in made.items()}
        times: dict[int, dict[str, Any]] = {}
        loads = [os.getloadavg()[0]]
        for batch in BATCHES:
            tell(f"timing at batch {batch}")
            some = repeated(x, batch)
            ready = {"/".join(key): session(proto, batch) for key, proto in made.items()}
            calls = {key: (lambda one=one, some=some: one.run(some)) for key, one in ready.items()}  # type: ignore[misc]
            times[batch] = interleaved(calls, rounds=rounds, warmup=2)
            loads.append(os.getloadavg()[0])
    first = POOLING[0], PRUNING[0], PRECISION[0]
    rows = []
    for key, proto in made.items():
        content = proto.SerializeToString()
        own = {batch: times[batch]["/".join(key)] for batch in BATCHES}
        rows.append({
            "network": name, "windows": len(windows), "subjects": len(np.unique(windows.subjects)),
            **dict(zip(("pooling", "pruning", "precision"), key, strict=True)),
            **compared(windows, found[key], found[first]),
            "file_bytes": len(content), "compressed_bytes": len(zlib.compress(content, 1)),
            **{
                f"time_batch_{batch}": round(own[batch].ratio(times[batch]["/".join(first)]), 4) for batch in BATCHES
            },
            "ms_batch_1": round(1e3 * own[1].median, 3), "rounds": rounds, "threads": THREADS,
            "cores": os.cpu_count(), "load": round(max(loads), 2),
        })  # fmt: skip
    return rows


def compared(windows: Windows, own: Array, original: Array) -> dict[str, Any]:
    """Score, its change from the original's with a 95 % interval over subjects, and windows decided alike."""
    metric = main_metric(len(windows.classes))
    drawn = [
        resample(windows.labels, probabilities(one), windows.subjects, n=2000).scores[metric] for one in (own, original)
    ]  # equal seeds: the same subjects are drawn
    low, high = np.nanpercentile(drawn[0] - drawn[1], (2.5, 97.5))
    reached, before = (score(one, windows.labels, metric) for one in (own, original))
    return {
        "metric": metric, "score": round(reached, 4), "change": round(reached - before, 4),
        "change_low": round(float(low), 4), "change_high": round(float(high), 4),
        "same_decisions": int((decisions(own) == decisions(original)).sum()),
    }  # fmt: skip


def demo(limit: int) -> tuple[nn.Module, Windows, Windows]:
    """The packaged model on the synthetic events it was trained for."""
    model = from_pretrained(DEMO)
    source = WindowSource("synthetic-events", model_name(model), limit)
    return model, source.split("test"), WindowSource("synthetic-events", model_name(model), 64).split("train")


def eyes(folder: Path, pack: Path, limit: int) -> tuple[nn.Module, Windows, Windows]:
    """A model trained on real recordings with eyes open and closed."""
    model = from_pretrained(folder).float()
    parts = unpack(pack)
    test, train = (for_model(parts[split], model_name(model)) for split in ("test", "train"))
    return model, _spread(test, limit), _spread(train, 64)


def eegmat(folder: Path, prepared: Path, limit: int) -> tuple[nn.Module, Windows, Windows]:
    """A model trained on real recordings of rest and mental arithmetic."""
    model = from_pretrained(folder).float()
    source = WindowSource(prepared, model_name(model))
    return model, _spread(source.split("test"), limit), _spread(source.split("train"), 64)


def _spread(windows: Windows, count: int) -> Windows:
    return windows.select(np.unique(np.linspace(0, len(windows) - 1, min(count, len(windows))).astype(np.int64)))


# -- files -------------------------------------------------------------------------------------------------------------


def read(file: Path) -> list[dict[str, Any]]:
    """The stored rows."""
    with file.open() as stream:
        return list(csv.DictReader(stream))


def table(file: Path) -> str:
    """The stored rows as one Markdown table for each network."""
    rows = read(file)
    batches = [name.removeprefix("time_batch_") for name in rows[0] if name.startswith("time_batch_")]
    heads = ["pooling", "pruning", "precision", "score", "change (95 % interval)", "same decision",
             "file MB (compressed)", *(f"time, batch {batch}" for batch in batches)]  # fmt: skip
    lines = []
    for name in dict.fromkeys(row["network"] for row in rows):
        own = [row for row in rows if row["network"] == name]
        lines += [_headline(name, own[0]), ""]
        lines += ["| " + " | ".join(heads) + " |", "|" + " :-- |" * 3 + " --: |" * (len(heads) - 3)]
        for row in own:
            change, low, high = (float(row[name]) for name in ("change", "change_low", "change_high"))
            cells = [
                row["pooling"], row["pruning"], row["precision"], f"{float(row['score']):.3f}",
                f"{change:+.3f} ({low:+.3f} to {high:+.3f})", f"{row['same_decisions']} of {row['windows']}",
                f"{int(row['file_bytes']) / 1e6:.1f} ({int(row['compressed_bytes']) / 1e6:.1f})",
                *(f"{float(row[f'time_batch_{batch}']):.2f}" for batch in batches),
            ]  # fmt: skip
            lines.append("| " + " | ".join(cells) + " |")
        lines.append("")
    return "\n".join(lines).strip()


def _headline(name: str, row: dict[str, Any]) -> str:
    """What was scored, and how busy the machine was when it was timed."""
    threads, busy = int(row["threads"]), float(row["load"]) > int(row["threads"]) + 0.3
    state = f"**other work ran beside it** (load {row['load']} on {row['cores']} cores)" if busy else "nothing else ran"
    return (
        f"**{name}**: {row['windows']} test windows of {row['subjects']} subjects, score: {row['metric']}. Times: "
        f"{threads} thread{'s' * (threads > 1)}, {row['rounds']} rounds, {state}."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--eyes", type=Path, help="folder that holds eyes-labram-0 and eyes-biot-0")
    parser.add_argument("--pack", type=Path, default=Path("build/packs/eyes.npz"))
    parser.add_argument("--eegmat", type=Path, nargs=2, metavar=("MODEL", "PREPARED"), help="a model, its windows")
    parser.add_argument("--only", help="one of the networks; rows of the others stay as they are stored")
    parser.add_argument("--rounds", type=int, default=16)
    parser.add_argument("--limit", type=int, default=LIMIT, help="test windows at most, evenly spread")
    parser.add_argument("--brief", action="store_true", help="fewer combinations: no static int8, no 30 %% pruned")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--table", action="store_true", help="write the page's tables from the stored rows and leave")
    options = parser.parse_args()
    file = options.out / "combinations.csv"
    if options.table:
        fill({"combinations": lambda: table(file)})
        return
    cases: dict[str, Callable[[], tuple[nn.Module, Windows, Windows]]] = {"demo": lambda: demo(options.limit)}
    if options.eyes is not None:
        for name in ("eyes-labram-0", "eyes-biot-0"):
            cases[name] = lambda name=name: eyes(options.eyes / name, options.pack, options.limit)  # type: ignore[misc]
    if options.eegmat is not None:
        cases["eegmat-labram"] = lambda: eegmat(*options.eegmat, options.limit)
    if options.only is not None and options.only not in cases:
        raise SystemExit(f"--only: the networks are {', '.join(cases)}")
    rows = read(file) if options.only is not None and file.exists() else []
    options.out.mkdir(parents=True, exist_ok=True)
    for name, opened in cases.items():
        if options.only in (None, name):
            rows = [row for row in rows if row["network"] != name]
            rows += measure(name, *opened(), options.rounds, options.brief)
            file.write_text(csv_text(rows))
    print(table(file))


if __name__ == "__main__":
    main()
