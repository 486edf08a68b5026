"""The synthetic corpus: the same for the same seed, EEG-like in spectrum and space, and true where it says so."""

from __future__ import annotations

import itertools
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.signal import welch
from scipy.stats import spearmanr

from zipbrain.data import Synthetic
from zipbrain.data.synthetic import CARRIES, DEAD, RAIL, SATURATED
from zipbrain.data.synthetic_background import LINE
from zipbrain.data.synthetic_sources import ELECTRODES, angles, electrode_positions
from zipbrain.errors import OptionError
from zipbrain.models import BIOT, EEGPT, LaBraM
from zipbrain.signal.scaling import scale

Array = NDArray[Any]


def corpus(task: str = "events", **options: Any) -> Synthetic:
    """A small corpus."""
    return Synthetic(task, **{"n_subjects": 4, "windows_per_subject": 12, **options})


def signals(of: Synthetic, split: str = "test") -> Array:
    return of.split(split).take(slice(None))


def faulty(x: Array) -> Array:
    """Channels that are dead or saturated: (n, C, T) -> (n, C)."""
    return (np.abs(x).max(2) == 0) | (np.abs(x).max(2) >= RAIL)


@pytest.fixture(scope="module")
def quiet() -> tuple[Synthetic, Array]:
    """Windows without events, of one subject."""
    made = Synthetic("events", n_subjects=3, windows_per_subject=120, difficulty=1, seed=5)
    return made, signals(made)


# --- what is random, and what is not ----------------------------------------------------------------------------------


@pytest.mark.parametrize("task", ["events", "sleep"])
def test_the_seed_decides_everything(task: str) -> None:
    first, again, other = (signals(corpus(task, seed=seed)) for seed in (3, 3, 4))
    assert np.array_equal(first, again)
    assert not np.allclose(first, other)


def test_values_are_the_same_on_every_machine() -> None:
    x = signals(corpus(seed=7))[3]
    assert np.allclose(x[[0, 5, 22], [0, 500, 999]], [-24.731, 7.909, 13.980], atol=1e-2)


def test_a_window_does_not_depend_on_how_many_there_are() -> None:
    few, many = corpus(n_subjects=4, windows_per_subject=8), corpus(n_subjects=10, windows_per_subject=20)
    one, other = few.split("train"), many.split("train")
    for subject in set(one.subjects):
        here, there = one.subjects == subject, np.flatnonzero(other.subjects == subject)[:8]
        assert np.array_equal(one.labels[here], other.labels[there])
        assert np.allclose(one.take(here), other.take(there), atol=1e-3)
        assert np.array_equal(few.truth("train")[here], many.truth("train")[there])


def test_people_are_the_same_in_both_tasks_and_differ_from_each_other() -> None:
    events, sleep = corpus("events"), corpus("sleep")
    assert events._person(2).alpha_freq == sleep._person(2).alpha_freq
    assert len({events._person(subject).alpha_freq for subject in range(20)}) == 20


@pytest.mark.parametrize("subjects", [3, 5, 24])
def test_splits_share_no_subject_and_lose_none(subjects: int) -> None:
    made = corpus(n_subjects=subjects, windows_per_subject=2)
    parts = {name: set(made.split(name).subjects) for name in ("train", "val", "test")}
    assert all(parts.values())
    assert all(a.isdisjoint(b) for a, b in itertools.combinations(parts.values(), 2))
    assert len(set.union(*parts.values())) == subjects


@pytest.mark.parametrize(("task", "classes"), [("events", 6), ("sleep", 5)])
def test_every_subject_has_all_classes_equally_often(task: str, classes: int) -> None:
    windows = corpus(task, windows_per_subject=3 * classes, seconds=2).split("train")
    for subject in set(windows.subjects):
        assert np.bincount(windows.labels[windows.subjects == subject]).tolist() == [3] * classes


# --- shapes, names, units ---------------------------------------------------------------------------------------------


def test_windows_have_the_shapes_and_names_that_were_promised() -> None:
    events, sleep = corpus().split("val"), corpus("sleep").split("val")
    assert events.take([0]).shape == (1, 23, 1000)
    assert events.take([0]).dtype == np.float32
    assert events.ch_names == ELECTRODES
    assert events.classes == ("SPSW", "GPED", "PLED", "EYEM", "ARTF", "BCKG")
    assert sleep.take([0]).shape == (1, 6, 6000)
    assert sleep.ch_names == ("F3-A2", "C3-A2", "O1-A2", "F4-A1", "C4-A1", "O2-A1")
    assert sleep.classes == ("W", "N1", "N2", "N3", "REM")
    assert corpus(seconds=10).n_times == 2000
    assert corpus(seconds=10).truth("test").shape == (12, 23, 10)


@pytest.mark.parametrize("task", ["events", "sleep"])
def test_it_says_that_it_is_synthetic(task: str) -> None:
    made = corpus(task)
    assert made.name == made.split("test").name == f"synthetic-{task}"
    assert made.info["synthetic"] is True
    assert "made-up" in repr(made)
    assert "synthetic" in (Synthetic.__doc__ or "").lower()


def test_bipolar_channels_are_differences_of_the_referential_ones() -> None:
    bipolar, referential = corpus(montage="bipolar"), corpus()
    x, pairs = signals(referential), [name.split("-") for name in bipolar.ch_names]
    expected = np.stack([x[:, ELECTRODES.index(a)] - x[:, ELECTRODES.index(b)] for a, b in pairs], 1)
    assert len(pairs) == 16
    assert np.allclose(signals(bipolar), expected, atol=1e-3)


def test_the_models_read_it() -> None:
    referential, bipolar = corpus(), corpus(montage="bipolar")
    hundredths = torch.from_numpy(scale(signals(referential)[:2], "hundred"))
    quantiles = torch.from_numpy(scale(signals(bipolar)[:2], "q95"))
    with torch.inference_mode():
        assert LaBraM(6, referential.ch_names, 1000).eval()(hundredths).isfinite().all()
        assert EEGPT(6, referential.ch_names, 1000, front_end="tuev").eval()(hundredths).isfinite().all()
        assert BIOT(6, 16, 1000).eval()(quantiles).isfinite().all()


@pytest.mark.parametrize("task", ["events", "sleep"])
def test_amplitudes_are_those_of_eeg_in_microvolts(task: str) -> None:
    x = signals(corpus(task, n_subjects=20, difficulty=1))
    assert np.isfinite(x).all()
    rms = x.std(2)[~faulty(x)]
    assert 10 < np.median(rms) < 20
    assert np.percentile(rms, 1) > 4
    assert np.percentile(rms, 99) < 50
    louder = signals(corpus(task, n_subjects=20, difficulty=0))
    assert np.abs(louder[~faulty(louder)]).max() < RAIL


# --- spectrum and space -----------------------------------------------------------------------------------------------


def test_power_falls_as_one_over_f_with_the_subjects_exponent(quiet: tuple[Synthetic, Array]) -> None:
    made, x = quiet
    freqs, power = welch(x[:, ELECTRODES.index("F7")], made.sfreq, nperseg=400)
    chosen = ((freqs > 3) & (freqs < 5)) | ((freqs > 30) & (freqs < 45))  # where no rhythm of that place lies
    slope = np.polyfit(np.log(freqs[chosen]), np.log(np.median(power, 0)[chosen]), 1)[0]
    assert slope == pytest.approx(-made._person(2).exponent, abs=0.3)


def test_alpha_peaks_at_the_subjects_frequency_over_the_back_of_the_head(quiet: tuple[Synthetic, Array]) -> None:
    made, x = quiet
    freqs, power = welch(x, made.sfreq, nperseg=400)
    power = np.median(power, 0) * freqs  # flattens the background
    alpha = (freqs >= 7) & (freqs <= 13)
    back, front = power[ELECTRODES.index("O1")], power[ELECTRODES.index("FP1")]
    assert freqs[alpha][back[alpha].argmax()] == pytest.approx(made._person(2).alpha_freq, abs=0.75)
    assert back[alpha].max() > 2 * front[alpha].max()


def test_line_noise_is_one_narrow_peak(quiet: tuple[Synthetic, Array]) -> None:
    made, x = quiet
    worst = made._person(2).line_reach.argmax()
    freqs, power = welch(x[:, worst], made.sfreq, nperseg=400)
    power = np.median(power, 0)
    beside = power[(np.abs(freqs - LINE) > 2) & (np.abs(freqs - LINE) < 6)]
    assert power[freqs == LINE] > 5 * beside.max()
    assert beside.max() < 3 * beside.min()


def test_near_electrodes_are_more_alike_than_far_ones(quiet: tuple[Synthetic, Array]) -> None:
    _, x = quiet
    clean = x[~faulty(x).any(1)]
    alike = np.mean([np.corrcoef(window) for window in clean], 0)
    far = angles(electrode_positions(ELECTRODES), electrode_positions(ELECTRODES))
    pairs = np.triu_indices(len(ELECTRODES), 1)
    assert spearmanr(far[pairs], alike[pairs]).statistic < -0.8
    assert alike[pairs][far[pairs] < 0.7].min() > alike[pairs][far[pairs] > 2].max()


def test_electrodes_lie_where_mne_has_them() -> None:
    mne = pytest.importorskip("mne")
    known = mne.channels.get_builtin_montages()
    montage = mne.channels.make_standard_montage("colin27_1020" if "colin27_1020" in known else "standard_1020")
    places = {name.upper(): place for name, place in montage.get_positions()["ch_pos"].items()}
    for name, above, below in (("T1", "FT7", "FT9"), ("T2", "FT8", "FT10")):  # MNE has no T1 and T2
        places[name] = (places[above] + places[below]) / 2
    theirs = np.array([places[name] for name in ELECTRODES])
    scalp = np.array([name not in ("A1", "A2", "T1", "T2") for name in ELECTRODES])
    design = np.column_stack((2 * theirs[scalp], np.ones(scalp.sum())))  # the sphere that fits best
    centre = np.linalg.lstsq(design, (theirs[scalp] ** 2).sum(1), rcond=None)[0][:3]
    theirs = (theirs - centre) / np.linalg.norm(theirs - centre, axis=1, keepdims=True)
    ours = electrode_positions(ELECTRODES)
    assert np.allclose(np.linalg.norm(ours, axis=1), 1)
    assert np.rad2deg(np.arccos((ours * theirs).sum(1))).max() < 5


# --- faults -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", ["events", "sleep"])
def test_dead_and_saturated_channels_come_at_the_promised_rate(task: str) -> None:
    x = np.concatenate([signals(corpus(task, seconds=2, windows_per_subject=500, seed=seed)) for seed in range(3)])
    largest = np.abs(x).max(2)
    dead, saturated = largest == 0, largest >= RAIL
    for found, rate in ((dead, DEAD), (saturated, SATURATED)):
        assert abs(found.mean() - rate) < 4 * np.sqrt(rate / found.size)
    assert largest.max() == RAIL
    assert (np.abs(x[saturated]) == RAIL).mean() > 0.4


# --- events and their truth -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("montage", ["referential", "bipolar"])
def test_truth_is_where_the_event_changed_the_signal(montage: str) -> None:
    easy, none = (corpus(montage=montage, windows_per_subject=60, difficulty=d) for d in (0, 1))
    change = signals(easy) - signals(none)  # the event alone: everything else has the same draws
    truth, labels = easy.truth("test"), easy.split("test").labels
    assert np.array_equal(truth, none.truth("test"))
    fine = np.abs(signals(none)).max(2) < RAIL / 2  # neither saturated nor a difference with such a channel
    rms = np.sqrt((change.reshape(*truth.shape, -1) ** 2).mean(3)) * fine[:, :, None]
    largest = rms.max((1, 2), keepdims=True)
    expected = (rms > CARRIES * largest) & (largest > 1)
    assert (expected == truth).mean() > 0.9999
    background = easy.classes.index("BCKG")
    assert not truth[labels == background].any()
    assert truth[labels != background].any((1, 2)).mean() > 0.97


def test_truth_of_sleep_holds_most_of_the_events_power() -> None:
    easy, none = corpus("sleep", windows_per_subject=30, difficulty=0), corpus("sleep", windows_per_subject=30)
    truth = easy.truth("test")
    x = signals(easy)
    power = (x - x.mean(2, keepdims=True)).reshape(*truth.shape, -1).var(3)
    fine = ~faulty(x)
    ratio = [power[i][truth[i] & fine[i, :, None]].mean() / power[i][~truth[i] & fine[i, :, None]].mean()
             for i in range(len(x))]  # fmt: skip
    assert np.median(ratio) > 2
    assert np.array_equal(truth, none.truth("test"))
    assert truth.any((1, 2)).mean() > 0.97


def test_events_lie_where_their_name_says() -> None:
    made = corpus(windows_per_subject=120)
    truth, labels = made.truth("test").any(2), made.split("test").labels  # (n, C)
    at = {name: truth[labels == row].mean(0) for row, name in enumerate(made.classes)}
    eyes, posterior = ([ELECTRODES.index(n) for n in names] for names in (("FP1", "FP2", "F7", "F8"), ("O1", "O2")))
    assert truth[labels == made.classes.index("EYEM")][:, eyes].any(1).all()
    assert at["EYEM"][posterior].max() == 0
    assert at["GPED"].mean() > 2.5 * at["PLED"].mean()
    left = np.array([name[-1] in "13579" for name in ELECTRODES])
    right = np.array([name[-1] in "2468" for name in ELECTRODES])
    periodic = truth[labels == made.classes.index("PLED")]
    assert np.abs(periodic[:, left].mean(1) - periodic[:, right].mean(1)).mean() > 0.2  # one side


def test_stages_have_their_rhythms() -> None:
    made = corpus("sleep", n_subjects=10, windows_per_subject=30)
    windows = made.split("train")
    freqs, power = welch(windows.take(slice(None)), made.sfreq, nperseg=400)

    def in_band(channel: str, low: float, high: float) -> dict[str, float]:
        band = np.log(power[:, windows.ch_names.index(channel), (freqs >= low) & (freqs <= high)].mean(1) + 1e-3)
        return {stage: float(np.median(band[windows.labels == row])) for row, stage in enumerate(made.classes)}

    alpha, spindles, slow = in_band("O1-A2", 8, 12), in_band("C3-A2", 12, 14), in_band("F3-A2", 0.5, 2)
    assert max(alpha, key=alpha.__getitem__) == "W"
    assert max(spindles, key=spindles.__getitem__) == "N2"
    assert max(slow, key=slow.__getitem__) == "N3"


@pytest.mark.slow
@pytest.mark.parametrize(("task", "low", "high"), [("events", 0.45, 0.75), ("sleep", 0.65, 0.9)])
def test_a_classical_model_is_between_chance_and_perfect(task: str, low: float, high: float) -> None:
    linear_model = pytest.importorskip("sklearn.linear_model")
    from sklearn.metrics import balanced_accuracy_score
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    def accuracy(difficulty: float) -> float:
        made = Synthetic(task, windows_per_subject=30, difficulty=difficulty)
        features = {}
        for name in ("train", "test"):
            windows = made.split(name)
            freqs, power = welch(windows.take(slice(None)), made.sfreq, nperseg=200)
            edges = itertools.pairwise((1, 4, 8, 12, 16, 30, 45))
            bands = np.stack([power[..., (freqs >= a) & (freqs < b)].mean(-1) for a, b in edges], -1)
            features[name] = np.log(bands + 1e-3).reshape(len(windows), -1), windows.labels
        model = make_pipeline(StandardScaler(), linear_model.LogisticRegression(C=0.05, max_iter=500))
        x, y = features["test"]
        return float(balanced_accuracy_score(y, model.fit(*features["train"]).predict(x)))

    assert low < accuracy(Synthetic(task).info["difficulty"]) < high
    assert accuracy(1.0) < 1 / len(Synthetic(task).classes) + 0.1


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"task": "dreams"}, "task"), ({"seconds": 1}, "seconds"), ({"seconds": 2.5}, "seconds"),
        ({"seconds": float("nan")}, "seconds"), ({"n_subjects": 2}, "n_subjects"),
        ({"windows_per_subject": 0}, "windows_per_subject"), ({"seed": -1}, "seed"),
        ({"difficulty": 1.5}, "difficulty"), ({"difficulty": float("nan")}, "difficulty"),
        ({"montage": "laplacian"}, "montage"), ({"task": "sleep", "montage": "bipolar"}, "montage"),
    ],
)  # fmt: skip
def test_a_bad_option_is_refused_by_name(options: dict[str, Any], name: str) -> None:
    with pytest.raises(OptionError, match=rf"^{name}: got"):
        Synthetic(**options)


def test_an_unknown_split_is_refused() -> None:
    with pytest.raises(OptionError, match=r"^split: got 'eval'.*train, val, test"):
        corpus().split("eval")
    with pytest.raises(OptionError, match=r"^split: got"):
        corpus().truth("eval")


def test_numpy_is_enough() -> None:
    code = (
        "import sys; from zipbrain.data import Synthetic; Synthetic(n_subjects=3, windows_per_subject=1).split('test');"
        "print([name for name in ('torch', 'scipy', 'mne', 'sklearn') if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
