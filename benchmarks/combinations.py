"""Pooling x quantisation x weight pruning, one table for each network: score, agreement, size and time.

    python benchmarks/combinations.py                                    # the demo model
    python benchmarks/combinations.py --eyes MODELS --pack eyes.npz      # and eyes-labram-0, eyes-biot-0 in MODELS
    python benchmarks/combinations.py --table                            # the stored CSV as Markdown

No weight is retrained after it was pruned, and none after tokens were pooled. Unstructured pruning sets the smallest
weights of every linear layer of the blocks to zero; no runtime here skips zeros, so it brings no speed, only a file
that compresses better. Structured pruning takes a quarter of the hidden units out of every feed-forward part, those
whose weights into and out of the unit are smallest, so that products are really smaller. Everything runs in ONNX
Runtime on two threads, all combinations of a network in one interleaved run per batch; times are relative to the
float32 original.
"""

from __future__ import annotations

import argparse
import copy
import csv
import json
import os
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from packing import for_model, unpack
from rich.console import Console
from rich.progress import Progress
from torch import nn

import zipbrain
from zipbrain.cost import interleaved
from zipbrain.cost.graph import export_graph
from zipbrain.data.windows import Windows
from zipbrain.deploy.profile import processor, repeated
from zipbrain.deploy.quantise import to_int8
from zipbrain.deploy.runtimes import with_batch
from zipbrain.edge.runtimes import OnnxRuntime
from zipbrain.edge.scaling import scale
from zipbrain.evaluation.tables import csv_text
from zipbrain.models import model_name
from zipbrain.pretrained import from_pretrained
from zipbrain.seams import restore
from zipbrain.seams.find import find_chain
from zipbrain.training.feed import scaling_of
from zipbrain.training.scoring import answers, main_metric, score
from zipbrain.training.sources import Source

RESULTS = Path(__file__).parent / "results"
DEMO = Path(zipbrain.__file__).parent / "demo_model"
RATIO, THREADS, BATCHES, LIMIT = 0.8, 2, (1, 32), 300
POOLING = ("none", "ZIPBrain", "Twins")
PRUNING = ("none", "30 % of weights", "50 % of weights", "25 % of hidden units")
PRECISION = ("float32", "int8-dynamic", "int8-static")

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


def graphs(model: nn.Module, x: Array, calibration: Array, tell: Callable[[str], None]) -> dict[tuple[str, ...], Any]:
    """All graphs by (pooling, pruning, precision)."""
    found: dict[tuple[str, ...], Any] = {}
    for pooling in POOLING:
        base_network, base = pooled(model, pooling), None
        for pruning in PRUNING:
            tell(f"exporting: pooling {pooling}, pruning {pruning}")
            network = pooled(pruned(model, pruning), pooling)
            if pruning.endswith("of weights"):
                proto = exchange_weights(base, base_network, network)
            else:
                proto = export_graph(network, torch.zeros(2, *x.shape[1:]), free_batch=True)
            base = proto if pruning == "none" else base
            check(network, proto, x[:4])
            for precision in PRECISION:
                made = proto
                if precision != "float32":
                    made = to_int8(proto, network, calibration if precision == "int8-static" else None)
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
    content = with_batch(proto, batch).SerializeToString()
    return OnnxRuntime(content, "graph", threads=THREADS, provider="cpu", spinning=False)


def logits(proto: Any, x: Array) -> Array:
    """Of all windows, by fives."""
    ready = session(proto, 5)
    whole = repeated(x, -(-len(x) // 5) * 5)
    return np.concatenate([ready.run(whole[i : i + 5]) for i in range(0, len(whole), 5)])[: len(x)]


def measure(name: str, model: nn.Module, windows: Windows, train: Windows, rounds: int) -> list[dict[str, Any]]:
    """The rows of one network."""
    restore(model)
    scaling = scaling_of(model_name(model), windows)
    x = np.asarray(scale(windows.take(np.arange(len(windows))), scaling), dtype=np.float32)
    calibration = np.asarray(scale(train.take(np.arange(len(train))), scaling), dtype=np.float32)
    metric = main_metric(len(windows.classes))
    with Progress(console=Console(stderr=True)) as progress:
        task = progress.add_task(name, total=None)
        tell: Callable[[str], None] = lambda what: progress.update(task, description=f"{name}: {what}")  # noqa: E731
        made = graphs(model, x, calibration, tell)
        tell("scoring")
        found = {key: logits(proto, x) for key, proto in made.items()}
        times: dict[int, dict[str, Any]] = {}
        for batch in BATCHES:
            tell(f"timing at batch {batch}")
            some = repeated(x, batch)
            ready = {"/".join(key): session(proto, batch) for key, proto in made.items()}
            calls = {key: (lambda one=one, some=some: one.run(some)) for key, one in ready.items()}  # type: ignore[misc]
            times[batch] = interleaved(calls, rounds=rounds, warmup=3)
    first = POOLING[0], PRUNING[0], PRECISION[0]
    rows = []
    for key, proto in made.items():
        content = proto.SerializeToString()
        rows.append({
            "network": name, "windows": len(windows),
            **dict(zip(("pooling", "pruning", "precision"), key, strict=True)),
            "metric": metric, "score": round(score(found[key], windows.labels, metric), 4),
            "agreement": round(float((answers(found[key]) == answers(found[first])).mean()), 4),
            "file_bytes": len(content), "compressed_bytes": len(zlib.compress(content, 1)),
            **{
                f"time_batch_{batch}": round(times[batch]["/".join(key)].ratio(times[batch]["/".join(first)]), 4)
                for batch in BATCHES
            },
            "ms_batch_1": round(1e3 * times[1]["/".join(key)].median, 3), "rounds": rounds,
        })  # fmt: skip
    return rows


def demo() -> tuple[nn.Module, Windows, Windows]:
    """The packaged model on the synthetic events it was trained for."""
    model = from_pretrained(DEMO)
    source = Source("synthetic-events", model_name(model), LIMIT)
    return model, source.split("test"), Source("synthetic-events", model_name(model), 64).split("train")


def eyes(folder: Path, pack: Path) -> tuple[nn.Module, Windows, Windows]:
    """A model trained on real recordings with eyes open and closed."""
    model = from_pretrained(folder).float()
    parts = unpack(pack)
    test, train = (for_model(parts[split], model_name(model)) for split in ("test", "train"))
    return model, _spread(test, LIMIT), _spread(train, 64)


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
    heads = ("pooling", "pruning", "precision", "score", "same decision", "file MB (compressed)", "time, batch 1", "32")
    lines = []
    for name in dict.fromkeys(row["network"] for row in rows):
        own = [row for row in rows if row["network"] == name]
        lines += [f"**{name}**, {own[0]['windows']} test windows, score: {own[0]['metric']}", ""]
        lines += ["| " + " | ".join(heads) + " |", "|" + " :-- |" * 3 + " --: |" * 5]
        for row in own:
            size = f"{int(row['file_bytes']) / 1e6:.1f} ({int(row['compressed_bytes']) / 1e6:.1f})"
            lines.append(
                f"| {row['pooling']} | {row['pruning']} | {row['precision']} | {float(row['score']):.3f} | "
                f"{float(row['agreement']):.1%} | {size} | {float(row['time_batch_1']):.2f} | "
                f"{float(row['time_batch_32']):.2f} |"
            )
        lines.append("")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--eyes", type=Path, help="folder that holds eyes-labram-0 and eyes-biot-0")
    parser.add_argument("--pack", type=Path, default=Path("build/packs/eyes.npz"))
    parser.add_argument("--only", help="one of the networks; rows of the others stay as they are stored")
    parser.add_argument("--rounds", type=int, default=16)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--table", action="store_true", help="print the stored rows as Markdown and leave")
    options = parser.parse_args()
    file = options.out / "combinations.csv"
    if options.table:
        print(table(file))
        return
    cases: dict[str, Callable[[], tuple[nn.Module, Windows, Windows]]] = {"demo": demo}
    if options.eyes is not None:
        for name in ("eyes-labram-0", "eyes-biot-0"):
            cases[name] = lambda name=name: eyes(options.eyes / name, options.pack)  # type: ignore[misc]
    if options.only is not None and options.only not in cases:
        raise SystemExit(f"--only: the networks are {', '.join(cases)}")
    rows = read(file) if options.only is not None and file.exists() else []
    options.out.mkdir(parents=True, exist_ok=True)
    for name, opened in cases.items():
        if options.only in (None, name):
            rows = [row for row in rows if row["network"] != name]
            rows += measure(name, *opened(), options.rounds)
            file.write_text(csv_text(rows))
    about = {
        "cpu": processor(), "threads": THREADS, "ratio": RATIO, "torch": torch.__version__,
        "zipbrain": zipbrain.__version__, "load": round(os.getloadavg()[0], 2),
    }  # fmt: skip
    (options.out / "combinations.json").write_text(json.dumps(about, indent=1) + "\n")
    print(table(file))


if __name__ == "__main__":
    main()
