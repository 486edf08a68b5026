"""Edge: a recording and one exported file -> decisions, with numpy and ONNX Runtime alone (lazy: neither at import)."""

from __future__ import annotations

from zipbrain._lazy import lazy_names

_HOMES = {
    "EdgeModel": "zipbrain.edge.model",
    "Description": "zipbrain.edge.description",
    "Convention": "zipbrain.signal.convention",
    "Prediction": "zipbrain.edge.prediction",
    "predict": "zipbrain.edge.predict_one",
    "predict_many": "zipbrain.edge.predict_batch",
    "EDFRecording": "zipbrain.signal.edf",
    "open_edf": "zipbrain.signal.edf",
    "Batch": "zipbrain.signal.cutting",
    "windows": "zipbrain.signal.cutting",
}

__all__ = list(_HOMES)
__getattr__, __dir__ = lazy_names(__name__, _HOMES)
