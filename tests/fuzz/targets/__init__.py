"""All kinds of files that are tried: name -> ``"module:attribute"`` of its `Target`, in the order of the table."""

from __future__ import annotations

TARGETS = {
    "edf-header": "tests.fuzz.targets.edf:HEADER",
    "edf-truncated": "tests.fuzz.targets.edf:TRUNCATED",
    "edf-annotations": "tests.fuzz.targets.edf:ANNOTATIONS",
    "onnx": "tests.fuzz.targets.onnx_file:ONNX",
    "recipe": "tests.fuzz.targets.saved_files:RECIPE",
    "config": "tests.fuzz.targets.saved_files:CONFIG",
    "weights": "tests.fuzz.targets.saved_files:WEIGHTS",
    "state": "tests.fuzz.targets.saved_files:STATE",
    "store": "tests.fuzz.targets.saved_files:STORE",
    "label-table": "tests.fuzz.targets.label_table:LABEL_TABLE",
}
