"""Models to and from a hub on this machine, with a card that carries their certificate."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

pytest.importorskip("huggingface_hub", reason="the environment of `make zoo` has it")

import zipbrain
from hub_server import TOKEN, HubServer
from zipbrain.errors import OptionError, ZipbrainError
from zipbrain.models import BIOT, Task, remember
from zipbrain.seal import sealed
from zipbrain.seams import is_compressed
from zipbrain.weights import fingerprint

NAME = "people/small-biot"
PROMISE = {
    "agree": 0.985,
    "confidence": 0.95,
    "is_promise": True,
    "windows": 2400,
    "groups": 60,
    "classes": [{"name": "seizure|none", "windows": 370, "agreement": 0.9973, "agree": 0.991}],
    "score": {"metric": "auroc", "before": 0.9312, "after": 0.9309},
}


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    """A hub, to which the library of this process talks; its cache lies in a folder of the test."""
    from huggingface_hub import constants

    for name in (*os.environ,):
        if name.lower().endswith("_proxy") or name.startswith("ZIPBRAIN_"):
            monkeypatch.delenv(name)
    server = HubServer()
    monkeypatch.setattr(constants, "ENDPOINT", server.url)
    template = constants.HUGGINGFACE_CO_URL_TEMPLATE
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", server.url + template[template.index("/{repo_id}") :])
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)  # this hub has plain LFS only
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "none"))
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    yield server
    server.close()


def small() -> nn.Module:
    torch.manual_seed(0)
    model = BIOT(2, 4, 600, dim=32, depth=3).eval()
    remember(model, Task(("none", "seizure"), "mine", ("C3", "C4", "O1", "O2"), 200.0, "q95"))
    return model


def tuned(model: nn.Module) -> nn.Module:
    """Compressed by a recipe with a promise for these weights, as `zipbrain.tune` makes it."""
    weights = fingerprint(model.state_dict())
    recipe = zipbrain.Recipe({"name": "twins"}, {"name": "ratio", "ratio": 0.5}, dataset="mine", weights=weights)
    zipbrain.compress(model, recipe)
    from zipbrain.seams.compress import describe

    found = replace(recipe, **describe(model))
    return zipbrain.compress(zipbrain.restore(model), sealed(found, PROMISE))


def test_a_compressed_model_comes_back_from_the_hub_with_its_certificate(hub: HubServer) -> None:
    model = tuned(small())
    x = torch.randn(3, 4, 600)
    before = model(x)
    address = zipbrain.push_to_hub(model, NAME, private=True)
    assert address.startswith(f"{hub.url}/{NAME}/commit/")
    assert set(hub.newest(NAME)) == {"config.json", "model.safetensors", "recipe.json", "README.md"}
    again = zipbrain.from_pretrained(NAME)
    assert torch.equal(again(x), before)
    assert is_compressed(again)
    assert again.trained_for.classes == ("none", "seizure")
    card = hub.newest(NAME)["README.md"].decode()
    assert card.startswith("---\nlibrary_name: zipbrain\ntags:\n- eeg\n- token-pooling\n- biot\n---\n")
    assert "At least **98.5 %** of the decisions" in card
    assert "promised at 95 % confidence for people like the 60 it was certified on (2,400 windows)" in card
    assert "| seizure\\|none | 370 | 99.7 % | 99.1 % |" in card
    assert "Score (auroc): 0.9312 uncompressed, 0.9309 compressed." in card
    assert f"SHA-256 `{fingerprint(model.state_dict())}`" in card
    assert "C3, C4, O1, O2" in card
    (code,) = [block.split("```")[0] for block in card.split("```python\n")[1:]]
    exec(code, found := {})  # what the card says to do
    assert torch.equal(found["model"](x), before)


def test_a_commit_stays_under_its_name_and_a_newer_one_is_taken_without_it(hub: HubServer) -> None:
    model = small()
    first = zipbrain.push_to_hub(model, NAME).rpartition("/")[2]
    card = hub.newest(NAME)["README.md"].decode()
    assert "Certificate" not in card
    assert "2 M parameters" not in card.split("##")[1]
    with torch.no_grad():
        next(model.parameters()).add_(1)
    zipbrain.push_to_hub(zipbrain.compress(model, "tome", ratio=0.5), NAME)
    assert "None. `zipbrain.tune` chooses a recipe" in hub.newest(NAME)["README.md"].decode()
    assert not is_compressed(zipbrain.from_pretrained(NAME, revision=first))
    assert is_compressed(zipbrain.from_pretrained(NAME))


def test_an_uncompressed_model_leaves_no_recipe_of_an_older_commit(hub: HubServer) -> None:
    model = tuned(small())
    zipbrain.push_to_hub(model, NAME)
    assert "recipe.json" in hub.newest(NAME)
    zipbrain.push_to_hub(zipbrain.restore(model), NAME)
    assert "recipe.json" not in hub.newest(NAME)
    assert not is_compressed(zipbrain.from_pretrained(NAME))


def test_a_private_model_is_not_put_into_a_public_repository(hub: HubServer) -> None:
    zipbrain.push_to_hub(small(), NAME)
    before = hub.newest(NAME)
    with pytest.raises(OptionError, match="public"):
        zipbrain.push_to_hub(small(), NAME, private=True)
    assert hub.newest(NAME) == before


def test_a_promise_that_does_not_hold_is_not_on_the_card(hub: HubServer) -> None:
    model = tuned(small())
    with torch.no_grad():
        next(model.parameters()).add_(1)
    zipbrain.push_to_hub(model, NAME)
    card = hub.newest(NAME)["README.md"].decode()
    assert "98.5 %" not in card
    assert "None: the recipe was tuned for other weights." in card


def refusal(call: Callable[[], object]) -> str:
    with pytest.raises(ZipbrainError) as found:
        call()
    assert len(str(found.value).splitlines()) == 1
    return str(found.value)


def test_what_goes_wrong_is_one_line(hub: HubServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    load = lambda: zipbrain.from_pretrained(NAME)  # noqa: E731
    push = lambda: zipbrain.push_to_hub(small(), NAME)  # noqa: E731
    assert f"{hub.url} has no such repository, or it is private" in refusal(load)
    assert "a hub name has the form owner/name" in refusal(lambda: zipbrain.push_to_hub(small(), "alone"))
    assert "a hub name has the form owner/name" in refusal(lambda: zipbrain.from_pretrained("no/such/folder"))
    assert "it must be one of LaBraM" in refusal(lambda: zipbrain.push_to_hub(nn.Linear(2, 2), NAME))
    push()
    assert "has no such revision" in refusal(lambda: zipbrain.from_pretrained(NAME, revision="v9"))
    shutil.rmtree(tmp_path / "hub", ignore_errors=True)
    for fault in ("html", "500"):
        hub.fault = fault
        for call in (load, push):
            said = refusal(call)
            assert "proxy or a login page" in said or "can't be reached" in said or "answered 500" in said, said
    hub.fault = ""
    monkeypatch.setenv("HF_TOKEN", "wrong")
    assert "answered 401; log in with 'hf auth login'" in refusal(push)
    monkeypatch.setenv("ZIPBRAIN_OFFLINE", "1")
    asked = len(hub.asked)
    assert "the network is forbidden, and the hub's cache does not hold it" in refusal(load)
    assert "ZIPBRAIN_OFFLINE forbids the network" in refusal(push)
    assert len(hub.asked) == asked
    monkeypatch.delenv("ZIPBRAIN_OFFLINE")
    zipbrain.from_pretrained(NAME)  # readable without a token
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    zipbrain.from_pretrained(NAME)  # from the cache
    shutil.rmtree(tmp_path / "hub")
    assert "can't be reached" in refusal(load)


def test_damaged_and_foreign_repositories_are_never_loaded(hub: HubServer, tmp_path: Path) -> None:
    zipbrain.push_to_hub(small(), NAME)
    files = hub.newest(NAME)
    whole = files["model.safetensors"]
    for content in (whole[:-1] + bytes([whole[-1] ^ 1]), whole[:-100], b"<!DOCTYPE html>"):
        shutil.rmtree(tmp_path / "hub", ignore_errors=True)
        files["model.safetensors"] = content
        assert "its model.safetensors can't be used" in refusal(lambda: zipbrain.from_pretrained(NAME))
    hub.commits[NAME]["0" * 40] = {"model.safetensors": whole}
    with pytest.raises(OptionError, match=r"it holds no config\.json"):
        zipbrain.from_pretrained(NAME)


def test_without_the_library_the_extra_is_named() -> None:
    code = "import sys; sys.modules['huggingface_hub'] = None\nimport zipbrain\nzipbrain.from_pretrained('a/b')"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stderr
    assert "from_pretrained('a/b') needs huggingface_hub" in said.splitlines()[-1]
    assert "pip install 'zipbrain[hub]'" in said.splitlines()[-1]


def test_the_command_pushes_a_saved_model(hub: HubServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from zipbrain.cli import main

    zipbrain.save_pretrained(small(), tmp_path / "mine")
    assert main(["models", "push", str(tmp_path / "mine"), NAME]) == 0
    assert f"{hub.url}/{NAME}/commit/" in capsys.readouterr().out
    assert main(["models", "describe", NAME]) == 0
    assert "BIOT" in capsys.readouterr().out
    hub.fault = "500"
    assert main(["models", "push", str(tmp_path / "mine"), NAME]) == 1
    assert len(capsys.readouterr().err.strip().splitlines()) == 1
