"""Evaluation: intervals over subjects, comparisons, ablations, figures (lazy: scikit-learn when used)."""

from __future__ import annotations

from zipbrain._lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "zipbrain.evaluation.result": "Result",
        "zipbrain.evaluation.store": "Store",
        "zipbrain.evaluation.trial": "Trial recipe_for",
        "zipbrain.evaluation.ablation": "ablate",
        "zipbrain.evaluation.comparison": "compare",
        "zipbrain.evaluation.report": "write_report",
    },
    modules="bootstrap figures plots purity report token_fates",
)
