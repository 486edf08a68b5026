"""Models: LaBraM, EEGPT, BIOT, TFM-Tokenizer, each one file; published weights, and what a model was trained for."""

from __future__ import annotations

from zipbrain.models.biot import BIOT
from zipbrain.models.checkpoint import LoadReport, load_official, read_checkpoint
from zipbrain.models.eegpt import EEGPT
from zipbrain.models.encoder import TokenEncoder
from zipbrain.models.labram import LaBraM
from zipbrain.models.registry import create, model_name
from zipbrain.models.task import Task, remember, task_of
from zipbrain.models.tfm import TFM, TFMEncoder, TFMTokenizer
from zipbrain.models.weights_cache import Downloaded, download

__all__ = ["BIOT", "EEGPT", "TFM", "LaBraM", "TFMEncoder", "TFMTokenizer", "TokenEncoder", "create", "model_name"]
__all__ += ["Downloaded", "LoadReport", "Task", "download", "load_official", "read_checkpoint", "remember", "task_of"]
