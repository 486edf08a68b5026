"""Export: a model and its recipe -> one .onnx file that describes itself, in float32, float16 or int8."""

from zipbrain.export.checks import ExportFailed
from zipbrain.export.exporter import Exported, convention_of, export
from zipbrain.export.parity import Parity

__all__ = ["ExportFailed", "Exported", "Parity", "convention_of", "export"]
