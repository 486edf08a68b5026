"""`accelerate`: try what makes a model faster, keep what is safe and pays, say what was done."""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor, nn

from zipbrain.acceleration.accelerated import Accelerated
from zipbrain.acceleration.batch_buckets import Exact, Padded, Slot, Slots
from zipbrain.acceleration.candidates import (
    WORTH_IT,
    Way,
    choose,
    measured,
    precision_pays,
    time_ways,
)
from zipbrain.acceleration.equivalence import NEAR_TIE, TOLERANCE, Verdict, judge
from zipbrain.acceleration.pooling_path import KERNELS, pooling_path
from zipbrain.acceleration.report import Report, Step
from zipbrain.acceleration.validation import HALVES, check, place
from zipbrain.acceleration.weight_sharing import precision_of, twin
from zipbrain.errors import OptionError
from zipbrain.training.cuda_graphs import capture_forward, explain_failure
from zipbrain.training.inference import run_inference

Progress = Callable[[str, int, int], None]
_numbers = itertools.count()
_ALONE: Final = 4  # windows that are answered one by one, to see whether windows depend on each other


def accelerate(
    model: nn.Module,
    example: Tensor,
    *,
    precision: str = "auto",
    compile: bool | None = None,
    graphs: bool = True,
    batches: Sequence[int] | None = None,
    tolerance: float = TOLERANCE,
    measure: bool = True,
    progress: Progress | None = None,
) -> Accelerated:
    """Make a model answer faster on a GPU: half precision where safe, compilation, one CUDA graph per batch size.

    Everything is tried on the example, compared with the model as it was given, timed in one interleaved run and kept
    only where it is safe and faster. Where there is no CUDA the model runs as it is, and the report says why.

    Parameters
    ----------
    model : nn.Module
        Compressed or not, one tensor of windows in, one tensor of logits out. It stays as it is, in whatever mode;
        what is returned works in evaluation mode.
    example : Tensor, shape (B, ...)
        Real windows, scaled as the model wants them: they say which shape is captured and whether half precision is
        safe. 32 or more are a good choice.
    precision : {"auto", "float16", "bfloat16", "float32"}
        "auto" takes the first half precision that is safe: all logits finite, no decision changed but at a near tie
        (margin below 5 % of the usual one), squared error of the logits within `tolerance`; and faster. Named, it is
        obeyed, and the check is reported. A CPU keeps the model's own; "float32" keeps it everywhere.
    compile : bool, optional
        Whether to try ``torch.compile``, which takes up to a minute or two. By default on a GPU for which Triton is
        there, and kept where it is faster. True: kept if it works.
    graphs : bool
        Whether to capture a CUDA graph for every size in `batches`.
    batches : sequence of int, optional
        Sizes to prepare. A call with n windows is padded to the next of them, or split if n is larger than all. By
        default the powers of two up to B, and B.
    tolerance : float
        Largest allowed error: squared differences of the logits over their squares.
    measure : bool
        Time all ways at all sizes and keep the fastest. False: keep whatever works.
    progress : callable, optional
        Called with what is done next, the steps done and all steps.

    Returns
    -------
    accelerated : Accelerated
        Called like the model. ``accelerated.report`` says what was done and what it brought.

    Examples
    --------
    Where there is no GPU the model answers as before:

    >>> import torch, zipbrain
    >>> from zipbrain.models import TokenEncoder
    >>> model = zipbrain.compress(TokenEncoder(dim=32, depth=4, heads=4), ratio=0.8).eval()
    >>> windows = torch.randn(8, 50, 32)
    >>> fast = zipbrain.accelerate(model, windows)
    >>> fast(windows[:3]).shape
    torch.Size([3, 2])
    >>> with torch.no_grad():
    ...     bool(fast(windows).equal(model(windows)))
    True
    >>> fast.report.precision, fast.batches
    ('float32', ())

    On a GPU, ``model.cuda()`` first; ``print(fast.report)`` then shows what each step brought.

    Notes
    -----
    While it captures, no other thread should use the GPU: torch allows one capture in a process, and a check that the
    model never waits for the GPU concerns all threads for the time of one forward. Products in float32 use TF32 if the
    process allows it when `accelerate` is called.
    """
    sizes = check(model, example, precision, compile, batches, tolerance)
    with torch.inference_mode(False), torch.no_grad():
        return _Acceleration(model, example, precision, compile, graphs, sizes, tolerance, measure, progress).result()


class _Acceleration:
    """One call of `accelerate`: what was found so far."""

    def __init__(
        self, model: nn.Module, example: Tensor, precision: str, compile: bool | None, graphs: bool,
        sizes: tuple[int, ...], tolerance: float, measure: bool, progress: Progress | None,
    ) -> None:  # fmt: skip
        self.asked, self.compile, self.graphs, self.measure = precision, compile, graphs, measure
        self.sizes, self.tolerance, self.progress = sizes, tolerance, progress
        self.done, self.total = -1, 3 + len(sizes)
        self.notes: list[str] = []
        self.checks: dict[str, Verdict] = {}
        self.plain = self._twin(model)
        self.device, self.hindrance = place(self.plain, example.device)
        self.gpu = self.hindrance is None
        self.given = precision_of(self.plain, example.dtype)
        self.windows = example.detach().to(self.device)
        self.x: dict[str | None, Tensor] = {None: self._cast(self.given)}
        self.reference: Any = None
        self.finite = torch.arange(0)  # windows that have finite logits

    def result(self) -> Accelerated:
        """Try everything and build what is returned."""
        if self.hindrance is not None and not (self.device.type == "cpu" and self.compile):
            return self._as_given(self.hindrance)
        with torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext():
            self._next("running the model as given")
            self.reference = run_inference(self.plain, self.x[None])
            odd = self._odd_answer()
            return self._faster() if odd is None else self._as_given(odd)

    def _faster(self) -> Accelerated:
        given, other = [Way(None, self.plain)], list[Way]()
        self._next("checking half precision")
        half, precision = self._half()
        if half is not None:
            other.append(half)
        main = other or given
        self._next("compiling")
        depends = self._depends()
        compiled, no_compile = self._compiled(main[0], depends)
        no_graphs = self._no_graphs(depends)
        rivals = half is not None and self.asked == "auto" and self.measure
        if no_graphs is None:
            for ways in (main, given) if rivals else (main,):
                ways.append(Way(ways[0].precision, ways[0].network, None, True))
        if compiled is not None:
            main.append(Way(main[0].precision, main[0].network, compiled))
            if no_graphs is None:
                main.append(Way(main[0].precision, main[0].network, compiled, True))
        tried = [*given, *other]
        self._prepare(tried)
        self.sizes = tuple(size for size in self.sizes if all(ways[0].slots.get(size) for ways in (given, main)))
        if not self.sizes:
            return self._as_given(f"no batch could be answered: {next(iter(given[0].failures.values()), '')}")
        alike = [way for way in other if way.compiled is None]  # the model as given is not compiled either
        if rivals and (ratio := precision_pays(given, alike, self.sizes)) > WORTH_IT:
            words = f"{main[0].precision} is safe, but not faster: {ratio:.2f} of the time, mean over the batches"
            precision = Step("precision", False, _name(self.given), words)
            no_compile = no_compile or f"tried in {main[0].precision} only"
            main = given
        return self._build(main, tried, precision, no_compile, no_graphs)

    # -- what can be tried ---------------------------------------------------------------------------------------------

    def _twin(self, model: nn.Module) -> nn.Module:
        model = model.plain if isinstance(model, Accelerated) else getattr(model, "_orig_mod", model)
        try:
            return twin(model)
        except Exception as error:
            if any(module.training for module in model.modules()):
                allowed = f"it can't be copied ({explain_failure(error)}): call model.eval() first"
                raise OptionError("model", "a model in training mode", allowed) from None
            self.notes.append(
                f"the model can't be copied ({explain_failure(error)}), so it is used itself: leave it as it is"
            )
            return model

    def _cast(self, dtype: torch.dtype) -> Tensor:
        return self.windows.to(dtype) if self.windows.is_floating_point() else self.windows

    def _odd_answer(self) -> str | None:
        """Why an answer can't be compared, cut or captured; None if it is a plain tensor of logits."""
        answer = self.reference
        if not isinstance(answer, Tensor):
            return f"the model answers with a {type(answer).__name__}, not with one tensor"
        fits = answer.dim() > 0 and len(answer) == len(self.windows) and answer.numel() > 0
        if not fits or not answer.is_floating_point():
            shape = f"{_name(answer.dtype)} {tuple(answer.shape)}"
            return f"the model answers {len(self.windows)} windows with {shape}, not with logits for each of them"
        self.finite = answer.isfinite().reshape(len(answer), -1).all(1).nonzero().squeeze(1)
        if not len(self.finite):
            return "no window of the example has finite logits to compare with"
        return None

    def _half(self) -> tuple[Way | None, Step]:
        """The first half precision that is safe, or the one asked for."""
        own = _name(self.given)
        stays = self._no_half()
        if stays is not None:
            return None, Step("precision", False, own, stays)
        refused = []
        for name in HALVES if self.asked == "auto" else (self.asked,):
            if name == "bfloat16" and self.device.type == "cuda" and not torch.cuda.is_bf16_supported(False):
                refused.append(f"{name}: this GPU has none")
                continue
            try:
                network, x = twin(self.plain, HALVES[name]), self._cast(HALVES[name])
                verdict = judge(self.reference, run_inference(network, x), self.tolerance)
            except Exception as error:
                refused.append(f"{name}: {explain_failure(error)}")
                continue
            self.checks[name] = verdict
            if verdict.safe or self.asked == name:
                self.x[name] = x
                words = str(verdict) if verdict.safe else f"asked for, though not safe: {verdict}"
                return Way(name, network), Step("precision", True, name, words)
            refused.append(f"{name}: {verdict}")
        return None, Step("precision", False, own, "; ".join(refused))

    def _no_half(self) -> str | None:
        if not self.gpu:
            return f"on {self.device} a model keeps its own precision"
        if self.asked == "float32":
            return "asked for" if self.given is torch.float32 else "float32 was asked for: the model's own is kept"
        if self.given in HALVES.values() and HALVES.get(self.asked, self.given) is self.given:
            return "given in half precision already"
        return None

    def _depends(self) -> str | None:
        """Why windows can't be padded or split; None if each is answered the same among any others."""
        x, count = self.x[None][self.finite[:_ALONE]], min(_ALONE, len(self.finite))
        try:
            run_inference(self.plain, x[:1])
            # Batches of one size: another size may round otherwise, and a near tie of a pooled model be decided so.
            first, second = (run_inference(self.plain, torch.cat((x, others)))[:count] for others in (x, -x.flip(0)))
        except Exception as error:
            return f"it fails with another number of windows: {explain_failure(error)}"
        if judge(second, first).error <= self.tolerance:
            return None
        return "a window's answer depends on the others in its batch, so nothing can be padded"

    def _compiled(self, way: Way, depends: str | None) -> tuple[Callable[[Tensor], Tensor] | None, str]:
        """The network compiled and run once at the largest size, or why not."""
        if self.compile is False:
            return None, "not asked for"
        if depends is not None:
            return None, depends
        if self.compile is None and importlib.util.find_spec("triton") is None:
            return None, "triton is not installed"
        try:
            compiled: Callable[[Tensor], Tensor] = torch.compile(with_code_of_its_own(way.network))
            x = self._repeated(way, self.sizes[-1])
            verdict = judge(run_inference(way.network, x), run_inference(compiled, x), self.tolerance)
        except Exception as error:
            return None, f"it failed: {explain_failure(error)}"
        self.checks["compiled"] = verdict
        return (compiled, "") if verdict.safe else (None, f"it answers otherwise: {verdict}")

    def _no_graphs(self, depends: str | None) -> str | None:
        """Why nothing can be captured; None if it can be tried."""
        if not self.graphs:
            return "not asked for"
        return depends if self.gpu else self.hindrance

    # -- preparing, timing, choosing -----------------------------------------------------------------------------------

    def _repeated(self, way: Way, size: int) -> Tensor:
        """`size` windows of the example that have finite logits, repeated if there are fewer."""
        places = torch.arange(size, device=self.device) % len(self.finite)
        return self.x[way.precision][self.finite[places]]

    def _prepare(self, ways: list[Way]) -> None:
        """Fill the slots of all ways, the largest size first (its memory serves the others), and time them."""
        pool = torch.cuda.graph_pool_handle() if self.device.type == "cuda" else None
        for size in reversed(self.sizes):
            self._next(f"preparing batches of {size}")
            x = {way.precision: self._repeated(way, size) for way in ways}
            for way in ways:
                if way.compiled is not None and way.failures:  # compiling again would take long and fail again
                    way.failures[size] = next(iter(way.failures.values()))
                else:
                    self._fill(way, x[way.precision], pool)
            if self.measure and len(ways) > 1:
                time_ways(ways, size, x)
        self._next("done")

    def _fill(self, way: Way, x: Tensor, pool: Any) -> None:
        """The slot of one way for as many windows as x has, if it answers as the network itself does."""
        try:
            slot = self._slot(way, x, pool)
            verdict = judge(run_inference(way.network, x), slot(x), self.tolerance)
        except Exception as error:
            way.failures[len(x)] = explain_failure(error)
            return
        if verdict.safe or way.exact:
            way.slots[len(x)] = slot
        else:
            way.failures[len(x)] = f"it answers otherwise: {verdict}"

    def _slot(self, way: Way, x: Tensor, pool: Any) -> Slot:
        answers = self.reference.dtype
        if way.exact:
            return Exact(way.network, x, answers)
        network, buffer = way.compiled or way.network, x.clone()
        forward = partial(run_inference, network)
        answer = capture_forward(forward, buffer, pool) if way.graph else partial(forward, buffer)
        return Padded(buffer, answer, answers)

    def _keep(self, ways: list[Way]) -> dict[int, Way]:
        """The way for every size."""
        kept = {}
        for size in self.sizes:
            asked = [way for way in ways if way.compiled is not None and size in way.slots] if self.compile else []
            kept[size] = choose(asked or ways, size)
        return kept

    # -- saying it -----------------------------------------------------------------------------------------------------

    def _next(self, what: str) -> None:
        self.done += 1
        if self.progress is not None:
            self.progress(what, min(self.done, self.total), self.total)

    def _as_given(self, reason: str) -> Accelerated:
        self.done = self.total - 1
        self._next("done")
        answers = self.reference.dtype if isinstance(self.reference, Tensor) else None
        steps = (
            Step("precision", False, _name(self.given), self._no_half() or "not tried"),
            Step("compile", False, "no", "not tried"),
            Step("graphs", False, "no", "not tried"),
            *self._pooling(self.plain, self.given),
        )
        report = self._report(self.given, steps, reason=reason)
        return Accelerated(self.plain, self.plain, self._like(self.x[None]), None, answers, report)

    def _build(
        self, main: list[Way], tried: list[Way], precision: Step, no_compile: str, no_graphs: str | None
    ) -> Accelerated:
        kept = self._keep(main)
        network, x = main[0].network, self.x[main[0].precision]
        compiled = [size for size in self.sizes if kept[size].compiled is not None]
        captured = [size for size in self.sizes if kept[size].graph]
        dtype = self.given if main[0].precision is None else HALVES[main[0].precision]
        steps = (
            precision,
            self._step("compile", compiled, no_compile, [way for way in main if way.compiled and not way.graph]),
            self._step("graphs", captured, no_graphs, [way for way in main if way.graph and not way.compiled]),
            *self._pooling(network, dtype, len(compiled) == len(self.sizes)),
        )
        reason = None
        if network is self.plain and not compiled and not captured:
            reason = self.hindrance or "nothing that was tried is both safe and faster"
        rows = measured(tried, self.sizes, kept)
        slots = None
        if compiled or captured:
            slots = Slots({size: kept[size].slots[size] for size in self.sizes}, self.device, x.dtype)
        report = self._report(dtype, steps, tuple(rows), reason)
        return Accelerated(self.plain, network, self._like(x), slots, self.reference.dtype, report)

    def _step(self, name: str, sizes: list[int], refusal: str | None, ways: list[Way]) -> Step:
        """What became of compilation or of graphs."""
        failures = {size: words for way in ways for size, words in way.failures.items()}
        words = [f"batch {size}: {failures[size]}" for size in self.sizes if size in failures]
        if len(words) > 1 and len(set(failures.values())) == 1:
            words = [next(iter(failures.values()))]
        if sizes:
            others = [size for size in self.sizes if size not in sizes and size not in failures]
            if others:
                words.append(f"not faster for {_list(others)}")
            return Step(name, True, f"batch {_list(sizes)}", "; ".join(words))
        return Step(name, False, "no", refusal or "; ".join(words) or "not faster")

    def _pooling(self, network: nn.Module, dtype: torch.dtype, compiled: bool = False) -> tuple[Step, ...]:
        found = pooling_path(network, self.device, dtype, compiled)
        return () if found is None else (Step("pooling", found[0] in KERNELS, *found),)

    def _like(self, x: Tensor) -> Tensor:
        return torch.empty((0, *x.shape[1:]), dtype=x.dtype, device=self.device)

    def _report(
        self, dtype: torch.dtype, steps: tuple[Step, ...], rows: tuple[Any, ...] = (), reason: str | None = None
    ) -> Report:
        if self.checks:
            share = f"{NEAR_TIE:.0%}".replace("%", " %")
            self.notes.append(
                f"safe: logits finite, relative squared error within {self.tolerance:.1e}, and no decision changed "
                f"whose margin is {share} of the usual one or more, on {len(self.windows)} windows"
            )
        cuda = self.device.type == "cuda"
        name = torch.cuda.get_device_name(self.device) if cuda else str(self.device)
        shape = tuple(self.windows.shape[1:])
        return Report(
            type(self.plain).__name__, name, shape, _name(self.given), _name(dtype), steps, self.checks, rows, reason,
            tuple(self.notes),
        )  # fmt: skip


def with_code_of_its_own(network: nn.Module) -> Callable[[Tensor], Tensor]:
    """A function that calls a network, for ``torch.compile``.

    torch counts recompilations and remembers changing shapes by code object and name: a model that comes after several
    others of its class would be compiled for changing shapes from the start, or no more at all.
    """

    def call(x: Tensor) -> Tensor:
        answer: Tensor = network(x)
        return answer

    call.__code__ = call.__code__.replace(co_name=f"accelerated_{next(_numbers)}")
    return call


def _list(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers))


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
