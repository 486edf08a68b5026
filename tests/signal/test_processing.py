"""Filtering and resampling: equal to MNE and scipy, in blocks as in one piece, repeatable from stored numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zipbrain.errors import OptionError
from zipbrain.signal.filters import Filter, Resampler
from zipbrain.signal.processing import Processing
from zipbrain.signal.streams import OverlapSave, Polyphase, fourier

mne = pytest.importorskip("mne")
signal = pytest.importorskip("scipy.signal")


def walk(rows: int, n: int, seed: int = 0) -> np.ndarray:
    """A drifting signal far from zero, so that edges and slow parts matter."""
    generator = np.random.default_rng(seed)
    return 300 + generator.standard_normal((rows, n)).cumsum(axis=1) + 10 * generator.standard_normal((rows, n))


def by_mne(x: np.ndarray, sfreq: float, band: Any, notch: Any) -> np.ndarray:
    if band is not None:
        x = mne.filter.filter_data(x, sfreq, *band, phase="zero", fir_design="firwin", verbose="ERROR")
    if notch is not None:
        x = mne.filter.notch_filter(x, sfreq, notch, phase="zero", fir_design="firwin", verbose="ERROR")
    return x


def assert_close(got: np.ndarray, wanted: np.ndarray, x: np.ndarray) -> None:
    assert got.shape == wanted.shape
    assert got.dtype == np.float64
    np.testing.assert_array_equal(np.isnan(got), np.isnan(wanted))
    assert np.nanmax(np.abs(got - wanted), initial=0) < 1e-6 * np.nanstd(x)


def reader(x: np.ndarray) -> tuple[Callable[[int, int], np.ndarray], np.ndarray]:
    """A read function, and how often it was asked for each sample."""
    count = np.zeros(x.shape[1], dtype=int)

    def read(start: int, stop: int) -> np.ndarray:
        assert 0 <= start < stop <= x.shape[1]
        count[start:stop] += 1
        return x[:, start:stop]

    return read, count


@pytest.mark.parametrize("sfreq", [100.0, 128.0, 173.61, 256.0, 500.0, 1024.0, 5000.0])
@pytest.mark.parametrize("band", [None, (0.1, 45), (0.5, None), (None, 40), (4, 8), (0.016, 49.9)])
@pytest.mark.parametrize("notch", [None, 50.0, (25.0, 12.5, 25.0), (20, 21.105)])
def test_kernels_are_those_mne_designs(sfreq: float, band: Any, notch: Any) -> None:
    options = {"phase": "zero", "fir_design": "firwin", "verbose": "ERROR"}
    lines = np.array([] if notch is None else np.unique(notch), dtype=float)
    lines = lines[lines * 1.0025 + 0.5 <= sfreq / 2]
    wanted = np.ones(1) if band is None else mne.filter.create_filter(None, sfreq, *band, **options)
    if lines.size:
        margin = lines / 400 + 0.5
        slopes = {"l_trans_bandwidth": 0.5, "h_trans_bandwidth": 0.5}
        notches = mne.filter.create_filter(None, sfreq, lines + margin, lines - margin, **slopes, **options)
        wanted = signal.fftconvolve(wanted, notches)
    taps = Filter.design(sfreq, band, notch).taps
    assert taps.shape == wanted.shape
    np.testing.assert_allclose(taps, wanted, rtol=0, atol=1e-12 * np.abs(wanted).max())


@pytest.mark.parametrize("sfreq", [200.0, 250.0, 256.0, 500.0])
@pytest.mark.parametrize(
    ("band", "notch"),
    [((0.1, 75), 50), ((0.3, 35), 50), ((0.1, None), None), ((None, 40), None), (None, (50, 60)), ((0.5, 99.5), 60)],
)
def test_one_kernel_equals_mnes_filters_one_after_the_other(sfreq: float, band: Any, notch: Any) -> None:
    x = walk(2, int(sfreq * 40))
    assert_close(Processing.design(sfreq, sfreq, band, notch).whole(x), by_mne(x, sfreq, band, notch), x)


@pytest.mark.parametrize("n", [1, 2, 37, 300, 4125, 4126, 7500])
def test_a_signal_shorter_than_the_kernel_is_extended_as_mne_does(n: int) -> None:
    x = walk(2, n) + np.arange(2)[:, np.newaxis]
    got = Processing.design(250, 250, (0.1, 100)).whole(x)
    np.testing.assert_allclose(got, by_mne(x, 250, (0.1, 100), None), atol=1e-6)


def test_a_window_of_30_s_is_filtered_on_its_own_as_upstream_does() -> None:
    x = walk(4, 7500)
    assert_close(Processing.design(250, 250, (0.1, 100), 50).whole(x), by_mne(x, 250, (0.1, 100), 50), x)


@pytest.mark.parametrize(("before", "after"), [(256, 200), (500, 200), (250, 200), (160, 200), (128, 256), (512, 200)])
def test_resampling_equals_scipy_and_mne_at_every_length_they_agree_on(before: int, after: int) -> None:
    whole_seconds, odd = walk(2, 30 * before), walk(2, 30 * before + 13)
    processing = Processing.design(before, after)
    mnes = mne.filter.resample(whole_seconds, after, before, method="polyphase", verbose="ERROR")
    assert_close(processing.whole(whole_seconds), mnes, whole_seconds)
    scipys = signal.resample_poly(odd, after, before, axis=1, padtype="reflect")
    assert_close(processing.whole(odd), scipys, odd)
    away = slice(after, -after)  # scipy's own default pads with zeros
    assert_close(processing.whole(odd)[:, away], signal.resample_poly(odd, after, before, axis=1)[:, away], odd)


@pytest.mark.parametrize(
    ("up", "down"), [(25, 32), (2, 5), (5, 4), (1, 2), (1, 60), (64, 1), (7, 3), (9999, 10_000), (10_000, 73)]
)
@pytest.mark.parametrize("n", [1, 2, 3, 40, 1001, 30_000])
def test_polyphase_products_are_those_of_scipy_at_any_length(up: int, down: int, n: int) -> None:
    r, x = Resampler.design(down, up), walk(2, n)
    assert (r.up, r.down) == (up, down)
    kernel = signal.firwin(20 * max(up, down) + 1, 1 / max(up, down), window=("kaiser", 5.0))
    np.testing.assert_allclose(r.taps, kernel, rtol=0, atol=1e-12 * kernel.max())
    zeros = np.pad(x, ((0, 0), (r.context, 0)))
    plain = signal.resample_poly(x, up, down, axis=1)
    np.testing.assert_allclose(Polyphase(r)(zeros, r.n_out(n)), plain, rtol=0, atol=1e-12 * np.abs(x).max())
    if n > 1:  # scipy crashes when it is to reflect a single sample
        reflected = signal.resample_poly(x, up, down, axis=1, padtype="reflect")
        got = Processing.design(down, up).whole(x)
        np.testing.assert_allclose(got, reflected, rtol=0, atol=1e-12 * np.abs(x).max())


@pytest.mark.parametrize("n", [0, 1, 50, 9000, 40_000])
def test_overlapping_ffts_are_a_convolution(n: int) -> None:
    taps, x = walk(1, 2501)[0], walk(2, n + 2500)
    got = OverlapSave(taps)(x)
    wanted = signal.oaconvolve(x, taps[np.newaxis], mode="valid", axes=1) if n else np.empty((2, 0))
    if n:
        np.testing.assert_allclose(got, wanted[:, :n], rtol=1e-11)
    assert got.shape == (2, n)


@pytest.mark.parametrize("n", [1, 2, 5, 1000, 1001])
@pytest.mark.parametrize("count", [1, 2, 7, 800, 1000, 1001, 1280])
def test_fourier_resampling_of_windows_is_scipys(n: int, count: int) -> None:
    x = walk(6, n).reshape(3, 2, n)
    kept = x.copy()
    got = fourier(x, count)
    np.testing.assert_allclose(got, signal.resample(x, count, axis=-1), rtol=0, atol=1e-12 * np.abs(x).max())
    got[:] = 0
    np.testing.assert_array_equal(x, kept)


def test_the_documented_sums_are_what_is_computed() -> None:
    """The formulas an implementation without scipy has to follow, written as loops."""
    x = walk(1, 500)[0]
    processing = Processing.design(100, 75, (2, 30), 25)
    assert processing.filter is not None
    assert processing.resampler is not None
    reach, r = processing.filter.ahead, processing.resampler

    def odd(i: int) -> float:
        return 2 * x[0] - x[-i] if i < 0 else 2 * x[-1] - x[2 * (x.size - 1) - i] if i >= x.size else x[i]

    y = [sum(tap * odd(i + k - reach) for k, tap in enumerate(processing.filter.taps)) for i in range(x.size)]

    def even(i: int) -> float:
        i = abs(i)
        return y[2 * (x.size - 1) - i if i >= x.size else i]

    z = []
    for j in range(processing.n_out(x.size)):
        inputs = range(-(-(j * r.down - r.half) // r.up), (j * r.down + r.half) // r.up + 1)
        z.append(sum(r.up * r.taps[j * r.down - i * r.up + r.half] * even(i) for i in inputs))
    np.testing.assert_allclose(processing.whole(x[np.newaxis])[0], z, rtol=0, atol=1e-9)


def test_fourier_resampling_is_scipys() -> None:
    x = walk(3, 1250)
    processing = Processing.design(250, 200, resampling="fft")
    np.testing.assert_allclose(processing.whole(x), signal.resample(x, 1000, axis=1), rtol=1e-12)
    assert processing.n_out(1250) == 1000
    with pytest.raises(OptionError, match="whole"):
        processing.blocks(reader(x)[0], 1250)
    x[1, 7] = np.nan
    assert np.isnan(processing.whole(x)).all(axis=1).tolist() == [False, True, False]


@given(
    n=st.integers(1, 4000),
    block=st.integers(1, 1500),
    rates=st.sampled_from([(64, 64), (64, 50), (50, 64), (64, 63), (60, 20), (20, 60)]),
    band=st.sampled_from([None, (1.0, 8.0), (None, 8.0), (4.0, None)]),
    notch=st.sampled_from([None, 9.0]),
    gaps=st.lists(st.tuples(st.integers(0, 1), st.integers(0, 3999), st.integers(1, 60)), max_size=3),
)
def test_blocks_equal_the_whole_and_read_every_sample_once(
    n: int, block: int, rates: Any, band: Any, notch: Any, gaps: Any
) -> None:
    x = walk(2, n)
    for row, start, length in gaps:
        x[row, start : start + length] = np.nan
    processing = Processing.design(*rates, band, notch)
    read, count = reader(x)
    blocks = list(processing.blocks(read, n, block=block))
    assert (count == 1).all()
    got, wanted = np.concatenate(blocks, axis=1), processing.whole(x)
    assert got.shape == (2, processing.n_out(n))
    np.testing.assert_array_equal(np.isnan(got), np.isnan(wanted))
    np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-7, equal_nan=True)


def test_long_kernels_in_blocks_equal_the_whole() -> None:
    x = walk(3, 150_001)
    processing = Processing.design(256, 200, (0.1, 75), 50)
    wanted = processing.whole(x)
    for block in (300, 40_000, 1 << 17, 1 << 20):
        read, count = reader(x)
        assert_close(np.concatenate(list(processing.blocks(read, x.shape[1], block=block)), axis=1), wanted, x)
        assert (count == 1).all()


def test_blocks_stay_small() -> None:
    """What is read before the first output is a block, not the recording."""
    asked: list[int] = []

    def read(start: int, stop: int) -> np.ndarray:
        asked.append(stop - start)
        return np.zeros((1, stop - start))

    blocks = Processing.design(256, 200, (0.1, 75), 50).blocks(read, 10**9)
    sizes = [next(blocks).shape[1] for _ in range(4)]
    assert max(asked) <= 1 << 17
    assert len(asked) <= 6
    assert max(sizes) <= 1 << 17


def test_a_gap_silences_exactly_the_outputs_that_depend_on_it() -> None:
    processing = Processing.design(64, 50, (2, 20))
    x = walk(2, 3000)
    clean = processing.whole(x)
    broken, moved = x.copy(), x.copy()
    broken[0, 1500:1510] = [np.nan, np.inf, -np.inf, 1, 2, 3, np.nan, 4, 5, np.nan]
    moved[0, 1500:1510] += 1e6
    got, touched = processing.whole(broken), np.abs(processing.whole(moved) - clean) > 1e-6
    assert np.isnan(got[0]).any()
    assert not np.isnan(got[1]).any()
    assert (np.isnan(got) >= touched).all()
    assert np.isnan(got).sum() <= touched.sum() + 4  # the outermost taps are nearly nothing
    assert_close(got[:, ~np.isnan(got[0])], clean[:, ~np.isnan(got[0])], x)


def test_input_is_left_alone_and_other_dtypes_are_taken() -> None:
    x = walk(2, 500)
    kept = x.copy()
    same = Processing.design(100, 100)
    same.whole(x)[:] = 0
    Processing.design(100, 50, (1, 20)).whole(x)[:] = 0
    np.testing.assert_array_equal(x, kept)
    assert same.whole(x.astype(np.int16)).dtype == np.float64
    with pytest.raises(OptionError, match="shape"):
        same.whole(x[0])
    with pytest.raises(OptionError, match="shape"):
        same.whole(x[:, :0])


def test_what_lies_above_half_the_rate_is_dropped_with_a_note() -> None:
    both = Filter.design(100, (1, 75), (25, 50, 49.6))
    np.testing.assert_array_equal(both.taps, Filter.design(100, (1, None), 25).taps)
    assert [note.split(" left out")[0] for note in both.notes] == [
        "low-pass at 75 Hz",
        "notch at 50 Hz",
        "notch at 49.6 Hz",
    ]
    nothing = Processing.design(100, 100, (None, 75))
    x = walk(1, 50)
    np.testing.assert_array_equal(nothing.whole(x), x)
    np.testing.assert_array_equal(np.concatenate(list(nothing.blocks(reader(x)[0], 50, block=7)), axis=1), x)
    assert nothing.notes


@pytest.mark.parametrize("sfreq", [128.0, 256.0])
@pytest.mark.parametrize(("band", "notch"), [((0.1, 45), 50), ((0.5, None), None), ((None, 40), None), (None, 50)])
def test_minimum_phase_has_the_same_gain_and_delays_least(sfreq: float, band: Any, notch: Any) -> None:
    zero = Filter.design(sfreq, band, notch)
    causal = zero.causal()
    assert (causal.ahead, causal.before, zero.ahead) == (0, zero.taps.size - 1, zero.taps.size // 2)
    frequencies = np.linspace(0, sfreq / 2, 3001)
    gains = [np.abs(signal.freqz(kernel.taps, worN=frequencies, fs=sfreq)[1]) for kernel in (zero, causal)]
    np.testing.assert_allclose(*gains, rtol=0, atol=2e-4)
    energy = np.cumsum(causal.taps**2) / np.sum(causal.taps**2)
    assert energy[round(0.05 * sfreq)] > 0.9  # of the answer to an impulse, within 50 ms
    assert zero.delay_s == 0
    delays = signal.group_delay((causal.taps, 1), np.linspace(8, 15, 20), fs=sfreq)[1] / sfreq
    assert abs(np.median(delays) - causal.delay_s) < 0.02


@pytest.mark.parametrize("rates", [(64, 64), (64, 50)])
def test_a_causal_stream_depends_on_nothing_that_comes_later(rates: tuple[float, float]) -> None:
    processing, x = Processing.design(*rates, (1, 20), is_causal=True), walk(2, 2000)
    stream = processing.stream()
    got = np.concatenate((stream.push(x[:, :777]), stream.push(x[:, 777:]), stream.finish()), axis=1)
    assert_close(got, processing.whole(x), x)
    changed = x.copy()
    changed[:, 1000:] += 50
    first = int((1000 - processing.reach) * rates[1] / rates[0])
    np.testing.assert_allclose(processing.whole(changed)[:, :first], got[:, :first], atol=1e-8)
    broken = x.copy()
    broken[0, 1000] = np.nan
    silent = np.flatnonzero(np.isnan(processing.whole(broken)[0])) * rates[0] / rates[1]
    assert silent.min() >= 1000 - processing.reach
    assert silent.max() > 1000 + processing.before - 2 * processing.reach - 2


def test_a_notch_takes_only_the_lines_it_is_given() -> None:
    frequencies, gain = signal.freqz(Filter.design(500, None, 50).taps, worN=5000, fs=500)
    gain = np.abs(gain)
    assert gain[np.argmin(np.abs(frequencies - 50))] < 0.01
    assert (np.abs(gain[np.abs(frequencies - 50) > 1.5] - 1) < 0.01).all()


def test_rates_are_ratios_of_whole_numbers() -> None:
    r = Resampler.design(256, 200)
    assert (r.up, r.down) == (25, 32)
    r = Resampler.design(1 / 0.0039, 200)  # an EDF record of 0.0039 s with one sample
    assert (r.up, r.down) == (39, 50)
    assert Processing.design(199.999999999, 200).resampler is None
    for odd in (600.614990234375, 499.907, 299.94, 250.00001):
        r = Resampler.design(odd, 200)
        assert r.up / r.down == pytest.approx(200 / odd, rel=1e-6)
    with pytest.raises(OptionError, match=r"its ratio to 1.00001 Hz is not one of whole numbers up to 10000"):
        Resampler.design(1.00001, 12_345.678)
    for bad in (0, -1, np.nan, np.inf):
        with pytest.raises(OptionError, match="above 0"):
            Resampler.design(bad, 200)


@pytest.mark.parametrize(
    ("band", "notch", "named"),
    [((0, 40), None, "band"), ((40, 1), None, "band"), ((60, None), None, "band"), (None, 0.2, "notch"),
     (None, (20, 20.5), "notch"), ((-1, None), None, "band")],
)  # fmt: skip
def test_impossible_filters_are_refused_by_name(band: Any, notch: Any, named: str) -> None:
    with pytest.raises(OptionError, match=named):
        Filter.design(100, band, notch)


def test_other_mistakes_are_refused_by_name() -> None:
    with pytest.raises(OptionError, match="resampling"):
        Processing.design(200, 100, resampling="linear")
    with pytest.raises(OptionError, match="filter"):
        Processing(Filter.design(200, (1, 20), None), None, 250, 250)
    with pytest.raises(OptionError, match="taps"):
        Filter(np.array([1.0, 2.0, 3.0]), 100)
    with pytest.raises(OptionError, match="n_times"):
        Processing.design(200, 200).blocks(lambda a, b: np.zeros((1, b - a)), 0)
