"""The method: pure functions on tensors that split, match and merge tokens. Knows no model, no file, no EEG."""

from zipbrain.pooling.grouping import Grouping, compose
from zipbrain.pooling.merges import LargestNorm, Max, Mean, MeanNorm, MergeRule, Prune, Sum, WeightedMean
from zipbrain.pooling.methods import (
    DART,
    Composition,
    EViT,
    FreeSlicing,
    LocalMerging,
    Mass,
    Method,
    PiToMe,
    ToFu,
    ToMe,
    Twins,
    WardPairs,
    ZIPBrain,
    ablations,
    as_method,
)
from zipbrain.pooling.pool import pool
from zipbrain.pooling.pooled import Pooled
from zipbrain.pooling.spaces import SPACES
from zipbrain.pooling.tokens import Tokens

__all__ = [
    "DART",
    "SPACES",
    "Composition",
    "EViT",
    "FreeSlicing",
    "Grouping",
    "LargestNorm",
    "LocalMerging",
    "Mass",
    "Max",
    "Mean",
    "MeanNorm",
    "MergeRule",
    "Method",
    "PiToMe",
    "Pooled",
    "Prune",
    "Sum",
    "ToFu",
    "ToMe",
    "Tokens",
    "Twins",
    "WardPairs",
    "WeightedMean",
    "ZIPBrain",
    "ablations",
    "as_method",
    "compose",
    "pool",
]
