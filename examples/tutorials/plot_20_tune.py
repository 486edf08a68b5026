"""
2. Tune, and export
===================

Which method, how many tokens, in which blocks? ``zipbrain.tune`` decides it by measuring, for one demand: that the answers
stay the same.
"""

# %%
# A trained model and unlabelled windows
# --------------------------------------
# The LaBraM that comes with zipbrain, trained on made-up events, and windows of 20 made-up people that it has not seen. On
# real data you would give 60 people or more: what can be promised depends on their number.

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import zipbrain
from zipbrain.data import Synthetic, convention
from zipbrain.edge import EdgeModel
from zipbrain.export import export
from zipbrain.pretrained import example_model

model = example_model()
windows = Synthetic("events", n_subjects=34, windows_per_subject=6, seed=7).split(
    "train"
)
print(windows)

# %%
# Tune
# ----
# Half of the people decide over method, schedule and second look. The decisions of the other half are counted once, at the
# end, and that count is the certificate.

tuned = zipbrain.tune(
    model,
    windows,
    agree=0.9,
    batch=8,
    methods=("tome",),
    threads=1,
    backend="sequential",
)
print(tuned)

# %%
# What could be had
# -----------------
# The same run knows what other demands would cost.

times = [option.time for option in tuned.options]
shares = [100 * option.agree for option in tuned.options]
figure, axes = plt.subplots(figsize=(6, 3.6), layout="constrained")
axes.plot(times, shares, "o-", color="#0072B2", label="expected, by the choosing half")
axes.plot(
    tuned.time, 100 * tuned.agree, "*", color="#D55E00", markersize=14, label="asked"
)
axes.set(xlabel="time, of the original's", ylabel="decisions unchanged (%)")
axes.legend(frameon=False)
plt.show()

# %%
# Take the recipe with you
# ------------------------
# A recipe is a small JSON file. ``compress`` takes it, and so do ``evaluate``, ``compare``, ``export`` and the command line.

folder = Path(tempfile.mkdtemp())
zipbrain.compress(model, tuned.recipe)
tuned.recipe.save(folder / "recipe.json")
print(zipbrain.summary(model))

# %%
# Export
# ------
# Model, recipe and everything a recording needs become one ONNX file. It is opened again and compared with PyTorch; a file
# that answers otherwise is not kept.

test = Synthetic("events").split("test")
found = export(
    model,
    test.select(np.arange(0, len(test), 10)),
    folder / "events.onnx",
    convention=convention("labram", "tuev"),
)
print(found.parity)

# %%
# The file runs where there is no torch:

edge = EdgeModel(folder / "events.onnx", threads=1)
probabilities = edge.probabilities(test.take(np.arange(4)))
for row in probabilities:
    print({name: round(float(p), 2) for name, p in zip(test.classes, row, strict=True)})
