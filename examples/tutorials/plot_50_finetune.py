"""
5. Fine-tune LaBraM from pretrained weights
===========================================

Rest or mental arithmetic? A LaBraM starts from published weights, is fine-tuned on a little real EEG, and compressed. This page
shows each step; a few seconds of training on 40 windows are too few to learn the task.
"""

# %%
# Weights
# -------
# One name fetches LaBraM-base from its public source, at a pinned commit, verified. Where there is no network (or no
# ``zipbrain[hub]``), this page starts from the weights that come with zipbrain, which were trained on made-up events; the
# code is the same.

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import zipbrain
from zipbrain import ToMe
from zipbrain.data import example_windows
from zipbrain.metrics import probabilities, scores
from zipbrain.models import download
from zipbrain.pretrained import example_model
from zipbrain.training import finetune, paper_settings, predict

try:
    download("labram", "base")
    init = "labram-base"
except zipbrain.ZipbrainError as why:
    init = Path(tempfile.mkdtemp()) / "demo"
    zipbrain.save_pretrained(example_model(), init)
    print(f"starting from zipbrain's own weights: {why}")

# %%
# Data
# ----
# Two people, 4 s windows: the first 40 s of each recording train, the last 20 s test. That is within people, and easy.
# Between people it takes the whole corpus: :doc:`/benchmarks/real_eeg` has those scores.

windows = example_windows("labram", people=[31, 32])
place = np.arange(len(windows)) % 15
train, test = windows.select(place < 10), windows.select(place >= 10)
print(train, test, sep="\n")

# %%
# Fine-tune
# ---------
# The paper's settings for this pair, with fewer epochs and a larger learning rate, because there is so little to learn from.

settings = paper_settings("labram", "eegmat").override(
    epochs=3, batch_size=10, lr=5e-4, warmup_epochs=0
)
trained = finetune("labram", train, settings=settings, init=[init], device="cpu")
for epoch in trained.outcome.history:
    print("epoch {epoch}: loss {loss:.3f}".format(**epoch))

# %%
# Compress what was trained
# -------------------------

found = {}
for ratio in (0.0, 0.2, 0.4, 0.6, 0.8):
    if ratio:
        zipbrain.compress(trained.model, ToMe(), ratio=ratio)
    logits = predict(trained.model, test, device="cpu")
    found[ratio] = probabilities(logits)  # of arithmetic, (windows,)
    agreement = np.mean((found[ratio] > 0.5) == (found[0.0] > 0.5))
    accuracy = scores(test.labels, found[ratio])["balanced_accuracy"]
    print(
        f"ratio {ratio}: balanced accuracy {accuracy:.2f}, same answer {agreement:.0%}"
    )

# %%
# Every test window's probability of arithmetic, before and after:

figure, axes = plt.subplots(figsize=(4.6, 4.4), layout="constrained")
for label, (name, colour) in enumerate(zip(test.classes, ("#0072B2", "#D55E00"))):
    own = test.labels == label
    axes.plot(found[0.0][own], found[0.8][own], "o", color=colour, label=name)
axes.plot([0, 1], [0, 1], color="0.7", zorder=0)
axes.set(xlabel="original", ylabel="ratio 0.8", title="probability of arithmetic")
axes.legend(frameon=False)
plt.show()

# %%
# A balanced accuracy around 0.5 is chance: so little training teaches next to nothing, and a network that answers one class for
# nearly all windows keeps its answers trivially. Look at both before believing either. With the whole corpus and the paper's
# epochs it takes a GPU, or a night.
#
# In the shell: ``zipbrain finetune --model labram --init labram-base --data windows/eegmat --out runs/eegmat``.
