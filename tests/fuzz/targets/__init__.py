"""All kinds of files that are tried: name -> ``"module:attribute"`` of its `Target`, in the order of the table."""

from __future__ import annotations

TARGETS = {
    "edf-header": "tests.fuzz.targets.edf:HEADER",
    "edf-truncated": "tests.fuzz.targets.edf:TRUNCATED",
    "edf-annotations": "tests.fuzz.targets.edf:ANNOTATIONS",
    "label-table": "tests.fuzz.targets.label_table:LABEL_TABLE",
}
