"""Does pooling keep what matters? On synthetic EEG it is known which tokens carry the event of their window."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray
from torch import nn

from zipbrain._lazy import import_extra
from zipbrain.data.synthetic import Synthetic
from zipbrain.errors import OptionError
from zipbrain.evaluation.token_fates import Fates, Layout, fates
from zipbrain.seams import compress

if TYPE_CHECKING:
    from zipbrain.recipe import Recipe

FATES: Final = ("alone", "pure", "mixed", "dropped")


@dataclass(frozen=True)
class Purity:
    """What became of the tokens that carry an event, as shares of these tokens that add up to 1.

    Attributes
    ----------
    label : str
        Of the method.
    removed : float
        Share of all tokens that are gone after the last block.
    windows, carriers : int
        Windows that have an event, and the tokens that carry it.
    shares : dict of str to float
        ``alone``: there to the end, and nothing was merged into it. ``pure``: in a group of two or more tokens that all
        carry the event. ``mixed``: in a group that holds background too. ``dropped``.
    random : dict of str to float
        The same if the tokens of every window changed places at random: as many groups of the same sizes, as many
        dropped. Exact expectations, no draws.
    company : float
        Mean share of event-carrying tokens in the group of an event-carrying token that was not dropped (itself
        counted); nan if all were dropped.
    """

    label: str
    removed: float
    windows: int
    carriers: int
    shares: dict[str, float]
    random: dict[str, float]
    company: float

    def row(self) -> dict[str, Any]:
        """One flat row, for a table."""
        own = {name: self.shares[name] for name in FATES}
        chance = {f"random {name}": self.random[name] for name in FATES}
        first = {"method": self.label, "removed": self.removed, "windows": self.windows, "carriers": self.carriers}
        return {**first, **own, **chance, "company": self.company}


def purity(
    model: nn.Module,
    corpus: Synthetic,
    recipe: Recipe | None = None,
    *,
    split: str = "test",
    limit: int | None = None,
    label: str | None = None,
    batch_size: int = 32,
    device: str = "auto",
) -> Purity:
    """Follow the event-carrying tokens of a synthetic split through a compressed model.

    Parameters
    ----------
    model : LaBraM, EEGPT, BIOT or TFM
        Left as it is.
    corpus : Synthetic
        Its `truth` says which channel and second carries the event.
    recipe : Recipe, optional
        How to compress the model; if not given, it must be compressed already.
    split : {"train", "val", "test"}
        Which windows.
    limit : int, optional
        At most so many of them, spread evenly over the split.
    label : str, optional
        Name of the result; the method's if not given.
    batch_size, device
        As for `fates`.

    Returns
    -------
    purity : Purity
    """
    windows, truth = corpus.split(split), corpus.truth(split)
    if limit is not None and limit < 1:
        raise OptionError("limit", limit, "it must be at least 1")
    if limit is not None and limit < len(windows):
        some = np.linspace(0, len(windows) - 1, limit).astype(np.int64)
        windows, truth = windows.select(some), truth[some]
    if recipe is not None:
        model = compress(copy.deepcopy(model), recipe)
        label = label or str(recipe.method["name"])
    found = fates(model, windows, batch_size=batch_size, device=device)
    return follow(found, carrying(found.layout, truth), label or "as given")


def carrying(layout: Layout, truth: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Tokens that carry the event, bool (n, C, P): half or more of their time lies in carrying seconds.

    `truth` is `Synthetic.truth`, bool (n, C, seconds).
    """
    if layout.projected:
        allowed = "its tokens are mixtures of channels: take a model without a projection of channels"
        raise OptionError("model", "a front end", allowed)
    if truth.shape[1] != layout.shape[0]:
        raise OptionError("truth", truth.shape, f"the tokens have {layout.shape[0]} channels")
    start, second = np.array(layout.starts)[:, None], np.arange(truth.shape[2])  # (P, 1), (seconds,)
    overlap = np.minimum(start + layout.length, second + 1) - np.maximum(start, second)
    inside = truth @ np.clip(overlap, 0, None).T  # (n, C, P) seconds
    carries: NDArray[np.bool_] = inside >= layout.length / 2 - 1e-9
    return carries


def follow(found: Fates, carries: NDArray[np.bool_], label: str) -> Purity:
    """The fates of tokens that carry an event, given as bool (n, C, P), and what chance would give."""
    if not carries.any():
        raise OptionError("windows", f"{len(carries)} without an event", "at least one token must carry an event")
    cells = found.owner // found.layout.shape[1] if found.layout.folded else found.owner  # -1 stays -1
    owner, marked = _pools(found, cells), _pools(found, carries)
    pools, tokens = owner.shape
    groups = int(owner.max()) + 1
    pool = np.broadcast_to(np.arange(pools)[:, None], owner.shape)
    stays = owner >= 0
    size, within = np.zeros((pools, groups), np.int64), np.zeros((pools, groups), np.int64)
    np.add.at(size, (pool[stays], owner[stays]), 1)
    np.add.at(within, (pool[stays & marked], owner[stays & marked]), 1)

    # What became of them: by the size of their group, and how many in it carry the event.
    mine = stays & marked
    s, c = size[pool[mine], owner[mine]], within[pool[mine], owner[mine]]
    total = int(marked.sum())
    pure, alone = int(((s == c) & (s > 1)).sum()), int((s == 1).sum())
    counts = {"alone": alone, "pure": pure, "mixed": len(s) - pure - alone, "dropped": total - len(s)}

    # Chance: every token of a pool is equally likely to stand anywhere, so K of its M tokens carry the event.
    k = marked.sum(1, keepdims=True)  # (pools, 1)
    stats = import_extra("scipy.stats", "scipy", "report", "zipbrain.evaluation.purity")
    all_carry = stats.hypergeom.pmf(size, tokens, np.broadcast_to(k, size.shape), size)
    chance = {
        "alone": float((k * (size == 1)).sum() / tokens),
        "pure": float((size * all_carry)[size > 1].sum()),
        "dropped": float((k[:, 0] * (~stays).sum(1)).sum() / tokens),
    }
    chance["mixed"] = total - sum(chance.values())
    n = len(carries)
    return Purity(
        label,
        1 - found.token_counts[-1] / found.token_counts[0],
        int(carries.reshape(n, -1).any(1).sum()),
        total,
        {name: counts[name] / total for name in FATES},
        {name: chance[name] / total for name in FATES},
        float((c / s).mean()) if len(s) else float("nan"),
    )


def table(results: Sequence[Purity]) -> list[dict[str, Any]]:
    """One row per result, with the random expectation beside each share."""
    return [result.row() for result in results]


def _pools(found: Fates, values: NDArray[Any]) -> NDArray[Any]:
    """Tokens that can meet, one row each: a window's, or (EEGPT) those of one time patch."""
    if found.layout.folded:
        values = values.transpose(0, 2, 1)
        return values.reshape(-1, values.shape[2])
    return values.reshape(len(values), -1)
