"""
Attention of a real window
==========================

Pooling saves attention among tokens that say the same. These maps show what attention looks like before anything is pooled.
"""

# %%
# Three blocks of one window
# --------------------------
# Rows attend, columns are attended to. Vertical stripes are tokens that all others read.

from zipbrain.data import example_windows
from zipbrain.evaluation.plots import attention_heat_maps
from zipbrain.evaluation.plots.attention import attention_of
from zipbrain.pretrained import example_model

windows = example_windows("labram", people=[31])
model = example_model(windows.ch_names, seconds=4)
attention = attention_of(model, windows, window=3, scaling="hundred")
figure = attention_heat_maps(attention, title="LaBraM, person 31 at rest")

# %%
# In the first block attention is spread; later, rows become alike: many tokens gather the same things, which is what makes
# them redundant.
