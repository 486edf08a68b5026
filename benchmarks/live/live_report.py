"""The tables of docs/benchmarks/live.md, from what the other scripts of this folder stored.

python -m benchmarks.live.live_report
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from statistics import median

from benchmarks.shared.results import fill, read_csv

Row = dict[str, str]


def markdown(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def grouped(rows: Iterable[Row], *keys: str) -> dict[tuple[str, ...], list[Row]]:
    """Rows by the values of some columns, in the order in which these first come."""
    found: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        found.setdefault(tuple(row[key] for key in keys), []).append(row)
    return found


def total(rows: Iterable[Row], column: str) -> int:
    """The sum of a column."""
    return sum(int(row[column]) for row in rows)


def share(part: int, whole: int) -> str:
    """``"93.1 %"``; a dash of nothing."""
    return f"{part / whole:.1%}".replace("%", " %") if whole else "–"


def replays() -> str:
    """Recordings replayed live: in how many the parts of an answer are those of `predict`."""
    parts = ("starts", "notes", "decisions"), ("inputs", "probabilities")
    lines = []
    for (filters, way), rows in grouped(read_csv("live_replays"), "filter", "way").items():
        same = [sum(all(row[f"same_{name}"] == "True" for name in names) for row in rows) for names in parts]
        far = max(float(row["from_batches"]) for row in rows)
        counts = [f"{count} of {len(rows)}" for count in same]
        lines.append([filters, way, total(rows, "windows"), *counts, f"{far:.0e}" if far else "0"])
    return markdown(
        ["filter", "replayed", "windows", *map(" and ".join, map(_listed, parts)), "off batches of 32"], lines
    )


def _listed(names: Sequence[str]) -> tuple[str, str]:
    return ", ".join(names[:-1]), names[-1]


def soak() -> str:
    """Hours at the bed: a column per run, its beds together."""
    runs = grouped(read_csv("live_soak"), "run")
    facts: list[tuple[str, Callable[[list[Row]], object]]] = [
        ("lasted", lambda rows: f"{int(rows[0]['seconds']) / 60:.0f} min"),
        ("threads of a bed", lambda rows: rows[0]["threads"]),
        ("decisions", lambda rows: f"{total(rows, 'decided'):,}"),
        ("late; skipped", lambda rows: f"{total(rows, 'late')}; {total(rows, 'skipped')}"),
        ("samples lost", lambda rows: total(rows, "samples_lost")),
        ("waits for the filter", lambda rows: f"{float(rows[0]['filter_s']):.1f} s"),
        ("computes, median", lambda rows: f"{median(_milliseconds(rows, 'p50')):.0f} ms"),
        (
            "95 %; longest",
            lambda rows: f"{max(_milliseconds(rows, 'p95')):.0f}; {max(_milliseconds(rows, 'max')):.0f} ms",
        ),
        ("memory after a minute", lambda rows: f"{max(float(row['memory_settled_mb']) for row in rows):.0f} MB"),
        ("grows by at most", lambda rows: f"{max(map(_growth, rows)):.1f} MB"),
        ("load of the machine", lambda rows: f"{float(rows[0]['load_after']):.0f}"),
    ]
    return markdown(["", *(run for (run,) in runs)], [[name, *map(say, runs.values())] for name, say in facts])


def _milliseconds(rows: Sequence[Row], name: str) -> list[float]:
    return [1000 * float(row[f"compute_{name}"]) for row in rows]


def _growth(row: Row) -> float:
    return float(row["memory_most_mb"]) - float(row["memory_settled_mb"])


def causal() -> str:
    """Minimum phase against zero phase."""
    lines = [
        [row["filter"], row["windows"], share(int(row["same_decisions"]), int(row["windows"])), row["correlation"]]
        + [f"{float(row[name]):.2f} s" for name in ("zero_phase_s", "causal_waits_s")]
        for row in read_csv("live_causal")
    ]
    return markdown(["filter", "windows", "same decisions", "correlation", "zero phase waits", "minimum phase"], lines)


def kills() -> str:
    """Twenty kills of each."""
    lines = []
    for (killed,), rows in grouped(read_csv("live_kills"), "killed").items():
        alarm = [float(row["alarm_s"]) for row in rows if row["alarm_s"]]
        resumed = [float(row["resumed_s"]) for row in rows]
        silent = [float(row["silent_s"]) for row in rows if row["silent_s"]]
        lost = str(total(rows, "lost_decisions")) if silent else "–"
        whole = f"{sum(row['intact'] == 'True' for row in rows)} of {len(rows)}" if silent else "–"
        in_time = f"{sum(value <= 3 for value in resumed)} of {len(rows)}"
        last = f"{max(silent):.2f} s" if silent else "–"
        lines.append([killed, len(rows), _times(alarm), _times(resumed), in_time, lost, last, whole])
    head = ["killed", "times", "alarm after", "goes on after", "within 3 s", "decisions lost", "journal's last line"]
    return markdown([*head, "journal whole"], lines)


def _times(values: Sequence[float]) -> str:
    return f"{median(values):.2f} s ({max(values):.2f} s)" if values else "–"


def day() -> str:
    """A day with events, original against tuned."""
    rows = read_csv("live_day")
    facts: list[tuple[str, Callable[[Row], str]]] = [
        ("hours; decisions", lambda row: f"{float(row['hours']):g}; {int(row['decided']):,}"),
        ("windows that ran uncompressed", lambda row: share(round(1e4 * float(row["looked_twice"])), 10_000)),
        ("events; other happenings", lambda row: f"{row['events']}; {row['others']}"),
        ("sensitivity (95 % interval)", lambda row: _with_interval(row, "sensitivity", 100, " %")),
        ("false alarms", lambda row: row["false_alarms"]),
        ("false alarms per 24 h (95 % interval)", lambda row: _with_interval(row, "false_per_day", 1, "")),
        ("delay, median (95th percentile)", _delays),
        ("time of events in alarm", lambda row: f"{100 * float(row['time_in_events']):.1f} %"),
    ]
    return markdown(["", *(row["network"] for row in rows)], [[name, *map(say, rows)] for name, say in facts])


def _delays(row: Row) -> str:
    return f"{float(row['delay_median_s']):.1f} s ({float(row['delay_p95_s']):.1f} s)"


def _with_interval(row: Row, name: str, factor: float, unit: str) -> str:
    low, high = (factor * float(bound) for bound in row[f"{name}_interval"].split(" to "))
    return f"{factor * float(row[name]):.1f}{unit} ({low:.1f} to {high:.1f}{unit})"


def pieces() -> str:
    """What there is of every held-out case."""
    lines = [
        [
            row["case"],
            f"{int(row['background_s']):,} s",
            row["seizures"],
            f"{int(row['seizure_s']):,} s",
            f"{row['shortest_s']} to {row['longest_s']} s",
            row["seizure_windows"],
            row["background_windows"],
        ]
        for row in read_csv("live_chbmit")
    ]
    head = ["case", "background", "seizures", "in all", "each", "windows with a seizure", "without"]
    return markdown(head, lines)


def chbmit() -> str:
    """Sensitivity and specificity of every held-out case, original against tuned."""
    rows = read_csv("live_chbmit")
    lines = [[row["case"], *_scores([row])] for row in rows]
    lines.append(["all windows", *_scores(rows)])
    head = ["case", *(f"{what}, {name}" for what in ("sensitivity", "specificity") for name in ("original", "tuned"))]
    return markdown([*head, "same decisions", "looked twice"], lines)


def _scores(rows: Sequence[Row]) -> list[str]:
    ill, well = total(rows, "seizure_windows"), total(rows, "background_windows")
    found = [share(total(rows, f"{name}_true"), ill) for name in ("original", "tuned")]
    found += [share(well - total(rows, f"{name}_false"), well) for name in ("original", "tuned")]
    return [*found, share(total(rows, "same"), ill + well), share(total(rows, "looked_twice"), ill + well)]


TABLES = {
    "live replays": replays,
    "live soak": soak,
    "live causal": causal,
    "live kills": kills,
    "live day": day,
    "live chbmit pieces": pieces,
    "live chbmit": chbmit,
}


if __name__ == "__main__":
    fill(TABLES)
