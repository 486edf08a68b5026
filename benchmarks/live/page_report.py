"""The tables of docs/benchmarks/live_page.md, from the stored figures.

python -m benchmarks.live.page_report
"""

from __future__ import annotations

from benchmarks.shared.results import fill, read_csv

_CHANGE = 0.05  # of the session's latency that viewers may cost


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [" | ".join(head), "|".join(["---", *["--:"] * (len(head) - 1)]), *(" | ".join(row) for row in rows)]
    return "\n".join(f"| {line} |" if "--:" not in line else f"|{line}|" for line in lines)


def viewers_table() -> str:
    """What viewers saw, and what the session noticed."""
    (found,) = read_csv("live_viewers")
    value = {name: float(number) for name, number in found.items() if name != "cpu"}

    def change(name: str) -> str:
        alone, watched = value[f"{name.format('alone')}"], value[f"{name.format('watched')}"]
        return f"{alone:.1f} ms alone, {watched:.1f} ms watched ({watched / alone - 1:+.1%})"

    rows = [
        ("Updates of the fast viewers", f"{value['updates']:,.0f}", ""),
        ("An update's way, median", f"{value['p50_ms']:.0f} ms", ""),
        ("An update's way, p99", f"{value['p99_ms']:.0f} ms", "100 ms"),
        ("Updates that a fast viewer was not sent", f"{value['left_out']:.0f}", "0"),
        ("Slow viewers counted", f"{value['slow_counted']:.0f} of {value['slow']:.0f}", "all"),
        ("Latency of a decision, median", change("session_{}_p50_ms"), f"within {_CHANGE:.0%}"),
        ("Latency of a decision, p90", change("session_{}_p90_ms"), ""),
        ("of it the model, median", change("model_{}_p50_ms"), ""),
        ("Decisions missed", f"{value['decisions_missed']:.0f} of {value['decisions']:.0f}", "0"),
        (
            "Memory of the page's process",
            f"{value['page_mb_first']:.1f} MB, then {value['page_mb_last']:.1f} MB",
            "flat",
        ),
        ("Load of the machine (2 cores), with all this", f"{value['load']:.1f}", ""),
    ]
    return _table(("", "measured", "bar"), rows)


def requests_table() -> str:
    """What became of bad requests."""
    head = ("what was wrong", "requests", "4xx", "closed", "neither, or after 1 s", "slowest")
    columns = ("what", "requests", "refused", "closed", "neither")
    stored = read_csv("live_bad_requests")
    rows = [(*(row[name] for name in columns), f"{float(row['slowest_s']):.2f} s") for row in stored]
    return _table(head, rows)


def load_table() -> str:
    """Weight, first paint and axe-core's findings."""
    head = ("", "kB", "first paint", "slowest of 3", "critical", "serious", "moderate", "minor")
    rows = [
        (
            f"{row['what']}, {row['size']}, {row['theme']}",
            row["kb"],
            f"{row['first_paint_ms']} ms",
            f"{row['slowest_ms']} ms",
            *(row[f"axe_{impact}"] for impact in ("critical", "serious", "moderate", "minor")),
        )
        for row in read_csv("live_page_load")
    ]
    return _table(head, rows)


def advisories_table() -> str:
    """Known advisories of the pinned versions."""
    columns = ("package", "pinned", "newest", "advisories", "looked_up")
    rows = [tuple(row[name] for name in columns) for row in read_csv("live_advisories")]
    return _table(("package", "pinned", "newest", "known advisories", "looked up"), rows)


TABLES = {
    "page viewers": viewers_table,
    "page requests": requests_table,
    "page load": load_table,
    "page advisories": advisories_table,
}


def main() -> None:
    fill(TABLES)


if __name__ == "__main__":
    main()
