"""Every corpus in its published layout -> exactly the windows, labels, splits and values that are expected."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mne
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.signal import resample

from conftest import SHARED
from data import tiny_corpora
from zipbrain.data import Report, convention, corpus, open_prepared, prepare
from zipbrain.data.corpora import CORPORA, Corpus, Found, Source
from zipbrain.data.corpora.base import BIPOLAR, REFERENTIAL
from zipbrain.data.labelling import Plan
from zipbrain.errors import DataError, OptionError

Ready = Callable[..., tuple[Path, Path, Report]]


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> Ready:
    """Make a tiny corpus and prepare it, once per corpus and model."""
    done: dict[Any, tuple[Path, Path, Report]] = {}
    roots: dict[str, Path] = {}

    def get(name: str, model: str = "labram", **options: Any) -> tuple[Path, Path, Report]:
        key = (name, model, tuple(options.items()))
        if key not in done:
            maker = name.split("-")[0]
            if maker not in roots:
                roots[maker] = getattr(tiny_corpora, maker)(tmp_path_factory.mktemp(maker))
            out = tmp_path_factory.mktemp("out") / "windows"
            done[key] = roots[maker], out, prepare(corpus(name, **options), roots[maker], out, model=model)
        return done[key]

    return get


def mne_signal(
    path: Path, names: list[str], band: tuple[float, float] | None, notch: float | None, rate: float | None
) -> NDArray[np.float64]:
    """What MNE makes of a file, step by step, in microvolts (C, n)."""
    raw = mne.io.read_raw_edf(path, preload=True, verbose="error")
    x = raw.get_data(picks=names) * 1e6
    raw = mne.io.RawArray(x, mne.create_info(names, raw.info["sfreq"], "eeg"), verbose="error")
    if band:
        raw.filter(*band, verbose="error")
    if notch:
        raw.notch_filter(notch, verbose="error")
    if rate:
        raw.resample(rate, method="polyphase", verbose="error")
    return raw.get_data()


def difference(x: NDArray[np.float64], names: list[str], pair: str) -> NDArray[np.float64]:
    first, second = pair.split("-")
    return x[names.index(first)] - x[names.index(second)]


def close(found: NDArray[Any], literal: NDArray[Any]) -> None:
    assert found.shape == literal.shape
    assert np.abs(literal).std() > 1  # microvolts: there is something to compare
    np.testing.assert_allclose(found, literal, rtol=1e-4, atol=2e-3)


# --- TUAB -------------------------------------------------------------------------------------------------------------


def test_tuab_counts_splits_and_refusals(ready: Ready) -> None:
    root, out, report = ready("tuab")
    assert report.windows["test"] == {"normal": 2, "abnormal": 2}
    assert {split: sum(counts.values()) for split, counts in report.windows.items()} == {
        "train": 16,
        "val": 8,
        "test": 4,
    }
    assert [Path(file).name[:8] for file in report.refused] == ["aaaaaax1", "aaaaaax2", "aaaaaax3"]
    reasons = list(report.refused.values())
    assert "has no T1, T2 as EEG *-REF" in reasons[0]
    assert "EEG T2-LE" in reasons[1]
    assert "shorter than a window" in reasons[2]
    prepared = open_prepared(out)
    people = {split: set(prepared.split(split).subjects.tolist()) for split in prepared.splits}
    assert not people["train"] & people["val"]  # also the subject with recordings of both classes
    assert len(people["val"]) == 4  # two of six normal and of six abnormal ones; `both` is in one split only
    assert people["test"] == {"aaaaaae0", "aaaaaae1"}
    assert prepared.ch_names == REFERENTIAL
    assert [source.key for source in corpus("tuab").find(root).sources] == sorted(
        path.relative_to(root).as_posix() for path in root.rglob("*.edf")
    )


@pytest.mark.parametrize("model", ["labram", "biot", "tfm"])
def test_tuab_values_are_those_of_mne(ready: Ready, model: str) -> None:
    root, out, _ = ready("tuab", model)
    path = root / "edf/eval/abnormal/01_tcp_ar/aaaaaae1_s001_t000.edf"
    names = [f"EEG {name}-REF" for name in REFERENTIAL]
    filtered = ((0.1, 75.0), 50.0) if model != "biot" else (None, None)
    x = mne_signal(path, names, *filtered, 256 if model == "tfm" else 200)
    if model != "labram":
        x = np.stack([difference(x, list(REFERENTIAL), pair) for pair in BIPOLAR])
    windows = open_prepared(out).split("test")
    mine = np.flatnonzero(windows.subjects == "aaaaaae1")
    assert windows.labels[mine].tolist() == [1, 1]
    second = x[:, 2560:5120] if model == "tfm" else x[:, 2000:4000]
    close(windows.take(mine)[1], resample(second, 2000, axis=1) if model == "tfm" else second)


# --- TUEV -------------------------------------------------------------------------------------------------------------


def test_tuev_has_one_window_per_good_row_and_counts_the_others(ready: Ready) -> None:
    _, out, report = ready("tuev")
    assert report.windows["test"] == {"SPSW": 2, "GPED": 1, "PLED": 0, "EYEM": 1, "ARTF": 0, "BCKG": 1}
    assert {split: sum(counts.values()) for split, counts in report.windows.items()} == {
        "train": 20,
        "val": 5,
        "test": 5,
    }
    assert open_prepared(out).split("test").labels.tolist() == [5, 0, 1, 0, 3]  # the order of the rows
    counted = {what: sum(files.values()) for what, files in report.problems.items()}
    assert counted == {
        "label rows left out: not <channel>,<start>,<stop>,<class 1 to 6>": 12,
        "label rows left out: past the end of the recording": 6,
        "label rows left out: not one second long": 6,
        "label rows kept: same second and class as another (other channel)": 6,
        "label rows kept: same second as another, other class": 6,
    }
    assert list(report.refused) == ["edf/eval/001/spsw_001_a_.edf"]
    assert "spsw_001_a_.rec" in report.refused["edf/eval/001/spsw_001_a_.edf"]


@pytest.mark.parametrize(("model", "rate"), [("labram", 200), ("biot", 250), ("tfm", 256)])
def test_tuev_windows_wrap_around_the_ends(ready: Ready, model: str, rate: int) -> None:
    root, out, _ = ready("tuev", model)
    names = [f"EEG {name}-REF" for name in REFERENTIAL]
    filtered = ((0.1, 75.0), 50.0) if model != "biot" else (None, None)
    x = mne_signal(root / "edf/eval/000/bckg_000_a_.edf", names, *filtered, rate)
    if model != "labram":
        x = np.stack([difference(x, list(REFERENTIAL), pair) for pair in BIPOLAR])
    tiled, times = np.concatenate((x, x, x), axis=1), np.arange(x.shape[1]) / rate
    windows = open_prepared(out).split("test").take(slice(None))
    for window, start in zip(windows, (0.0, 10.5, 10.5, 10.5, 19.0), strict=True):
        first = x.shape[1] + int(np.flatnonzero(times >= start)[0])
        literal = tiled[:, first - 2 * rate : first + 3 * rate]
        close(window, literal if rate == 200 else resample(literal, 1000, axis=1))


# --- ISRUC ------------------------------------------------------------------------------------------------------------


def test_isruc_counts_channels_and_refusals(ready: Ready) -> None:
    _, out, report = ready("isruc")
    prepared = open_prepared(out)
    assert report.windows["train"] == {"W": 2, "N1": 0, "N2": 2, "N3": 0, "REM": 2}  # subjects 1 and 40
    assert prepared.split("test").labels.tolist() == [0, 2, 4]
    assert prepared.split("val").labels.tolist() == [1]
    assert set(prepared.split("train").subjects.tolist()) == {"001", "040"}
    assert set(report.refused) == {"8/8.rec", "101/101.rec"}
    assert "has no F3-A2, F4-A1" in report.refused["8/8.rec"]
    assert report.problems == {
        "labels left out: past the end of the recording": {"1/1.rec": 1, "40/40.rec": 1, "95/95/95.rec": 1},
        "epochs left out: recorded after the last label": {"85/85.rec": 1},
        "epochs left out: label is none of 0, 1, 2, 3, 5": {"85/85.rec": 1},
    }
    assert prepared.ch_names == ("F3", "C3", "O1", "F4", "C4", "O2")


def test_isruc_subtracts_where_electrodes_were_recorded_alone(ready: Ready, tmp_path: Path) -> None:
    root, out, _ = ready("isruc")
    link = tmp_path / "40.edf"
    link.write_bytes((root / "40" / "40.rec").read_bytes())
    names = ["F3", "C3", "O1", "F4", "C4", "O2", "A1", "A2"]
    x = mne_signal(link, names, (0.1, 75.0), 50.0, None)
    pairs = ("F3-A2", "C3-A2", "O1-A2", "F4-A1", "C4-A1", "O2-A1")
    literal = np.stack([difference(x, names, pair) for pair in pairs])
    windows = open_prepared(out).split("train")
    mine = windows.take(windows.subjects == "040")
    close(mine[1], literal[:, 6000:12000])


def test_isruc_options(ready: Ready) -> None:
    _, out, report = ready("isruc", "biot", missing="zeros", multiple=2, expert=1)
    windows = open_prepared(out).split("train")
    eight = windows.take(windows.subjects == "008")
    assert eight.shape == (2, 6, 6000)
    assert not eight[:, [0, 3]].any()
    assert eight[:, [1, 2, 4, 5]].any(axis=(0, 2)).all()
    assert report.problems["epochs left out: beyond a multiple of 2"]["1/1.rec"] == 1
    _, out, _ = ready("isruc", "biot", expert=2)
    assert set(open_prepared(out).split("train").labels.tolist()) == {3}


# --- EarEEG -----------------------------------------------------------------------------------------------------------


def test_eareeg_leaves_out_nan_and_short_epochs(ready: Ready) -> None:
    _, out, report = ready("eareeg")
    prepared = open_prepared(out)
    for split, subject in (("train", "001"), ("val", "007"), ("test", "010")):
        windows = prepared.split(split)
        assert windows.labels.tolist() == [0, 2, 4]  # 1 has a NaN, 3 one in the row that is not used, 5 is too short
        assert set(windows.subjects.tolist()) == {subject}
    counted = {what: sum(files.values()) for what, files in report.problems.items()}
    assert counted == {
        "windows left out: NaN or infinite values": 6,
        "windows left out: past the end of the recording": 3,
        "label rows left out: no onset or no class 1 to 6": 6,
        "nights left out: not scored": 3,
    }
    assert prepared.ch_names == ("A2", "T8", "A1", "T7")


def test_eareeg_filters_each_epoch_on_its_own(ready: Ready) -> None:
    _, out, _ = ready("eareeg", "tfm")
    x = tiny_corpora.noise(5, 170 * 250, seed=10)[:4, 60 * 250 : 90 * 250]  # onset 60.4 s, the fraction is dropped
    low, high = 0.1, 100.0
    segment = mne.filter.filter_data(x.astype(np.float32).astype(np.float64), 250, low, high, verbose="error")
    segment = mne.filter.notch_filter(segment, 250, 50.0, verbose="error")
    close(open_prepared(out).split("test").take([1])[0], resample(segment, 6000, axis=1))


def test_eareeg_tables_with_overlaps_or_without_columns(tmp_path: Path) -> None:
    table = tmp_path / "x.tsv"
    source = Source("k", tmp_path / "x.set", "001", "train", labels=table)
    night: Any = SimpleNamespace(n_times=250 * 300, sfreq=250.0)
    table.write_text("onset\tscoring_idx\n0\t1\n30\t2\n45.2\t3\n80\t4\n")
    plan = corpus("eareeg").plan(source, night, convention("tfm", "eareeg"))
    assert (plan.starts, plan.labels) == ([0, 30, 45, 80], [0, 1, 2, 3])
    assert plan.problems == {"label rows kept: overlap another": 1}
    table.write_text("onset\tstage\n0\t1\n")
    with pytest.raises(DataError, match=r"x\.tsv has no column scoring_idx"):
        corpus("eareeg").plan(source, night, convention("tfm", "eareeg"))


# --- EEGMAT -----------------------------------------------------------------------------------------------------------


def test_eegmat_splits_and_refusals(ready: Ready) -> None:
    _, _, report = ready("eegmat")
    assert report.windows == {
        "train": {"rest": 29, "arithmetic": 29},
        "val": {"rest": 0, "arithmetic": 29},
        "test": {"rest": 29, "arithmetic": 29},
    }
    assert report.refused["Subject26_1.edf"] == "is 50 s long, but 62 s are needed"
    assert "not a file of EEGMAT" in report.refused["Subject99_1.edf"]
    assert report.warnings == ["val has no windows of rest"]


def test_eegmat_can_use_the_last_minute_of_rest(ready: Ready) -> None:
    root, out, _ = ready("eegmat", "labram", rest="last")
    windows = open_prepared(out).split("test")
    x = mne_signal(root / "Subject31_1.edf", tiny_corpora.EEGMAT_NAMES[:16], None, None, 200)
    close(windows.take([0])[0], x[:, 10 * 200 : 14 * 200])  # 70 s: 8 s later than from the start
    task = mne_signal(root / "Subject31_2.edf", tiny_corpora.EEGMAT_NAMES[:16], None, None, 200)
    close(windows.take([29])[0], task[:, 2 * 200 : 6 * 200])


@pytest.fixture(scope="module")
def eegmat() -> Path:
    folder = SHARED / "data" / "eegmat"
    if not folder.is_dir():
        pytest.skip(f"recordings not found at {folder}: set ZIPBRAIN_SHARED to the folder that holds data/")
    return folder


@pytest.mark.parametrize(
    ("model", "tokens", "options"),
    [
        ("labram", 64, {"by": "ch_names"}),
        ("eegpt", 16, {"by": "ch_names"}),
        ("biot", 112, {"by": "n_chans"}),
        ("tfm", 112, {"by": "n_chans"}),
    ],
)
def test_real_eegmat_has_the_published_test_set(
    eegmat: Path, tmp_path: Path, model: str, tokens: int, options: dict[str, str]
) -> None:
    from zipbrain.models import create

    report = prepare("eegmat", eegmat, tmp_path, model=model)
    assert report.windows == {"test": {"rest": 145, "arithmetic": 145}}
    assert [(check.which, check.expected == check.found) for check in report.checks] == [
        ("all", True),
        ("rest", True),
        ("arithmetic", True),
    ]
    windows = open_prepared(tmp_path).split("test")
    assert (len(windows), windows.n_chans, windows.n_times / windows.sfreq) == (290, 16, 4.0)
    channels = {"ch_names": windows.ch_names} if options["by"] == "ch_names" else {"n_chans": windows.n_chans}
    net: Any = create(model, n_outputs=1, n_times=windows.n_times, **channels)
    assert net.n_tokens == tokens
    if model == "eegpt":
        assert windows.n_times // 64 == 16  # time patches
    names = tiny_corpora.EEGMAT_NAMES[:16]
    x = mne_signal(eegmat / "Subject33_2.edf", names, None, None, 200)
    if model in ("biot", "tfm"):
        bare = [name.removeprefix("EEG ").upper() for name in names]
        x = np.stack([difference(x, bare, pair) for pair in BIPOLAR])
    mine = windows.select((windows.subjects == "33") & (windows.labels == 1))
    literal = x[:, (2 + 2 * 5) * 200 : (2 + 2 * 5 + 4) * 200]
    if model == "eegpt":
        literal = literal[:, np.arange(1024) * 800 // 1024]
    np.testing.assert_allclose(mine[5][0], literal, rtol=1e-4, atol=2e-3)


# --- EEGMMIDB ---------------------------------------------------------------------------------------------------------


def test_eegmmidb_eyes(ready: Ready) -> None:
    root, out, report = ready("eegmmidb-eyes", "biot")
    assert all(counts == {"open": 29, "closed": 29} for counts in report.windows.values())
    assert list(report.windows) == ["train", "val", "test"]
    assert set(report.refused) == {"S100/S100R01.edf", "S100/S100R02.edf"}
    assert "128 Hz" in report.refused["S100/S100R01.edf"]
    windows = open_prepared(out).split("test")
    x = mne_signal(root / "S086" / "S086R02.edf", tiny_corpora.EEGMMIDB_NAMES, (0.1, 75.0), 60.0, 200)
    bare = [name.strip(".").upper() for name in tiny_corpora.EEGMMIDB_NAMES]
    twins = {"T3": "T7", "T4": "T8", "T5": "P7", "T6": "P8"}
    pairs = ["-".join(twins.get(part, part) for part in pair.split("-")) for pair in BIPOLAR]
    literal = np.stack([difference(x, bare, pair) for pair in pairs])
    close(windows.take([29 + 28])[0], literal[:, 56 * 200 : 60 * 200])


def test_eegmmidb_imagery(ready: Ready) -> None:
    root, out, report = ready("eegmmidb-imagery")
    assert all(set(counts.values()) == {1} for counts in report.windows.values())
    assert set(report.refused) == {"S001/S001R08.edf", "S001/S001R12.edf", "S100/S100R04.edf", "S100/S100R06.edf"}
    assert "trial of 5.1 s" in report.refused["S001/S001R08.edf"]
    assert "overlap" in report.refused["S001/S001R12.edf"]
    assert sum(report.problems["trials left out: past the end of the recording"].values()) == 6
    prepared = open_prepared(out)
    assert prepared.classes == ("left fist", "right fist", "both fists", "both feet")
    windows = prepared.split("val")
    assert windows.labels.tolist() == [0, 1, 2, 3]
    names = {name.strip(".").upper(): name for name in tiny_corpora.EEGMMIDB_NAMES}
    chosen = [names[name] for name in prepared.ch_names]
    x = mne_signal(root / "S075" / "S075R06.edf", chosen, (0.1, 75.0), 60.0, 200)
    close(windows.take([3])[0], x[:, 2500:3300])


# --- your own ---------------------------------------------------------------------------------------------------------


def test_folder_with_a_table(ready: Ready) -> None:
    root, out, report = ready("folder")
    prepared = open_prepared(out)
    assert prepared.ch_names == ("C3", "C4", "FP1")
    assert sum(sum(counts.values()) for counts in report.windows.values()) == 12
    assert report.refused == {"gone.edf": "is in the table, but there is no such file"}
    assert {what: sum(files.values()) for what, files in report.problems.items()} == {
        "label rows kept: overlap a row with another label": 1,
        "label rows left out: no file or no label": 1,
        "label rows left out: onset or duration is no finite number": 1,
        "label rows left out: past the end of the recording": 1,
        "label rows left out: repeat another": 1,
        "label rows left out: shorter than a window": 2,
        "recordings left out: not in the table": 1,
    }
    first = next(prepared.split(s) for s in prepared.splits if "s1" in prepared.split(s).subjects)
    assert first.labels.tolist() == [0, 0, 1, 1]  # 0 and 4 s left; 6 and 10 s right
    x = mne_signal(root / "a.edf", ["EEG C3-REF", "EEG C4-REF", "Fp1"], (0.1, None), 50.0, 200)
    close(first.take([3])[0], x[:, 2000:2800])


def test_folder_splits_of_the_table_are_kept_and_shared_subjects_reported(tmp_path: Path) -> None:
    tiny_corpora.folder(tmp_path)
    rows = [
        "file;label;subject;onset;duration;split",
        "a.edf;1;x;0;8;train",
        "a.edf;10;x;8;8;test",
        "b.bdf.edf;2;y;;;valid",
    ]
    (tmp_path / "mine.csv").write_text("\ufeff" + "\n".join(rows), encoding="utf-8")
    report = prepare(corpus("folder", labels="mine.csv"), tmp_path, tmp_path / "out")
    assert report.classes == ["1", "2", "10"]
    assert report.windows == {
        "train": {"1": 2, "2": 0, "10": 0},
        "val": {"1": 0, "2": 7, "10": 0},
        "test": {"1": 0, "2": 0, "10": 2},
    }
    assert any("subjects in both train and test: x" in warning for warning in report.warnings)


def test_folder_tables_with_every_fault(tmp_path: Path) -> None:
    tiny_corpora.folder(tmp_path)
    table = tmp_path / "labels.csv"
    for text, words in (
        ("name,label\na.edf,1\n", "has no column file"),
        ("", "its columns are none"),
        ("file,label\n,1\n", "no row can be used: 1 x no file or no label"),
    ):
        table.write_text(text)
        with pytest.raises(DataError, match=words):
            prepare("folder", tmp_path, tmp_path / "out")
    rows = [
        "a.edf,1,x,-1,4,train",
        "a.edf,1,x,0,4,holdout",
        "a.edf,1,y,0,4,train",
        "a.edf,1,x,0,4,",
        "a.edf,1,x,27,8,train",
    ]
    table.write_text("\n".join(["file,label,subject,onset,duration,split", "a.edf,1,x,20,18,train", *rows]))
    report = prepare("folder", tmp_path, tmp_path / "out")
    assert report.windows == {"train": {"1": 2}}  # 20 and 24 s
    assert {what: sum(files.values()) for what, files in report.problems.items()} == {
        "label rows left out: onset below 0 or duration not above 0": 1,
        "label rows left out: split is none of train, val, test": 1,
        "label rows left out: another subject than the file's first row": 1,
        "label rows left out: no split, though others have one": 1,
        "label rows left out: shorter than a window": 1,
        "label rows cut short: past the end of the recording": 1,
        "label rows kept: overlap a row with the same label": 1,
        "recordings left out: not in the table": 3,
    }


def test_folder_without_scalp_channels_asks_for_names(tmp_path: Path) -> None:
    tiny_corpora.write_edf(tmp_path / "a.edf", ["left ear", "right ear"], 128, 10)
    (tmp_path / "b.edf").write_bytes(b"broken")
    (tmp_path / "labels.csv").write_text("file,label\na.edf,1\nb.edf,1\n")
    with pytest.raises(DataError, match="--channels"):
        prepare("folder", tmp_path, tmp_path / "out")


def test_folder_files_of_the_same_name_are_different_people(tmp_path: Path) -> None:
    for person in range(5):
        tiny_corpora.write_edf(tmp_path / f"p{person}" / "rest.edf", ["C3", "C4"], 128, 9, seed=person)
    rows = [f"p{person}/rest.edf,{'ab'[person % 2]}" for person in range(5)]
    (tmp_path / "labels.csv").write_text("\n".join(["file,label", *rows]))
    report = prepare("folder", tmp_path, tmp_path / "out")
    assert report.subjects == {"train": 3, "val": 1, "test": 1}
    prepared = open_prepared(tmp_path / "out")
    people = {who for split in prepared.splits for who in prepared.split(split).subjects.tolist()}
    assert people == {f"p{person}/rest.edf" for person in range(5)}


def test_folder_with_one_person_is_for_training_and_without_training_it_says_so(tmp_path: Path) -> None:
    tiny_corpora.write_edf(tmp_path / "a.edf", ["C3", "C4"], 128, 9)
    (tmp_path / "labels.csv").write_text("file,label,onset,duration\na.edf,x,0,4\na.edf,y,4,4\n./a.edf,y,,4\n")
    report = prepare("folder", tmp_path, tmp_path / "out")
    assert report.windows == {"train": {"x": 1, "y": 1}}
    assert report.problems == {"label rows left out: a duration without an onset": {"a.edf": 1}}
    (tmp_path / "labels.csv").write_text("file,label,split\na.edf,x,test\n")
    report = prepare("folder", tmp_path, tmp_path / "test")
    assert "nothing to train on: all windows are in test" in report.warnings


def test_folder_of_broken_files_says_why_they_are_refused(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / f"{name}.edf").write_bytes(b"broken" * 100)
    (tmp_path / "labels.csv").write_text("file,label\na.edf,1\nb.edf,1\n")
    with pytest.raises(DataError, match=r"no recording can be used: 2 x is no EDF or BDF file .*\(a\.edf\)"):
        prepare("folder", tmp_path, tmp_path / "out")


def test_second_copies_and_foreign_subjects_are_refused(tmp_path: Path) -> None:
    names = tiny_corpora.EEGMMIDB_NAMES
    for path, seconds in (("S001/S001R01", 61), ("copy/S001R01", 61), ("S110/S110R01", 61), ("S002/S002R01", 59)):
        tiny_corpora.write_edf(tmp_path / f"{path}.edf", names, 160, seconds)
    tiny_corpora.write_edf(tmp_path / "S003" / "S003R04.edf", names, 160, 10)
    report = prepare("eegmmidb-eyes", tmp_path, tmp_path / "eyes")
    assert report.refused == {
        "copy/S001R01.edf": "a second copy of S001/S001R01.edf",
        "S110/S110R01.edf": "EEGMMIDB has subjects 1 to 109",
        "S002/S002R01.edf": "is 59 s long, but 60 s are needed",
    }
    with pytest.raises(DataError, match="has no annotations T1 or T2"):
        prepare("eegmmidb-imagery", tmp_path, tmp_path / "imagery")


def test_bids_events_and_participants(ready: Ready, tmp_path: Path) -> None:
    root, out, report = ready("bids")
    assert sum(counts["target"] for counts in report.windows.values()) == 4
    assert sum(counts["standard"] for counts in report.windows.values()) == 8  # two windows in 9 s
    assert report.refused == {"sub-05/eeg/sub-05_task-oddball_eeg.edf": "has no events.tsv"}
    assert open_prepared(out).ch_names == ("C3", "C4")
    by_group = prepare(corpus("bids", participants="group"), root, tmp_path / "group", model="eegpt")
    assert by_group.files == 5
    assert sum(counts["case"] for counts in by_group.windows.values()) == 3 * 7
    with pytest.raises(DataError, match="no recordings of a BIDS dataset"):
        prepare(corpus("bids", task="rest"), root, tmp_path / "rest")
    only = prepare(corpus("bids", classes="target"), root, tmp_path / "target")
    assert only.classes == ["target"]


def test_bids_leaves_out_what_is_not_raw_data(tmp_path: Path) -> None:
    root = tiny_corpora.bids(tmp_path / "raw")
    for place in ("derivatives/clean", "sourcedata"):
        stem = root / place / "sub-01" / "eeg" / "sub-01_task-oddball_"
        tiny_corpora.write_edf(Path(f"{stem}eeg.edf"), ["C3", "C4", "EOG"], 100, 30)
        Path(f"{stem}events.tsv").write_text("onset\tduration\ttrial_type\n1.0\t0\ttarget\n")
    report = prepare("bids", root, tmp_path / "out")
    assert report.files == 4
    assert report.problems["recordings left out: in derivatives or sourcedata"] == {"bids": 2}
    assert prepare("bids", root / "derivatives" / "clean", tmp_path / "clean").files == 1  # if they are meant


def test_bids_of_brainvision_files_is_read_and_watched(tmp_path: Path) -> None:
    root = tmp_path / "raw"
    (root / "sub-01" / "eeg").mkdir(parents=True)
    (root / "dataset_description.json").write_text('{"Name": "tiny", "BIDSVersion": "1.8.0"}')
    stem = root / "sub-01" / "eeg" / "sub-01_task-x_"
    x = tiny_corpora.noise(2, 2000, 0)
    path = tiny_corpora.write_brainvision(Path(f"{stem}eeg.vhdr"), x, 200, ["C3", "C4"])
    Path(f"{stem}events.tsv").write_text("onset\tduration\ttrial_type\n1.0\t0\ttarget\n4.0\t4\tother\n")
    bare = replace(convention("labram", "bids"), band=None, notch=None)
    report = prepare("bids", root, tmp_path / "out", convention=bare)
    assert report.windows == {"train": {"other": 1, "target": 1}}
    first = open_prepared(tmp_path / "out").split("train").take([0])[0]
    np.testing.assert_allclose(first, x[:, 200:1000], rtol=1e-5, atol=1e-4)
    path.with_suffix(".eeg").write_bytes((2 * x).T.astype("<f4").tobytes())
    assert prepare("bids", root, tmp_path / "out", convention=bare).prepared == 1
    np.testing.assert_allclose(open_prepared(tmp_path / "out").split("train").take([0])[0], 2 * first, rtol=1e-5)


# --- all of them ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", list(CORPORA))
def test_an_empty_folder_is_refused_with_the_layout(name: str, tmp_path: Path) -> None:
    (tmp_path / "raw").mkdir()
    with pytest.raises(DataError, match="labels" if name == "folder" else "no recordings of|no scored nights"):
        prepare(name, tmp_path / "raw", tmp_path / "out")
    with pytest.raises(DataError, match="no such folder"):
        prepare(name, tmp_path / "nowhere", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_every_convention_names_its_channels_and_fits_whole_samples() -> None:
    for name in CORPORA:
        for model in ("labram", "eegpt", "biot", "tfm"):
            found = convention(model, name)
            assert len(found.montage) == len(found.ch_names)
            assert found.n_times == found.window_s * found.sfreq
            assert type(found).from_dict(found.as_dict()) == found
    assert convention("TFM-Tokenizer", "TUAB").cut_sfreq == 256


def test_bad_options_say_what_is_allowed() -> None:
    for name, options, words in (
        ("nothing", {}, "known corpora"),
        ("isruc", {"expert": 3}, "experts 1 and 2"),
        ("isruc", {"multiple": "x"}, "whole number"),
        ("isruc", {"other": 1}, "expert, missing, multiple"),
        ("eareeg", {"seed": 1}, "no options"),
        ("eegmat", {"rest": "middle"}, "'first' or 'last'"),
    ):
        with pytest.raises(OptionError, match=words):
            corpus(name, **options)
    with pytest.raises(OptionError, match="known corpora"):
        convention("labram", "nothing")


def test_a_broken_file_is_refused_and_the_others_are_prepared(tmp_path: Path) -> None:
    root = tiny_corpora.eegmat(tmp_path / "raw")
    (root / "Subject00_1.edf").write_bytes(b"this is no EDF" * 100)
    (root / "Subject31_1.edf").write_bytes(b"")
    report = prepare("eegmat", root, tmp_path / "out")
    assert report.files == 3
    assert {"Subject00_1.edf", "Subject31_1.edf"} <= set(report.refused)


@dataclass(frozen=True)
class Mine(Corpus):
    """Every file is a window of class 0 or 1."""

    name = "mine"
    title = "my own"
    layout = "*.edf"

    def find(self, root: Path) -> Found:
        paths = sorted(root.glob("*.edf"))
        return Found([Source(p.name, p, p.stem, "train", given=i % 2) for i, p in enumerate(paths)], ("a", "b"))

    def plan(self, source: Source, recording: Any, convention: Any) -> Plan:
        return Plan([0.0], [source.given])


def test_a_corpus_of_ones_own_is_prepared_with_a_convention_that_names_it(tmp_path: Path) -> None:
    for name in "ab":
        tiny_corpora.write_edf(tmp_path / f"{name}.edf", ["C3", "C4"], 128, 5)
    usual = replace(convention("labram", "folder"), montage=("C3", "C4"), ch_names=("C3", "C4"))
    report = prepare(Mine(), tmp_path, tmp_path / "out", convention=replace(usual, corpus="mine"))
    assert report.windows == {"train": {"a": 1, "b": 1}}
    assert open_prepared(tmp_path / "out").name == "mine"
    with pytest.raises(OptionError, match="convention: got 'folder', but the corpus is mine"):
        prepare(Mine(), tmp_path, tmp_path / "no", convention=usual)
    with pytest.raises(OptionError, match="convention: got 'folder', but the corpus is eegmat"):
        prepare("eegmat", tmp_path, tmp_path / "no", convention=usual)
    with pytest.raises(OptionError, match="model: got 'gpt'"):
        prepare(Mine(), tmp_path, tmp_path / "no", convention=replace(usual, corpus="mine", model="gpt"))
    with pytest.raises(OptionError, match="corpus: got 'mine', but it says nothing about labram: give a convention"):
        prepare(Mine(), tmp_path, tmp_path / "no")
