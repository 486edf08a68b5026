"""Sleep-EDF in PhysioNet's layout -> epochs with the stages of the hypnogram, MNE's values, and what is refused why."""

from __future__ import annotations

import shutil
from pathlib import Path

import mne
import numpy as np
import pytest
from scipy.signal import resample_poly

from data import tiny_corpora
from file_server import Server
from zipbrain.data import Report, convention, corpus, download, open_prepared, prepare
from zipbrain.data.corpora import find_published
from zipbrain.errors import DataError, OptionError
from zipbrain.signal.edf import read_annotations


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_corpora.sleepedf(tmp_path_factory.mktemp("raw"))


@pytest.fixture(scope="module")
def prepared(root: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Report]:
    out = tmp_path_factory.mktemp("out") / "windows"
    return out, prepare("sleepedf", root, out)


NIGHT = {"W": 60 + 60, "N1": 2, "N2": 3, "N3": 2, "REM": 2}


def test_stages_splits_and_refusals(prepared: tuple[Path, Report]) -> None:
    out, report = prepared
    # two whole nights, and one that ends after 3300 s of wake, of which half an hour is kept
    assert report.windows["train"] == {name: 3 * count for name, count in NIGHT.items()}
    assert report.windows["val"] == report.windows["test"] == NIGHT
    subjects = {split: set(open_prepared(out).split(split).subjects.tolist()) for split in ("train", "val", "test")}
    assert subjects == {"train": {"SC00", "SC01"}, "val": {"SC03"}, "test": {"SC04"}}
    cassette = "sleep-cassette/"
    assert report.problems["epochs left out: more than 30 minutes from sleep"][f"{cassette}SC4001E0-PSG.edf"] == 180
    assert report.problems["epochs left out: movement, or not scored"][f"{cassette}SC4001E0-PSG.edf"] == 1
    assert report.problems["epochs left out: past the end of the recording"] == {f"{cassette}SC4011E0-PSG.edf": 10}
    assert report.problems["recordings left out: not of the cassette study"] == {"sleepedf": 1}
    refused = {name.removeprefix(cassette).removesuffix("-PSG.edf"): why for name, why in report.refused.items()}
    damaged = refused.pop("SC4141E0")
    assert damaged.startswith("its hypnogram SC4141EC-Hypnogram.edf its header is broken or cut off")
    assert refused == {
        "SC4101E0": "there is no SC4101E?-Hypnogram.edf beside it, which says the stages; fetch it",
        "SC4111E0": "its hypnogram has no epoch of sleep",
        "SC4121E0": "its hypnogram has stages that overlap: Sleep stage 2 at 30 s begins before 60 s",
        "SC4131E0": "starts at 1989-04-24 16:13:00, but its hypnogram SC4131EC-Hypnogram.edf at 1989-04-24 17:13:00; "
        "fetch both again",
        "SC4151E0": "several hypnograms lie beside it (SC4151EC-Hypnogram.edf, SC4151EM-Hypnogram.edf); keep one",
        "SC9": f"not a file of Sleep-EDF Expanded: {corpus('sleepedf').layout}",
    }


def test_values_and_stages_are_those_of_mne(root: Path, prepared: tuple[Path, Report]) -> None:
    """Epoch by epoch, as MNE cuts a night by its hypnogram."""
    folder = root / "sleep-cassette"
    raw = mne.io.read_raw_edf(folder / "SC4031E0-PSG.edf", preload=True, verbose="error")
    x = raw.get_data(picks=["EEG Fpz-Cz", "EEG Pz-Oz"]) * 1e6
    filtered = mne.filter.filter_data(x, 100, 0.1, None, verbose="error")
    x = resample_poly(filtered, 2, 1, axis=1, padtype="line")
    marks = mne.read_annotations(folder / "SC4031EC-Hypnogram.edf")
    names = {"1": "N1", "2": "N2", "3": "N3", "4": "N3", "R": "REM"}
    val = open_prepared(prepared[0]).split("val")
    asleep = np.flatnonzero(val.labels)
    places = [
        (start, names[mark["description"][-1]])
        for mark in marks
        if mark["description"][-1] in names
        for start in np.arange(mark["onset"], mark["onset"] + mark["duration"], 30)
    ]
    assert [val.classes[label] for label in val.labels[asleep]] == [name for _, name in places]
    for place, (start, _) in zip(asleep, places, strict=True):
        expected = x[:, round(200 * start) : round(200 * start) + 6000]
        assert np.abs(val[int(place)][0] - expected).max() < 2e-3 * expected.std()


@pytest.mark.parametrize(
    ("options", "nights", "wake"),
    [({"wake": "0"}, 5, 0), ({"study": "telemetry"}, 1, 120), ({"study": "both"}, 6, 120)],
)
def test_options_choose_nights_and_wake(root: Path, tmp_path: Path, options, nights: int, wake: int) -> None:
    report = prepare(corpus("sleepedf", **options), root, tmp_path / "out", model="biot")
    counts = [sum(split[name] for split in report.windows.values()) for name in ("W", "REM")]
    assert counts == [nights * wake, nights * 2]


@pytest.mark.parametrize("model", ["labram", "eegpt", "biot", "tfm", "cbramod"])
def test_every_model_reads_it(model: str) -> None:
    models = pytest.importorskip("zipbrain.models")
    wanted = convention(model, "sleepedf")
    assert wanted.montage == (("FPZ", "CZ"), ("PZ", "OZ"))
    assert (wanted.n_times, wanted.sfreq) == (6000, 200)
    names = {"ch_names": wanted.ch_names} if model in ("labram", "eegpt") else {"n_chans": 2}
    made = models.create(model, n_outputs=5, n_times=6000, **names)
    assert made.n_tokens == (2 if model in ("eegpt", "cbramod") else 60 if model == "labram" else 118)


def test_wrong_options_and_empty_folders_are_refused(root: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="it must be 'cassette', 'telemetry' or 'both'"):
        corpus("sleepedf", study="clinic")
    with pytest.raises(OptionError, match="it must be a number of minutes"):
        corpus("sleepedf", wake=-1)
    shutil.copytree(root / "sleep-telemetry", tmp_path / "some")
    with pytest.raises(DataError, match="no night of the cassette study"):
        corpus("sleepedf").find(tmp_path / "some")
    with pytest.raises(DataError, match=r"no recordings of Sleep-EDF Expanded; looked for sleep-cassette/SC4001E0"):
        corpus("sleepedf").find(tmp_path / "none")


def test_a_corrected_hypnogram_prepares_its_night_again(tmp_path: Path) -> None:
    path = tiny_corpora.sleepedf_night(tmp_path / "raw", "SC4001E0", [(0, 300, "2")], 300)
    tiny_corpora.sleepedf_night(tmp_path / "raw", "SC4011E0", [(0, 300, "2")], 300)
    prepare("sleepedf", tmp_path / "raw", tmp_path / "out")
    stages = [(0, 150, "Sleep stage 2"), (150, 9e8, "Sleep stage R")]
    path.with_name("SC4001EC-Hypnogram.edf").write_bytes(tiny_corpora.hypnogram(stages))
    report = prepare("sleepedf", tmp_path / "raw", tmp_path / "out")
    assert not report.refused
    assert (report.windows["train"]["N2"], report.windows["train"]["REM"], report.prepared) == (15, 5, 1)


def test_annotations_are_read_from_files_with_and_without_signals(root: Path, tmp_path: Path) -> None:
    start, marks, notes = read_annotations(root / "sleep-cassette" / "SC4001EC-Hypnogram.edf")
    assert (str(start), notes) == ("1989-04-24 16:13:00", [])
    assert marks == [(on, length, f"Sleep stage {what}") for on, length, what in tiny_corpora.SLEEPEDF_NIGHT]
    both = tiny_corpora.write_edf(tmp_path / "a.edf", ["C3"], 100, 30, annotations=[(2.0, 1.0, "blink")])
    assert read_annotations(both)[1] == [(2.0, 1.0, "blink")]
    plain = tiny_corpora.write_edf(tmp_path / "b.edf", ["C3"], 100, 30)
    plain.write_bytes(plain.read_bytes().replace(b"EDF Annotations", b"EDF Something  "))
    with pytest.raises(DataError, match="has no signal of annotations"):
        read_annotations(plain)


def test_it_is_downloaded_as_physionet_publishes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY", "ZIPBRAIN_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    raw, server = tmp_path / "published", Server()
    tiny_corpora.sleepedf_night(raw, "SC4001E0", [(0, 300, "2")], 300)
    paths = sorted(path.relative_to(raw).as_posix() for path in raw.rglob("*.edf"))
    for path in paths:
        server.put(f"/edfx/{path}", (raw / path).read_bytes())
    server.put("/edfx/SC-subjects.xls", b"\xd0\xcf\x11\xe0")
    server.put("/edfx/RECORDS", "\n".join(paths).encode())
    server.sums("/edfx")
    assert find_published("Sleep-EDFx").name == "sleepedf"
    report = download("sleepedf", tmp_path / "raw", base_url=f"{server.url}/edfx")
    server.http.shutdown()
    server.http.server_close()
    assert (report.files, report.fetched) == (4, 4)
    assert prepare("sleepedf", tmp_path / "raw", tmp_path / "out").windows["train"]["N2"] == 10
