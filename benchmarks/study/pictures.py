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
    rows = []
    tail = next(
        row for row in read_csv("tail") if (row["model"], row["removed"], row["batch"]) == ("EEGPT", "nothing", "32")
    )
    rows.append(_row("EEGPT", tail["tokens"], "lossless tail: nothing removed", "PyTorch, batch 32", tail["time"]))
    tuned = read_csv("tuned")[0]
    before = tuned["tokens"].split()[0]
    rows.append(_row("LaBraM of the demo", before, "tuned to keep 99 %", "ONNX Runtime, batch 32", tuned["ort_time"]))
    for model, title in (("labram", "LaBraM"), ("biot", "BIOT")):
        own = next(
            row
            for row in read_csv("edge")
            if (row["model"], row["batch"], row["runtime"], row["variant"]) == (model, "32", "ort", "ToMe")
        )
        before = own["token_counts"].split()[0]
        rows.append(_row(title, before, "80 % removed evenly, ToMe", "ONNX Runtime, batch 32", own["to_original"]))
    for method, title in (("twins", "Twins"), ("tome", "ToMe")):
        own = next(row for row in read_csv("reve") if (row["method"], row["schedule"]) == (method, "early 80%"))
        how = f"80 % removed in the first third, {title}"
        rows.append(_row("REVE, 128 channels", own["tokens"], how, "PyTorch, batch 1", own["time"]))
    return sorted(rows, key=lambda row: int(row["tokens"]))


def _row(model: str, tokens: str, how: str, where: str, time: str) -> dict[str, str]:
    return {"model": model, "tokens": tokens, "how": how, "where": where, "time": f"{float(time):.2f}"}


def table() -> str:
    """A line for every timed network."""
    lines = ["| model | tokens | compressed | measured in | time |", "|---|---|---|---|---|"]
    lines += ["| {model} | {tokens} | {how} | {where} | {time} |".format(**row) for row in times()]
    return "\n".join(lines)


def draw_times(path: Path) -> None:
    """Time relative to the original against the number of tokens."""
    import matplotlib.pyplot as plt

    rows = times()
    shown, axes = plt.subplots(figsize=(7, 3.6), constrained_layout=True)
    names = [f"{row['model']}\n{row['tokens']} tokens, {row['how']}" for row in rows]
    values = [float(row["time"]) for row in rows]
    axes.barh(
        names, values, color=[COLOURS["Twins, first version"] if "tuned" in row["how"] else "#9fb3bd" for row in rows]
    )
    words = [f"{1 / value:.1f} times as fast" for value in values]
    for place, (text, row) in enumerate(zip(words, rows, strict=True)):
        colour = "white" if "tuned" in row["how"] else "#222222"
        axes.text(0.015, place, text, va="center", fontsize=9, color=colour)
    axes.set(xlim=(0, 1), xlabel="time, original = 1")
    axes.invert_yaxis()
    axes.tick_params(axis="y", labelsize=8, length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    shown.savefig(path, dpi=150)
    plt.close(shown)


def draw_kept(path: Path) -> None:
    """Decisions that stay against the share of tokens removed, mean over 20 pairs of model and task."""
    import matplotlib.pyplot as plt

    values, places = sweep_values(), list(range(len(RATIOS)))
    shown, axes = plt.subplots(figsize=(7, 3.6), constrained_layout=True)
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
