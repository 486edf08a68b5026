"""Attention heat maps of chosen blocks, with the columns that draw attention from everywhere (the paper's sinks)."""

from __future__ import annotations

import copy
import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from zipbrain.data.windows import Windows
from zipbrain.errors import OptionError
from zipbrain.evaluation.plots.style import RED, new_figure, styled
from zipbrain.evaluation.token_fates import Layout
from zipbrain.seams import Observer, instrument, observe, restore
from zipbrain.seams.dialects.base import Attended
from zipbrain.seams.evaluation_mode import evaluation_mode
from zipbrain.seams.find import find_chain
from zipbrain.seams.forward import Plan
from zipbrain.training.loader import Feed, scaling_for

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SINK: Final = 3.0  # times the uniform share 1 / T
MOST_SINKS: Final = 3


@dataclass(frozen=True, eq=False)
class Attention:
    """Attention maps of one window, by block, counted from 1.

    Row i says how token i spreads its attention, and adds up to 1. A map is the mean over heads; of EEGPT, whose tokens
    attend inside one time patch, over the patches too. Of linear attention it is the effective map: softmax of q over
    features times softmax of k over tokens, without the constant factor d^-1/2.
    """

    maps: dict[int, NDArray[np.float64]]  # (T, T) each
    linear: bool
    layout: Layout

    def received(self, block: int) -> NDArray[np.float64]:
        """Mean attention that every token receives, in multiples of the uniform share 1 / T: (T,)."""
        received: NDArray[np.float64] = self.maps[block].mean(0) * len(self.maps[block])
        return received

    def sinks(self, block: int) -> list[int]:
        """The columns that receive more than 3 times the uniform share; at most 3, the strongest first."""
        received = self.received(block)
        order = np.argsort(-received, kind="stable")[:MOST_SINKS]
        return [int(place) for place in order if received[place] > SINK]


class _Inputs(Observer):
    """Notes what enters every block, counted from 1."""

    def __init__(self) -> None:
        self.inputs: dict[int, Tensor] = {}

    def entered(self, plan: Plan, x: Tensor) -> None:
        self.inputs[1] = x.clone()  # the model may go on in place

    def fed(self, index: int, x: Tensor) -> None:
        self.inputs[index + 2] = x.clone()


def attention_of(
    model: nn.Module,
    windows: Windows,
    window: int = 0,
    blocks: Sequence[int] | None = None,
    *,
    scaling: str | None = None,
) -> Attention:
    """Compute attention maps of one window by the uncompressed model (a compressed one is copied and restored).

    Parameters
    ----------
    model : LaBraM, EEGPT, BIOT, TFM or CBraMod
        The model.
    windows : Windows
        Where the window comes from.
    window : int
        Its number.
    blocks : sequence of int, optional
        Blocks, counted from 1; the first, the middle and the last if not given.
    scaling : str, optional
        See `zipbrain.data.scale`; the model's own for this corpus if not given.
    """
    layout = Layout.of(model, windows)
    model = restore(copy.deepcopy(model)).cpu()
    chain = find_chain(model)
    depth = len(chain.blocks)
    chosen = list(dict.fromkeys(blocks if blocks is not None else (1, (depth + 1) // 2, depth)))
    for number in chosen:
        if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= depth:
            raise OptionError("blocks", list(chosen), f"the model has blocks 1 to {depth}")
    if not 0 <= window < len(windows):
        raise OptionError("window", window, f"there are {len(windows)} windows, counted from 0")
    scaled = scaling if scaling is not None else scaling_for(model, windows)
    feed = Feed(windows.select([window]), scaled, torch.device("cpu"), "disk")
    seen = _Inputs()
    with evaluation_mode(model), torch.inference_mode(), observe(instrument(model), seen):
        for x, _ in feed.batches(np.arange(1), 1):
            model(x)
    with torch.inference_mode():
        attended = {n: chain.dialect.attend(chain.blocks[n - 1], seen.inputs[n], None, True) for n in chosen}
        maps = {number: effective_map(found).mean((0, 1)).double().numpy() for number, found in attended.items()}
    return Attention(maps, attended[chosen[0]].linear, layout)


def effective_map(attended: Attended) -> Tensor:
    """Attention weights (B, H, T, T) whose rows add up to 1, of softmax or of linear attention."""
    if attended.linear:
        return torch.matmul(attended.q.softmax(3), attended.k.softmax(2).transpose(2, 3))
    assert attended.attention is not None
    return attended.attention


@styled
def attention_heat_maps(attention: Attention, title: str = "", blocks: Sequence[int] | None = None) -> Figure:
    """Draw one heat map per block: rows attend, columns are attended to, sinks are marked above.

    Parameters
    ----------
    attention : Attention
        Of `attention_of`.
    title : str
        First line above the maps, such as the model, the corpus and the class of the window.
    blocks : sequence of int, optional
        Which of its blocks; all if not given. Colours mean the same either way.
    """
    blocks = list(attention.maps if blocks is None else blocks)
    columns = min(3, len(blocks))
    rows = math.ceil(len(blocks) / columns)
    figure = new_figure(0.9 + 3.7 * columns, 1.3 + 3.7 * rows)
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    tokens = len(attention.maps[blocks[0]])
    top = float(np.quantile(np.stack(list(attention.maps.values())) * tokens, 0.995))
    image: Any = None
    for number, (block, ax) in enumerate(zip(blocks, axes, strict=False)):
        shares = attention.maps[block] * tokens
        image = ax.imshow(shares, cmap="viridis", vmin=0, vmax=top, interpolation="nearest", aspect="equal")
        _mark_sinks(ax, attention, block)
        _name_tokens(ax, attention.layout, tokens)
        ax.set_xlabel("attended-to token")
        if number % columns == 0:
            ax.set_ylabel("attending token")
    for ax in axes[len(blocks) :]:
        ax.set_visible(False)
    bar = figure.colorbar(image, ax=list(axes), shrink=0.75, extend="max", pad=0.02)
    bar.set_label("attention, multiples of the uniform share 1/T")
    kind = "effective map of linear attention: softmax(q) softmax(k)ᵀ" if attention.linear else "softmax attention"
    over = f"heads and {len(attention.layout.starts)} time patches" if attention.layout.folded else "heads"
    note = f"{kind}, mean over {over}; ▼ sinks: more than {SINK:g} × the uniform share, at most {MOST_SINKS}"
    note = textwrap.fill(note, 54 * columns)
    figure.suptitle(f"{title}\n{note}" if title else note, fontsize=9)
    return figure


def _mark_sinks(ax: Axes, attention: Attention, block: int) -> None:
    sinks, received = attention.sinks(block), attention.received(block)
    for place in sinks:
        (mark,) = ax.plot(place, -0.012 * len(received) - 0.5, marker="v", color=RED, markersize=6, clip_on=False)
        mark.set_in_layout(False)  # maps side by side keep the same size
    ax.set(xlim=(-0.5, len(received) - 0.5), ylim=(len(received) - 0.5, -0.5))
    names = [f"▼ {attention.layout.label(place)} ({received[place]:.1f} ×)" for place in sinks] or ["no sink"]
    lines = max(1, *(len(attention.sinks(other)) for other in attention.maps))
    blank = ["\N{NO-BREAK SPACE}"] * (lines - len(names))
    ax.set_title("\n".join([f"block {block}", *names, *blank]), fontsize=8, pad=9)


def _name_tokens(ax: Axes, layout: Layout, tokens: int) -> None:
    """Channel names in the middle of their tokens; every second, third, ... one where there are too many."""
    width = 1 if layout.folded else len(layout.starts)
    channels = len(layout.ch_names)
    every = math.ceil(channels / 24)
    places = [layout.leading + width * i + (width - 1) / 2 for i in range(0, channels, every)]
    names = [layout.ch_names[i] for i in range(0, channels, every)]
    places += [*range(layout.leading), *range(tokens - layout.trailing, tokens)]
    names += [layout.label(i).replace("summary", "sum.") for i in range(layout.leading)]
    names += [layout.label(i).replace("summary", "sum.") for i in range(tokens - layout.trailing, tokens)]
    ax.set_xticks(places, names, rotation=90, fontsize=6)
    ax.set_yticks(places, names, fontsize=6)
    ax.tick_params(length=2, pad=1)
    ax.spines[:].set_visible(False)
