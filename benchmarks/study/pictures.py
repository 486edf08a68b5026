"""`python -m benchmarks.study.pictures`: the figures and the first table of docs/benchmarks/faster.md, from CSVs."""

from __future__ import annotations

from pathlib import Path

from benchmarks.fidelity.experiments_values import RATIOS, sweep_values
from benchmarks.shared.results import RESULTS, fill, read_csv

SHOWN = {
    "Twins, first version": ("Twins", 0),
    "ToMe + mass": ("ToMe", 1),
    "ZIPBrain": ("ZIPBrain", 0),
    "EViT": ("EViT", 0),
}
COLOURS = {"Twins, first version": "#0b6e4f", "ToMe + mass": "#3b75af", "ZIPBrain": "#8c6bb1", "EViT": "#c1440e"}


def times() -> list[dict[str, str]]:
    """A row for every network that was timed: tokens, how it was compressed, time relative to the original."""
    tail = _first("tail", model="EEGPT", removed="nothing", batch="32")
    tuned = read_csv("tuned")[0]
    before = tuned["tokens"].split()[0]
    ort = "ONNX Runtime, batch 32"
    rows = [
        _row(
            "EEGPT",
            tail["tokens"],
            tail["time"],
            "lossless tail",
            "lossless tail: nothing removed",
            "PyTorch, batch 32",
        ),
        _row("LaBraM, the demo's", before, tuned["ort_time"], "tuned to keep 99 %", "tuned to keep 99 %", ort),
    ]
    for model, title in (("labram", "LaBraM"), ("biot", "BIOT")):
        own = _first("edge", model=model, batch="32", runtime="ort", variant="ToMe")
        before = own["token_counts"].split()[0]
        rows.append(_row(title, before, own["to_original"], "ToMe", "80 % removed evenly, ToMe", ort))
    for method, title in (("twins", "Twins"), ("tome", "ToMe")):
        own = _first("reve", method=method, schedule="early 80%")
        how = f"80 % removed in the first third, {title}"
        rows.append(_row("REVE", own["tokens"], own["time"], title, how, "PyTorch, batch 1"))
    return sorted(rows, key=lambda row: int(row["tokens"]))


def _first(name: str, **wanted: str) -> dict[str, str]:
    """The first stored row with these values."""
    return next(row for row in read_csv(name) if all(row[key] == value for key, value in wanted.items()))


def _row(model: str, tokens: str, time: str, short: str, how: str, where: str) -> dict[str, str]:
    return {"model": model, "tokens": tokens, "time": f"{float(time):.2f}", "short": short, "how": how, "where": where}


def table() -> str:
    """A line for every timed network."""
    lines = ["| model | tokens | time | compressed | measured in |", "|---|---|---|---|---|"]
    lines += ["| {model} | {tokens} | {time} | {how} | {where} |".format(**row) for row in times()]
    return "\n".join(lines)


def draw_times(path: Path) -> None:
    """Time relative to the original, the network of the fewest tokens first."""
    import matplotlib.pyplot as plt

    rows = times()
    shown, axes = plt.subplots(figsize=(6.4, 4), constrained_layout=True)
    for place, row in enumerate(rows):
        is_tuned = "tuned" in row["how"]
        axes.barh(place, float(row["time"]), color=COLOURS["Twins, first version"] if is_tuned else "#9fb3bd")
        text = f"{1 / float(row['time']):.1f} times as fast: {row['short']}"
        axes.text(0.012, place, text, va="center", color="white" if is_tuned else "#222222")
    axes.set_yticks(range(len(rows)), [f"{row['model']}\n{row['tokens']} tokens" for row in rows])
    axes.set(xlim=(0, 1), xlabel="time, original = 1")
    axes.invert_yaxis()
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    shown.savefig(path, dpi=150)
    plt.close(shown)


def draw_kept(path: Path) -> None:
    """Decisions that stay against the share of tokens removed, mean over 20 pairs of model and task."""
    import matplotlib.pyplot as plt

    values, places = sweep_values(), list(range(len(RATIOS)))
    shown, axes = plt.subplots(figsize=(6.4, 3.8), constrained_layout=True)
    for title, (label, mass) in SHOWN.items():
        kept = [100 * values["all", label, mass, ratio]["agreement"] for ratio in RATIOS]
        axes.plot(places, kept, "o-", color=COLOURS[title], linewidth=2, markersize=4)
        up = {"Twins, first version": 7, "ToMe + mass": -6}.get(title, 0)  # two lines end close together
        place = {"textcoords": "offset points", "va": "center"}
        axes.annotate(title, (places[-1], kept[-1]), (8, up), color=COLOURS[title], **place)
    tuned = 100 * float(read_csv("tuned")[0]["agreement"])
    axes.axhline(tuned, color="black", linewidth=1.2, linestyle="--")
    note = f"{tuned:.1f} %: the demo's LaBraM, 80 % removed, doubtful windows run again"
    axes.annotate(note, (places[0], tuned), (0, 4), textcoords="offset points", fontsize=9)
    names = [ratio if ratio == "max" else f"{float(ratio):.0%}" for ratio in RATIOS]
    axes.set_xticks(places, names)
    axes.set(
        xlabel="tokens removed, as many in every block", ylabel="same decisions, %", xlim=(-0.2, places[-1] + 1.35)
    )
    axes.set_ylim(top=101.5)
    axes.spines[["top", "right"]].set_visible(False)
    shown.savefig(path, dpi=150)
    plt.close(shown)


def main() -> None:
    """Draw and fill."""
    draw_times(RESULTS / "faster_time.png")
    draw_kept(RESULTS / "faster_kept.png")
    fill({"faster": table})


if __name__ == "__main__":
    main()
