"""The earlier place of `zipbrain.evaluation.plots.confusion`."""

from zipbrain.evaluation.plots.confusion import confusion, confusion_counts, confusion_pair

__all__ = ["confusion", "confusion_counts", "confusion_pair"]
