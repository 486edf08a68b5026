"""Tiny synthetic corpora in the exact layouts of the published ones, faults included."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

import numpy as np
from edfio import Edf, EdfAnnotation, EdfSignal, Recording
from numpy.typing import NDArray

_REFERENTIAL = "FP1 FP2 F3 F4 C3 C4 P3 P4 O1 O2 F7 F8 T3 T4 T5 T6 A1 A2 FZ CZ PZ T1 T2"
_EEGMAT = "Fp1 Fp2 F3 F4 F7 F8 T3 T4 C3 C4 T5 T6 P3 P4 O1 O2 Fz Cz Pz"
_EEGMMIDB = "Fc5. Fcz. C3.. C4.. Cz.. Fp1. Fp2. F7.. F3.. F4.. F8.. T7.. T8.. P7.. P3.. P4.. P8.. O1.. Oz.. O2.."
REFERENTIAL = _REFERENTIAL.split()
EEGMAT_NAMES = [*(f"EEG {name}" for name in _EEGMAT.split()), "EEG A2-A1", "ECG ECG"]
EEGMMIDB_NAMES = _EEGMMIDB.split()


def noise(channels: int, samples: int, seed: int) -> NDArray[np.float64]:
    """Brownish microvolts (C, n), different in every channel."""
    rng = np.random.default_rng(seed)
    white = rng.normal(size=(channels, samples))
    slow = np.cumsum(rng.normal(size=(channels, samples)), axis=1) * 0.3
    return 10 * white + slow - slow.mean(1, keepdims=True) + 5 * np.sin(np.arange(samples) / 7)


def write_edf(
    path: Path, names: Sequence[str], sfreq: float, seconds: float, seed: int = 0,
    annotations: Sequence[tuple[float, float, str]] = (),
) -> Path:  # fmt: skip
    """Write an EDF of noise; channels of one name are equal."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = noise(len(names), round(sfreq * seconds), seed)[[names.index(name) for name in names]]
    signals = [
        EdfSignal(row, sfreq, label=name, physical_dimension="uV") for row, name in zip(rows, names, strict=True)
    ]
    marks = [EdfAnnotation(*mark) for mark in annotations] or None
    Edf(signals, annotations=marks).write(path)
    return path


def _tuh(names: Sequence[str], reference: str = "REF") -> list[str]:
    return [*(f"EEG {name}-{reference}" for name in reversed(names)), "EEG EKG1-REF", "EEG 20-REF", "PHOTIC-REF", "IBI"]


def tuab(root: Path) -> Path:
    """Train: subjects n0..n4 normal, a0..a4 abnormal, `both` in both. Eval: e0 normal, e1 abnormal. Two are faulty."""
    good = _tuh(REFERENTIAL)
    for part, label, subjects in (
        ("train", "normal", [*(f"aaaaaan{i}" for i in range(5)), "aaaaboth"]),
        ("train", "abnormal", [*(f"aaaaaaa{i}" for i in range(5)), "aaaaboth"]),
        ("eval", "normal", ["aaaaaae0"]),
        ("eval", "abnormal", ["aaaaaae1"]),
    ):
        for seed, subject in enumerate(subjects):
            folder = root / "edf" / part / label / "01_tcp_ar"
            write_edf(folder / f"{subject}_s001_t000.edf", good, 250, 21, seed=hash_of(part, label) + seed)
    bad = root / "edf" / "eval" / "normal" / "01_tcp_ar"
    write_edf(bad / "aaaaaax1_s001_t000.edf", _tuh(REFERENTIAL[:-2]), 250, 21)
    write_edf(bad / "aaaaaax2_s001_t000.edf", _tuh(REFERENTIAL, "LE"), 250, 21)
    write_edf(bad / "aaaaaax3_s001_t000.edf", good, 250, 9)
    return root


TUEV_ROWS = """0,0.0,1.0,6
3,10.5,11.5,1
5,10.5,11.5,2
7,10.5,11.5,1

1,19.0,20.0,4
1,25.0,26.0,3
nonsense
2,3.0,4.0,9
2,3.0,5.0,2
"""


def tuev(root: Path) -> Path:
    """Five subjects in train, one in eval; every .rec has four good rows, a repeated one, and four faulty ones."""
    names = _tuh(REFERENTIAL)
    recordings = [(f"train/aaaaaa{c}r", f"aaaaaa{c}r_00000001") for c in "abcde"] + [("eval/000", "bckg_000_a_")]
    for seed, (folder, stem) in enumerate(recordings):
        path = write_edf(root / "edf" / folder / f"{stem}.edf", names, 250, 20, seed)
        path.with_suffix(".rec").write_text(TUEV_ROWS)
    write_edf(root / "edf" / "eval" / "001" / "spsw_001_a_.edf", names, 250, 20)  # without .rec
    return root


_SLEEP = "F3-M2 C3-M2 O1-M2 F4-M1 C4-M1 O2-M1"
_SLEEP_OLD = "O2-A1 C4-A1 F4-A1 O1-A2 C3-A2 F3-A2"
_SLEEP_8 = "C3-A2 O1-A2 C4-A1 O2-A1"
_SLEEP_40 = "F3 C3 O1 F4 C4 O2 A1 A2"


def isruc(root: Path) -> Path:
    """Subjects 1, 8 and 40 train, 85 val, 95 test (in a doubled folder), 101 foreign; 3 epochs and 5 s each."""
    names = {1: _SLEEP, 8: _SLEEP_8, 40: _SLEEP_40, 85: _SLEEP_OLD, 95: _SLEEP, 101: _SLEEP}
    for number, channels in names.items():
        folder = root / str(number) if number != 95 else root / "95" / "95"
        write_edf(folder / f"{number}.rec", ["LOC-A2", *channels.split(), "X1"], 200, 95, seed=number)
        (folder / f"{number}_1.txt").write_text("0\n\n2\n5\n3\n\n" if number != 85 else "1\n7\n")
        (folder / f"{number}_2.txt").write_text("3\n3\n3\n")
    return root


def eareeg(root: Path) -> Path:
    """Subjects 1, 7 and 10: one scored night of 5 epochs and 20 s each, and one that is not scored.

    Epoch 1 has a NaN in LB, epoch 3 in the row that is not used, the last is too short.
    """
    for subject in (1, 7, 10):
        for session in (1, 3):
            folder = root / f"sub-{subject:03d}" / f"ses-{session:03d}" / "eeg"
            stem = f"sub-{subject:03d}_ses-{session:03d}_task-sleep_acq-"
            data = noise(5, 170 * 250, seed=subject)
            data[2, 8000:8010] = np.nan
            data[4, 23000] = np.nan
            write_set(folder / f"{stem}earEEG_eeg.set", data, 250, ["RB", "RT", "LB", "LT", "ELE"])
            if session == 1:
                rows = [f"{30 * i + 0.4}\t30\t{i + 1}\tx" for i in range(6)]
                table = ["onset\tduration\tscoring_idx\tscoring", *rows, "n/a\t30\t2\tREM", "60.4\t30\t9\t?"]
                (folder / f"{stem}scoring_events.tsv").write_text("\n".join(table) + "\n")
    return root


def write_set(path: Path, microvolts: NDArray[np.float64], sfreq: float, names: Sequence[str]) -> Path:
    """Write an EEGLAB file."""
    from eeglabio.raw import export_set

    path.parent.mkdir(parents=True, exist_ok=True)
    export_set(str(path), microvolts * 1e-6, sfreq, list(names))
    return path


def write_brainvision(
    path: Path, microvolts: NDArray[np.float64], sfreq: float, names: Sequence[str], unit: str = "µV"
) -> Path:
    """Write a BrainVision file: .vhdr, .eeg and .vmrk, with a stimulus at 2.5 s. `unit` is what the header says."""
    path.parent.mkdir(parents=True, exist_ok=True)
    channels = [f"Ch{i}={name},,1,{unit}" for i, name in enumerate(names, 1)]
    path.write_text("\n".join([
        "Brain Vision Data Exchange Header File Version 1.0", "[Common Infos]", "Codepage=UTF-8",
        f"DataFile={path.stem}.eeg", f"MarkerFile={path.stem}.vmrk", "DataFormat=BINARY",
        "DataOrientation=MULTIPLEXED", f"NumberOfChannels={len(names)}", f"SamplingInterval={1e6 / sfreq:g}",
        "[Binary Infos]", "BinaryFormat=IEEE_FLOAT_32", "[Channel Infos]", *channels, "",
    ]), encoding="utf-8")  # fmt: skip
    path.with_suffix(".vmrk").write_text("\n".join([
        "Brain Vision Data Exchange Marker File, Version 1.0", "[Common Infos]", "Codepage=UTF-8",
        f"DataFile={path.stem}.eeg", "[Marker Infos]", "Mk1=New Segment,,1,1,0,00000000000000000000",
        f"Mk2=Stimulus,S  1,{round(2.5 * sfreq) + 1},1,0", "",
    ]), encoding="utf-8")  # fmt: skip
    path.with_suffix(".eeg").write_bytes(microvolts.T.astype("<f4").tobytes())
    return path


def eegmat(root: Path) -> Path:
    """Subjects 0 (train), 26 (val) and 31 (test); a rest file of 26 that is too short, and a stray file."""
    for subject in (0, 26, 31):
        write_edf(root / f"Subject{subject:02d}_1.edf", EEGMAT_NAMES, 500, 50 if subject == 26 else 70, seed=subject)
        write_edf(root / f"Subject{subject:02d}_2.edf", EEGMAT_NAMES, 500, 62, seed=subject + 100)
    write_edf(root / "Subject99_1.edf", EEGMAT_NAMES, 500, 3)
    return root


def eegmmidb(root: Path) -> Path:
    """Subjects 1 (train), 75 (val), 86 and 100 (test). 100 has 128 Hz; runs 8 and 12 of 1 have faulty trials."""
    trials = [(0.0, 4.2, "T0"), (4.2, 4.1, "T1"), (8.3, 4.2, "T0"), (12.5, 4.1, "T2"), (58.0, 4.1, "T1")]
    odd = [(0.0, 1.4, "T0"), (1.4, 5.1, "T1")]
    overlapping = [(0.0, 4.2, "T0"), (4.2, 4.1, "T1"), (6.0, 4.1, "T2")]
    for subject in (1, 75, 86, 100):
        rate = 128 if subject == 100 else 160
        for run in (1, 2, 3, 4, 6, *((8, 12) if subject == 1 else ())):
            path = root / f"S{subject:03d}" / f"S{subject:03d}R{run:02d}.edf"
            marks = {8: odd, 12: overlapping}.get(run, trials) if run > 2 else [(0.0, 60.0, "T0")]
            write_edf(path, EEGMMIDB_NAMES, rate, 61, seed=subject * 20 + run, annotations=marks)
    return root


_CHBMIT = """
FP1-F7 F7-T7 T7-P7 P7-O1 FP1-F3 F3-C3 C3-P3 P3-O1 FP2-F4 F4-C4 C4-P4 P4-O2 FP2-F8 F8-T8 T8-P8 P8-O2 FZ-CZ CZ-PZ P7-T7
T7-FT9 FT9-FT10 FT10-T8 T8-P8
"""
_CHBMIT_12 = "C3 C4 CP2 F3 F4 F7 F8 FP1 FP2 O1 O2 P3 P4 P7 P8 T7 T8"
CHBMIT_NAMES = _CHBMIT.split()


def chbmit_entry(name: str, *seizures: tuple[float, float], count: int | None = None, numbered: bool = False) -> str:
    """A recording in a summary, in one of the two ways in which these write times of seizures."""
    number = [f" {place}" if numbered else "" for place, _ in enumerate(seizures, 1)]
    lines = [f"File Name: {name}.edf", "File Start Time: 11:42:54", "File End Time: 12:42:54"]
    lines.append(f"Number of Seizures in File: {len(seizures) if count is None else count}")
    for word, (start, end) in zip(number, seizures, strict=True):
        lines += [f"Seizure{word} Start Time: {start:g} seconds", f"Seizure{word} End Time:        {end:g} seconds"]
    return "\n".join([*lines, "", ""])


def chbmit(root: Path) -> Path:
    """Cases 1 and 21 (one child), 2, 12 train, 17, 19 val, 24 test; every fault in cases 3 to 8; 50 s each."""
    head = "Data Sampling Rate: 256 Hz\n*************************\n\nChannels in EDF Files:\n**********************\n"
    head += "".join(f"Channel {place}: {name}\n" for place, name in enumerate(CHBMIT_NAMES, 1)) + "\n"
    entry = chbmit_entry
    good = {
        "chb01": [entry("chb01_03", (20, 32)), entry("chb01_04")],
        "chb02": [entry("chb02_16+", (3, 9), (30, 33), numbered=True)],
        "chb12": [entry("chb12_27", (0, 7)), "Channels changed:\nChannel 1: C3-CS2\n"],
        "chb17": [entry("chb17a_03")],
        "chb19": [entry("chb19_28", (35, 50))],
        "chb21": [entry("chb21_19", (10, 20))],
        "chb24": [entry("chb24_01", (10, 20))],
    }
    bad = {
        "chb03": [entry("chb03_01", (45, 70))],
        "chb04": [entry("chb04_01", (10, 20), count=2)],
        "chb06": [entry("chb06_01", (20, 10))],
        "chb07": [entry("chb07_02")],
        "chb08": ["File Name: chb08_01.edf\n"],
        "chb22": [entry("chb22_01")],
    }
    for seed, (case, entries) in enumerate((good | bad).items()):
        (root / case).mkdir(parents=True, exist_ok=True)
        (root / case / f"{case}-summary.txt").write_text(head + "".join(entries))
        names = {"chb12": [*(f"{name}-CS2" for name in _CHBMIT_12.split()), "ECG"], "chb22": CHBMIT_NAMES[:6]}.get(
            case, CHBMIT_NAMES
        )
        stems = [stem.split()[0].removesuffix(".edf") for stem in "".join(entries).split("File Name: ")[1:]]
        for stem in ["chb07_01"] if case == "chb07" else stems:
            write_edf(root / case / f"{stem}.edf", names, 256, 50, seed=seed)
    for name in ("chb05/chb05_01", "chb24/chb24_02", "chb25/chb25_01"):
        write_edf(root / f"{name}.edf", CHBMIT_NAMES, 256, 50)
    (root / "RECORDS-WITH-SEIZURES").write_text("chb01/chb01_03.edf\nchb07/chb07_01.edf\nchb24/chb24_01.edf\n\n")
    return root


SLEEPEDF_NIGHT = [(0, 5400, "W"), (5400, 60, "1"), (5460, 90, "2"), (5550, 30, "3"), (5580, 30, "4"), (5610, 30, "?")]
SLEEPEDF_NIGHT += [(5640, 60, "R"), (5700, 3600, "W")]
_SLEEPEDF = (("EEG Fpz-Cz", 100, "uV"), ("EEG Pz-Oz", 100, "uV"), ("EOG horizontal", 100, "uV"))
_SC = (("Resp oro-nasal", 1, ""), ("EMG submental", 1, "uV"), ("Temp rectal", 1, "DegC"), ("Event marker", 1, ""))
_ST = (("EMG submental", 100, "uV"), ("Marker", 10, ""))


def sleepedf_night(
    root: Path, night: str, stages: Sequence[tuple[float, float, str]] | None, seconds: float = 9300, start: str = ""
) -> Path:
    """One night: `night` is the name of its recording, such as SC4001E0; hypnograms as PhysioNet's, records of 0 s."""
    folder = root / ("sleep-cassette" if night.startswith("SC") else "sleep-telemetry")
    folder.mkdir(parents=True, exist_ok=True)
    rows = noise(3, round(100 * seconds), hash_of(night))
    signals = []
    for place, (label, rate, unit) in enumerate(_SLEEPEDF + (_SC if night.startswith("SC") else _ST)):
        row = rows[place] if place < 3 else np.arange(round(rate * seconds)) % 90.0
        signals.append(EdfSignal(row, rate, label=label, physical_dimension=unit))
    begin = datetime(1989, 4, 24, 16, 13)
    Edf(signals, recording=Recording(startdate=begin.date()), starttime=begin.time(), data_record_duration=30).write(
        folder / f"{night}-PSG.edf"
    )
    if stages is not None:
        path = folder / f"{night[:7]}C-Hypnogram.edf"
        path.write_bytes(hypnogram([(on, length, f"Sleep stage {what}") for on, length, what in stages], start))
    return folder / f"{night}-PSG.edf"


def hypnogram(marks: Sequence[tuple[float, float, str]], start: str = "") -> bytes:
    """An EDF+ file of annotations alone, one record that lasts 0 s."""
    text = b"+0\x14\x14\0" + b"\0".join(
        f"+{on:g}\x15{length:.10g}\x14{what}\x14".encode() for on, length, what in marks
    )
    text = text.ljust(-(-len(text) // 2) * 2, b"\0")
    head = [("0", 8), ("X F X Female_33yr", 80), ("Startdate 24-APR-1989 X X X", 80), ("24.04.89", 8)]
    head += [(start or "16.13.00", 8), ("512", 8), ("EDF+C", 44), ("1", 8), ("0", 8), ("1", 4)]
    head += [("EDF Annotations", 16), ("", 80), ("", 8), ("-1", 8), ("1", 8), ("-32768", 8), ("32767", 8), ("", 80)]
    head += [(str(len(text) // 2), 8), ("", 32)]
    return b"".join(value.ljust(width).encode() for value, width in head) + text


def sleepedf(root: Path) -> Path:
    """Subjects 0 (two nights) and 1 train, 3 val, 4 test, of 2 h 35 min; telemetry of subject 4; faults in 10 to 15."""
    for night in ("SC4001E0", "SC4002E0", "SC4011E0", "SC4031E0", "SC4041G0", "ST7041J0"):
        sleepedf_night(root, night, SLEEPEDF_NIGHT, 9000 if night == "SC4011E0" else 9300)
    sleepedf_night(root, "SC4101E0", None, 300)
    sleepedf_night(root, "SC4111E0", [(0, 300, "W")], 300)
    sleepedf_night(root, "SC4121E0", [(0, 60, "W"), (30, 60, "2")], 300)
    sleepedf_night(root, "SC4131E0", [(0, 300, "2")], 300, start="17.13.00")
    damaged = sleepedf_night(root, "SC4141E0", [(0, 300, "2")], 300).with_name("SC4141EC-Hypnogram.edf")
    damaged.write_bytes(damaged.read_bytes()[:300])
    twice = sleepedf_night(root, "SC4151E0", [(0, 300, "2")], 300).with_name("SC4151EC-Hypnogram.edf")
    twice.with_name("SC4151EM-Hypnogram.edf").write_bytes(twice.read_bytes())
    write_edf(root / "sleep-cassette" / "SC9-PSG.edf", ["EEG Fpz-Cz"], 100, 30)
    return root


LABELS = """file,label,subject,onset,duration
a.edf,left,s1,0,8
a.edf,right,s1,6,10
a.edf,right,s1,6,10
a.edf,right,s1,29,4
a.edf,left,s1,500,4
b.bdf.edf,left,s2,,
c.edf,right,s3,0,1
c.edf,right,s3,x,1
c.edf,left,s3,10,4.5
gone.edf,left,s4,0,4
,left,s5,0,4
"""


def folder(root: Path) -> Path:
    """Three recordings of 30 s, one that is not in the table, and rows with every fault."""
    for seed, name in enumerate(("a.edf", "b.bdf.edf", "c.edf", "other.edf")):
        write_edf(root / name, ["EEG C3-REF", "EEG C4-REF", "EMG chin", "Fp1"], 128, 30, seed)
    (root / "labels.csv").write_text(LABELS)
    return root


def bids(root: Path) -> Path:
    """Five subjects with events of 0 s and 9 s, a column of participants, one recording without events."""
    root.mkdir(parents=True, exist_ok=True)
    (root / "dataset_description.json").write_text('{"Name": "tiny", "BIDSVersion": "1.8.0"}')
    people = [f"sub-{i:02d}\t{'case' if i % 2 else 'control'}" for i in range(1, 6)]
    (root / "participants.tsv").write_text("\n".join(["participant_id\tgroup", *people]) + "\n")
    for i in range(1, 6):
        stem = root / f"sub-{i:02d}" / "eeg" / f"sub-{i:02d}_task-oddball_"
        write_edf(Path(f"{stem}eeg.edf"), ["C3", "C4", "EOG"], 100, 30, seed=i)
        if i < 5:
            rows = ["1.0\t0\ttarget", "10.0\t9\tstandard", "n/a\t1\ttarget", "29.0\t0.2\ttarget"]
            Path(f"{stem}events.tsv").write_text("\n".join(["onset\tduration\ttrial_type", *rows]) + "\n")
    return root


def hash_of(*words: str) -> int:
    """A small number that differs between words, the same in every run."""
    return sum(ord(letter) * (i + 1) for i, letter in enumerate("".join(words)))
