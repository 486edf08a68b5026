"""The merge map of a decided window: which token every token ended in, on a grid of electrodes and places in time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

MOST_TOKENS: Final = 16_384  # of a map on the board; a window with more has none


def merge_map(groups: NDArray[np.integer[Any]], ch_names: Sequence[str]) -> dict[str, Any] | None:
    """A window's source map as JSON has it; None where its tokens are no grid of channels and times.

    ``{"electrodes": rows, "patches": P, "source": cells}``: at ``row * P + patch`` stands the cell in which the
    token of this cell ended, -1 if it was dropped, or a number beyond the grid for a token without a cell (EViT's).

    Parameters
    ----------
    groups : ndarray of int
        ``(C * P,)``, channel after channel, or ``(P, C)`` where the channels of every patch meet each other alone.
    ch_names : sequence of str
        Of the model; numbers stand for rows to which a model projects its channels.
    """
    if groups.size > MOST_TOKENS or groups.ndim not in (1, 2) or not groups.size:
        return None
    if groups.ndim == 2:
        patches, rows = groups.shape
        own = np.arange(patches)[:, np.newaxis]
        cells = np.where(groups < 0, -1, np.where(groups < rows, groups * patches + own, groups.size)).T.reshape(-1)
    else:
        patches, rest = divmod(groups.size, len(ch_names))
        if rest:
            return None
        rows, cells = len(ch_names), groups
    names = list(ch_names) if rows == len(ch_names) else [str(row + 1) for row in range(rows)]
    return {"electrodes": names, "patches": int(patches), "source": cells.tolist()}
