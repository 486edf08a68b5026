"""Downloads against a real HTTP server on this machine that breaks off, lies and stalls."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest

import zipbrain.data
from file_server import Server
from zipbrain import transfer
from zipbrain.cli import main
from zipbrain.data.corpora import find_published
from zipbrain.data.downloads import RECORD, download
from zipbrain.errors import DataError, OptionError

SIZE = 300_000


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A server with a small EEGMAT; waits and time limits are short."""
    monkeypatch.setattr(transfer, "WAITS", (0.01, 0.01, 0.01, 0.01))
    monkeypatch.setattr(transfer, "TIMEOUT", (2.0, 0.4))
    for name in (*os.environ,):
        if name.lower().endswith("_proxy") or name.startswith("ZIPBRAIN_"):
            monkeypatch.delenv(name)
    server = Server()
    random = Random(0)
    for i in range(3):
        server.put(f"/mat/Subject0{i}_1.edf", random.randbytes(SIZE + i))
    server.put("/mat/subject info.csv", b"Subject,Age\nSubject00,21\n")
    server.put("/mat/RECORDS", b"Subject00_1.edf\nSubject01_1.edf\nSubject02_1.edf\n")
    server.sums("/mat")
    yield server
    server.http.shutdown()
    server.http.server_close()


@pytest.fixture
def fetch(server: Server, tmp_path: Path) -> Callable[..., object]:
    def fetch(**options: object) -> object:
        return download("eegmat", tmp_path / "raw", **{"base_url": f"{server.url}/mat/", "jobs": 2, **options})

    return fetch


def whole(server: Server, folder: Path, root: str = "/mat") -> None:
    """Assert that every published file lies in the folder, right to the byte, and no `.part` is left."""
    for path, content in server.files.items():
        if path.startswith(f"{root}/") and "SHA256" not in path:
            assert (folder / path.removeprefix(f"{root}/")).read_bytes() == content
    assert not list(folder.rglob("*.part"))


EDF = "/mat/Subject01_1.edf"
CAME = SIZE // 2 // transfer.CHUNK * transfer.CHUNK  # of a file that broke off in the middle


def test_fetches_all_and_a_second_run_changes_nothing_and_needs_no_network(server, fetch, tmp_path) -> None:
    seen: list[tuple[int, int, int]] = []
    report = fetch(progress=lambda *now: seen.append(now))
    whole(server, tmp_path / "raw")
    assert (report.files, report.fetched, report.kept, report.replaced, report.size_only) == (5, 5, 0, [], [])
    assert report.bytes == sum(len(value) for path, value in server.files.items() if "SHA" not in path)
    assert seen[-1] == (5, 5, report.bytes)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "raw").rglob("*")}
    server.asked.clear()
    server.http.shutdown()
    again = fetch()
    assert (again.fetched, again.kept, again.bytes) == (0, 5, 0)
    assert not server.asked
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "raw").rglob("*")} == before


@pytest.mark.parametrize(
    "faults",
    [
        ["breaks off", ""],
        ["breaks off", "breaks off", "breaks off", ""],
        ["breaks off", "ignores range"],
        ["breaks off", "another range", ""],
        ["claims more", ""],
        ["claims less", ""],
        ["flips a byte", ""],
        ["500", "503", "429", ""],
        ["stalls", ""],
        ["slow"],
        ["redirect", ""],
    ],
    ids=" then ".join,
)
def test_a_passing_fault_is_survived(server, fetch, tmp_path, faults: list[str]) -> None:
    server.faults[EDF] = list(faults)
    report = fetch()
    whole(server, tmp_path / "raw")
    assert report.fetched == 5


def test_a_broken_transfer_goes_on_where_it_stopped(server, fetch) -> None:
    server.faults[EDF] = ["breaks off", ""]
    report = fetch()
    assert server.requests(EDF) == [None, f"bytes={CAME}-"]
    assert report.bytes == sum(len(value) for path, value in server.files.items() if "SHA" not in path)  # none twice


def test_another_run_goes_on_where_the_last_was_cut(server, fetch, tmp_path) -> None:
    server.faults[EDF] = ["breaks off", "404"]
    with pytest.raises(DataError, match="404"):
        fetch()
    part = tmp_path / "raw" / "Subject01_1.edf.part"
    assert part.stat().st_size == CAME
    assert not (tmp_path / "raw" / "Subject01_1.edf").exists()
    server.faults.clear()
    server.asked.clear()
    report = fetch()
    assert (report.fetched, report.kept) == (1, 4)
    assert server.requests(EDF) == [f"bytes={CAME}-"]
    whole(server, tmp_path / "raw")


@pytest.mark.parametrize("part", ["right, whole", "wrong, whole", "wrong, half", "too long"])
def test_a_part_file_of_any_kind_ends_well(server, fetch, tmp_path, part: str) -> None:
    content = server.files[EDF]
    (tmp_path / "raw").mkdir()
    kinds = {"right, whole": content, "wrong, whole": bytes(len(content)), "wrong, half": bytes(1000)}
    (tmp_path / "raw" / "Subject01_1.edf.part").write_bytes(kinds.get(part, content + b"x"))
    fetch()
    whole(server, tmp_path / "raw")
    assert (server.requests(EDF) == []) == (part == "right, whole")


def test_bytes_that_are_wrong_twice_are_deleted_and_the_other_files_come(server, fetch, tmp_path) -> None:
    server.faults[EDF] = ["flips a byte"]
    right = hashlib.sha256(server.files[EDF]).hexdigest()
    with pytest.raises(DataError, match=f"published are sha256:{right}, but {SIZE + 1} bytes and sha256:.* deleted"):
        fetch()
    assert sorted(path.name for path in (tmp_path / "raw").iterdir() if "Subject" in path.name) == [
        "Subject00_1.edf",
        "Subject02_1.edf",
    ]
    assert len(server.requests(EDF)) == 2


def test_missing_files_are_asked_for_once_and_named(server, fetch) -> None:
    server.faults[EDF] = ["404"]
    server.faults["/mat/Subject00_1.edf"] = ["404"]
    with pytest.raises(DataError, match=r"Subject00_1.edf: the server answered 404 .*\(and 1 more files failed\)"):
        fetch()
    assert server.requests(EDF) == [None]


def test_a_server_that_never_recovers_is_given_up(server, fetch) -> None:
    server.faults[EDF] = ["500"]
    with pytest.raises(DataError, match="answered 500"):
        fetch()
    assert len(server.requests(EDF)) == 5
    server.faults[EDF] = ["ignores range, breaks off"]
    with pytest.raises(DataError, match="keeps breaking off"):
        fetch()


def test_the_waits_a_server_asks_for_are_kept_but_not_for_ever() -> None:
    class Trouble:
        class response:
            headers = {"Retry-After": "7"}  # noqa: RUF012

    assert transfer._asked_to_wait(Trouble()) == 7
    Trouble.response.headers = {"Retry-After": "99999"}
    assert transfer._asked_to_wait(Trouble()) == transfer.LONGEST_WAIT
    assert transfer._asked_to_wait(None) == 0


def test_no_network_is_said_so_and_ends_all(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(transfer, "WAITS", (0.01,))
    with pytest.raises(DataError, match=r"127.0.0.1:9 can't be reached .* check the network"):
        download("eegmat", tmp_path / "raw", base_url="http://127.0.0.1:9/mat")


def test_nothing_is_fetched_where_the_environment_forbids_the_network(server, fetch, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("ZIPBRAIN_OFFLINE", "1")
    with pytest.raises(DataError, match="ZIPBRAIN_OFFLINE forbids the network"):
        fetch()
    assert not list((tmp_path / "raw").glob("*.edf"))


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full, a disk without room")
def test_a_full_disk_is_said_so(server, fetch, tmp_path) -> None:
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "Subject01_1.edf.part").symlink_to("/dev/full")
    with pytest.raises(DataError, match="no room left on the disk"):
        fetch()


def test_a_file_that_is_not_the_published_one_is_kept_as_bad(server, fetch, tmp_path) -> None:
    (tmp_path / "raw").mkdir()
    mine = tmp_path / "raw" / "Subject01_1.edf"
    mine.write_bytes(b"my own edit")
    server.faults[EDF] = ["404"]
    with pytest.raises(DataError, match="404"):
        fetch()
    assert mine.read_bytes() == b"my own edit"  # nothing is touched before the right one is there
    server.faults.clear()
    assert fetch().replaced == ["Subject01_1.edf.bad"]
    whole(server, tmp_path / "raw")
    mine.write_bytes(b"another edit")
    assert fetch().replaced == ["Subject01_1.edf.bad.1"]
    assert (tmp_path / "raw" / "Subject01_1.edf.bad").read_bytes() == b"my own edit"
    assert (tmp_path / "raw" / "Subject01_1.edf.bad.1").read_bytes() == b"another edit"


def test_a_file_that_is_published_with_another_hash_later_is_noted(server, fetch, tmp_path) -> None:
    assert fetch().notes == []
    server.put(EDF, Random(9).randbytes(SIZE))
    server.sums("/mat")
    (tmp_path / "raw" / "RECORDS").unlink()  # so that the listing is read again
    report = fetch()
    assert report.notes == [
        "1 files are published with another hash than before, such as Subject01_1.edf: ask the publisher why"
    ]
    assert report.replaced == ["Subject01_1.edf.bad"]


def test_files_from_elsewhere_are_taken_if_they_are_right(server, fetch, tmp_path) -> None:
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "Subject01_1.edf").write_bytes(server.files[EDF])
    report = fetch()
    assert (report.fetched, report.kept, server.requests(EDF)) == (4, 1, [])


def test_verify_finds_a_change_that_size_and_time_hide(server, fetch, tmp_path) -> None:
    fetch()
    file = tmp_path / "raw" / "Subject01_1.edf"
    state = file.stat()
    file.write_bytes(bytes(SIZE + 1))
    os.utime(file, ns=(state.st_atime_ns, state.st_mtime_ns))
    assert fetch().fetched == 0
    report = fetch(verify=True)
    assert (report.fetched, report.replaced) == (1, ["Subject01_1.edf.bad"])
    whole(server, tmp_path / "raw")


def test_no_more_files_at_a_time_than_asked(server, fetch) -> None:
    for path in server.files:
        if path.endswith("edf"):
            server.faults[path] = ["slow"]
    fetch(jobs=2)
    assert server.most == 2


@pytest.mark.parametrize(
    ("sums", "words"),
    [
        (b"<html>Log in first</html>", "line 1 is not 'hash path'"),
        (b"\xff\xfe\x00", "not a text file"),
        (b"", "RECORDS: missing"),
        (b"0" * 64 + b" ../../.ssh/authorized_keys\n", "no path inside the corpus"),
        (b"0" * 64 + b" /etc/passwd\n", "no path inside the corpus"),
    ],
)
def test_a_listing_that_is_none_is_refused(server, fetch, tmp_path, sums: bytes, words: str) -> None:
    server.put("/mat/SHA256SUMS.txt", sums)
    with pytest.raises(DataError, match=words):
        fetch()
    assert {path.name for path in tmp_path.rglob("*") if path.is_file()} <= {RECORD}


def test_a_listing_that_was_cut_is_refused(server, fetch) -> None:
    lines = server.files["/mat/SHA256SUMS.txt"].splitlines()
    server.put("/mat/SHA256SUMS.txt", b"\n".join(line for line in lines if b"Subject02" not in line))
    with pytest.raises(DataError, match=r"cut off, Subject02_1.edf of RECORDS is missing"):
        fetch()


def test_the_function_stands_under_its_public_name() -> None:
    assert zipbrain.data.download is download


def test_options_are_checked(server, fetch, tmp_path, monkeypatch) -> None:
    with pytest.raises(OptionError, match="jobs: got 0"):
        fetch(jobs=0)
    with pytest.raises(OptionError, match="base_url: got 'ftp://x'"):
        fetch(base_url="ftp://x")
    with pytest.raises(OptionError, match="one of eareeg, eegmat, eegmmidb, chbmit, sleepedf"):
        download("deap", tmp_path)
    with pytest.raises(OptionError, match=r"help@nedcdata.org.*edf/train/normal/01_tcp_ar"):
        download("TUAB", tmp_path / "t")
    assert not (tmp_path / "t").exists()
    (tmp_path / "file").touch()
    with pytest.raises(OptionError, match="can't be made"):
        download("eegmat", tmp_path / "file" / "raw")
    fetch()
    monkeypatch.setenv("ZIPBRAIN_EEGMMIDB_URL", f"{server.url}/mat")
    with pytest.raises(OptionError, match="holds eegmat: give eegmmidb its own"):
        download("eegmmidb", tmp_path / "raw")
    assert download("eegmmidb", tmp_path / "other").source == f"{server.url}/mat"


def test_a_second_download_into_the_same_folder_is_kept_out(server, fetch, tmp_path) -> None:
    pytest.importorskip("fcntl")
    server.faults[EDF] = ["slow"]
    first = threading.Thread(target=fetch)
    first.start()
    deadline = time.monotonic() + 5
    while not server.requests(EDF) and time.monotonic() < deadline:
        time.sleep(0.005)
    with pytest.raises(OptionError, match="another download is writing there"):
        fetch()
    first.join()
    whole(server, tmp_path / "raw")


def test_a_kill_leaves_what_has_come_and_nothing_half_in_place(server, tmp_path) -> None:
    server.faults[EDF] = ["slow"]
    code = (
        "import sys; from zipbrain.data.downloads import download\n"
        "download('eegmat', sys.argv[2], base_url=sys.argv[1], jobs=1)"
    )
    child = subprocess.Popen([sys.executable, "-c", code, f"{server.url}/mat", str(tmp_path / "raw")])
    deadline = time.monotonic() + 20
    part = tmp_path / "raw" / "Subject01_1.edf.part"
    while (not part.exists() or part.stat().st_size == 0) and time.monotonic() < deadline:
        time.sleep(0.005)
    child.kill()
    child.wait()
    assert 0 < part.stat().st_size < SIZE + 1
    assert not (tmp_path / "raw" / "Subject01_1.edf").exists()
    server.faults.clear()
    report = download("eegmat", tmp_path / "raw", base_url=f"{server.url}/mat")
    assert server.requests(EDF)[-1] is not None  # a Range
    assert report.kept == 2  # hashed again, as nothing had been recorded yet: RECORDS and Subject00
    whole(server, tmp_path / "raw")


# --- OpenNeuro --------------------------------------------------------------------------------------------------------


@pytest.fixture
def bucket(server: Server) -> Server:
    random = Random(1)
    root = "/openneuro.org/ds005178"
    server.put(f"{root}/dataset_description.json", b'{"DatasetDOI": "doi:10.18112/openneuro.ds005178.v1.0.0"}')
    for night in ("001", "002", "003"):
        stem = f"{root}/sub-001/ses-{night}/eeg/sub-001_ses-{night}_task-sleep_acq"
        server.put(f"{stem}-earEEG_eeg.set", random.randbytes(50_000))
        server.put(f"{stem}-PSG_eeg.set", random.randbytes(60_000))
        server.put(f"{stem}-scoring_events.tsv", b"onset\tduration\n")
    server.put("/openneuro.org/ds0051789/elsewhere.set", b"another dataset")
    return server


def test_eareeg_is_listed_page_by_page_and_only_scored_ear_nights_come(bucket, tmp_path) -> None:
    root = f"{bucket.url}/openneuro.org/ds005178"
    report = download("EarEEG", tmp_path / "ear", base_url=root)
    names = sorted(path.name for path in (tmp_path / "ear").rglob("*") if path.is_file() and path.name != RECORD)
    stems = ("sub-001_ses-001_task-sleep_acq", "sub-001_ses-002_task-sleep_acq")
    ends = ("-earEEG_eeg.set", "-scoring_events.tsv")
    assert names == sorted(["dataset_description.json", *(stem + end for stem in stems for end in ends)])
    assert (report.size_only, report.notes) == ([], [])
    assert download("eareeg", tmp_path / "ear", base_url=root, everything=True).fetched == 5
    whole(bucket, tmp_path / "ear", "/openneuro.org/ds005178")


def test_eareeg_checks_md5_and_size_and_says_what_has_no_hash(bucket, tmp_path) -> None:
    root = f"{bucket.url}/openneuro.org/ds005178"
    key = "ds005178/sub-001/ses-001/eeg/sub-001_ses-001_task-sleep_acq-earEEG_eeg.set"
    bucket.faults[f"/openneuro.org/{key}"] = ["flips a byte"]
    with pytest.raises(DataError, match="published are 50000 bytes and md5:"):
        download("eareeg", tmp_path / "ear", base_url=root)
    bucket.pieces.add(key)
    for fault in ("claims less", "claims more", "sends more", "breaks off"):
        bucket.faults[f"/openneuro.org/{key}"] = [fault, ""]
        report = download("eareeg", tmp_path / fault, base_url=root)
        assert report.size_only == [key.removeprefix("ds005178/")]
        assert (tmp_path / fault / key.removeprefix("ds005178/")).read_bytes() == bucket.files[f"/openneuro.org/{key}"]
    file = tmp_path / "breaks off" / key.removeprefix("ds005178/")
    file.write_bytes(bytes(50_000))  # same size, but the hash of what came was recorded
    assert download("eareeg", tmp_path / "breaks off", base_url=root).fetched == 1


def test_eareeg_tells_of_another_version_a_bad_listing_and_too_little_room(bucket, tmp_path, monkeypatch) -> None:
    root = f"{bucket.url}/openneuro.org/ds005178"
    bucket.put("/openneuro.org/ds005178/dataset_description.json", b'{"DatasetDOI": "openneuro.ds005178.v2.0.0"}')
    notes = download("eareeg", tmp_path / "ear", base_url=root).notes
    assert notes == ["this is openneuro.ds005178.v2.0.0; ds005178.v1.0.0 is expected"]
    with pytest.raises(DataError, match="nothing is listed there"):
        download("eareeg", tmp_path / "none", base_url=f"{bucket.url}/openneuro.org/ds9")
    bucket.put("/mat/x", b"hello")
    with pytest.raises(DataError, match="no S3 listing"):
        download("eareeg", tmp_path / "none", base_url=f"{bucket.url}/mat/x/y")
    monkeypatch.setattr("shutil.disk_usage", lambda folder: type("Usage", (), {"free": 10}))
    with pytest.raises(DataError, match="GB are needed"):
        download("eareeg", tmp_path / "full", base_url=root)


def test_the_selections_take_what_the_corpora_read() -> None:
    needed = find_published("eegmmidb").needed
    assert needed.fullmatch("S001/S001R01.edf")
    assert not needed.fullmatch("S001/S001R01.edf.event")
    ear = "sub-001/ses-001/eeg/sub-001_ses-001_task-sleep_acq"
    assert find_published("eareeg").needed.fullmatch(f"{ear}-earEEGRecordingFailures_events.tsv")
    assert not find_published("eareeg").needed.fullmatch(f"{ear}-PSG_eeg.set")


# --- command line -----------------------------------------------------------------------------------------------------


def command(*arguments: str) -> int:
    return main(["data", "download", *arguments])


def test_command_line_fetches_and_reports(server, tmp_path, capsys) -> None:
    arguments = ["eegmat", "--out", str(tmp_path / "raw"), "--base-url", f"{server.url}/mat"]
    assert command(*arguments) == 0
    assert "hashes of the same server" in capsys.readouterr().out
    shutil.rmtree(tmp_path / "raw")
    assert command(*arguments, "--json") == 0
    assert json.loads(capsys.readouterr().out)["fetched"] == 5
    assert command(*arguments, "--verify") == 0
    assert "5 files in" in capsys.readouterr().out
    assert command("--help") == 0
    assert "zipbrain data download eegmat --out raw/eegmat" in capsys.readouterr().out


def test_command_line_failures_are_one_line_with_the_right_code(server, tmp_path, capsys) -> None:
    server.faults[EDF] = ["404"]
    arguments = ["eegmat", "--out", str(tmp_path / "raw"), "--base-url", f"{server.url}/mat"]
    for given, code, words in (
        (arguments, 1, "404"),
        (["eegmat"], 2, "--out"),
        (["deap", "--out", "x"], 2, "one of eareeg"),
        ([*arguments, "--jobs", "99"], 2, "jobs"),
    ):
        assert command(*given) == code
        error = capsys.readouterr().err
        assert words in error
        assert len(error.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("corpus", "page", "row"),
    [
        ("tuab", "isip.piconepress.com", "raw/edf/eval/abnormal/01_tcp_ar/<subject>_<session>_<token>.edf"),
        ("tuev", "isip.piconepress.com", "raw/edf/eval/<NNN>/<class>_<NNN>_a_<k>.edf and .rec"),
        ("isruc", "sleeptight.isr.uc.pt", "raw/<n>/<n>_1.txt"),
    ],
)
def test_command_line_says_where_to_apply_and_where_to_put_it(corpus, page, row, capsys) -> None:
    assert command(corpus, "--out", "raw") == 2
    error = capsys.readouterr().err
    assert page in error
    assert row in error
    assert command(corpus, "--json") == 2
    assert json.loads(capsys.readouterr().out)["corpus"] == corpus
