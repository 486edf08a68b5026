"""The paper's ablations of ZIPBrain, each an ordinary composition."""

from __future__ import annotations

from zipbrain.pooling.merges import Mean
from zipbrain.pooling.methods.base import Method
from zipbrain.pooling.methods.composition import Drop, RandomMatch, RandomSplit, RegularPivotSplit
from zipbrain.pooling.methods.zipbrain import ZIPBrain


def ablations(method: ZIPBrain | None = None, seed: int = 0) -> dict[str, Method]:
    """Full ZIPBrain and the five variants of the paper's ablation study, by name.

    ``full``, ``random grouping``, ``random matching``, ``simple merge``, ``pruning``, ``pivots as regular tokens``.
    `method` is the setting to take apart, the default one if not given; `seed` is that of the two random variants.
    """
    full = method if method is not None else ZIPBrain()
    return {
        "full": full,
        "random grouping": full.compose(split=RandomSplit(seed)),
        "random matching": full.compose(match=RandomMatch(seed)),
        "simple merge": full.compose(merge=Mean()),
        "pruning": full.compose(match=Drop()),
        "pivots as regular tokens": full.compose(split=RegularPivotSplit(full.z1, full.z2, full.rho)),
    }
