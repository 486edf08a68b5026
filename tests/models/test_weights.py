"""Published weights from a real HTTP server on this machine that breaks off, lies and redirects."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import conftest
from file_server import HTML, Server
from golden import formula
from zipbrain import transfer
from zipbrain.cli import main
from zipbrain.data.windows import Windows
from zipbrain.errors import DataError, OptionError, ZipbrainError
from zipbrain.files import hash_file
from zipbrain.models import LoadReport, create, download, load_official
from zipbrain.models import catalogue as published
from zipbrain.models.catalogue import CATALOGUE, find_weights
from zipbrain.training import finetune, initialise, paper_settings

CHANNELS = ["FP1", "C3", "O2"]
OPTIONS: dict[str, dict[str, Any]] = {
    "labram": {"n_outputs": 3, "ch_names": CHANNELS, "n_times": 400},
    "biot": {"n_outputs": 3, "n_times": 400},
    "tfm": {"n_outputs": 3, "n_chans": 3, "n_times": 400},
}


def official(stem: str) -> dict[str, Tensor]:
    """Tensors under official names, by the golden vectors' formula."""
    with np.load(conftest.SUBSET / f"{stem}.npz") as file:
        case = next(key for key in file.files if key.endswith("/params"))
        made = formula(file)(json.loads(str(file[case])))
    return {name: torch.from_numpy(value) for name, value in made.items()}


def as_published(fills: str) -> Any:
    """What the official training scripts save, with tensors that the models here don't have."""
    if fills == "labram":
        state = {f"student.{name}": value for name, value in official("labram").items() if not name.startswith("head")}
        state |= {"student.lm_head.weight": torch.ones(2, 2), "logit_scale": torch.ones(())}
        return {"model": {name: value for name, value in state.items() if "fc_norm" not in name}, "epoch": 49}
    if fills == "biot":
        state = {n.removeprefix("biot."): v for n, v in official("biot").items() if n.startswith("biot.")}
        return {**state, "index": torch.arange(16)}
    return official("tfm_encoder" if fills == "tfm-encoder" else "tfm_tokenizer")


@pytest.fixture(scope="module")
def contents(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Files such as the sources have, by the model that they fill."""
    folder, found = tmp_path_factory.mktemp("weights"), {}
    for fills in ("labram", "biot", "tokenizer", "tfm-encoder"):
        torch.save(as_published(fills), folder / fills)
        found[fills] = (folder / fills).read_bytes()
    return found


@pytest.fixture
def server(contents: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A mirror of all sources, whose files are those of `contents`, and a catalogue with their hashes."""
    monkeypatch.setattr(transfer, "WAITS", (0.01, 0.01, 0.01, 0.01))
    monkeypatch.setattr(transfer, "TIMEOUT", (2.0, 0.4))
    for name in (*os.environ,):
        if name.lower().endswith("_proxy") or name.startswith("ZIPBRAIN_"):
            monkeypatch.delenv(name)
    server, entries = Server(), []
    for weights in CATALOGUE:
        files = []
        for file in weights.files:
            if file.fills in contents:
                server.put(f"/mirror/{file.path}", contents[file.fills])
                (tmp_path / "hashed").write_bytes(contents[file.fills])
                file = replace(file, hash=hash_file(tmp_path / "hashed", "git-blob"))
            files.append(file)
        entries.append(replace(weights, files=tuple(files)))
    monkeypatch.setattr(published, "CATALOGUE", tuple(entries))
    monkeypatch.setenv("ZIPBRAIN_WEIGHTS_URL", f"{server.url}/mirror")
    monkeypatch.setenv("ZIPBRAIN_CACHE", str(tmp_path / "cache"))
    yield server
    server.http.shutdown()
    server.http.server_close()


def path_of(model: str, name: str | None = None) -> str:
    return f"/mirror/{find_weights(model, name).files[0].path}"


def cached(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def test_a_git_blob_hash_is_gits_own(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"what is up, doc?")
    assert hash_file(tmp_path / "file", "git-blob") == "git-blob:bd9dbf5aae1a3862dd1526723246b20206e5fc37"


@pytest.mark.parametrize("name", OPTIONS)
def test_published_weights_are_fetched_verified_loaded_and_reported(name: str, server: Server, caplog) -> None:
    model: Any = create(name, pretrained=find_weights(name).name, **OPTIONS[name])
    report = model.load_report
    assert [part for part in report.initial if "head." not in part] == ["fc_norm.weight", "fc_norm.bias"] * (
        name == "labram"
    )
    assert "licence: MIT" in caplog.text
    same = create(name, **OPTIONS[name])
    for path in download(name).files:
        load_official(same, path)
    for key, value in same.state_dict().items():
        if key not in report.initial:
            assert torch.equal(model.state_dict()[key], value), key
    assert len(server.asked) == len(find_weights(name).files)  # once each, and from the cache then
    assert torch.isfinite(model.eval()(torch.randn(2, model.config.get("n_chans", 3), 400))).all()
    server.http.shutdown()
    assert create(name, pretrained=find_weights(name).name, **OPTIONS[name]).load_report == report


@pytest.mark.parametrize(
    "faults",
    [
        ["breaks off", ""],
        ["breaks off", "ignores range"],
        ["flips a byte", ""],
        ["html", ""],
        ["500", "429", ""],
        ["redirect", ""],
        ["stalls", ""],
    ],
    ids=" then ".join,
)
def test_a_passing_fault_is_survived(server: Server, contents: dict[str, bytes], faults: list[str]) -> None:
    server.faults[path_of("labram")] = list(faults)
    found = download("labram")
    assert found.files[0].read_bytes() == contents["labram"]
    assert [path.name for path in found.files[0].parent.iterdir()] == ["labram-base.pth"]
    if faults == ["breaks off", ""]:
        came = len(contents["labram"]) // 2 // transfer.CHUNK * transfer.CHUNK
        assert server.asked[-1] == (path_of("labram"), f"bytes={came}-")


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("flips a byte", "fetched twice and wrong: published are git-blob:"),
        ("is cut short", "fetched twice and wrong"),
        ("another of this size", "fetched twice and wrong"),
        ("lfs pointer", "a pointer of Git LFS and not the content"),
        ("html", "a web page: a proxy or a login page may have answered"),
        ("404", "the server answered 404"),
        ("breaks off for good", "keeps breaking off"),
    ],
)
@pytest.mark.parametrize("name", OPTIONS)
def test_a_wrong_file_is_refused_and_never_loaded(
    name: str, fault: str, words: str, server: Server, tmp_path: Path
) -> None:
    server.faults[path_of(name)] = ["ignores range, breaks off" if fault == "breaks off for good" else fault]
    for _ in range(2):  # what the first try leaves helps no other one
        with pytest.raises(DataError, match=words):
            create(name, pretrained=find_weights(name).name, **OPTIONS[name])
    assert all(file.endswith(".part") for file in cached(tmp_path / "cache"))


def test_a_file_that_was_damaged_in_the_cache_is_fetched_again_or_refused_offline(
    server: Server, contents: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = download("biot").files[0]
    path.write_bytes(contents["biot"][:-1] + b"x")
    monkeypatch.setenv("ZIPBRAIN_OFFLINE", "1")
    with pytest.raises(OptionError, match=r"does not have its published hash, and ZIPBRAIN_OFFLINE forbids"):
        download("biot")
    monkeypatch.setenv("ZIPBRAIN_OFFLINE", "0")
    assert download("biot").fetched == 1
    assert path.read_bytes() == contents["biot"]


def test_offline_takes_what_is_there_and_names_the_command_for_what_is_not(server: Server, monkeypatch) -> None:
    download("tfm")
    monkeypatch.setenv("ZIPBRAIN_OFFLINE", "1")
    asked = len(server.asked)
    assert download("tfm").fetched == 0
    with pytest.raises(OptionError, match="run 'zipbrain models download labram base' where there is one"):
        create("labram", pretrained="base", **OPTIONS["labram"])
    assert len(server.asked) == asked


def test_no_network_is_said_in_one_line(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZIPBRAIN_WEIGHTS_URL", "http://127.0.0.1:9/none")
    with pytest.raises(DataError, match=r"127.0.0.1:9 can't be reached .* check the network"):
        download("labram")


def test_a_proxy_that_answers_with_a_web_page_is_seen_through(server: Server, tmp_path: Path, monkeypatch) -> None:
    class Proxy(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None: ...

        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(HTML)))
            self.end_headers()
            self.wfile.write(HTML)

    proxy = ThreadingHTTPServer(("127.0.0.1", 0), Proxy)
    threading.Thread(target=proxy.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{proxy.server_port}")
    monkeypatch.setenv("ZIPBRAIN_WEIGHTS_URL", "http://weights.example/mirror")
    for name in ("labram", "eegpt"):
        with pytest.raises(DataError, match="a web page: a proxy or a login page may have answered"):
            download(name)
    proxy.shutdown()
    proxy.server_close()
    assert cached(tmp_path / "cache") == []


def test_weights_without_a_published_hash_must_be_a_checkpoint_and_stay_as_they_came(
    server: Server, contents: dict[str, bytes], tmp_path: Path
) -> None:
    path = "/mirror/46452745"  # the query is no part of the path
    for wrong in (HTML, b"x" * 1000, contents["labram"][:-100]):
        server.put(path, wrong)
        with pytest.raises(DataError, match="deleted"):
            download("eegpt")
        assert cached(tmp_path / "cache") == []
    server.put(path, contents["labram"])
    found = download("eegpt")
    assert found.hashes == (hash_file(found.files[0]),)
    with pytest.raises(OptionError, match="no tensor of it belongs to EEGPT"):
        create("eegpt", pretrained="large", n_outputs=2, ch_names=CHANNELS)
    found.files[0].write_bytes(contents["biot"])
    assert download("eegpt").fetched == 1  # not what came
    assert download("eegpt").fetched == 0


def test_a_checkpoint_that_leaves_blocks_at_random_weights_is_refused(server: Server, tmp_path: Path) -> None:
    state = as_published("biot")
    torch.save({name: value for name, value in state.items() if ".layers.3." not in name}, tmp_path / "part")
    server.put("/mirror/46452745", (tmp_path / "part").read_bytes())
    entry = find_weights("biot")
    hashed = replace(entry.files[0], hash=hash_file(tmp_path / "part", "git-blob"), path="46452745")
    published.CATALOGUE = (replace(entry, files=(hashed,)),)  # the fixture puts the whole one back
    with pytest.raises(OptionError, match=r"blocks would keep random weights, such as blocks\.3\."):
        create("biot", pretrained="prest-16", n_outputs=2)


def test_two_processes_that_want_the_same_file_fetch_it_once(server: Server, tmp_path: Path) -> None:
    pytest.importorskip("fcntl")
    server.faults[path_of("labram")] = ["slow"]
    found: list[int] = []

    def want() -> None:
        found.append(download("labram").fetched)

    threads = [threading.Thread(target=want) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(server.asked) == 1
    assert cached(tmp_path / "cache") == ["labram-base.pth"]


def test_a_kill_leaves_nothing_under_the_files_name_and_the_next_run_goes_on(server: Server, tmp_path: Path) -> None:
    server.faults[path_of("labram")] = ["slow"]
    code = (
        "import sys; from zipbrain.models import catalogue, download\n"
        "from dataclasses import replace\n"
        "entry = catalogue.CATALOGUE[0]\n"
        "catalogue.CATALOGUE = (replace(entry, files=(replace(entry.files[0], hash=sys.argv[1]),)),)\n"
        "download('labram')"
    )
    child = subprocess.Popen([sys.executable, "-c", code, str(find_weights("labram").files[0].hash)])
    deadline = time.monotonic() + 30
    while not (parts := list((tmp_path / "cache").rglob("*.part"))) or parts[0].stat().st_size == 0:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    child.kill()
    child.wait()
    assert cached(tmp_path / "cache") == ["labram-base.pth.part"]
    server.faults.clear()
    download("labram")
    assert server.asked[-1][1] is not None  # a Range
    assert cached(tmp_path / "cache") == ["labram-base.pth"]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda: create("labram", pretrained="huge", **OPTIONS["labram"]), "published of labram are base"),
        (lambda: download("cbramod"), "weights are published of labram, biot, eegpt, tfm"),
        (lambda: download("labram", base_url="ftp://x"), "it must begin with http"),
        (lambda: create("biot", pretrained="prest-16", n_outputs=2, dim=128), "is it of another size"),
        (lambda: create("labram", pretrained="base", n_outputs=2), "labram needs it"),
    ],
)
def test_wrong_options_are_refused_in_one_line(wrong: Callable[[], object], words: str, server: Server) -> None:
    with pytest.raises(ZipbrainError, match=words) as found:
        wrong()
    assert "\n" not in str(found.value)


def test_the_command_says_where_from_what_licence_and_what_became_of_every_tensor(server: Server, capsys) -> None:
    assert main(["models", "download", "labram"]) == 0
    said = capsys.readouterr().out
    for words in ("git-blob:", "is what was published", "Licence: MIT", "Please cite: Jiang", "tensors loaded"):
        assert words in said
    assert "left at its initial value: head.weight" in said
    assert main(["models", "download", "tfm", "tuev", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["weights"], told["fetched"], told["licence"]) == ("tfm-tuev", 2, "MIT")
    assert len(told["report"]["loaded"]) > 100
    assert main(["models", "download"]) == 0
    assert "six-datasets-18" in capsys.readouterr().out
    assert main(["models", "download", "biot", "seven"]) == 2
    assert "published of biot are prest-16, shhs-prest-18, six-datasets-18" in capsys.readouterr().err


def test_finetune_starts_from_published_weights_by_name_and_tells_what_was_loaded(server: Server, tmp_path) -> None:
    x = np.random.default_rng(0).normal(0, 20, (8, 2, 400)).astype(np.float32)
    windows = Windows.from_arrays(x, [0, 1] * 4, ch_names=["C3", "C4"], sfreq=200.0, classes=["a", "b"])
    told: list[LoadReport] = []

    def run(*init: str) -> Any:
        return finetune("biot", windows, init=init, out=tmp_path / "run", device="cpu", on_loaded=told.append)

    with pytest.raises(OptionError, match="these are weights of TFM-Tokenizer, the model is biot"):
        run("tfm-multiple")
    with pytest.raises(OptionError, match="published weights are labram-base, biot-prest-16"):
        run("biot-prest")
    assert not (tmp_path / "run").exists()
    settings = paper_settings("biot", "ISRUC").override(epochs=1, batch_size=4)
    run = finetune("biot", windows, init=["biot-prest-16"], settings=settings, device="cpu", on_loaded=told.append)
    assert run.record["init"] == ["biot-prest-16"]
    assert told[0].resized.keys() == {"channel_tokens.weight"}
    assert run.record["init_report"] == [str(told[0]).splitlines()]


def test_convert_takes_published_weights_by_name(server: Server, tmp_path: Path, capsys) -> None:
    assert main(["models", "convert", "biot", "biot-prest-16", str(tmp_path / "biot")]) == 0
    assert "tensors loaded" in capsys.readouterr().out
    assert main(["models", "convert", "biot", "labram-base", str(tmp_path / "no")]) == 2
    assert "these are weights of LaBraM, the model is biot" in capsys.readouterr().err


def test_a_model_of_two_parts_says_which_one_had_no_file(server: Server) -> None:
    model = create("tfm", **OPTIONS["tfm"])
    assert initialise(model, ["tfm-multiple"]).initial == ["encoder.head.weight", "encoder.head.bias"]
    report = initialise(model, [download("tfm-encoder").files[0]])
    assert re.search(r"left at its initial value: \d+ tensors of tokenizer", str(report))


def test_the_real_released_encoder_is_fetched_loaded_and_run(tmp_path: Path, monkeypatch) -> None:
    real = conftest.SHARED / "weights" / "tfm_tuev_encoder.pth"
    if not real.exists():
        pytest.skip(f"the released TFM encoder is not at {real} (ZIPBRAIN_SHARED names its parent)")
    server = Server()
    weights = find_weights("tfm-encoder", "multiple-tuev")
    server.put(f"/{weights.files[1].path}", real.read_bytes())
    monkeypatch.setenv("ZIPBRAIN_CACHE", str(tmp_path))
    model: Any = create_from(server, monkeypatch)
    assert len(model.load_report.loaded) + len(model.load_report.resized) == len(model.state_dict())
    assert model.load_report.initial == []
    ids = torch.randint(0, 8192, (2, 16, 9), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        logits = model.eval()(ids)
    assert logits.shape == (2, 6)
    assert logits.std() > 0.1  # a trained head is far from its initial one
    server.http.shutdown()
    server.http.server_close()


def create_from(server: Server, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("ZIPBRAIN_WEIGHTS_URL", server.url)
    return create("tfm-encoder", pretrained="multiple-tuev")
