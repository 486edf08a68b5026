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

import matplotlib.pyplot as plt
import numpy as np

from zipbrain.data import Synthetic
from zipbrain.evaluation import compare
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
# The table
# ---------
# ``found.to_markdown()``, ``to_latex()`` and ``to_csv()`` write all there is, with 95 % intervals over people. In short: the
# kappa, the answers that stayed, and the time, over the original's and over *free slicing*, which cuts tokens off without
# looking: no method can be faster.

print("method        kappa   same answer   time   over free slicing")
for row in found.rows[1:]:
    time, slicing = row.latency["to_original"], row.latency["to_slicing"]
    print(
        f"{row.label:9} {row.ratio} {row.scores['kappa']:6.3f} {row.agreement:12.1%}"
        f" {time:8.2f} {slicing:11.2f}"
    )

# %%
# The frontier
# ------------
# What matters is both at once: time, and the share of the decisions that stay. Up and to the left is better.

figure, axes = plt.subplots(figsize=(6.4, 4), layout="constrained")
for method, colour in zip(
    ("ZIPBrain", "ToMe", "DART", "EViT"), ("#D55E00", "#0072B2", "#009E73", "#CC79A7")
):
    rows = [row for row in found.rows if row.label == method]
    times = [row.latency["to_original"] for row in rows]
    axes.plot(times, [row.agreement for row in rows], "o-", color=colour, label=method)
axes.plot(1, 1, "k*", markersize=12, label="original")
axes.set(xlabel="time, of the original's", ylabel="decisions unchanged")
axes.legend(frameon=False)
plt.show()

# %%
# How to read it
# --------------
# - 60 windows of five people: intervals are wide, and methods whose intervals overlap are not told apart.
# - A score can rise by chance when decisions change. Unchanged decisions can't.
# - Times are of the machine that built this page, eight windows a call, one thread. Ratios hold for a runtime and a batch, not
#   for others: ``zipbrain profile`` measures ONNX Runtime and OpenVINO too.
# - The best setting for a deadline is a question for ``zipbrain.tune`` (:doc:`plot_20_tune`).

print(found.recommendation)
