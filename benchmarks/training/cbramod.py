"""Train a CBraMod from scratch, tune it to keep its answers, and score both on people that neither has seen.

    python -m benchmarks.training.cbramod train OUT --data PREPARED   # eegmmidb-eyes, prepared for cbramod
    python -m benchmarks.training.cbramod tune OUT --data PREPARED    # stores cbramod.csv .json
    python -m benchmarks.training.cbramod page                        # the table of docs/explanation/seams.md

`--quick` uses few windows and one epoch, and stores nothing. The last people of the training split train nothing: with
those of the validation split they are the people that `tune` chooses and certifies with.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmarks.shared.results import cpu_name, fill, read_csv, write_csv, write_json
from numpy.typing import NDArray
from torch import nn

import zipbrain
from zipbrain import from_pretrained
from zipbrain.data.windows import Windows
from zipbrain.metrics import probabilities, scores
from zipbrain.pretrained import save_pretrained
from zipbrain.training import finetune, predict
from zipbrain.training.settings import scratch_settings
from zipbrain.training.window_sources import WindowSource

KEPT_OUT = 25  # people of the training split
AGREE = (0.99, 0.98, 0.95)
METRICS = ("auroc", "balanced_accuracy", "accuracy")
QUICK = 400  # windows of a split


def people(windows: Windows) -> tuple[Windows, Windows]:
    """The training split without its last people, and these."""
    names = np.unique(windows.subjects)
    is_kept_out = np.isin(windows.subjects, names[-min(KEPT_OUT, len(names) // 2) :])
    return windows.select(~is_kept_out), windows.select(is_kept_out)


def joined(*parts: Windows) -> Windows:
    """All windows of several splits."""
    x = np.concatenate([part.take(slice(None)) for part in parts])
    labels = np.concatenate([part.labels for part in parts])
    whose = [str(name) for part in parts for name in part.subjects]
    first = parts[0]
    about: dict[str, Any] = {"ch_names": first.ch_names, "sfreq": first.sfreq, "classes": first.classes}
    return Windows.from_arrays(x, labels, **about, subjects=whose, name=first.name)


def train(source: WindowSource, out: Path, blocks: int, epochs: int) -> None:
    """Fit a network and save it."""
    windows, _ = people(source.split("train"))
    settings = scratch_settings("cbramod").override(
        epochs=epochs, batch_size=32, options={"head_layers": 0, "depth": blocks}
    )
    print(f"{blocks} blocks, {len(np.unique(windows.subjects))} people, {len(windows)} windows", flush=True)
    found = finetune(
        "cbramod", windows, source.split("val"), settings=settings, on_epoch=lambda row: print(row, flush=True)
    )
    save_pretrained(found.model.eval(), out / "model")


def answer(model: nn.Module, windows: Windows) -> tuple[dict[str, float], NDArray[Any]]:
    """Scores, and the decision about every window."""
    logits = predict(model, windows, device="cpu")
    shares = probabilities(logits)
    return scores(windows.labels, shares), np.asarray(shares > 0.5 if shares.ndim == 1 else shares.argmax(1))


def tuned_rows(source: WindowSource, out: Path, stores: bool) -> None:
    """Tune for every promise, and score on the test split."""
    model = from_pretrained(out / "model").eval()
    calibration, test = joined(source.split("val"), people(source.split("train"))[1]), source.split("test")
    before, decided = answer(model, test)
    rows = []
    for agree in AGREE:
        tuned = zipbrain.tune(
            model, calibration, agree=agree, batch=32, methods=("zipbrain",), threads=1, workers=1, out=out / "tuning"
        )
        print(f"\n{tuned}\n", flush=True)
        zipbrain.compress(model, tuned.recipe)
        after, again = answer(model, test)
        zipbrain.restore(model)
        candidate = tuned.chosen.candidate
        row = {"asked": agree, "kept": tuned.is_kept, "promised": tuned.certificate.agree}
        row |= {"method": candidate.method["name"], "left": tuned.anatomy.tokens - sum(candidate.removed)}
        row |= {"channels": tuned.anatomy.tokens, "removed": " ".join(map(str, candidate.removed))}
        row |= {"looked_twice": round(tuned.certificate.looked_twice, 4), "time": round(tuned.time, 3)}
        row |= {"operations": round(tuned.operations, 3), "test_agreement": round(float((decided == again).mean()), 5)}
        for name in METRICS:
            row |= {f"{name}_before": round(before[name], 5), f"{name}_after": round(after[name], 5)}
        print(row, flush=True)
        rows.append(row)
    if stores:
        write_csv("cbramod", rows)
        about: dict[str, Any] = {"cpu": cpu_name(), "torch": torch.__version__, "data": calibration.name}
        about |= {"blocks": len(model.blocks), "parameters": sum(p.numel() for p in model.parameters())}
        for name, part in (("calibration", calibration), ("test", test)):
            about |= {f"{name}_people": len(np.unique(part.subjects)), f"{name}_windows": len(part)}
        write_json("cbramod", about)


def table() -> str:
    """What was promised, and what happened on the test split."""
    head = "| asked | promised | channels left | windows that look twice | operations | same decisions, test | AUROC |"
    lines = [f"{head} balanced accuracy |", "|--:|--:|--:|--:|--:|--:|---|---|"]
    for row in read_csv("cbramod"):
        pairs = (f"{float(row[f'{name}_before']):.4f} -> {float(row[f'{name}_after']):.4f}" for name in METRICS[:2])
        left = f"{row['left']} of {row['channels']}"
        shares = (
            f"{float(row['looked_twice']):.1%} | {float(row['operations']):.2f} | {float(row['test_agreement']):.2%}"
        )
        lines.append(f"| {row['asked']} | {row['promised']} | {left} | {shares} | {' | '.join(pairs)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("train", "tune", "page"))
    parser.add_argument("out", type=Path, nargs="?", help="folder for the model and what tune computes")
    parser.add_argument("--data", default="synthetic-sleep", help="folder of `zipbrain data prepare --model cbramod`")
    parser.add_argument("--blocks", type=int, default=12)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    if given.command == "page":
        fill({"cbramod": table})
        return
    if given.out is None:
        parser.error("give a folder")
    source = WindowSource(given.data, "cbramod", QUICK if given.quick else None)
    if given.command == "train":
        train(source, given.out, given.blocks, 1 if given.quick else given.epochs)
    else:
        tuned_rows(source, given.out, stores=not given.quick)


if __name__ == "__main__":
    main()
