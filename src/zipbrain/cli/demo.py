"""`zipbrain demo`: one random model of LaBraM's shape, every method, what each costs and changes."""

from __future__ import annotations

import copy
import json
import platform
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.syntax import Syntax
from rich.table import Table

from zipbrain.errors import MissingExtra

if TYPE_CHECKING:
    from torch import Tensor, nn

_DIM = 200  # LaBraM-base
_CHANNELS = 23  # tokens are channels x seconds; 23 x 10 is a LaBraM window of TUAB
_CHECKED = 32  # windows whose answers are compared, at least
_WARMUP = 1  # the comparison of answers has warmed everything up already
_RANDOM = "Weights and tokens are random: this shows what pooling costs and saves, and says nothing about accuracy."
_NEXT = """\
import zipbrain
from zipbrain import ZIPBrain

model = zipbrain.compress(model, ZIPBrain(), ratio={ratio})
print(zipbrain.summary(model))"""


@dataclass(frozen=True)
class Row:
    """What one method costs and changes."""

    method: str
    tokens_left: int
    fewer_than_asked: bool
    gflop: float
    ms_per_window: float
    time_vs_original: float
    time_vs_slicing: float
    same_answer: float
    logit_change: float


def demo(
    tokens: Annotated[int, typer.Option(min=1, help="Tokens per window, CLS not counted.")] = 230,
    batch: Annotated[int, typer.Option(min=1, help="Windows per call.")] = 8,
    ratio: Annotated[float, typer.Option(min=0.0, max=1.0, help="Share of the tokens to remove.")] = 0.8,
    depth: Annotated[int, typer.Option(min=1, help="Transformer blocks.")] = 12,
    threads: Annotated[
        int | None,
        typer.Option(min=1, max=1024, help="CPU threads; torch's choice if not given, or one where that is quicker."),
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Timed calls of every method.")] = 10,
    seed: Annotated[int, typer.Option(min=0, max=2**31 - 1, help="Seed of weights and tokens.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else to stdout.")] = False,
) -> None:
    """See one model made faster: every method on a random LaBraM-shaped encoder, timed side by side on this CPU.

    Weights and tokens are random, so the table says what pooling costs and saves, and nothing about accuracy.

    [bold]Example:[/bold] zipbrain demo --tokens 460 --ratio 0.5 --threads 1
    """
    try:
        import torch
    except ModuleNotFoundError as missing:
        if missing.name != "torch":
            raise
        raise MissingExtra("torch", "torch", "zipbrain demo") from None

    before = torch.get_num_threads()
    try:
        torch.set_num_threads(_quicker_threads(before, tokens, batch) if threads is None else threads)
        with warnings.catch_warnings(record=True) as remarks:
            rows = measure(tokens, batch, ratio, depth, rounds, seed)
        setting = _setting(tokens, batch, ratio, depth, rounds, seed)
    finally:
        torch.set_num_threads(before)
    for remark in sorted({str(remark.message) for remark in remarks}):
        Console(stderr=True).print(f"note: {remark}", style="yellow", soft_wrap=True, highlight=False)
    if as_json:
        print(json.dumps({**setting, "methods": [asdict(row) for row in rows]}, indent=2))
    else:
        _show(Console(highlight=False), rows, setting)


def measure(tokens: int, batch: int, ratio: float, depth: int, rounds: int, seed: int) -> list[Row]:
    """Run the original and every method in one interleaved run on the CPU.

    Parameters
    ----------
    tokens, batch, depth : int
        Tokens per window, windows per call, blocks of the encoder.
    ratio : float
        Share of the tokens to remove.
    rounds : int
        Timed calls of every candidate.
    seed : int
        Seed of weights and tokens.

    Returns
    -------
    rows : list of Row
        The original first, then free slicing, then the methods.
    """
    import torch

    from zipbrain.cost import interleaved
    from zipbrain.models import TokenEncoder
    from zipbrain.pooling import DART, EViT, FreeSlicing, ToFu, ToMe, ZIPBrain
    from zipbrain.seams import compress, summary

    generator = torch.Generator().manual_seed(seed)
    windows = random_tokens(generator, max(batch, -(-_CHECKED // batch) * batch), tokens)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        original = TokenEncoder(_DIM, depth).eval()
    shared = {id(weight): weight for weight in original.parameters()}
    methods = {
        "free slicing": FreeSlicing(), "ZIPBrain": ZIPBrain(), "ToMe": ToMe(), "ToFu": ToFu(), "EViT": EViT(),
        "DART": DART(),
    }  # fmt: skip
    models: dict[str, nn.Module] = {"original": original}
    for name, method in methods.items():
        twin = copy.deepcopy(original, dict(shared))  # the same weights, not a copy of them
        models[name] = compress(twin, method, ratio=ratio, tokens=tokens)

    with _progress() as progress, torch.inference_mode():
        task = progress.add_task("checking", total=len(models) + _WARMUP + rounds)
        answers: dict[str, Tensor] = {}
        left: dict[str, int] = {}
        for name, model in models.items():
            answers[name] = torch.cat([model(windows[i : i + batch]) for i in range(0, len(windows), batch)])
            left[name] = tokens if name == "original" else _tokens_left(model, windows[:1])
            progress.update(task, advance=1, refresh=True)
        progress.update(task, description="timing", refresh=True)
        calls = {name: _Call(model, windows[:batch]) for name, model in models.items()}

        def tick() -> None:
            progress.update(task, advance=1, refresh=True)

        timings = interleaved(calls, rounds=rounds, warmup=_WARMUP, tick=tick)

    reference = answers["original"]
    rows = []
    for name, model in models.items():
        cost = summary(models["ZIPBrain"] if name == "original" else model)
        macs = cost.original_macs if name == "original" else cost.macs
        assert macs is not None  # compress was told the number of tokens
        same = (answers[name].argmax(1) == reference.argmax(1)).double().mean()
        change = (answers[name] - reference).norm() / reference.norm()
        rows.append(
            Row(
                method=name,
                tokens_left=left[name],
                fewer_than_asked=name != "original" and cost.cut,
                gflop=2e-9 * macs,
                ms_per_window=1e3 * timings[name].median / batch,
                time_vs_original=timings[name].ratio(timings["original"]),
                time_vs_slicing=timings[name].ratio(timings["free slicing"]),
                same_answer=float(same),
                logit_change=float(change),
            )
        )
    return rows


def _quicker_threads(most: int, tokens: int, batch: int) -> int:
    """One thread, or as many as torch took: on a busy machine threads that wait for each other are slower than one."""
    import torch

    from zipbrain.cost import interleaved
    from zipbrain.models import TokenEncoder

    model, x = TokenEncoder(_DIM, 1).eval(), torch.zeros(batch, tokens, _DIM)

    def run_with(count: int) -> Callable[[], object]:
        def run() -> object:
            torch.set_num_threads(count)
            return model(x)

        return run

    with torch.inference_mode():
        found = interleaved({"one": run_with(1), "most": run_with(most)}, rounds=5, warmup=1)
    return 1 if found["one"].median < found["most"].median else most


def random_tokens(generator: Any, windows: int, tokens: int) -> Tensor:
    """Tokens (windows, tokens, 200) of a few smooth sources, mixed over channels and time, plus noise."""
    import torch

    sources = 6
    channels = min(_CHANNELS, tokens)
    seconds = -(-tokens // channels)
    place = torch.rand(windows, sources, 1, generator=generator)  # where on the head each source is strongest
    spread = torch.exp(-(((torch.linspace(0, 1, channels) - place) / 0.15) ** 2))  # (windows, sources, channels)
    phase = torch.rand(windows, sources, 1, generator=generator)
    course = 1 + torch.sin(6.28 * (torch.arange(seconds) / 10 + phase))  # (windows, sources, seconds)
    content = torch.randn(windows, sources, _DIM, generator=generator)
    mixed = torch.einsum("wsc,wst,wsd->wctd", spread, course, content).flatten(1, 2)[:, :tokens]
    return mixed + 0.3 * torch.randn(mixed.shape, generator=generator)


class _Call:
    """A model on its input, callable without arguments."""

    def __init__(self, model: nn.Module, x: Tensor) -> None:
        self.model, self.x = model, x

    def __call__(self) -> object:
        return self.model(self.x)


def _tokens_left(model: nn.Module, x: Tensor) -> int:
    from zipbrain.seams import trace

    with trace(model) as seen:
        model(x)
    return seen.token_counts[-1]


def _progress() -> Progress:
    console = Console(stderr=True)
    columns = TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn()
    # Refreshed between calls only: a refreshing thread would run inside what is timed.
    return Progress(*columns, console=console, transient=True, auto_refresh=False, disable=not console.is_terminal)


def _setting(tokens: int, batch: int, ratio: float, depth: int, rounds: int, seed: int) -> dict[str, Any]:
    import torch

    from zipbrain import __version__
    from zipbrain.pooling import Tokens
    from zipbrain.pooling.kernels import cpu

    small = torch.zeros(1, 2, 2)
    ordinary = Tokens(small, 1, small.unsqueeze(1))

    return {
        "zipbrain": __version__, "torch": torch.__version__, "machine": platform.machine(),
        "threads": torch.get_num_threads(), "tokens": tokens, "batch": batch, "ratio": ratio, "depth": depth,
        "rounds": rounds, "seed": seed, "windows_compared": max(batch, -(-_CHECKED // batch) * batch),
        "cpu_kernel": cpu.usable(ordinary, ("x", "q", "x")), "weights": "random", "data": "random",
    }  # fmt: skip


def _many(count: int, thing: str) -> str:
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"


def _show(console: Console, rows: list[Row], setting: dict[str, Any]) -> None:
    console.print(
        f"[bold]zipbrain demo[/bold]: {_many(setting['depth'], 'LaBraM-shaped block')}, "
        f"{_many(setting['tokens'], 'token')} a window, {setting['ratio']:.0%} to be removed."
    )
    console.print(_RANDOM, style="italic")
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("method", no_wrap=True)
    for title in (
        "tokens\nleft", "GFLOP\na window", "ms\na window", "time vs\noriginal", "time vs\nslicing", "same\nanswer",
        "logit\nchange",
    ):  # fmt: skip
        table.add_column(title, justify="right")
    for row in rows:
        table.add_row(
            row.method,
            f"{row.tokens_left}{'*' if row.fewer_than_asked else ''}",
            f"{row.gflop:.2f}",
            f"{row.ms_per_window:.2f}",
            f"{row.time_vs_original:.2f}×",
            f"{row.time_vs_slicing:.2f}×",
            f"{row.same_answer:.0%}",
            f"{row.logit_change:.1%}",
            style={"original": "dim", "free slicing": "dim", "ZIPBrain": "bold green"}.get(row.method),
        )
    console.print(table)
    if any(row.fewer_than_asked for row in rows):
        console.print("* fewer than asked could go: ToMe and ToFu remove at most half of the tokens in a block.")
    console.print(
        "Free slicing drops the last tokens unseen: the time that no method can beat, but for noise. GFLOP: matrix "
        "products of the blocks, counted by hand. Same answer (largest logit) and logit change (norm of the "
        f"difference over norm): against the original, on {setting['windows_compared']} windows."
    )
    kernel = "compiled CPU kernel in use" if setting["cpu_kernel"] else "no compiled CPU kernel (plain torch operators)"
    console.print(
        f"Measured in turn, median of {_many(setting['rounds'], 'round')}: {_many(setting['threads'], 'thread')}, "
        f"batch {setting['batch']}, torch {setting['torch']}, float32, {kernel}."
    )
    console.print("\nNext, with your own model:")
    console.print(Syntax(_NEXT.format(ratio=setting["ratio"]), "python", theme="ansi_dark", background_color="default"))
