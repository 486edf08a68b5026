"""Where every token of a model lies on the window, and what became of it: merged into whom, dropped, or kept."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from zipbrain.data.windows import Windows
from zipbrain.errors import ShapeError, UnsupportedModel
from zipbrain.models import BIOT, EEGPT, TFM, CBraMod, LaBraM
from zipbrain.models.eegpt import FRONT_CHANNELS, PATCH
from zipbrain.models.eegpt_probe import RATE
from zipbrain.pooling.methods.composition import Composition, PivotSplit
from zipbrain.pooling.methods.zipbrain import ZIPBrain
from zipbrain.pooling.pooled import Pooled
from zipbrain.pooling.spaces import Spaces
from zipbrain.pooling.tokens import Tokens
from zipbrain.seams import Observer, observe, trace
from zipbrain.seams.evaluation_mode import evaluation_mode
from zipbrain.seams.forward import Plan
from zipbrain.seams.observe import Trace
from zipbrain.training.loader import Feed, pick_device, scaling_for


@dataclass(frozen=True)
class Layout:
    """Channels and times of a model's tokens: a grid of C channels and P places in time."""

    ch_names: tuple[str, ...]  # the grid's rows
    starts: tuple[float, ...]  # where each column begins, in seconds
    length: float  # seconds that a token sees; BIOT's and TFM's frames see 1 s and come every 0.5 s
    folded: bool = False  # tokens of one column only meet each other (EEGPT: time patches are in the batch)
    projected: bool = False  # the rows are places to which the model projects the window's channels
    leading: int = 0  # tokens in front of the grid that stand for no signal (CLS)
    trailing: int = 0  # such tokens behind it (summary)

    @classmethod
    def of(cls, model: nn.Module, windows: Windows) -> Layout:
        """The layout of one of our models on these windows."""
        names, rate, samples = windows.ch_names, windows.sfreq, windows.n_times
        if isinstance(model, LaBraM):
            return cls(names, tuple(float(i) for i in range(samples // 200)), 1.0, leading=1)
        if isinstance(model, BIOT | TFM):
            frames = (samples - 200) // 100 + 1
            return cls(names, tuple(i / 2 for i in range(frames)), 1.0, leading=int(isinstance(model, TFM)))
        if isinstance(model, CBraMod):  # a token is a whole channel
            return cls(names, (0.0,), samples / rate, folded=True)
        if isinstance(model, EEGPT):
            config, lost = model.config, 0
            if config["head"] == "probe":
                samples, rate = samples * RATE // round(rate), float(RATE)
            elif config["front_end"] == "tuab":  # a convolution of width 15 without padding
                samples, lost = samples - 14, 7
            rows = FRONT_CHANNELS if config["front_end"] is not None else config["places"] or names
            starts = tuple((lost + i * PATCH) / rate for i in range(samples // PATCH))
            summary = model.target_encoder.summary
            return cls(tuple(rows), starts, PATCH / rate, True, model.front_end is not None, trailing=summary)
        known = "LaBraM, EEGPT, BIOT, TFM and CBraMod"
        raise UnsupportedModel(f"where the tokens of {type(model).__name__} lie is not known: it is for {known}")

    @property
    def shape(self) -> tuple[int, int]:
        """(C, P)"""
        return len(self.ch_names), len(self.starts)

    @property
    def step(self) -> float:
        """Seconds from one column to the next."""
        return self.starts[1] - self.starts[0] if len(self.starts) > 1 else self.length

    @property
    def edges(self) -> NDArray[np.float64]:
        """Borders of the columns when drawn, (P + 1,): each as wide as a step, around the middle of its token."""
        first = self.starts[0] + self.length / 2 - self.step / 2
        edges: NDArray[np.float64] = np.float64(first) + self.step * np.arange(len(self.starts) + 1)
        return edges

    def label(self, place: int) -> str:
        """Name of token number `place` at the first block, protected ones counted: ``"C3 2 s"`` or ``"CLS"``."""
        number = place - self.leading
        count = self.shape[0] if self.folded else self.shape[0] * self.shape[1]
        if number < 0:
            return "CLS"
        if number >= count:
            return f"summary {number - count + 1}"
        if self.folded:
            return self.ch_names[number]
        channel, column = divmod(number, self.shape[1])
        return f"{self.ch_names[channel]} {self.starts[column]:g} s"

    def grid(self, values: Tensor) -> NDArray[np.generic]:
        """One value per unprotected token, (B, N), as windows of the grid, (n, C, P)."""
        channels, columns = self.shape
        wanted = channels if self.folded else channels * columns
        if values.shape[1] != wanted or (self.folded and values.shape[0] % columns):
            raise ShapeError("tokens", tuple(values.shape), f"{channels} channels x {columns} times were expected")
        if self.folded:
            values = values.reshape(-1, columns, channels).transpose(1, 2)
        array: NDArray[np.generic] = values.reshape(-1, channels, columns).cpu().numpy()
        return array


@dataclass(frozen=True, eq=False)
class Fates:
    """What became of every token of n windows.

    Attributes
    ----------
    layout : Layout
    owner : ndarray of int64, shape (n, C, P)
        The cell (row x P + column) of the token in which it ended; -1 where it was dropped; C P or more where it ended
        in a token that the method appended (EViT's fused one).
    blocks : ndarray of int64, shape (n, C, P)
        How many blocks it left as itself; `depth` if it was there to the end.
    pivots : ndarray of bool, shape (n, C, P), or None
        Pivots of the last reducing block, recomputed from the tokens there; None for a method without pivots of the
        paper's kind.
    depth : int
        Number of blocks.
    token_counts : tuple of int
        Unprotected tokens before the first block, then after each.
    """

    layout: Layout
    owner: NDArray[np.int64]
    blocks: NDArray[np.int64]
    pivots: NDArray[np.bool_] | None
    depth: int
    token_counts: tuple[int, ...]

    @property
    def kept(self) -> NDArray[np.bool_]:
        """Tokens that were there to the end, bool (n, C, P)."""
        kept: NDArray[np.bool_] = self.blocks == self.depth
        return kept


def fates(
    model: nn.Module, windows: Windows, *, batch_size: int = 32, device: str = "auto", scaling: str | None = None
) -> Fates:
    """Run a compressed model on windows and say what became of every token.

    Parameters
    ----------
    model : LaBraM, EEGPT, BIOT, TFM or CBraMod
        Compressed; of CBraMod, along its channels. Left where `device` says, and in the mode it was in.
    windows : Windows
        At least one.
    batch_size : int
        Windows per call.
    device : str
        "auto" is the GPU if there is one.
    scaling : str, optional
        See `zipbrain.data.scale`; the model's own for this corpus if not given.
    """
    layout = Layout.of(model, windows)
    chosen = scaling if scaling is not None else scaling_for(model, windows)
    feed = Feed(windows, chosen, pick_device(device), "disk")
    model.to(feed.device)
    owners, lives, marks = [], [], []
    with evaluation_mode(model), torch.inference_mode():
        for x, _ in feed.batches(np.arange(len(feed)), batch_size):
            noted = _Pivots()
            with trace(model) as traced, observe(model, noted):
                model(x)
            blocks, pivots = _lives(traced, noted.seen)
            owner = layout.grid(traced.source_map()).astype(np.int64)
            if layout.folded:
                owner = np.where(owner < 0, owner, owner * layout.shape[1] + np.arange(layout.shape[1]))
            owners.append(owner)
            lives.append(layout.grid(blocks).astype(np.int64))
            if pivots is not None:
                marks.append(layout.grid(pivots).astype(np.bool_))
    return Fates(
        layout=layout,
        owner=np.concatenate(owners),
        blocks=np.concatenate(lives),
        pivots=np.concatenate(marks) if len(marks) == len(owners) else None,
        depth=len(traced.layers),
        token_counts=tuple(traced.token_counts),
    )


class _Pivots(Observer):
    """Notes the pivots of every reduction; nothing for a method that has none.

    Attributes
    ----------
    seen : dict of int to (Tensor, int, int)
        By block, counted from 1: pivots (B, N), protected tokens in front and behind.
    """

    def __init__(self) -> None:
        self.seen: dict[int, tuple[Tensor, int, int]] = {}
        self._split: PivotSplit | None = None

    def entered(self, plan: Plan, x: Tensor) -> None:
        self.seen.clear()
        parts = plan.method.parts if isinstance(plan.method, ZIPBrain) else plan.method
        split = parts.split if isinstance(parts, Composition) and plan.mask is None else None
        self._split = split if isinstance(split, PivotSplit) else None

    def grouped(self, index: int, tokens: Tokens, pooled: Pooled) -> None:
        if self._split is not None:
            tokens = tokens.joined()
            pivots, _ = self._split.pivots(tokens, Spaces(tokens))
            self.seen[tokens.layer] = pivots, tokens.leading, tokens.trailing


def _lives(traced: Trace, seen: dict[int, tuple[Tensor, int, int]]) -> tuple[Tensor, Tensor | None]:
    """Blocks that every unprotected token left as itself, and the pivots of the last reducing block: (B, N) each."""
    assert traced.protected is not None
    free, depth = ~traced.protected, len(traced.layers)
    batch, total = free.shape
    appended = sum(layer.grouping.appended for layer in traced.layers)
    blocks = torch.full((batch, total + appended), depth, device=free.device)
    pivots = torch.zeros_like(blocks, dtype=torch.bool)
    name = torch.arange(total, device=free.device).expand(batch, total)  # token of this block -> original one
    known, last = total, max(seen, default=0)
    for layer in traced.layers:
        grouping = layer.grouping
        if layer.block == last:
            marked, leading, trailing = seen[last]
            inner = name[:, leading : name.shape[1] - trailing]
            pivots = pivots.scatter(1, inner, marked)
        new = torch.arange(known, known + grouping.appended, device=free.device).expand(batch, -1)
        name, known = torch.cat((name, new), dim=1), known + grouping.appended
        gone = name.gather(1, grouping.source)
        blocks = blocks.scatter(1, gone, torch.full_like(gone, layer.block - 1))
        name = name.gather(1, grouping.kept)
    shape = batch, int(free[0].sum())
    return blocks[:, :total][free].reshape(shape), pivots[:, :total][free].reshape(shape) if seen else None
