"""Pictures, each a function that returns a matplotlib Figure: of one window, of many, and of stored results (lazy)."""

from __future__ import annotations

from zipbrain._lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "zipbrain.evaluation.plots.ablation": "ablation_bars",
        "zipbrain.evaluation.plots.attention": "attention_heat_maps",
        "zipbrain.evaluation.plots.confusion": "confusion_counts confusion_pair",
        "zipbrain.evaluation.plots.curves": "ratio_curves",
        "zipbrain.evaluation.plots.merging": "merge_map",
        "zipbrain.evaluation.plots.pareto": "pareto_front",
        "zipbrain.evaluation.plots.purity": "purity_bars",
        "zipbrain.evaluation.plots.runtimes": "waterfall",
        "zipbrain.evaluation.plots.timeline": "profile_timeline",
        "zipbrain.evaluation.plots.tokens": "token_counts",
        "zipbrain.evaluation.plots.topography": "survival_topography",
    },
)
