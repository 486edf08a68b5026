"""Evaluation: intervals over subjects, comparisons, ablations, figures (lazy: scikit-learn when used)."""

from __future__ import annotations

from zipbrain._lazy import lazy_names

_MODULES = ("bootstrap", "figures", "plots", "purity", "report", "token_fates")
_HOMES = {
    "Result": "zipbrain.evaluation.result",
    "Store": "zipbrain.evaluation.store",
    "Trial": "zipbrain.evaluation.trial",
    "ablate": "zipbrain.evaluation.ablation",
    "compare": "zipbrain.evaluation.comparison",
    "recipe_for": "zipbrain.evaluation.trial",
    "write_report": "zipbrain.evaluation.report",
    **dict.fromkeys(_MODULES, ""),
}

__all__ = sorted(_HOMES)
__getattr__, __dir__ = lazy_names(__name__, _HOMES)
