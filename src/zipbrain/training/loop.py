"""The training loop: one function, any loss, exact resume."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn

from zipbrain.errors import OptionError
from zipbrain.models.max_norm import MaxNormLinear
from zipbrain.training import checkpoints
from zipbrain.training.captured_steps import Choice, StepCapture
from zipbrain.training.checkpoints import State, TrainingFailed, keep_weights, weights_of
from zipbrain.training.inference import autocast
from zipbrain.training.loader import Feed
from zipbrain.training.param_groups import clip_weights, freeze, make_optimizer
from zipbrain.training.rates import rates
from zipbrain.training.settings import TrainingSettings

log = logging.getLogger("zipbrain")

Loss = Callable[[nn.Module, Tensor, Tensor], Tensor]
_READ_EVERY: Final = 50  # steps on a GPU between two reads of the loss, each of which waits for the device


@dataclass(frozen=True)
class Step:
    """What `on_step` receives: epoch and step count from 1; `loss` is None between two reads from the device."""

    epoch: int
    step: int
    steps: int
    loss: float | None


@dataclass
class TrainingResult:
    """What a run gave.

    Attributes
    ----------
    history : list of dict
        One per epoch: epoch, loss, lr, seconds, and what `evaluate` returned.
    best_epoch : int
        The epoch whose weights the module has now.
    best_score : float or None
        Its score; None if the last epoch is kept.
    stopped_early : bool
        Whether patience ran out.
    capture : str
        Whether the steps were captured in CUDA graphs: "yes", or "no" and why.
    """

    history: list[dict[str, Any]] = field(default_factory=list)
    best_epoch: int = 0
    best_score: float | None = None
    stopped_early: bool = False
    capture: str = "no: not asked for"

    def summary(self) -> dict[str, Any]:
        """What ``run.json`` says of a finished run."""
        said: dict[str, Any] = {"finished": True, "epochs_run": len(self.history), "stopped_early": self.stopped_early}
        said |= {"kept_epoch": self.best_epoch, "validation_score": self.best_score, "capture": self.capture}
        return said | {"seconds_per_epoch": float(np.median([line["seconds"] for line in self.history]))}


def train(
    module: nn.Module,
    feed: Feed,
    settings: TrainingSettings,
    loss: Loss,
    *,
    evaluate: Callable[[nn.Module], dict[str, float]] | None = None,
    select_by: str | None = None,
    stop_by: str | None = None,
    folder: Path | None = None,
    resume: bool = False,
    keep: Callable[[], object] | None = None,
    micro_batch: int | None = None,
    capture: Choice = False,
    deterministic: bool = False,
    tensorboard: bool = False,
    on_step: Callable[[Step], object] | None = None,
    on_epoch: Callable[[dict[str, Any]], object] | None = None,
) -> TrainingResult:
    """Train a module in place; it ends with the weights of the chosen epoch, in evaluation mode.

    Parameters
    ----------
    module : nn.Module
        On the feed's device.
    feed : Feed
        Training windows.
    settings : TrainingSettings
        All numbers.
    loss : callable (module, x, labels) -> Tensor
        Mean loss of a batch.
    evaluate : callable (module) -> dict of str to float, optional
        Called after every epoch.
    select_by, stop_by : str, optional
        Entry of `evaluate`'s result by which an epoch is kept (the last if not given), and that patience watches.
    folder : Path, optional
        Where checkpoints and the log go; nothing is written if not given.
    resume : bool
        Go on from the newest checkpoint of `folder`. On a CPU with the same number of threads the result is bit-equal
        to that of an unbroken run.
    keep : callable, optional
        Called while the module has the weights to keep: after every epoch that is the best so far, and at the end.
    micro_batch : int, optional
        Windows per forward and backward pass; gradients of a batch are added up.
    capture : {"auto", True, False}
        Capture forward and backward in CUDA graphs, if `loss` does nothing with the module but call it once with x, and
        the module decides nothing in Python from step to step. Where that can't be done, or a batch has another size,
        steps run as without; the outcome says why (with True, a warning too).
    deterministic : bool
        Ask torch for deterministic algorithms, which a GPU may not use otherwise.
    tensorboard : bool
        Write event files into `folder` too (needs the tensorboard package).
    on_step, on_epoch : callable, optional
        For progress; an exception in them stops the run, which can be resumed.

    Notes
    -----
    The order of windows depends on seed and epoch alone. Dropout draws from torch's generators, whose states are in the
    checkpoint; those of the caller are left as they were.
    """
    if micro_batch is not None and micro_batch < 1:
        raise OptionError("micro_batch", micro_batch, "it must be at least 1")
    run = TrainingRun(module, feed, settings, loss, micro_batch, capture)
    writer = _tensorboard_writer(folder) if tensorboard else None
    devices = [feed.device] if feed.device.type == "cuda" else []
    with torch.random.fork_rng(devices), _determinism(deterministic), run.capture:
        torch.manual_seed(settings.seed)
        done, outcome, best, waited = 0, TrainingResult(), keep_weights(module), 0
        watched = -math.inf
        if folder is not None and resume:
            weights, other, state = checkpoints.load_checkpoint(folder)
            done, waited, watched = run.restore(weights, state), state["waited"], state["watched"]
            outcome = TrainingResult(**state["outcome"])
            checkpoints.remove_older(folder)  # a kill may have come between a checkpoint and what follows it
            _log(folder, outcome.history)
            for name, value in (weights if other is None else other).items():
                best[name].copy_(value)
        elif folder is not None:
            checkpoints.save_checkpoint(folder, 0, best, None, run.state(0, waited, watched, outcome))
        while done < settings.epochs and not outcome.stopped_early:
            start = time.perf_counter()
            mean = run.epoch(done, on_step)
            scores = {} if evaluate is None else evaluate(module)
            line: dict[str, Any] = {"epoch": done + 1, "loss": mean, "lr": run.lr(done), **scores}
            line["seconds"] = time.perf_counter() - start
            done += 1
            outcome.history.append(line)
            outcome.capture = run.capture.status
            better = _is_better(line, select_by, outcome.best_score) or outcome.best_epoch == 0
            if better:
                outcome.best_epoch, best = done, keep_weights(module, best)
                outcome.best_score = None if select_by is None else float(line[select_by])
            if stop_by is not None and settings.patience is not None:
                improved = _is_better(line, stop_by, watched)
                watched, waited = (float(line[stop_by]), 0) if improved else (watched, waited + 1)
                outcome.stopped_early = waited >= settings.patience
            if folder is not None:
                current = best if better else weights_of(module)
                state = run.state(done, waited, watched, outcome)
                checkpoints.save_checkpoint(folder, done, current, None if better else best, state)
                _log(folder, outcome.history)
            if better and keep is not None:
                keep()
            if writer is not None:
                for name in line.keys() - {"epoch"}:
                    writer.add_scalar(name, line[name], done)
            if on_epoch is not None:
                on_epoch(line)
    if writer is not None:
        writer.close()
    module.load_state_dict(best)
    module.eval()
    if keep is not None:
        keep()
    return outcome


class TrainingRun:
    """Optimiser, rates and loss scaler of a run, and one epoch of it."""

    def __init__(
        self,
        module: nn.Module,
        feed: Feed,
        settings: TrainingSettings,
        loss: Loss,
        micro_batch: int | None = None,
        capture: Choice = False,
    ) -> None:
        self.module, self.feed, self.settings, self.loss = module, feed, settings, loss
        self.batch = min(settings.batch_size, len(feed))
        if self.batch < settings.batch_size:
            log.warning("batch of %d windows: there are no more", self.batch)
        self.part = self.batch if micro_batch is None else min(micro_batch, self.batch)
        self.steps = len(feed) // self.batch if settings.drop_last else -(-len(feed) // self.batch)
        self.rates = rates(settings, self.steps)
        self.frozen = freeze(module, settings.frozen)
        self.trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
        self.clipped = [one for one in module.modules() if isinstance(one, MaxNormLinear)]
        self.optimizer = make_optimizer(module, settings)
        self.scaler = torch.amp.GradScaler(
            feed.device.type, enabled=feed.device.type == "cuda" and settings.amp == "fp16"
        )
        self.read_every = _READ_EVERY if feed.device.type == "cuda" else 1
        self.capture = StepCapture(module, feed.device, settings.amp, capture, self.part < self.batch)

    def lr(self, epoch: int) -> float:
        """Learning rate of the last step of an epoch (from 0)."""
        return float(self.rates.lr[(epoch + 1) * self.steps - 1])

    def epoch(self, epoch: int, on_step: Callable[[Step], object] | None) -> float:
        """Train one epoch (from 0) and return the mean loss of its steps."""
        order = np.random.default_rng([self.settings.seed, epoch]).permutation(len(self.feed))
        losses = torch.zeros(self.steps, device=self.feed.device)
        self.module.train()
        for module in self.frozen:
            module.training = False
        seen = 0
        try:
            # Before batches are read ahead: a capture allows no other thread to allocate memory.
            self.capture.prepare(lambda: next(self.feed.batches(order[: self.batch], self.batch))[0])
            for step, (x, y) in enumerate(self.feed.batches(order, self.batch, self.settings.drop_last)):
                losses[step] = self._step(epoch * self.steps + step, x, y)
                value = None
                if (step + 1) % self.read_every == 0 or step + 1 == self.steps:
                    value = _finite(losses[seen : step + 1], epoch + 1, seen)
                    seen = step + 1
                if on_step is not None:
                    on_step(Step(epoch + 1, step + 1, self.steps, value))
        except torch.OutOfMemoryError:
            wish = f"batches of {self.part} windows do not fit into {self.feed.device}: give a smaller micro_batch"
            held = " (graphs hold memory too: capture=False)" if self.capture.network is not self.module else ""
            raise TrainingFailed(f"epoch {epoch + 1}: {wish}, or cache='disk'{held}") from None
        return float(losses.mean())

    def _step(self, number: int, x: Tensor, y: Tensor) -> Tensor:
        """One optimiser step; returns the loss of the batch without waiting for the device."""
        for group in self.optimizer.param_groups:
            group["lr"] = float(self.rates.lr[number]) * group["share"]
            if self.rates.beta1 is not None:
                group["betas"] = (float(self.rates.beta1[number]), group["betas"][1])
        if self.clipped:
            clip_weights(self.clipped)
        total = torch.zeros((), device=x.device)
        for start in range(0, len(x), self.part):
            part = slice(start, start + self.part)
            with autocast(x.device, self.settings.amp):
                value = self.loss(self.capture.network, x[part], y[part])
            if self.part < len(x):
                value = value * (len(y[part]) / len(y))
            self.scaler.scale(value).backward()  # type: ignore[no-untyped-call]
            total += value.detach()
        if self.settings.grad_clip is not None:
            self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.trained, self.settings.grad_clip)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        return total

    def state(self, epoch: int, waited: int, watched: float, outcome: TrainingResult) -> dict[str, Any]:
        """All that a resumed run needs beside the weights."""
        generators = {"cpu": torch.get_rng_state()}
        if self.feed.device.type == "cuda":
            generators["cuda"] = torch.cuda.get_rng_state(self.feed.device)
        optimiser = {"optimizer": self.optimizer.state_dict(), "scaler": self.scaler.state_dict()}
        patience = {"waited": waited, "watched": watched}
        return {"epoch": epoch, **optimiser, "generators": generators, **patience, "outcome": dict(vars(outcome))}

    def restore(self, weights: State, state: dict[str, Any]) -> int:
        """Go back to a checkpoint; returns the number of epochs done."""
        self.module.load_state_dict(weights)
        self.optimizer.load_state_dict(state["optimizer"])
        self.scaler.load_state_dict(state["scaler"])
        torch.set_rng_state(state["generators"]["cpu"])
        if self.feed.device.type == "cuda" and "cuda" in state["generators"]:
            torch.cuda.set_rng_state(state["generators"]["cuda"], self.feed.device)
        return int(state["epoch"])


def _log(folder: Path, history: list[dict[str, Any]]) -> None:
    """Write the log of the epochs that the checkpoint holds."""
    if history:
        with checkpoints.writing(folder):
            checkpoints.write_log(folder / checkpoints.LOG, history)


def _finite(losses: Tensor, epoch: int, first: int) -> float:
    """The last loss; refuses one that is NaN or infinite."""
    values = losses.tolist()
    for number, value in enumerate(values, first + 1):
        if not math.isfinite(value):
            advice = "lower lr, or check the windows for NaN"
            raise TrainingFailed(f"the loss became {value} in epoch {epoch}, step {number}: {advice}")
    return float(values[-1])


def _is_better(line: dict[str, Any], name: str | None, best: float | None) -> bool:
    """True if an epoch beats the best so far, or if nothing is compared."""
    if name is None:
        return True
    return bool(line[name] > (-math.inf if best is None or math.isnan(best) else best))


@contextmanager
def _determinism(wanted: bool) -> Iterator[None]:
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    if wanted:
        torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])


def _tensorboard_writer(folder: Path | None) -> Any:
    if folder is None:
        raise OptionError("tensorboard", True, "it needs a folder to write to")
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise OptionError("tensorboard", True, "the package is not installed: pip install tensorboard") from None
    return SummaryWriter(str(folder / "tensorboard"))
