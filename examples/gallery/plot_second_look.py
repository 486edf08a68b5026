"""
A second look where the answer is close
=======================================

Windows whose two best classes are close run again, uncompressed. A few of them win back most of the changed decisions.
"""

# %%
# Sweep the margin
# ----------------
# The model is compressed hard. ``second_look`` is the margin: the difference of the two largest logits below which a window
# is in doubt.

import matplotlib.pyplot as plt
import numpy as np
import torch

import zipbrain
from zipbrain import ToMe
from zipbrain.data import Synthetic, scale
from zipbrain.pretrained import example_model

windows = Synthetic("events").split("test")
windows = windows.select(np.arange(0, len(windows), 3))
model = example_model()
x = torch.from_numpy(scale(windows.take(slice(None)), "hundred"))
with torch.inference_mode():
    original = model(x)
    zipbrain.compress(model, ToMe(), ratio=0.9)
    first = model(x)

best, second = first.topk(2, dim=1).values.T
margin = best - second
same = first.argmax(1) == original.argmax(1)
print(f"without a second look {int(same.sum())} of {len(x)} decisions stay")

# %%
# A window with a second look answers as the original does. So both curves follow from the first pass alone.

margins = np.linspace(0, 4, 41)
looked = [float((margin < m).float().mean()) for m in margins]
kept = [float((same | (margin < m)).float().mean()) for m in margins]

figure, axes = plt.subplots(figsize=(6.4, 4), layout="constrained")
axes.plot(margins, kept, color="#0072B2", label="decisions unchanged")
axes.plot(margins, looked, color="#D55E00", label="windows that look twice")
axes.set(
    xlabel="margin (difference of the two largest logits)",
    ylabel="share of the windows",
    ylim=(0, 1.03),
)
axes.legend(frameon=False, loc="center left")
plt.show()

# %%
# The option does the same inside the model:

zipbrain.compress(model, ToMe(), ratio=0.9, second_look=2.0)
with torch.inference_mode():
    answers = model(x)
place = int(np.searchsorted(margins, 2.0))
print(
    f"computed {float((answers.argmax(1) == original.argmax(1)).float().mean()):.3f}, expected {kept[place]:.3f}"
)

# %%
# The windows are made up, because the model was trained on such. :doc:`/explanation/second_look` says when this pays.
