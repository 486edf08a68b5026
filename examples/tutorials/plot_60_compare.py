"""
6. Compare methods fairly
=========================

A comparison is fair if all methods remove the same tokens from the same network, are timed in one interleaved run, and are
judged by unchanged decisions beside the score. ``zipbrain.evaluation.compare`` does that.
"""

# %%
# Run it
# ------
# The network that comes with zipbrain, on 60 made-up windows of five people; four methods at two ratios, without mass.

import numpy as np

from zipbrain.data import Synthetic
from zipbrain.evaluation import compare
from zipbrain.evaluation.plots import pareto_front
from zipbrain.pretrained import example_model

windows = Synthetic("events").split("test")
windows = windows.select(np.arange(0, len(windows), 5))
found = compare(
    example_model(),
    windows,
    methods=("zipbrain", "tome", "dart", "evit"),
    ratios=(0.4, 0.8),
    mass="off",
    latency_rounds=5,
    threads=1,
    device="cpu",
)

# %%
# The tables
# ----------
# Scores with 95 % intervals over people, and how many answers stayed; then what it costs. *Free slicing* cuts tokens off
# without looking: no method can be faster.

print(found)

# %%
# The frontier
# ------------
# What matters is both at once: time, and the share of the decisions that stay. Settings on the grey line are beaten by none.

figure = pareto_front(found.rows, metric="agreement", kind="latency")

# %%
# How to read it
# --------------
# - 60 windows of five people: intervals are wide, and methods whose intervals overlap are not told apart.
# - A score can rise by chance when decisions change. Unchanged decisions can't.
# - Times are of the machine that built this page, eight windows a call, one thread. Ratios hold for a runtime and a batch, not
#   for others: ``zipbrain profile`` measures ONNX Runtime and OpenVINO too.
# - The best setting for a deadline is a question for ``zipbrain.tune`` (:doc:`plot_20_tune`).

print(found.recommendation)
