"""Evaluation of alarms: counted by hand, against SciPy's intervals, and what is refused."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from zipbrain.binomial import count_bounds
from zipbrain.errors import DataError, OptionError
from zipbrain.live.alarm_rules import AlarmRules, Rule
from zipbrain.live.alarms import AlarmEngine
from zipbrain.live.decision import Decision
from zipbrain.live.evaluate import evaluate
from zipbrain.live.journal import Journal
from zipbrain.live.record import common_stretches, join_stretches, length_s, read_record

CLASSES = ("rest", "seizure", "spikes")
DELAY = 1.5


def record(folder: Path, values, marks=(), rules=None) -> Path:
    """A session of one decision a second, of windows of 4 s; None for no decision."""
    rules = rules or (Rule("seizure", ("seizure",), min_duration_s=0, refractory_s=0, latching=True),)
    chosen = AlarmRules(CLASSES, rules)
    engine = AlarmEngine(chosen)
    with Journal(folder, {"model": "sha256:1", "recipe": {}, "thresholds": chosen.to_dict()}) as journal:
        for second, value in enumerate(values):
            shares = np.float32([math.nan] * 3 if value is None else [1 - value, value, 0])
            made = -1 if value is None else int(value > 0.5)
            one = Decision(float(second), second + 4.0, shares, made, "", False, 0.01, DELAY)
            journal.write("decision", **one.to_dict())
            for event in engine.decide(one):
                journal.write("event", **vars(event))
        for start, stop, label in marks:
            journal.write("mark", time_s=start, stop_s=stop, label=label, by="reviewer")
    return folder


def table(folder: Path, text: str) -> Path:
    path = folder / "truth.csv"
    path.write_text(text)
    return path


def values(seconds: int, *stretches: tuple[int, int]):
    return [0.9 if any(a <= second < b for a, b in stretches) else 0.1 for second in range(seconds)]


def test_counts_and_delays_are_those_counted_by_hand(tmp_path):
    # Alarms from 104 to 124, 404 to 414 and 704 to 714 s of the stream; the engine never gets an acknowledgement.
    folder = record(tmp_path, values(1000, (100, 120), (400, 410), (700, 710)), marks=[(700, 720, "false alarm")])
    truth = table(tmp_path, "onset,duration,label\n95,20,seizure\n330,20,seizure\n900,10,seizure\n")
    (score,) = evaluate(folder, truth).scores
    assert (score.events, score.detected, score.unseen) == (3, 2, 0)
    assert (score.alarms, score.false_alarms, score.confirmed_false) == (3, 1, 1)
    assert score.delay_median_s == pytest.approx(np.median([104 + DELAY - 95, 404 + DELAY - 330]))
    assert score.false_per_day == pytest.approx(1 / (1003 / 86_400))
    assert score.precision == pytest.approx(2 / 3)
    assert score.sensitivity_interval is None
    assert score.time_in_events == pytest.approx(11 / 50)  # 104 to 115 of the first event
    assert score.time_elsewhere == pytest.approx((40 - 11) / (1003 - 50))
    (strict,) = evaluate(folder, truth, before_s=0, after_s=0).scores
    assert (strict.detected, strict.false_alarms) == (1, 2)


def test_intervals_are_scipys(tmp_path):
    starts = range(100, 2000, 200)
    folder = record(tmp_path, values(2000, *((start, start + 20) for start in starts if start < 1500)))
    rows = "".join(f"{start},30,seizure\n" for start in starts)
    (score,) = evaluate(folder, table(tmp_path, "onset,duration,label\n" + rows)).scores
    assert (score.detected, score.events) == (7, 10)
    assert score.sensitivity_interval == pytest.approx(tuple(stats.binomtest(7, 10).proportion_ci(method="exact")))
    assert score.delay_p95_s == pytest.approx(4 + DELAY)
    for count in (0, 1, 7, 300):
        low = stats.chi2.ppf(0.025, 2 * count) / 2 if count else 0.0
        assert count_bounds(count, 0.975) == pytest.approx((low, stats.chi2.ppf(0.975, 2 * count + 2) / 2))


def test_time_without_decisions_counts_for_nothing_and_events_there_are_missed(tmp_path):
    wanted = values(1000, (100, 120))
    wanted[500:800] = [None] * 300
    found = evaluate(record(tmp_path, wanted), table(tmp_path, "onset,duration\n100,20\n600,20\n"))
    (score,) = found.scores
    assert (score.events, score.detected, score.unseen) == (2, 1, 1)
    assert found.decided_h * 3600 == pytest.approx(503 + 203)
    assert found.undecided == 300
    assert any("without any decision" in note for note in found.notes)


def test_marks_of_a_reviewer_are_the_truth_where_there_is_no_table(tmp_path):
    folder = record(tmp_path, values(300, (100, 120)), marks=[(95, 120, "event")])
    found = evaluate(folder)
    assert found.truth == "marks of a reviewer"
    assert (found.scores[0].events, found.scores[0].detected) == (1, 1)


def test_every_alarm_is_scored_by_the_events_of_its_classes(tmp_path):
    rules = (Rule("seizure", ("seizure",), min_duration_s=0), Rule("any", ("seizure", "spikes"), min_duration_s=0))
    folder = record(tmp_path, values(600, (100, 120)), rules=rules)
    found = evaluate(folder, table(tmp_path, "onset,duration,label\n100,20,seizure\n400,20,spikes\n500,3,cough\n"))
    assert [(score.events, score.detected) for score in found.scores] == [(1, 1), (2, 1)]
    assert any("cough" in note for note in found.notes)


def test_an_alarm_that_was_going_on_at_the_end_lasts_until_the_end(tmp_path):
    record(tmp_path, values(200, (150, 200)))
    (alarm,) = read_record(tmp_path).alarms
    assert (alarm.start_s, alarm.stop_s, alarm.given_s) == (154.0, 203.0, 154.0 + DELAY)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("start,stop\n1,2\n", "no column onset and no duration"),
        ("onset,duration\nx,2\n", "row 1"),
        ("onset,duration\n1,\n", "row 1"),
        ("onset,duration\n1,-2\n", "row 1"),
        ("onset,duration\n5,5\n9000,10\n", "row 2 lies from 9000 to 9010 s, outside of the record"),
        ("onset,duration,label\n50,20,spindle\n", "labels are spindle"),
        ("onset,duration\n120,20\n", "none of its 1 events"),
    ],
)
def test_a_truth_that_does_not_fit_is_refused_in_one_line(tmp_path, text, named):
    wanted = values(200, (50, 60))
    wanted[100:] = [None] * 100
    record(tmp_path, wanted)
    with pytest.raises(DataError, match=r"truth\.csv") as refusal:
        evaluate(tmp_path, table(tmp_path, text))
    assert named in str(refusal.value)


def test_journals_that_can_not_be_evaluated_are_refused(tmp_path):
    with pytest.raises(DataError):
        evaluate(tmp_path)
    record(tmp_path, [None] * 5)
    with pytest.raises(DataError, match="not one of its 5 windows"):
        evaluate(tmp_path)
    record(tmp_path, values(50))
    with pytest.raises(OptionError, match="2 sessions"):
        evaluate(tmp_path)
    with pytest.raises(OptionError, match="1 to 2"):
        evaluate(tmp_path, session=3)
    with pytest.raises(DataError, match="no marks"):
        evaluate(tmp_path, session=2)
    with pytest.raises(OptionError, match="--before"):
        evaluate(tmp_path, session=2, before_s=-1)
    path = tmp_path / "journal.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"decision":-1', b'"decision":1', 1))
    with pytest.raises(DataError, match="line 2"):
        evaluate(tmp_path)


def test_stretches_are_joined_and_intersected():
    joined = join_stretches([(5, 6), (0, 2), (1, 3), (3, 4)])
    assert joined == [(0, 4), (5, 6)]
    assert common_stretches(joined, [(1, 2), (3.5, 5.5)]) == [(1, 2), (3.5, 4), (5, 5.5)]
    assert length_s(joined) == 5
