"""The search itself: what is scored, what wins, what is stored, what survives a kill, what is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import zipbrain
import zipbrain.jobs
from search import small
from zipbrain.errors import DataError, MissingExtra, OptionError, ZipbrainError
from zipbrain.evaluation.store import Store
from zipbrain.evaluation.trial import Trial
from zipbrain.metrics import probabilities, scores
from zipbrain.recipe import Recipe
from zipbrain.seams.compress import describe
from zipbrain.search import SearchResult, SearchStopped, scorer, search
from zipbrain.search.space import Point, stage_1, stage_2
from zipbrain.search.worker import Case, Work, score
from zipbrain.training import predict

FEW = [Point(z1, z2, "x", rho) for z1, z2 in (("x", "q"), ("kh", "vh")) for rho in (0.0, 0.4, 1.0)]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A checkpoint and prepared data."""
    base = tmp_path_factory.mktemp("search")
    return small.checkpoint(base / "model"), small.prepared(base / "data")


@pytest.fixture(scope="module")
def whole(folders: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> tuple[SearchResult, Path]:
    """One whole search, and its store."""
    out = tmp_path_factory.mktemp("store")
    return search(*folders, out=out, backend="sequential", device="cpu"), out


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Six settings in stage 1 instead of 297."""
    monkeypatch.setattr(scorer, "stage_1", lambda: list(FEW))


def same(one: SearchResult, other: SearchResult) -> bool:
    return [(e.point, e.stage, e.score, e.result.key) for e in one.ranking] == [
        (e.point, e.stage, e.score, e.result.key) for e in other.ranking
    ]


def keys_in(out: Path) -> list[str]:
    return [json.loads(line)["key"] for line in (out / "results.jsonl").read_text().splitlines()]


def test_the_two_stages_are_the_papers(whole: tuple[SearchResult, Path]) -> None:
    result, _ = whole
    assert result.complete
    assert (len(result.ranking), result.expected, result.metric, result.select_on) == (321, 321, "auroc", "val")
    first = [entry for entry in result.ranking if entry.stage == 1]
    assert {entry.point for entry in first} == set(stage_1())
    order = {point: place for place, point in enumerate(stage_1())}
    by_hand = sorted(first, key=lambda entry: (-entry.score, order[entry.point]))
    assert first == by_hand
    second = stage_2([entry.point for entry in by_hand[:4]])
    assert {entry.point for entry in result.ranking if entry.stage == 2} == set(second)
    assert result.winner is result.ranking[0]
    assert result.task["checkpoint"] == result.winner.result.task["checkpoint"] != ""
    assert result.winner.score == max(entry.score for entry in result.ranking)


def test_what_the_ranking_hides_is_said(whole: tuple[SearchResult, Path]) -> None:
    found, _ = whole
    assert found.task["windows"] < 50
    assert any(line.startswith(f"Few windows: {found.task['windows']}") for line in found.doubts)
    assert any(line.startswith("Test split: ") for line in found.doubts) == (found.test is not None)
    assert found.as_dict()["doubts"] == found.doubts
    assert all("removed" in row and 0 < row["operations"] < 1 for row in found.rows())


def test_scores_are_those_of_a_plainly_compressed_model(
    whole: tuple[SearchResult, Path], folders: tuple[Path, Path]
) -> None:
    """The plain twin: compress, predict and score by hand, without trial, store or reuse."""
    result, _ = whole
    windows = zipbrain.data.open_prepared(folders[1]).split("val")
    for entry in result.ranking[:: len(result.ranking) // 6]:
        model = zipbrain.from_pretrained(folders[0])
        zipbrain.compress(model, zipbrain.ZIPBrain(entry.point.z1, entry.point.z2, entry.point.z3, entry.point.rho),
                          ratio="max")  # fmt: skip
        logits = predict(model, windows, device="cpu")
        assert scores(windows.labels, probabilities(logits))["auroc"] == pytest.approx(entry.score, abs=1e-12)


def test_the_winner_is_a_recipe_that_says_where_it_was_chosen(
    whole: tuple[SearchResult, Path], folders: tuple[Path, Path], tmp_path: Path
) -> None:
    result, _ = whole
    assert result.best is not None
    files = result.save(tmp_path / "files")
    assert {"ranking.csv", "recipe.json", "heatmap.png", "heatmap.svg"} == set(files)
    recipe = Recipe.load(files["recipe.json"])
    assert recipe == result.best
    assert (recipe.split, recipe.metric, recipe.score) == ("val", "auroc", result.ranking[0].score)
    assert result.test is not None
    assert result.test.task["split"] == "test"
    model = zipbrain.compress(zipbrain.from_pretrained(folders[0]), recipe)
    test = zipbrain.data.open_prepared(folders[1]).split("test")
    logits = predict(model, test, device="cpu")
    assert scores(test.labels, probabilities(logits))["auroc"] == pytest.approx(result.test.scores["auroc"])
    lines = files["ranking.csv"].read_text().splitlines()
    assert len(lines) == 322
    assert lines[0].startswith("rank,stage,ratio,z1,z2,z3,rho,latency,operations,auroc,")


def test_each_network_is_run_once_and_known_ones_never(
    whole: tuple[SearchResult, Path], folders: tuple[Path, Path]
) -> None:
    result, out = whole
    distinct = {entry.result.key for entry in result.ranking}
    assert result.evaluated == len(distinct) <= 301  # 20 of the 27 settings at rho = 1 differ in an idle z2
    keys = keys_in(out)
    assert len(keys) == len(set(keys)) == len(distinct) + 3  # uncompressed, and both on the test split
    again = search(*folders, out=out, backend="sequential", device="cpu")
    assert again.evaluated == 0
    assert same(again, result)
    assert keys_in(out) == keys


@pytest.mark.slow
def test_twenty_kills_leave_every_result_once_and_the_same_winner(
    whole: tuple[SearchResult, Path], folders: tuple[Path, Path], tmp_path: Path
) -> None:
    out = tmp_path / "killed"
    program = Path(__file__).with_name("killing.py")
    command = [sys.executable, str(program), str(folders[0]), str(folders[1]), str(out), "20", "7"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    result, _ = whole
    assert result.best is not None
    assert found["killed"] == 20
    assert found["complete"]
    assert 0 < found["before"] < len(keys_in(out))  # the last run had something to go on from, and something to do
    assert found["evaluated"] < result.evaluated
    assert len(found["rows"]) == 321
    assert found["rows"] == [[r["z1"], r["z2"], r["z3"], r["rho"], r["auroc"]] for r in result.rows()]
    assert found["best"] == result.best.to_dict()
    keys = keys_in(out)
    assert len(keys) == len(set(keys)) == result.evaluated + 3


@pytest.mark.usefixtures("few")
def test_changed_weights_or_data_are_never_served_from_old_results(tmp_path: Path) -> None:
    model, data, out = small.checkpoint(tmp_path / "m"), small.prepared(tmp_path / "d"), tmp_path / "out"
    options: dict[str, Any] = {"out": out, "backend": "sequential", "device": "cpu"}
    first = search(model, data, **options)
    assert search(model, data, **options).evaluated == 0
    small.checkpoint(model, seed=1)
    other = search(model, data, **options)
    assert other.evaluated == first.evaluated
    assert not {e.result.key for e in other.ranking} & {e.result.key for e in first.ranking}
    shard = data / "shards" / "val-a.npy"
    windows = np.load(shard)
    windows[0, 0, 0] += 1.0
    np.save(shard, windows)
    assert search(model, data, **options).evaluated == first.evaluated


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("backend", ["threading", "loky"])
def test_backends_agree_with_folders_and_with_objects(backend: str, folders: tuple[Path, Path], tmp_path: Path) -> None:
    plain = search(*folders, out=tmp_path / "plain", backend="sequential", device="cpu")
    assert len(plain.ranking) == plain.expected == len(FEW) + 24
    parallel = search(*folders, out=tmp_path / "parallel", backend=backend, workers=2, device="cpu")
    assert same(plain, parallel)
    prepared = zipbrain.data.open_prepared(folders[1])
    splits = {name: prepared.split(name) for name in ("val", "test")}
    options: dict[str, Any] = {"out": tmp_path / "objects", "backend": backend, "workers": 2, "device": "cpu"}
    objects = search(zipbrain.from_pretrained(folders[0]), splits, **options)
    assert same(plain, objects)
    assert objects.test is not None


@pytest.mark.usefixtures("few")
def test_kappa_ranks_with_more_classes_and_mass_is_another_network(tmp_path: Path) -> None:
    model, windows = small.model(3), small.windows(30, 3)
    options: dict[str, Any] = {"out": tmp_path, "backend": "sequential", "device": "cpu", "select_on": "test"}
    result = search(model, windows, ratio=0.5, **options)
    assert (result.metric, result.select_on, result.test) == ("kappa", "test", None)
    assert result.best is not None
    assert (result.best.split, result.best.metric, result.best.mass["merge"]) == ("test", "kappa", False)
    heavy = search(model, windows, ratio=0.5, mass=True, **options)
    assert heavy.best is not None
    assert heavy.best.mass == {"attention": True, "merge": True, "readout": True}
    assert not {e.result.key for e in heavy.ranking} & {e.result.key for e in result.ranking}


@pytest.mark.usefixtures("few")
def test_the_whole_grid_is_one_stage(folders: tuple[Path, Path], tmp_path: Path, monkeypatch: Any) -> None:
    grid = [Point(z1, "q", z3, rho) for z1 in ("x", "v") for z3 in ("x", "kh") for rho in (0.0, 1.0)]
    monkeypatch.setattr(scorer, "full_grid", lambda: grid)
    result = search(*folders, full=True, out=tmp_path, backend="sequential", device="cpu")
    assert {entry.point for entry in result.ranking} == set(grid)
    assert {entry.stage for entry in result.ranking} == {0}
    assert result.heatmap().axes[0].images[0].get_array().shape == (2, 11)


@pytest.mark.usefixtures("few")
def test_a_target_searches_ratios_and_times_finalists(folders: tuple[Path, Path], tmp_path: Path) -> None:
    options: dict[str, Any] = {"out": tmp_path, "backend": "sequential", "device": "cpu"}
    found = search(*folders, target="latency<=50", ratios=(0.01, 0.4, "max", 0.89), **options)
    assert {entry.ratio for entry in found.ranking} == {0.4, "max"}
    assert any("0.01 removes none of the 9 tokens" in remark for remark in found.remarks)
    assert any("0.89 removes as many tokens as max" in remark for remark in found.remarks)
    assert found.winner is not None
    assert found.winner.score == found.ranking[0].score  # all are fast enough, so the best
    assert 2 <= len(found.latency) <= 6
    assert found.best is not None
    files = found.save(tmp_path / "files")
    assert {"pareto.png", "recipe.json"} <= set(files)
    for impossible in ("latency<=0.0001", "auroc>=0.9999x"):
        missed = search(*folders, target=impossible, ratios=("max",), **options)
        if impossible.startswith("auroc") and max(e.score for e in missed.ranking) >= missed.original.scores["auroc"]:
            continue  # pooling may do better than the random model itself
        assert missed.winner is missed.best is None
        assert any("no recipe meets" in remark for remark in missed.remarks)
        assert "recipe.json" not in missed.save(tmp_path / "files")
        assert not (tmp_path / "files" / "recipe.json").exists()


@pytest.mark.usefixtures("few")
def test_a_setting_that_gives_no_numbers_ranks_last_and_ends_nothing(
    folders: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = Trial._pass

    def spoiled(self: Trial, tick: Any) -> Any:
        logits, *more = plain(self, tick)
        if zipbrain.seams.is_compressed(self.model) and describe(self.model)["method"]["z1"] == "kh":
            logits[0] = np.nan
        return logits, *more

    monkeypatch.setattr(Trial, "_pass", spoiled)
    found = search(*folders, out=tmp_path, backend="sequential", device="cpu")
    assert found.complete
    assert found.winner is not None
    assert found.winner.point.z1 == "x"
    broken = [entry for entry in found.ranking if entry.point.z1 == "kh"]
    assert broken
    assert found.ranking[-len(broken) :] == broken
    assert all(np.isnan(entry.score) for entry in broken)
    assert "ranking.csv" in found.save(tmp_path / "files")


@pytest.mark.usefixtures("few")
def test_a_target_with_other_ratios_has_a_folder_of_its_own(folders: tuple[Path, Path], tmp_path: Path) -> None:
    options: dict[str, Any] = {"out": tmp_path, "backend": "sequential", "device": "cpu", "target": "latency<=50"}
    names = {search(*folders, ratios=ratios, **options).name for ratios in ((0.4,), ("max",))}
    assert len(names) == 2


@pytest.mark.usefixtures("few")
def test_the_winners_test_record_says_where_it_was_chosen_whatever_was_searched_before(
    folders: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = {"out": tmp_path, "backend": "sequential", "device": "cpu"}
    monkeypatch.setattr(scorer, "full_grid", lambda: FEW)  # all of them are scored on test, so the winner of val too
    options["full"] = True
    on_test = search(*folders, select_on="test", **options)
    on_val = search(*folders, **options)
    assert on_test.best is not None
    assert on_val.best is not None
    assert on_val.test is not None
    known = {entry.result.key: entry.result for entry in on_test.ranking}
    plain = on_val.test.key.rpartition(":")[2]
    assert on_val.test.recipe == on_val.best.to_dict()
    assert on_val.test.recipe["split"] == "val"
    assert on_val.test.task["split"] == "test"
    assert known[plain].recipe["split"] == "test"
    assert known[plain].scores == on_val.test.scores
    again = search(*folders, **options)
    assert again.test is not None
    assert again.test.recipe == on_val.test.recipe
    assert again.test.extra == {"mass": False}


@pytest.mark.usefixtures("few")
def test_a_test_split_that_can_not_be_read_loses_no_ranking(
    folders: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = Case.open

    def breaks(case: Case) -> Any:
        if case.split == "test":
            raise DataError("a shard is gone")
        return opened(case)

    monkeypatch.setattr(Case, "open", breaks)
    result = search(*folders, out=tmp_path, backend="sequential", device="cpu")
    assert result.complete
    assert result.best is not None
    assert result.test is result.test_original is None
    assert "not scored on the test split: a shard is gone" in result.remarks


@pytest.mark.usefixtures("few")
def test_another_network_or_other_windows_have_a_folder_of_their_own(
    folders: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = {"out": tmp_path, "backend": "sequential", "device": "cpu"}
    first = search(*folders, **options)
    assert search(*folders, **options).name == first.name == f"search-biot-toy-max-val-{first.original.key[:8]}"
    assert search(small.checkpoint(tmp_path / "other", seed=1), folders[1], **options).name != first.name
    assert search(*folders, limit=20, **options).name != first.name
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "pareto.svg").write_text("of an older search")
    first.save(tmp_path / "files")
    assert {path.stem for path in (tmp_path / "files").iterdir()} == {"heatmap", "ranking", "recipe"}

    def missing(result: SearchResult) -> Any:
        raise MissingExtra("matplotlib", "report", "figures")

    monkeypatch.setattr(SearchResult, "heatmap", missing)
    assert set(first.save(tmp_path / "files")) == {"ranking.csv", "recipe.json"}
    assert not list((tmp_path / "files").glob("heatmap.*"))


def test_leaders_that_are_one_network_are_counted(folders: tuple[Path, Path], tmp_path: Path, monkeypatch: Any) -> None:
    pairs = [Point(z1, z2, "x", 1.0) for z1 in ("x", "kh") for z2 in ("q", "vh")]  # A A B B: z2 is idle
    monkeypatch.setattr(scorer, "stage_1", lambda: pairs)
    result = search(*folders, out=tmp_path, backend="sequential", device="cpu")
    assert "ratio max: the 4 leaders are 2 distinct networks (at rho = 1, z2 can't matter)" in result.remarks


@pytest.mark.usefixtures("few")
def test_a_search_that_stops_keeps_and_reports_what_it_has(
    folders: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = {"out": tmp_path, "backend": "sequential", "device": "cpu"}

    def dies(function: Any, items: Any, **options: Any) -> Any:
        for index, item in enumerate(items):
            if index == 3:
                raise zipbrain.jobs.JobsFailed("the cluster is gone")
            yield index, function(item)

    with monkeypatch.context() as patch:
        patch.setattr(scorer, "run_jobs", dies)
        with pytest.raises(SearchStopped, match="the cluster is gone: 3 of 30 results") as caught:
            search(*folders, **options)
    partial = caught.value.partial
    assert not partial.complete
    assert partial.best is partial.winner is None
    assert len(partial.ranking) == 3
    whole = search(*folders, **options)
    assert whole.complete
    assert len(keys_in(tmp_path)) == len(set(keys_in(tmp_path)))


@pytest.mark.usefixtures("few")
def test_a_half_written_line_is_set_aside_and_a_newer_store_refused(folders: tuple[Path, Path], tmp_path: Path) -> None:
    options: dict[str, Any] = {"out": tmp_path, "backend": "sequential", "device": "cpu"}
    whole = search(*folders, **options)
    path = tmp_path / "results.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:5]) + lines[5][:40])
    again = search(*folders, **options)
    assert same(whole, again)
    assert any("half-written" in remark for remark in again.remarks)
    path.write_text(json.dumps({"format": 99, "key": "k"}) + "\n")
    with pytest.raises(DataError, match="format 99"):
        search(*folders, **options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"ratio": 0.001}, "removes none of the 9 tokens"),
        ({"ratio": "much"}, "a share above 0"),
        ({"ratio": 0}, "a share above 0"),
        ({"select_on": "train"}, "val or test"),
        ({"backend": "cloud"}, "loky, threading"),
        ({"ratios": [0.5]}, "for a target"),
        ({"target": "quick"}, "latency<=NUMBER"),
        ({"target": "pr_auc>=2"}, "at most 1"),
    ],
)
def test_what_can_not_be_searched_is_refused(
    folders: tuple[Path, Path], tmp_path: Path, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(OptionError, match=words):
        search(*folders, **{"out": tmp_path, "backend": "sequential", "device": "cpu"} | options)


def test_a_missing_split_says_what_to_do_and_one_class_is_refused(folders: tuple[Path, Path], tmp_path: Path) -> None:
    lone = small.prepared(tmp_path / "lone", splits=("test",))
    with pytest.raises(OptionError, match="--split test"):
        search(folders[0], lone, out=tmp_path / "out")
    dull = small.prepared(tmp_path / "dull", one_class=True)
    with pytest.raises(OptionError, match="class 'class 0' only"):
        search(folders[0], dull, out=tmp_path / "out")
    with pytest.raises(OptionError, match="no such score"):
        search(small.model(3), small.windows(30, 3), target="auroc>=0.5", out=tmp_path / "out")
    assert not [record for record in Store(tmp_path / "out").records() if record["recipe"]]


def test_a_worker_with_other_weights_is_an_error(folders: tuple[Path, Path]) -> None:
    work = Work(Case(*folders, "val", device="cpu"), "another network", (), {})
    with pytest.raises(ZipbrainError, match="other weights or data"):
        score(work)


def test_the_heat_map_has_every_pair_and_frames_the_winner(whole: tuple[SearchResult, Path]) -> None:
    result, _ = whole
    axes = result.heatmap().axes[0]
    values = np.asarray(axes.images[0].get_array())
    assert values.shape == (27, 11)
    assert np.nanmax(values) == result.ranking[0].score
    assert result.winner is not None
    corner = axes.patches[-1].get_xy()
    assert values[round(corner[1] + 0.5), round(corner[0] + 0.5)] == result.winner.score
    assert str(result.winner.point) in axes.get_title(loc="left")
