"""Models: LaBraM, EEGPT, BIOT, TFM-Tokenizer, CBraMod, each one file; published weights, and trained tasks."""

from __future__ import annotations

from zipbrain.models.biot import BIOT
from zipbrain.models.cbramod import CBraMod
from zipbrain.models.checkpoint import LoadReport, load_official, read_checkpoint
from zipbrain.models.eegpt import EEGPT
from zipbrain.models.encoder import TokenEncoder
from zipbrain.models.foreign import Build
from zipbrain.models.labram import LaBraM
from zipbrain.models.registry import create, model_name, name_of, own_name
from zipbrain.models.task import Task, remember, task_of
from zipbrain.models.tfm import TFM, TFMEncoder, TFMTokenizer
from zipbrain.models.weights_cache import Downloaded, download

__all__ = ["BIOT", "EEGPT", "TFM", "Build", "CBraMod", "LaBraM", "TFMEncoder", "TFMTokenizer", "TokenEncoder"]
__all__ += ["Downloaded", "LoadReport", "Task", "create", "download", "load_official", "model_name", "read_checkpoint"]
__all__ += ["name_of", "own_name", "remember", "task_of"]
