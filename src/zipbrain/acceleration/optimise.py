"""`accelerate`: try what makes a model faster, keep what is safe and pays, report what was done."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from zipbrain.acceleration.accelerated import Accelerated
from zipbrain.acceleration.attempts import try_compile, try_half, why_not_half
from zipbrain.acceleration.batch_buckets import Bucket, Buckets, Padded, Unpadded
from zipbrain.acceleration.candidates import WORTH_IT, Way, choose_way, measured, precision_ratio, time_ways
from zipbrain.acceleration.equivalence import NEAR_TIE, TOLERANCE, Verdict, judge
from zipbrain.acceleration.example import Example, name_of
from zipbrain.acceleration.report import AccelerationReport, Measured, Optimisation
from zipbrain.acceleration.two_passes import LookingTwice, SecondBucket, TwoPasses
from zipbrain.acceleration.validation import HALVES, check_options
from zipbrain.pooling.backends import plain
from zipbrain.progress import Progress
from zipbrain.seams import is_compressed
from zipbrain.seams.forward import plan_of
from zipbrain.seams.passes import FirstPass
from zipbrain.training.cuda_graphs import capture_forward, explain_failure
from zipbrain.training.inference import run_inference


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
    sizes = check_options(model, example, precision, compile, batches, tolerance)
    with torch.inference_mode(False), torch.no_grad():
        given = Example(model, example, tolerance)
        return _Acceleration(given, precision, compile, graphs, sizes, measure, progress).result()


class _Acceleration:
    """One call of `accelerate`: what was found so far."""

    def __init__(
        self,
        example: Example,
        precision: str,
        compile: bool | None,
        graphs: bool,
        sizes: tuple[int, ...],
        measure: bool,
        progress: Progress | None,
    ) -> None:
        self.example, self.asked, self.compile, self.graphs = example, precision, compile, graphs
        self.sizes, self.measure, self.progress = sizes, measure, progress
        self.done, self.total = -1, 3 + len(sizes)
        self.checks: dict[str, Verdict] = {}

    def result(self) -> Accelerated:
        """Try everything and build what is returned."""
        example = self.example
        if example.hindrance is not None and not (example.device.type == "cpu" and self.compile):
            return self._as_given(example.hindrance)
        with torch.cuda.device(example.device) if example.device.type == "cuda" else nullcontext():
            self._next("running the model as given")
            odd = example.run_reference()
            return self._faster() if odd is None else self._as_given(odd)

    def _faster(self) -> Accelerated:
        given, other = [Way(None, self.example.plain)], list[Way]()
        self._next("checking half precision")
        half, precision = try_half(self.example, self.asked, self.checks)
        if half is not None:
            other.append(half)
        main = other or given
        self._next("compiling")
        dependence = self.example.find_dependence()
        compiled, no_compile = None, dependence or ""
        if self.compile is False or dependence is None:
            compiled, no_compile = try_compile(self.example, main[0], self.sizes[-1], self.compile, self.checks)
        no_graphs = "not asked for" if not self.graphs else self.example.hindrance or dependence
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
        self.sizes = tuple(size for size in self.sizes if all(ways[0].buckets.get(size) for ways in (given, main)))
        if not self.sizes:
            return self._as_given(f"no batch could be answered: {next(iter(given[0].failures.values()), '')}")
        alike = [way for way in other if way.compiled is None]  # the model as given is not compiled either
        if rivals and (ratio := precision_ratio(given, alike, self.sizes)) > WORTH_IT:
            words = f"{main[0].precision} is safe, but not faster: {ratio:.2f} of the time, mean over the batches"
            precision = Optimisation("precision", False, name_of(self.example.given), words)
            no_compile = no_compile or f"tried in {main[0].precision} only"
            main = given
        return self._build(main, tried, precision, no_compile, no_graphs)

    def _prepare(self, ways: list[Way]) -> None:
        """Fill the buckets of all ways, the largest size first (its memory serves the others), and time them."""
        pool = torch.cuda.graph_pool_handle() if self.example.device.type == "cuda" else None
        for size in reversed(self.sizes):
            self._next(f"preparing batches of {size}")
            x = {way.precision: self.example.repeated(way.precision, size) for way in ways}
            for way in ways:
                if way.compiled is not None and way.failures:  # compiling again would take long and fail again
                    way.failures[size] = next(iter(way.failures.values()))
                else:
                    self._fill(way, x[way.precision], pool)
            if self.measure and len(ways) > 1:
                time_ways(ways, size, x)
        self._next("done")

    def _fill(self, way: Way, x: Tensor, pool: Any) -> None:
        """The bucket of one way for as many windows as x has, if it answers as the network itself does."""
        try:
            bucket = self._bucket(way, x, pool)
            verdict = judge(run_inference(way.network, x), bucket(x), self.example.tolerance)
        except Exception as error:
            way.failures[len(x)] = explain_failure(error)
            return
        if verdict.safe or way.is_unpadded:
            way.buckets[len(x)] = bucket
        else:
            way.failures[len(x)] = f"it answers otherwise: {verdict}"

    def _bucket(self, way: Way, x: Tensor, pool: Any) -> Bucket:
        answers = self.example.reference.dtype
        if way.is_unpadded:
            return Unpadded(way.network, x, answers)
        passes = way.compiled if isinstance(way.compiled, TwoPasses) else TwoPasses.of(way.network, x)
        buffer = x.clone()
        if passes is None:
            return Padded(buffer, self._fixed(way, way.compiled or way.network, pool, buffer), answers)
        if not way.second:
            way.second = {size: self._second_bucket(way, passes, size, pool) for size in reversed(self.sizes)}
        return LookingTwice(buffer, self._fixed(way, passes.first, pool, buffer), way.second, passes.margin, answers)

    def _second_bucket(self, way: Way, passes: TwoPasses, size: int, pool: Any) -> SecondBucket:
        """The second pass of a way for `size` windows that look twice."""
        windows = self.example.repeated(way.precision, size).clone()
        tokens = run_inference(FirstPass(way.network), windows)[1].clone()
        return SecondBucket(windows, tokens, self._fixed(way, passes.second, pool, windows, tokens))

    def _fixed(self, way: Way, network: Callable[..., Any], pool: Any, *buffers: Tensor) -> Callable[[], Any]:
        """What a network answers to whatever lies in the buffers, from a captured graph where the way says so."""
        windows, *others = buffers

        def forward(x: Tensor) -> Any:
            return run_inference(lambda given: network(given, *others), x)

        return capture_forward(forward, windows, pool) if way.graph else partial(forward, windows)

    def _keep(self, ways: list[Way], size: int) -> Way:
        asked = [way for way in ways if way.compiled is not None and size in way.buckets] if self.compile else []
        return choose_way(asked or ways, size)

    def _next(self, what: str) -> None:
        self.done += 1
        if self.progress is not None:
            self.progress(what, min(self.done, self.total), self.total)

    def _as_given(self, reason: str) -> Accelerated:
        self.done = self.total - 1
        self._next("done")
        example = self.example
        answers = example.reference.dtype if isinstance(example.reference, Tensor) else None
        steps = [
            Optimisation("precision", False, name_of(example.given), why_not_half(example, self.asked) or "not tried")
        ]
        steps += [Optimisation(name, False, "no", "not tried") for name in ("compile", "graphs")]
        steps += self._pooling(example.plain, example.x[None])
        report = self._report(example.given, steps, reason=reason)
        return Accelerated(example.plain, example.plain, example.x[None], None, answers, report)

    def _build(
        self, main: list[Way], tried: list[Way], precision: Optimisation, no_compile: str, no_graphs: str | None
    ) -> Accelerated:
        example = self.example
        kept = {size: self._keep(main, size) for size in self.sizes}
        network, x = main[0].network, example.x[main[0].precision]
        compiled = [size for size in self.sizes if kept[size].compiled is not None]
        captured = [size for size in self.sizes if kept[size].graph]
        dtype = example.given if main[0].precision is None else HALVES[main[0].precision]
        steps = [
            precision,
            self._step("compile", compiled, no_compile, [way for way in main if way.compiled and not way.graph]),
            self._step("graphs", captured, no_graphs, [way for way in main if way.graph and not way.compiled]),
            *self._pooling(network, x),
        ]
        reason = None
        if network is example.plain and not compiled and not captured:
            reason = example.hindrance or "nothing that was tried is both safe and faster"
        buckets = None
        if compiled or captured:
            buckets = Buckets({size: kept[size].buckets[size] for size in self.sizes}, example.device, x.dtype)
        report = self._report(dtype, steps, measured(tried, self.sizes, kept), reason)
        return Accelerated(example.plain, network, x, buckets, example.reference.dtype, report)

    def _step(self, name: str, sizes: list[int], refusal: str | None, ways: list[Way]) -> Optimisation:
        """What became of compilation or of graphs."""
        failures = {size: words for way in ways for size, words in way.failures.items()}
        words = [f"batch {size}: {failures[size]}" for size in self.sizes if size in failures]
        if len(words) > 1 and len(set(failures.values())) == 1:
            words = [next(iter(failures.values()))]
        if not sizes:
            return Optimisation(name, False, "no", refusal or "; ".join(words) or "not faster")
        others = [size for size in self.sizes if size not in sizes and size not in failures]
        if others:
            words.append(f"not faster for {', '.join(map(str, others))}")
        return Optimisation(name, True, f"batch {', '.join(map(str, sizes))}", "; ".join(words))

    def _pooling(self, network: nn.Module, x: Tensor) -> list[Optimisation]:
        """Which backend pools a compressed network's tokens, and why it is not a faster one."""
        if not is_compressed(network):
            return []
        flow = plan_of(network).flow
        if not flow.backend[0]:
            with suppress(Exception):  # the model as given may refuse the example when it is called
                run_inference(network, x[:1])
        return [Optimisation("pooling", flow.backend[0] != plain.NAME, *flow.backend)] if flow.backend[0] else []

    def _report(
        self, dtype: torch.dtype, steps: list[Optimisation], rows: Sequence[Measured] = (), reason: str | None = None
    ) -> AccelerationReport:
        example, notes = self.example, list(self.example.notes)
        if self.checks:
            share = f"{NEAR_TIE:.0%}".replace("%", " %")
            notes.append(
                f"safe: logits finite, relative squared error within {example.tolerance:.1e}, and no decision changed "
                f"whose margin is {share} of the usual one or more, on {len(example.windows)} windows"
            )
        name, shape = type(example.plain).__name__, tuple(example.windows.shape[1:])
        given, now, cuda = name_of(example.given), name_of(dtype), example.device.type == "cuda"
        device = torch.cuda.get_device_name(example.device) if cuda else str(example.device)
        report = AccelerationReport(name, device, shape, given, now, tuple(steps), self.checks)
        return replace(report, measured=tuple(rows), reason=reason, notes=tuple(notes))
