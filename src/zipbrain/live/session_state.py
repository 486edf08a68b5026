"""What a session is at the moment, for the board and a terminal, and what it was, as its summary."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zipbrain.live.session import Session


@dataclass(frozen=True)
class SessionSummary:
    """What a session did.

    Attributes
    ----------
    seconds, stream_s : float
        Of wall time, and of the stream with its gaps.
    decided, undecided, skipped : int
        Windows with and without a decision, and those that were left out because a newer one was due.
    because : dict of str to int
        Windows without a decision, by reason.
    late_decisions : int
        Decisions that took longer than a hop.
    looked_twice, looks_skipped : int
        Second looks, and those for which there was no time.
    audited, agreeing, audits_skipped : int
        Windows that ran again uncompressed, those whose decision stayed, and those for which there was no time.
    samples : dict of str to int
        Samples received, and those of every finding of the stamp audit (dropped, duplicated, jumbled, late, jump,
        overflow).
    drift_ppm : float or None
        Drift of the source's clock.
    delay_s : dict of str to float
        ``filter`` (the future that a window needs) and ``compute_p50``, ``compute_p95``, ``compute_max``.
    events : dict of str to int
        Alarm events, by kind.
    source : str
        How the source ended: "ended", "live", "silent", "lost" or "failed".
    """

    seconds: float
    stream_s: float
    decided: int
    undecided: int
    skipped: int
    because: dict[str, int]
    late_decisions: int
    looked_twice: int
    looks_skipped: int
    audited: int
    agreeing: int
    audits_skipped: int
    samples: dict[str, int]
    drift_ppm: float | None
    delay_s: dict[str, float]
    events: dict[str, int]
    source: str

    def to_dict(self) -> dict[str, Any]:
        """The summary as JSON and the journal have it, where late decisions are `late`."""
        return {"late" if name == "late_decisions" else name: value for name, value in asdict(self).items()}


def summarise(session: Session, seconds: float) -> SessionSummary:
    """The summary of a session that took so many seconds."""
    counts, audit, acquisition = session.decider.counts, session.decider.audit, session.acquisition
    return SessionSummary(
        seconds=round(seconds, 3),
        stream_s=round(session.pipeline.position / session.source.sfreq, 6),
        decided=counts["decided"],
        undecided=counts["undecided"],
        skipped=session.pipeline.skipped,
        because=dict(session.because),
        late_decisions=counts["late_decisions"],
        looked_twice=counts["looked_twice"],
        looks_skipped=counts["looks_skipped"],
        audited=audit.windows if audit else 0,
        agreeing=audit.agreeing if audit else 0,
        audits_skipped=counts["audits_skipped"],
        samples={"received": acquisition.received, **acquisition.audit.counts, "overflow": acquisition.overflow},
        drift_ppm=acquisition.audit.drift_ppm,
        delay_s=_delays(session),
        events=dict(session.events),
        source=session.watchdog.source_state,
    )


def describe_state(session: Session) -> dict[str, Any]:
    """The state as the board and the terminal show it, JSON except for NaN."""
    counts, audit, acquisition = session.decider.counts, session.decider.audit, session.acquisition
    found, newest, last = acquisition.audit.counts, session.newest, session.last_alarm
    return {
        "session": {
            "name": session.name,
            "model": f"{session.model.description.model} for {session.model.description.corpus}",
            "classes": list(session.model.description.classes),
            "hop_s": session.hop_s,
            "window_s": session.stream.window_s,
            "started": session.started.isoformat(),
        },
        "time_s": session.now_s(),
        "wall": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "delay_s": _delays(session) | {"shown": newest.delay_s if newest else None},
        "decision": None if newest is None else newest.to_dict(),
        "merges": session.decider.merges,
        "electrodes": dict(session.watchdog.electrodes),
        "needed": list(session.needed),
        "alarms": session.engine.state(),
        "last_alarm": None if last is None else asdict(last),
        "counters": {
            "samples": acquisition.received,
            "gaps": session.gaps,
            **{kind: found[kind] for kind in ("dropped", "duplicated", "jumbled", "jump")},
            "late_samples": found["late"],
            "overflow": acquisition.overflow,
            "skipped": session.pipeline.skipped,
            "late_decisions": counts["late_decisions"],
            "looked_twice": counts["looked_twice"],
            "looks_skipped": counts["looks_skipped"],
            "audited": audit.windows if audit else 0,
            "agreeing": audit.agreeing if audit else 0,
            "decided": counts["decided"],
            "undecided": counts["undecided"],
        },
        "source": {"state": session.watchdog.source_state, "name": session.source.name, "words": acquisition.words},
        "drift_ppm": acquisition.audit.drift_ppm,
        "failures": session.failures(),
    }


def _delays(session: Session) -> dict[str, float]:
    compute = session.decider.compute
    times = {"p50": compute.quantile(0.5), "p95": compute.quantile(0.95), "max": compute.longest}
    future = session.stream.reach_s + session.stream.late_s
    return {"filter": round(future, 3), **{f"compute_{name}": round(value, 6) for name, value in times.items()}}
