"""Fine-tuning settings as data: the paper's table, what it omits (from the official scripts), and ours from scratch.

`PAPER` has one entry per model and corpus. The numbers that the paper prints come first in each entry; what follows is
what it does not say. The paper fine-tunes TFM-Tokenizer on neither TUAB nor TUEV (it takes the released weights): those
two entries are the official script's. `OFFICIAL` has models that are not the paper's. `SCRATCH` is ours, for a model
without pretrained weights. `TOKEN_LEARNING` and `MASKED_TOKENS` are the two pretraining stages of TFM-Tokenizer.
"""

from __future__ import annotations

from typing import Any, Final

from zipbrain.paper import DATASETS

Settings = dict[str, Any]

# What LaBraM's and EEGPT's full fine-tuning share: the paper's numbers, then what its table does not say.
_FULL: Final[Settings] = (
    {"optimizer": "adamw", "schedule": "cosine", "seed": 0, "batch_size": 256, "epochs": 50, "lr": 5e-4}
    | {"weight_decay": 0.05, "layer_decay": 0.65, "drop_path": 0.1}
    | {"final_lr": 1e-6, "decay_all": False, "binary_loss": "bce", "label_smoothing": 0.1, "amp": "fp16"}
    | {"drop_last": True, "selection": "accuracy"}
)
_LABRAM: Final[Settings] = _FULL | {"warmup_epochs": 1, "head_scale": 0.001}

# The official model ignores its launch script's layer decay and drop path, which the paper's table repeats.
_EEGPT_FULL: Final[Settings] = _FULL | {"warmup_epochs": 5, "inert": ("layer_decay", "drop_path")}

_EEGPT_PROBE: Final[Settings] = (
    {"optimizer": "adamw", "schedule": "onecycle", "seed": 7, "batch_size": 32, "epochs": 40, "warmup_epochs": 8}
    | {"lr": 4e-4, "weight_decay": 0.01, "layer_decay": 1.0, "drop_path": 0.0}
    | {"binary_loss": "ce", "label_smoothing": 0.0, "amp": "fp16", "drop_last": False, "selection": "last"}
    | {"frozen": ("target_encoder.",), "options": {"head": "probe"}}
)

# Early stopping watches the main metric, but the official checkpoint callback watches nothing: the last epoch is kept.
_BIOT: Final[Settings] = (
    {"optimizer": "adam", "schedule": "constant", "seed": 12345, "batch_size": 512, "epochs": 25, "lr": 5e-4}
    | {"weight_decay": 1e-5, "dropout": 0.2, "binary_loss": "bce", "label_smoothing": 0.0, "amp": "no"}
    | {"drop_last": True, "selection": "last", "patience": 5}
)

# The learning rate rises towards final_lr, as the official configuration has it.
_TFM: Final[Settings] = (
    {"optimizer": "adamw", "schedule": "cosine", "seed": 5, "batch_size": 256, "epochs": 50, "warmup_epochs": 5}
    | {"lr": 1e-3, "final_lr": 5e-3, "weight_decay": 1e-5, "dropout": 0.2, "binary_loss": "bce"}
    | {"label_smoothing": 0.1, "amp": "no", "drop_last": False, "selection": "main", "frozen": ("tokenizer.",)}
)
_TFM_RELEASED: Final[Settings] = _TFM | {"seed": 3, "batch_size": 512, "origin": "official"}

PAPER: Final[dict[tuple[str, str], Settings]] = {
    **{("LaBraM", corpus): _LABRAM for corpus in DATASETS},
    ("LaBraM", "EEGMAT"): _LABRAM | {"batch_size": 377},
    **{("EEGPT", corpus): _EEGPT_PROBE for corpus in DATASETS},
    ("EEGPT", "TUAB"): _EEGPT_FULL | {"options": {"front_end": "tuab"}, "dropout": 0.5},
    ("EEGPT", "TUEV"): _EEGPT_FULL | {"drop_path": 0.2, "options": {"front_end": "tuev"}, "dropout": 0.8},
    **{("BIOT", corpus): _BIOT for corpus in DATASETS},
    ("BIOT", "EEGMAT"): _BIOT | {"batch_size": 754},
    **{("TFM-Tokenizer", corpus): _TFM for corpus in DATASETS},
    ("TFM-Tokenizer", "TUAB"): _TFM_RELEASED,
    ("TFM-Tokenizer", "TUEV"): _TFM_RELEASED,
    ("TFM-Tokenizer", "EEGMAT"): _TFM | {"batch_size": 377},
}

# Of the official script, for a model that the paper does not have. There the head learns five times as fast.
OFFICIAL: Final[dict[str, Settings]] = {
    "CBraMod": {"optimizer": "adamw", "schedule": "cosine", "seed": 3407, "batch_size": 64, "epochs": 50, "lr": 1e-4}
    | {"final_lr": 1e-6, "weight_decay": 0.05, "dropout": 0.1, "label_smoothing": 0.1, "grad_clip": 1.0}
}

# Ours: nothing frozen, no layer decay, ordinary initial heads, one schedule for all.
_OURS: Final[Settings] = (
    {"optimizer": "adamw", "schedule": "cosine", "seed": 0, "batch_size": 64, "epochs": 10, "warmup_epochs": 1}
    | {"lr": 5e-4, "final_lr": 1e-6, "weight_decay": 0.05, "decay_all": False, "binary_loss": "bce"}
    | {"label_smoothing": 0.1, "amp": "bf16", "grad_clip": 1.0, "drop_last": True, "selection": "main"}
)

SCRATCH: Final[dict[str, Settings]] = {
    "LaBraM": _OURS | {"drop_path": 0.1, "head_scale": 1.0},
    "EEGPT": _OURS | {"lr": 2e-4, "dropout": 0.5},
    "BIOT": _OURS | {"dropout": 0.2, "amp": "no"},  # 8 bits would bury the weak bins of its spectra
    # Token ids carry no gradient, so the tokenizer can't learn from labels: it is pretrained on the training windows
    # and then kept. Few steps: at the learning rates of the official configuration, which rise, 600 steps ruined it.
    "TFM-Tokenizer": _OURS | {"lr": 1e-3, "dropout": 0.2, "amp": "no", "frozen": ("tokenizer.",), "pretrain_steps": 80},
    "CBraMod": _OURS | {"dropout": 0.1, "options": {"head_layers": 0}},  # a few windows would not fill a flat head
}

# Of a foreign model, whose precision, dropout and head are its own.
FOREIGN: Final[Settings] = _OURS | {"amp": "no"}

TOKEN_LEARNING: Final[Settings] = {
    "optimizer": "adamw",
    "schedule": "cosine",
    "seed": 5,
    "batch_size": 256,
    "epochs": 100,
    "warmup_epochs": 10,
} | {"lr": 1e-3, "final_lr": 5e-3, "betas": (0.9, 0.99), "weight_decay": 1e-5, "selection": "last"}
MASKED_TOKENS: Final[Settings] = TOKEN_LEARNING | {"batch_size": 512, "epochs": 50, "warmup_epochs": 5}
