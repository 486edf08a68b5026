"""Training: the paper's fine-tuning settings, ours from scratch, a resumable loop, and a scikit-learn estimator."""

from __future__ import annotations

from typing import Any

from zipbrain.training.captured_steps import Captured, NotCaptured, capture
from zipbrain.training.checkpoints import TrainingFailed
from zipbrain.training.finetune import Finetuned, finetune
from zipbrain.training.inference import predict
from zipbrain.training.loader import Feed
from zipbrain.training.loop import Step, TrainingResult, train
from zipbrain.training.model_setup import initialise
from zipbrain.training.settings import TrainingSettings, paper_settings, scratch_settings

__all__ = ["EEGClassifier", "Finetuned", "TrainingSettings", "finetune", "paper_settings", "predict"]
__all__ += ["Captured", "Feed", "NotCaptured", "Step", "TrainingFailed", "TrainingResult", "capture", "initialise"]
__all__ += ["scratch_settings", "train"]


def __getattr__(name: str) -> Any:
    """Import the estimator, and scikit-learn with it, when it is first used (PEP 562)."""
    if name != "EEGClassifier":
        raise AttributeError(f"module 'zipbrain.training' has no attribute {name!r}")
    from zipbrain.training.estimator import EEGClassifier

    return EEGClassifier
