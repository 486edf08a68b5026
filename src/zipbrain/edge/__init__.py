"""Edge: a recording and one exported file -> decisions, with numpy and ONNX Runtime alone (lazy: neither at import)."""

from __future__ import annotations

from zipbrain._lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "zipbrain.edge.model": "EdgeModel",
        "zipbrain.edge.description": "Description",
        "zipbrain.edge.limits": "Limits",
        "zipbrain.signal.convention": "Convention",
        "zipbrain.edge.prediction": "Prediction",
        "zipbrain.edge.predict_one": "predict",
        "zipbrain.edge.predict_batch": "predict_many",
        "zipbrain.edge.archive": "predict_archive",
        "zipbrain.signal.edf": "EDFRecording open_edf",
        "zipbrain.signal.cutting": "Batch windows",
    },
)
