"""
Why a token ratio is no speed
=============================

80 % of the tokens removed does not mean five times as fast. Four numbers are called by that name; here they are side by side.
"""

# %%
# Asked, removed, counted, timed
# ------------------------------
# Asked: the ratio. Removed: whole tokens in whole blocks, so rarely the same. Operations: most tokens are still there in the
# first blocks. Time: pooling itself costs some, and not all operations take equally long.

import matplotlib.pyplot as plt
import numpy as np
import torch

import zipbrain
from zipbrain import ZIPBrain
from zipbrain.data import example_windows, scale
from zipbrain.pretrained import example_model
from zipbrain.profiling import hand_flops, interleaved

windows = example_windows("labram", people=[31], seconds=5)
model = example_model(windows.ch_names, seconds=5)
x = torch.from_numpy(scale(windows.take(np.arange(8)), "hundred"))
ratios = (0.2, 0.4, 0.6, 0.8)


def run(ratio):
    """A call of the model, compressed or not."""
    copy = example_model(windows.ch_names, seconds=5)
    return zipbrain.compress(copy, ZIPBrain(), ratio=ratio) if ratio else copy


models = {ratio: run(ratio) for ratio in (0.0, *ratios)}
with torch.inference_mode():
    calls = {str(ratio): (lambda one=one: one(x)) for ratio, one in models.items()}
    times = interleaved(calls, rounds=9)

rows = []
for ratio in ratios:
    with zipbrain.trace(models[ratio]) as seen, torch.inference_mode():
        models[ratio](x)
    counts, cost = seen.token_counts, hand_flops(models[ratio])
    rows.append((ratio, 1 - counts[-1] / counts[0], cost.saved))
    rows[-1] += (1 - times[str(ratio)].ratio(times["0.0"]),)
    print(
        "asked {:.0%}, removed {:.1%}, operations saved {:.1%}, time saved {:.1%}".format(
            *rows[-1]
        )
    )

# %%
# Draw it
# -------

figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
colours = ("#BBBBBB", "#0072B2", "#E69F00", "#D55E00")
for place, (name, colour) in enumerate(
    zip(("asked", "removed", "operations saved", "time saved"), colours, strict=True)
):
    axes.bar(
        np.arange(4) + 0.2 * place - 0.3,
        [100 * row[place] for row in rows],
        0.18,
        color=colour,
        label=name,
    )
axes.set_xticks(range(4), [f"ratio {ratio}" for ratio in ratios])
axes.set(ylabel="%")
axes.legend(frameon=False)
plt.show()

# %%
# The times are of the machine that built this page, with eight windows at once. Measure on yours: ``zipbrain profile``.
