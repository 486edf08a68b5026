"""Data: raw corpora -> labelled windows on disk, or your own arrays -> windows (lazy: no torch, no MNE at import)."""

from __future__ import annotations

from zipbrain._lazy import lazy_names

_HOMES = {
    "Windows": "zipbrain.data.windows",
    "Prepared": "zipbrain.data.windows",
    "open_prepared": "zipbrain.data.windows",
    "Convention": "zipbrain.signal.convention",
    "convention": "zipbrain.data.corpora",
    "scale": "zipbrain.signal.scaling",
    "prepare": "zipbrain.data.preparation",
    "Report": "zipbrain.data.report",
    "corpus": "zipbrain.data.corpora",
    "Corpus": "zipbrain.data.corpora",
    "Processing": "zipbrain.signal.processing",
    "open_recording": "zipbrain.data.recording",
    "Recording": "zipbrain.signal.recording",
    "Synthetic": "zipbrain.data.synthetic",
    "download": "zipbrain.data.downloads",
}

__all__ = list(_HOMES)
__getattr__, __dir__ = lazy_names(__name__, _HOMES)
