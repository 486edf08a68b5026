"""A file with a second look on a device: who looked twice is counted, and an audit compares with the original."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge import tiny_onnx
from edge.test_predict import save_edf, signal
from promises import promising
from zipbrain.cli import main
from zipbrain.edge.audit import Audit, promised_agreement
from zipbrain.edge.description import LOOKED_TWICE, MARGIN
from zipbrain.edge.model import EdgeModel
from zipbrain.edge.predict_batch import predict_many
from zipbrain.edge.predict_one import predict
from zipbrain.errors import OptionError

RECIPE: dict[str, Any] = {"method": {"name": "zipbrain"}, "schedule": {"name": "ratio", "ratio": 0.5}}
HOP = 0.1  # seconds; 161 windows of the recording


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    return save_edf(tmp_path / "raw" / "a.edf", signal())


@pytest.fixture
def margin(recording: Path, tmp_path: Path) -> float:
    """What a third of the windows is below."""
    plain = predict(recording, tiny_onnx.save(tmp_path / "plain.onnx"), hop_s=HOP).probabilities
    return float(np.quantile(np.abs(np.log(plain[:, 0] / plain[:, 1])), 1 / 3))


@pytest.mark.parametrize("runtime", ["onnxruntime", "openvino"])
def test_close_windows_get_the_second_answer_and_are_counted(
    recording: Path, margin: float, tmp_path: Path, runtime: str
) -> None:
    pytest.importorskip(runtime)
    path = tiny_onnx.looking_twice(tmp_path / "m.onnx", margin)
    once = predict(recording, tiny_onnx.save(tmp_path / "plain.onnx"), hop_s=HOP)
    found = predict(recording, EdgeModel(path, runtime=runtime), tmp_path / "out", hop_s=HOP)
    odds = np.abs(np.log(once.probabilities[:, 0] / once.probabilities[:, 1]))
    assert once.looked_twice is None
    assert found.looked_twice is not None
    assert np.array_equal(found.looked_twice, odds < margin)
    assert found.summary()["looked_twice"] == found.looked_twice.sum() == 54
    assert "looked_twice" not in once.summary()
    again = EdgeModel(path, runtime=runtime)
    kept = ~found.looked_twice
    np.testing.assert_allclose(found.probabilities[kept], once.probabilities[kept], atol=1e-6)
    assert (found.decisions != once.decisions)[found.looked_twice].all()  # the second network has swapped classes
    rows = list(csv.DictReader((tmp_path / "out" / "a_zipbrain.csv").open()))
    assert [row["looked_twice"] for row in rows] == [str(int(twice)) for twice in found.looked_twice]
    events = (tmp_path / "out" / "a_desc-zipbrain_events.tsv").read_text().splitlines()
    assert events[0].endswith("note\tlooked_twice")
    assert sum(line.endswith("\t1") for line in events[1:]) == 54
    assert "looked_twice" in json.loads((tmp_path / "out" / "a_desc-zipbrain_events.json").read_text())
    x = np.zeros((2, 16, 800), np.float32)
    x[1] = np.nan
    logits, looked = again.look(x)
    assert looked.tolist() == [True, False]  # zeros are a tie; the network does not get NaN
    assert np.isnan(logits[1]).all()


def test_an_audit_compares_a_random_share_with_the_second_network(
    recording: Path, margin: float, tmp_path: Path
) -> None:
    path = tiny_onnx.looking_twice(tmp_path / "m.onnx", margin)
    whole = predict(recording, path, hop_s=HOP, audit=1.0)
    assert whole.audit is not None
    assert whole.looked_twice is not None
    assert (whole.audit.windows, whole.audit.agreeing) == (161, 54)  # those that looked twice already
    assert whole.audit.agreement == pytest.approx(54 / 161)
    low, high = whole.audit.interval
    assert 0.26 < low < 54 / 161 < high < 0.42
    some = [predict(recording, path, hop_s=HOP, audit=0.2, audit_seed=seed).audit for seed in (0, 0, 1, 2)]
    assert some[0] == some[1]
    assert len({(one.windows, one.agreeing) for one in some if one is not None}) > 1
    assert all(one is not None and 10 < one.windows < 60 for one in some)
    plain = predict(recording, path, hop_s=HOP)
    assert plain.audit is None
    assert "audit" not in plain.summary()
    np.testing.assert_array_equal(plain.probabilities, whole.probabilities)


def test_wrong_audits_are_refused_before_anything_is_computed(recording: Path, tmp_path: Path) -> None:
    plain, twice = tiny_onnx.save(tmp_path / "p.onnx"), tiny_onnx.looking_twice(tmp_path / "m.onnx", 0.1)
    for call in (predict, lambda r, m, **o: predict_many([r], m, tmp_path / "out", **o)):
        with pytest.raises(OptionError, match=r"audit: got 0\.5, but .*p\.onnx has no second look: export one"):
            call(recording, plain, audit=0.5)
        for wrong in (0, -0.1, 1.5, math.nan, "some"):
            with pytest.raises(OptionError, match="audit"):
                call(recording, twice, audit=wrong)
        with pytest.raises(OptionError, match="audit_seed"):
            call(recording, twice, audit=0.5, audit_seed=-1)
    assert not (tmp_path / "out").exists()


def test_results_without_an_audit_are_no_results_of_one(recording: Path, tmp_path: Path) -> None:
    path, out = tiny_onnx.looking_twice(tmp_path / "m.onnx", 0.1), tmp_path / "out"
    options: dict[str, Any] = {"formats": ["csv"], "hop_s": HOP}
    (first,) = predict_many([recording], path, out, **options)
    (again,) = predict_many([recording], path, out, **options)
    assert (first.status, again.status) == ("done", "skipped")
    (other,) = predict_many([recording], path, out, audit=0.5, **options)
    assert other.status == "failed"
    assert "other options" in other.error
    (asked,) = predict_many([recording], path, out, audit=0.5, overwrite=True, **options)
    assert asked.summary["audit"]["windows"] > 0
    assert predict_many([recording], path, out, audit=0.5, **options)[0].status == "skipped"
    assert predict_many([recording], path, out, audit=0.5, audit_seed=1, **options)[0].status == "failed"


def test_the_command_tells_the_audit_beside_the_promise(
    recording: Path, margin: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tiny_onnx.looking_twice(tmp_path / "m.onnx", margin, recipe=promising(agree=0.99, confidence=0.95))
    command = ["predict", str(recording), "--model", str(path), "--format", "csv", "--hop", str(HOP)]
    assert main([*command, "--out", str(tmp_path / "out"), "--audit", "1"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "looked twice: 54 of 161 windows (33.5%)" in said
    assert "54 of 161 windows agree" in said
    assert "promised 99.0%: not kept" in said
    assert main([*command, "--out", str(tmp_path / "json"), "--audit", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["audit"]["promised"] == 0.99
    assert found["audit"]["agreeing"] == found["recordings"][0]["summary"]["looked_twice"] == 54
    assert main([*command, "--out", str(tmp_path / "few"), "--audit", "1e-9"]) == 0
    assert "no window was drawn" in capsys.readouterr().out
    plain = tiny_onnx.save(tmp_path / "p.onnx")
    assert main(["predict", str(recording), "--model", str(plain), "--out", str(tmp_path / "x"), "--audit", "1"]) == 2
    assert "no second look" in capsys.readouterr().err


def test_a_description_needs_both_ends_of_a_second_look() -> None:
    ends = {"input": MARGIN, "output": LOOKED_TWICE}
    outputs = {LOOKED_TWICE: "answered twice"}
    assert tiny_onnx.description(outputs=outputs, second_look={"margin": 0.5, **ends}).looks_twice
    for wrong in (None, {"margin": 0.5}, {**ends}, {"margin": -1.0, **ends}, {"margin": "much", **ends}):
        with pytest.raises(OptionError, match="second_look"):
            tiny_onnx.description(outputs=outputs, second_look=wrong)


def test_a_promise_is_read_from_the_recipe_and_may_be_missing() -> None:
    assert promised_agreement(tiny_onnx.description()) is None
    assert promised_agreement(tiny_onnx.description(recipe=RECIPE)) is None
    for wrong in ({}, {"agree": "all"}, {"agree": True}, {"agree": 7}):
        assert promised_agreement(tiny_onnx.description(recipe=promising(**wrong))) is None
    promise = promising(agree=0.98)
    assert promised_agreement(tiny_onnx.description(recipe=promise)) == 0.98
    for change in ({"weights": "cd" * 32}, {"weights": None}, {"second_look": 0.1}, {"schedule": {"name": "no"}}):
        assert promised_agreement(tiny_onnx.description(recipe={**promise, **change})) is None
    for other in ({"is_promise": False}, {"groups": 4}, {"precision": "int8-static"}):
        assert promised_agreement(tiny_onnx.description(recipe=promising(agree=0.98, **other))) is None
    assert Audit(0.1, 0).agreement is None
    assert Audit(0.1, 0, 300, 300).interval == (pytest.approx(0.025 ** (1 / 300)), 1.0)
