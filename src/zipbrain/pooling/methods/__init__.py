"""Token reduction methods, one small file each. Importing this package registers all of them by name."""

from zipbrain.pooling.methods.ablations import ablations
from zipbrain.pooling.methods.base import Mass, Method, as_method
from zipbrain.pooling.methods.composition import Composition
from zipbrain.pooling.methods.dart import DART
from zipbrain.pooling.methods.evit import EViT
from zipbrain.pooling.methods.local_merging import LocalMerging
from zipbrain.pooling.methods.pitome import PiToMe
from zipbrain.pooling.methods.slicing import FreeSlicing
from zipbrain.pooling.methods.tofu import ToFu
from zipbrain.pooling.methods.tome import ToMe
from zipbrain.pooling.methods.twins import Twins
from zipbrain.pooling.methods.ward_pairs import WardPairs
from zipbrain.pooling.methods.zipbrain import ZIPBrain

__all__ = [
    "DART",
    "Composition",
    "EViT",
    "FreeSlicing",
    "LocalMerging",
    "Mass",
    "Method",
    "PiToMe",
    "ToFu",
    "ToMe",
    "Twins",
    "WardPairs",
    "ZIPBrain",
    "ablations",
    "as_method",
]
