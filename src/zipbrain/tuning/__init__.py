"""Tuning: the fastest recipe that keeps a model's decisions, and its certificate."""

from zipbrain.tuning.certificate import Certificate
from zipbrain.tuning.exported import certify_file
from zipbrain.tuning.groups import stretches
from zipbrain.tuning.tune import tune
from zipbrain.tuning.tuned import Option, Tuned

__all__ = ["Certificate", "Option", "Tuned", "certify_file", "stretches", "tune"]
