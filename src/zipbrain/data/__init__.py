"""Data: raw corpora -> labelled windows on disk, or your own arrays -> windows (lazy: no torch, no MNE at import)."""

from __future__ import annotations

from zipbrain._lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "zipbrain.data.windows": "Windows Prepared open_prepared",
        "zipbrain.signal.convention": "Convention",
        "zipbrain.data.corpora": "convention corpus Corpus",
        "zipbrain.signal.scaling": "scale",
        "zipbrain.data.preparation": "prepare",
        "zipbrain.data.report": "Report",
        "zipbrain.signal.processing": "Processing",
        "zipbrain.data.recording": "open_recording",
        "zipbrain.signal.recording": "Recording",
        "zipbrain.data.synthetic": "Synthetic",
        "zipbrain.data.downloads": "download",
        "zipbrain.data.examples": "example_recordings example_windows",
    },
)
