"""Train a CBraMod from scratch, tune it to keep its answers, and score both on people that neither has seen.

    python -m benchmarks.training.cbramod OUT                   # made-up sleep
    python -m benchmarks.training.cbramod OUT --data PREPARED   # such as eegmmidb-eyes, prepared for cbramod
    python -m benchmarks.training.cbramod OUT --epochs 1 --limit 200  # to see that it runs

Prints the scores of the model and of the tuned one on the test split, and what the certificate says.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import zipbrain
from zipbrain.metrics import probabilities, scores
from zipbrain.pretrained import save_pretrained
from zipbrain.training import finetune, predict
from zipbrain.training.settings import scratch_settings
from zipbrain.training.window_sources import WindowSource


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="folder for the model and its recipe")
    parser.add_argument("--data", default="synthetic-sleep", help="folder of `zipbrain data prepare --model cbramod`")
    parser.add_argument("--agree", type=float, default=0.99)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--limit", type=int, help="windows of each split")
    given = parser.parse_args()
    source = WindowSource(given.data, "cbramod", given.limit)
    settings = scratch_settings("cbramod").override(epochs=given.epochs)
    model = finetune("cbramod", source.split("train"), source.split("val"), settings=settings).model.eval()
    test = source.split("test")
    before = scores(test.labels, probabilities(predict(model, test)))
    tuned = zipbrain.tune(model, source.split("val"), agree=given.agree, batch=32)
    print(tuned)
    zipbrain.compress(model, tuned.recipe)
    print(zipbrain.summary(model))
    after = scores(test.labels, probabilities(predict(model, test)))
    for name, value in before.items():
        print(f"{name:20s} {value:.4f} uncompressed, {after[name]:.4f} tuned")
    save_pretrained(model, given.out)


if __name__ == "__main__":
    main()
