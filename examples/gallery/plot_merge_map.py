"""
Who merges with whom in a real window
=====================================

A LaBraM pools five seconds of real EEG from 80 tokens to 20. The map shows which of them ended up together.
"""

# %%
# A window and a model
# --------------------
# The recording is of EEGMAT: a person at rest, then in mental arithmetic. The model comes with zipbrain and was trained on
# made-up events; it is given the electrodes of the recording.

import zipbrain
from zipbrain import ZIPBrain
from zipbrain.data import example_windows
from zipbrain.evaluation.plots import merge_map
from zipbrain.evaluation.token_fates import fates
from zipbrain.pretrained import example_model

windows = example_windows("labram", people=[32], seconds=5)
model = example_model(windows.ch_names, seconds=5)
print(windows)

# %%
# Compress and look
# -----------------
# ``fates`` runs the compressed model and says what became of every token. Cells of one number are one token in the end;
# white ones stayed alone.

zipbrain.compress(model, ZIPBrain("x", "k", "x", rho=0.8), ratio=0.8)
seen = fates(model, windows.select([13]), device="cpu")
figure = merge_map(
    seen, signal=windows.take([13])[0], title="Person 32, mental arithmetic"
)

# %%
# Neighbouring electrodes that show the same wave merge. The burst of muscle at the end differs from channel to channel:
# most of its tokens stay apart. Nothing told the method where it is.

print(
    f"{seen.token_counts[0]} tokens before the first block, {seen.token_counts[-1]} after the last"
)
