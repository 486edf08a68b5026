"""Scalp topography of how long each electrode's tokens survive."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from zipbrain._lazy import import_extra
from zipbrain.channels import SYNONYMS, electrode
from zipbrain.errors import OptionError
from zipbrain.evaluation.plots.style import halo, new_figure, styled
from zipbrain.evaluation.token_fates import Fates

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_FEWEST: Final = 4  # places between which a map can be drawn
_EARS: Final = ("A1", "A2", "M1", "M2")  # far outside the head when it is drawn flat


@styled
def survival_topography(fates: Fates, title: str = "") -> Figure:
    """Draw the mean number of blocks that an electrode's tokens leave as themselves, over windows and time.

    Parameters
    ----------
    fates : Fates
        Of many windows.
    title : str
        First line above the head.

    Notes
    -----
    Positions are those of the 10-05 system; a bipolar channel stands in the middle between its electrodes. Channels at
    the same place are averaged. Ears and channels without a known position are left out and named in the title.
    """
    words = "\n".join(filter(None, (title, f"mean over {len(fates.blocks)} windows and all times")))
    unit = f"blocks survived as itself (of {fates.depth})"
    return head_map(fates.blocks.mean(axis=(0, 2)), fates.layout.ch_names, unit, words)


def head_map(values: NDArray[np.float64], ch_names: Sequence[str], unit: str, title: str) -> Figure:
    """Draw one value per channel on the scalp."""
    mne = _mne()
    places, lost = positions(ch_names)
    merged: dict[tuple[float, ...], list[int]] = {}
    for number, place in places.items():
        if electrode(ch_names[number]) in _EARS:
            lost.append(ch_names[number])
        else:
            merged.setdefault(tuple(np.round(place, 4)), []).append(number)
    if len(merged) < _FEWEST:
        known = ", ".join(ch_names[i] for i in places) or "none"
        allowed = f"{_FEWEST} places of the 10-20 system are needed, and known are {known}"
        raise OptionError("ch_names", list(ch_names), allowed)
    names = ["/".join(ch_names[i] for i in group) for group in merged.values()]
    info = mne.create_info(names, 200.0, "eeg", verbose="error")
    montage = mne.channels.make_dig_montage(dict(zip(names, map(np.array, merged), strict=True)), coord_frame="head")
    info.set_montage(montage, verbose="error")
    shown = np.array([values[group].mean() for group in merged.values()])
    figure = new_figure(5.6, 4.9)
    ax = figure.subplots()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # constrained layout is ours
        look = {"cmap": "viridis", "sensors": "k.", "contours": 0, "image_interp": "linear", "extrapolate": "head"}
        limits = {"vlim": (float(shown.min()), float(shown.max())), "sphere": (0, 0, 0, 0.098)}
        image, _ = mne.viz.plot_topomap(shown, info, axes=ax, show=False, names=names, **look, **limits)
    for text in ax.texts:
        text.set_fontsize(7)
        text.set_path_effects([halo()])
    bar = figure.colorbar(image, ax=ax, shrink=0.7, pad=0.04)
    bar.set_label(unit)
    note = f"\nnot on the map: {', '.join(lost)}" if lost else ""
    ax.set_title(title + note, fontsize=9)
    return figure


def positions(ch_names: Sequence[str]) -> tuple[dict[int, NDArray[np.float64]], list[str]]:
    """Places in metres on MNE's head by channel number, and the names of the channels that have none."""
    channels = _mne().channels
    newer = "colin27_1005"  # the same template by its name from MNE 1.13 on
    name = newer if newer in channels.get_builtin_montages() else "standard_1005"
    montage = channels.make_standard_montage(name, head_size=0.095)
    known = {name.upper(): place for name, place in montage.get_positions()["ch_pos"].items()}
    middle = np.mean([known["T7"], known["T8"]], axis=0)  # the template's origin is not the middle of its head
    known = {name: place - middle for name, place in known.items()}
    found, unknown = {}, []
    for number, name in enumerate(ch_names):
        bare = electrode(name)
        parts = [bare] if bare in known else bare.split("-")
        sides = [part if part in known else SYNONYMS.get(part, "") for part in parts]
        if all(side in known for side in sides):
            found[number] = np.mean([known[side] for side in sides], axis=0)
        else:
            unknown.append(name)
    return found, unknown


def _mne() -> Any:
    return import_extra("mne", "mne", "report", "zipbrain.evaluation.plots.topography")
