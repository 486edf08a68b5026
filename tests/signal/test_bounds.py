"""What a few bytes of a file may cost: rates, lengths and times are checked before anything is designed or read."""

from __future__ import annotations

import re
from pathlib import Path
from time import perf_counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.edf_files import DMAX, LABEL, PMAX, RATE, RECORD_SECONDS, SECONDS, discontinuous, eeg, patch, write_edf
from zipbrain.edge import open_edf
from zipbrain.errors import DataError, OptionError
from zipbrain.signal import edf_annotations, edf_header
from zipbrain.signal.edf_annotations import read_stamp, scan_marks
from zipbrain.signal.filters import Filter
from zipbrain.signal.processing import Processing
from zipbrain.signal.streams import OverlapSave, reflect_limited

edfio = pytest.importorskip("edfio")


@pytest.mark.parametrize(
    ("seconds", "rate"),
    [("1e-4", "1e+06"), ("1e-9", "1e+11"), ("1e-300", "1e+302"), ("5e-324", "inf"), ("1e5", "0.001")],
)
def test_a_record_length_that_makes_no_rate_of_eeg_is_refused(plain: Path, seconds: str, rate: str) -> None:
    with pytest.raises(DataError, match=re.escape(f"is sampled at {rate} Hz, as a record of")):
        open_edf(patch(plain, RECORD_SECONDS, seconds))


def test_a_rate_at_the_limits_is_read(plain: Path) -> None:
    assert open_edf(patch(plain, RECORD_SECONDS, "100")).sfreq == 1
    assert open_edf(patch(plain, RECORD_SECONDS, "0.001")).sfreq == 100_000


def test_a_recording_of_more_than_a_year_is_refused(plain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zipbrain.signal.edf._LONGEST", 0.03)  # days
    with pytest.raises(DataError, match="would last 0 days; correct the record length"):
        open_edf(patch(plain, RECORD_SECONDS, "99"))


@pytest.mark.parametrize("text", ["nan", "inf", "1e31", "-1e300"])
@pytest.mark.parametrize(("field", "word"), [(PMAX, "physical"), (DMAX, "digital")], ids=["physical", "digital"])
def test_a_range_that_scales_nothing_leaves_its_channel_out(
    plain: Path, text: str, field: tuple[int, int], word: str
) -> None:
    recording = open_edf(patch(plain, field, text, 1))
    assert recording.ch_names == ["EEG FP1-REF", "EEG T7-REF"]
    assert recording.left_out["EEG C3-REF"].startswith(f"its {word} minimum and maximum are")
    assert np.isfinite(recording.limits).all()


def test_what_is_no_letter_in_a_name_is_a_question_mark(plain: Path) -> None:
    assert open_edf(patch(plain, LABEL, "C3\x1b[31m\n", 1)).ch_names[1] == "C3?[31m"


def test_thousands_of_equal_names_are_numbered_at_once(tmp_path: Path) -> None:
    path = write_edf(tmp_path / "a.edf", np.tile(eeg(1, n=2 * RATE), (3000, 1)), ["C3"] * 3000)
    began = perf_counter()
    names = open_edf(path, check=False).ch_names
    assert perf_counter() - began < 5
    assert names == [f"C3-{place}" for place in range(3000)]


def test_gaps_may_be_long_where_much_was_recorded_but_not_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = discontinuous(tmp_path / "a.edf", 400)
    assert open_edf(path).gaps == [(2000, 42_000)]
    monkeypatch.setattr("zipbrain.signal.edf._SPARE", 10_100)  # samples, of 100 Hz
    assert open_edf(path).gaps == [(2000, 42_000)]
    monkeypatch.setattr("zipbrain.signal.edf._SPARE", 9_900)
    with pytest.raises(DataError, match="its gaps last 400 s in all, what was recorded 30 s"):
        open_edf(path)


@pytest.mark.parametrize("limit", ["_MOST_PLACED", "_MOST_RECORDS"])
def test_a_file_of_countless_records_with_time_stamps_is_refused(
    tmp_path: Path, limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.edf"
    path = discontinuous(path, 0) if limit == "_MOST_PLACED" else write_edf(path, eeg())
    monkeypatch.setattr(edf_header, limit, SECONDS)
    assert open_edf(path).gaps == []
    monkeypatch.setattr(edf_header, limit, SECONDS - 1)
    with pytest.raises(DataError, match="has 30 records with time stamps, where at most 29"):
        open_edf(path)


def test_a_name_that_no_file_can_have_is_refused(tmp_path: Path) -> None:
    for name in ("x" * 300 + ".edf", "a\0b.edf"):
        with pytest.raises(DataError, match="can't be read"):
            open_edf(tmp_path / name)
    with pytest.raises(DataError, match="no such file"):
        open_edf(write_edf(tmp_path / "a.edf", eeg()) / "b.edf")


# --- annotations ------------------------------------------------------------------------------------------------------

_LISTED = re.compile(rb"([+-]\d+(?:\.\d*)?)(?:\x15(\d+(?:\.\d*)?))?\x14(.*)\x14", re.DOTALL)


@given(
    st.lists(st.sampled_from([b"+1.5", b"-2", b"\x15", b"3", b"\x14", b"\0", b"abc", b"+", b".", b"\xff"]), max_size=40)
)
def test_the_scanner_finds_what_the_grammar_says(pieces: list[bytes]) -> None:
    marks = b"".join(pieces)
    wanted = [
        (float(match[1]), float(match[2] or 0), text)
        for part in marks.split(b"\0")
        if part.endswith(b"\x14") and (match := _LISTED.search(part))
        for text in match[3].split(b"\x14")
        if text
    ]
    assert list(scan_marks(marks)) == wanted


@pytest.mark.parametrize(
    "piece", [b"+1\x14", b"+1\x15", b"+", b"1", b"+1.1", b"\x14", b"\0", b"+1\x14\0", b"+1\x151\x14a\x14\0"]
)
@pytest.mark.parametrize("end", [b"", b"\x14", b"x"])
def test_marks_of_every_kind_are_scanned_in_linear_time(piece: bytes, end: bytes) -> None:
    began = perf_counter()
    for _ in scan_marks(b"+1\x14" + piece * (1_000_000 // len(piece)) + end):
        pass
    assert perf_counter() - began < 5


def with_marks(path: Path, old: bytes, new: bytes) -> Path:
    content = path.read_bytes()
    assert old in content
    path.write_bytes(content.replace(old, new.ljust(len(old), b"\0")[: len(old)]))
    return path


def test_a_first_time_stamp_beyond_all_times_is_taken_as_zero(plain: Path) -> None:
    zero = b"+0\x14\x14".ljust(16, b"\0")
    start = open_edf(plain).start
    recording = open_edf(with_marks(plain, zero, b"+9999999999999\x14\x14"))
    assert recording.start == start
    assert "the time stamp of its first record is no time: taken as 0 s" in recording.notes
    assert recording.annotations == [(2.5, 1.0, "blink")]


@pytest.mark.parametrize(("year", "known"), [(1799, False), (1800, True), (2500, True), (2501, False), (9999, False)])
def test_a_start_in_no_year_of_recordings_is_unknown(plain: Path, year: int, known: bool) -> None:
    recording = open_edf(patch(plain, (88, 80), f"Startdate 31-DEC-{year} X X X X"))
    assert (recording.start is not None) == known
    assert ("its header has no valid date and time" in recording.notes) != known


def test_an_annotation_beyond_all_times_is_left_out_with_a_note(plain: Path) -> None:
    recording = open_edf(with_marks(plain, b"+2.5\x151\x14blink\x14\0\0", b"+9999999999\x14b\x14"))
    assert recording.annotations == []
    assert "1 annotations left out: their times lie more than 1e+09 s from the beginning" in recording.notes


@pytest.mark.parametrize(
    ("marks", "stamp"),
    [
        (b"+1.5\x14\x14", 1.5),
        (b"-3\x14\x14", -3.0),
        (b"+1000000000\x14", 1e9),
        (b"+1000000001\x14", None),
        (b"+" + b"0" * 80 + b"1\x14", None),
        (b"1\x14", None),
        (b"", None),
    ],
)
def test_a_time_stamp_is_a_number_of_seconds_within_bounds(marks: bytes, stamp: float | None) -> None:
    assert read_stamp(marks) == stamp


def test_more_annotations_than_fit_in_memory_are_refused(plain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(edf_annotations, "MOST_ANNOTATIONS", 1)
    assert len(open_edf(plain).annotations) == 1
    monkeypatch.setattr(edf_annotations, "MOST_ANNOTATIONS", 0)
    with pytest.raises(DataError, match=r"a\.edf: holds more than 0 annotations"):
        _ = open_edf(plain).annotations


def test_more_annotations_than_a_record_can_have_are_refused(plain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(edf_header, "MOST_BYTES", 8)
    with pytest.raises(DataError, match="bytes of annotations in every record, where at most 8"):
        open_edf(plain)


# --- filters and resampling -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sfreq", "band", "away"),
    [
        (500, (0.001, 1.0), "0.0015 Hz"),
        (500, (5e-324, 1.0), "0.0015 Hz"),
        (150.0001, (None, 75.0), "0.00045 Hz"),
        (1e5, (0.1, 75.0), "0.3 Hz"),
    ],
)
def test_a_filter_without_end_is_refused_before_it_is_designed(
    sfreq: float, band: tuple[float | None, float], away: str
) -> None:
    began = perf_counter()
    with pytest.raises(OptionError, match=rf"band: .*more than 1,100,000 samples: each edge must lie {away} or more"):
        Filter.design(sfreq, band, None)
    assert perf_counter() - began < 1


def test_the_longest_filter_counts_the_notch_too(monkeypatch: pytest.MonkeyPatch) -> None:
    length = Filter.design(100, (1, 30), 25).taps.size
    monkeypatch.setattr("zipbrain.signal.filters._LONGEST", length)
    assert Filter.design(100, (1, 30), 25).taps.size == length
    monkeypatch.setattr("zipbrain.signal.filters._LONGEST", length - 1)
    with pytest.raises(OptionError, match="band"):
        Filter.design(100, (1, 30), 25)


@pytest.mark.parametrize("n_times", [1, 2, 50, 300, 1500])
def test_a_kernel_longer_than_a_signal_gives_what_all_of_it_gives(n_times: int) -> None:
    x = np.random.default_rng(n_times).normal(0, 20, (3, n_times))
    processing = Processing.design(100, 100, (0.1, 40))
    assert processing.filter is not None
    whole = OverlapSave(processing.filter.taps)(reflect_limited(x, processing.filter.ahead))
    np.testing.assert_allclose(processing.whole(x), whole, rtol=0, atol=1e-10)


@pytest.mark.parametrize("resampling", ["polyphase", "fft"])
def test_a_signal_may_become_a_thousand_times_longer_and_no_more(resampling: str) -> None:
    assert Processing.design(1, 1000, resampling=resampling).n_out(3) == 3000
    with pytest.raises(OptionError, match="sfreq_out: got 1001, but it is more than 1000 times the 1 Hz"):
        Processing.design(1, 1001, resampling=resampling)


def test_a_block_is_no_longer_after_resampling_than_before() -> None:
    x = np.random.default_rng(0).normal(0, 20, (1, 5000))
    processing = Processing.design(2, 200)
    blocks = list(processing.blocks(lambda start, stop: x[:, start:stop], 5000, block=20_000))
    assert max(block.shape[1] for block in blocks) < 30_000
    np.testing.assert_allclose(np.concatenate(blocks, axis=1), processing.whole(x), atol=1e-9)
