"""CHB-MIT in PhysioNet's layout -> windows with the label of the summary, values of MNE, and what is refused why."""

from __future__ import annotations

import shutil
from pathlib import Path

import mne
import numpy as np
import pytest
from scipy.signal import resample

from data import tiny_corpora
from zipbrain.data import Report, convention, corpus, open_prepared, prepare
from zipbrain.data.corpora.base import BIPOLAR
from zipbrain.data.corpora.chbmit import BETWEEN, parse_summary
from zipbrain.errors import DataError, OptionError

NEW_NAMES = {"T3": "T7", "T4": "T8", "T5": "P7", "T6": "P8"}
PAIRS = [tuple(NEW_NAMES.get(part, part) for part in pair.split("-")) for pair in BIPOLAR]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_corpora.chbmit(tmp_path_factory.mktemp("raw"))


@pytest.fixture(scope="module")
def prepared(root: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Report]:
    out = tmp_path_factory.mktemp("out") / "windows"
    return out, prepare("chbmit", root, out, model="biot")


def test_chbmit_counts_splits_and_refusals(prepared: tuple[Path, Report]) -> None:
    out, report = prepared
    assert report.windows == {
        # chb01_03: 20-32 s gives 20 and 25 s; chb02: 3-9 s gives 3 s, 30-33 s is too short; chb12: 0 s; chb21: two
        "train": {"background": 3 + 5 + 3 + 4 + 4, "seizure": 2 + 1 + 1 + 2},
        "val": {"background": 5 + 3, "seizure": 2},
        "test": {"background": 4 + 5, "seizure": 2},
    }
    windows = open_prepared(out).split("train")
    assert set(windows.subjects.tolist()) == {"chb01", "chb02", "chb12"}  # chb21 is the child of chb01
    assert report.problems["seizures left out: shorter than half a window"] == {"chb02/chb02_16+.edf": 1}
    assert report.refused == {
        "chb03/chb03_01.edf": "its summary says a seizure from 45 to 70 s, but it lasts 50 s; fetch both again",
        "chb04/chb04_01.edf": "chb04-summary.txt has 2 seizures, but 1 start and 1 end times for it; correct it, or "
        "fetch it again",
        "chb05/chb05_01.edf": "there is no chb05-summary.txt beside it, which says when there are seizures; fetch it",
        "chb06/chb06_01.edf": "chb06-summary.txt has a seizure that starts at 20 s and ends at 10 s for it; correct "
        "it, or fetch it again",
        "chb07/chb07_01.edf": "chb07-summary.txt says nothing about it; fetch that file again, and "
        "RECORDS-WITH-SEIZURES",
        "chb08/chb08_01.edf": "chb08-summary.txt has no number of seizures for it; correct it, or fetch it again",
        "chb22/chb22_01.edf": report.refused["chb22/chb22_01.edf"],
        "chb25/chb25_01.edf": f"not a file of CHB-MIT: {corpus('chbmit').layout}",
    }
    assert "has no FP2-F8, F8-T4" in report.refused["chb22/chb22_01.edf"]
    assert any("channels change between recordings" in what for what in report.problems)
    assert any("several channels are called T8-P8" in note for note in report.notes["chb01/chb01_03.edf"])


@pytest.mark.parametrize(("name", "start"), [("chb01_03", 25), ("chb12_27", 40)])
def test_chbmit_values_are_those_of_mne_also_where_a_recording_is_not_bipolar(
    root: Path, prepared: tuple[Path, Report], name: str, start: int
) -> None:
    out, _ = prepared
    raw = mne.io.read_raw_edf(root / name[:5] / f"{name}.edf", verbose="error")
    rows = dict(zip((label.removesuffix("-0") for label in raw.ch_names), raw.get_data() * 1e6, strict=True))
    pairs = [("-".join(pair), pair) for pair in PAIRS]
    whole = [rows[one] if one in rows else rows[f"{a}-CS2"] - rows[f"{b}-CS2"] for one, (a, b) in pairs]
    literal = resample(np.stack(whole)[:, start * 256 : (start + 10) * 256], 2000, axis=1)
    windows = open_prepared(out).split("train")
    assert windows.n_times == 2000
    near = [np.abs(windows[place][0] - literal).max() for place in range(len(windows))]
    assert min(near) < 2e-3 * np.abs(literal).std()
    assert windows.labels[int(np.argmin(near))] == (name == "chb01_03")


def test_labram_gets_pairs_under_the_names_of_the_places_between(root: Path) -> None:
    for model in ("labram", "eegpt"):
        wanted = convention(model, "chbmit")
        assert (wanted.ch_names, wanted.montage) == (BETWEEN, convention("biot", "chbmit").montage)
    models = pytest.importorskip("zipbrain.models")
    assert models.create("labram", n_outputs=1, n_times=2000, ch_names=BETWEEN).n_tokens == 160


def test_recordings_with_a_seizure_only(root: Path, tmp_path: Path) -> None:
    found = corpus("chbmit", recordings="seizures").find(root)
    assert [source.path.stem for source in found.sources if source.subject == "chb01"] == ["chb01_03", "chb21_19"]
    assert found.problems["recordings left out: no seizure in them"] == 4
    with pytest.raises(OptionError, match="it must be 'all' or 'seizures'"):
        corpus("chbmit", recordings="some")
    shutil.copytree(root / "chb17", tmp_path / "chb17")
    with pytest.raises(DataError, match="no recording of CHB-MIT with a seizure"):
        corpus("chbmit", recordings="seizures").find(tmp_path)
    with pytest.raises(DataError, match="no recordings of CHB-MIT; looked for chb01/chb01_01"):
        corpus("chbmit").find(tmp_path / "chb99")


def test_two_channels_of_one_name_with_different_signals_are_refused(root: Path, tmp_path: Path) -> None:
    shutil.copytree(root / "chb17", tmp_path / "chb17")
    path = tmp_path / "chb17" / "chb17a_03.edf"
    names = [name if place != 18 else "T8_P8" for place, name in enumerate(tiny_corpora.CHBMIT_NAMES)]
    tiny_corpora.write_edf(path, names, 256, 50)
    path.write_bytes(path.read_bytes().replace(b"T8_P8", b"T8-P8"))
    with pytest.raises(DataError, match="has 3 different channels called T8-P8"):
        prepare("chbmit", tmp_path, tmp_path / "out")


def test_a_corrected_summary_prepares_its_recordings_again(root: Path, tmp_path: Path) -> None:
    shutil.copytree(root / "chb17", tmp_path / "raw" / "chb17")
    shutil.copytree(root / "chb19", tmp_path / "raw" / "chb19")
    prepare("chbmit", tmp_path / "raw", tmp_path / "out")
    summary = tmp_path / "raw" / "chb17" / "chb17-summary.txt"
    summary.write_text(tiny_corpora.chbmit_entry("chb17a_03", (0, 10)))
    report = prepare("chbmit", tmp_path / "raw", tmp_path / "out")
    assert (report.windows["val"], report.prepared) == ({"background": 3 + 4, "seizure": 2 + 2}, 1)
    summary.write_bytes(b"\xff\xfe\x00")
    assert "its summary chb17-summary.txt is no text" in corpus("chbmit").find(tmp_path / "raw").refused.popitem()[1]


def test_summaries_write_times_in_several_ways() -> None:
    text = "File Name: a.edf \r\nNumber of Seizures in File: 2\r\nSeizure 1 Start Time:   3 seconds\r\n"
    text += "Seizure 1 End Time: 9 seconds\r\nSeizure 2 Start Time: 12 sec\r\nSeizure 2 End Time: 20 secs\r\n"
    entry = parse_summary(text)["a"]
    assert (entry.count, entry.starts, entry.ends, entry.fault) == (2, [3, 12], [9, 20], "")
