"""
2. Tune, and export
===================

Which method, how many tokens, in which blocks? ``zipbrain.tune`` decides it by measuring, for one demand: that the answers
stay the same.
"""

# %%
# A trained model and unlabelled windows
# --------------------------------------
# The LaBraM that comes with zipbrain, trained on made-up events, and windows of 12 made-up people that it has not seen. On
# real data you would give 60 people or more: what can be promised depends on their number.

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt

import zipbrain
from zipbrain.data import Synthetic
from zipbrain.pretrained import example_model

model = example_model()
windows = Synthetic("events", n_subjects=20, windows_per_subject=6, seed=7).split(
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
# Take the recipe with you
# ------------------------
# A recipe is a small JSON file. ``compress`` takes it, and so do ``evaluate``, ``compare``, ``export`` and the command line.

folder = Path(tempfile.mkdtemp())
zipbrain.compress(model, tuned.recipe)
tuned.recipe.save(folder / "recipe.json")
found = zipbrain.summary(model)
print(found)

# %%
# It chose blocks and numbers by what each reduction does to the answers, and what it saves:

figure, axes = plt.subplots(figsize=(6, 3.4), layout="constrained")
axes.plot(range(13), found.token_counts, drawstyle="steps-post", color="#0072B2")
axes.set(
    xlabel="block", ylabel="tokens", ylim=(0, None), title="Tokens after each block"
)
plt.show()

# %%
# Export
# ------
# The recipe and the model become one file with
#
# .. code-block:: console
#
#    $ zipbrain export runs/eegmat --data windows/eegmat --recipe recipe.json -o model.onnx
#
# which counts the promise again, with the file itself. :doc:`plot_30_recordings` exports from Python and lets the file decide
# about recordings.
