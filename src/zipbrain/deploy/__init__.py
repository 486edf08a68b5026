"""Deploy: a model and its recipe -> one .onnx file that describes itself, in float32, float16 or int8."""

from zipbrain.deploy.export import Exported, convention_of, export
from zipbrain.deploy.fitting import ExportFailed
from zipbrain.deploy.parity import Parity

__all__ = ["ExportFailed", "Exported", "Parity", "convention_of", "export"]
