"""Train the LaBraM that `zipbrain demo` carries: synthetic events, half-precision weights, minutes on a GPU.

    python -m benchmarks.training.demo_model OUT_FOLDER

Trained and chosen on made-up people of seed 1; the demo compares and tests on those of seed 0, which it never saw.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

from zipbrain.data.synthetic import Synthetic
from zipbrain.metrics import probabilities, scores
from zipbrain.pretrained import save_pretrained
from zipbrain.training import finetune, predict, scratch_settings

PEOPLE, WINDOWS = 150, 60


def main(out: Path) -> None:
    """Train, round to half precision, test, save."""
    from safetensors.torch import load_file, save_file

    corpus = Synthetic("events", n_subjects=PEOPLE, windows_per_subject=WINDOWS, seed=1)
    settings = scratch_settings("labram").override(epochs=20)
    trained = finetune("labram", corpus.split("train"), corpus.split("val"), settings=settings)
    model = trained.model
    with torch.no_grad():
        for values in model.state_dict().values():
            if values.is_floating_point():
                values.copy_(values.half().float())  # what the file can hold
    save_pretrained(model, out)
    weights = load_file(out / "model.safetensors")
    halves = {name: value.half() if value.is_floating_point() else value for name, value in weights.items()}
    save_file(halves, out / "model.safetensors", metadata={"format": "pt"})
    seen = {}
    for split in ("val", "test"):
        windows = Synthetic("events").split(split)
        seen[split] = scores(windows.labels, probabilities(predict(model, windows, batch_size=256)))
    record = {
        "command": "python -m benchmarks.training.demo_model OUT_FOLDER",
        "corpus": corpus.info, "recipe": settings.to_dict(),
        "validation_score": trained.outcome.best_score, "scores_on_the_demo_corpus": seen,
        "versions": trained.record["versions"], "device": trained.record["device"],
    }  # fmt: skip
    (out / "training.json").write_text(json.dumps(record, indent=1, default=str) + "\n")
    print(json.dumps(seen, indent=1))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
