"""Pictures show what is there: tokens where they lie, groups as traced, scores as stored."""

from __future__ import annotations

from typing import Any

import matplotlib
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure
from torch import nn

import zipbrain
from zipbrain.data.windows import Windows
from zipbrain.errors import OptionError, UnsupportedModel
from zipbrain.evaluation import plots
from zipbrain.evaluation.plots.attention import Attention, attention_of, effective_map
from zipbrain.evaluation.plots.merging import group_numbers
from zipbrain.evaluation.plots.pareto import front
from zipbrain.evaluation.plots.style import GREY, looks, palette
from zipbrain.evaluation.plots.topography import positions
from zipbrain.evaluation.result import Result, known_costs
from zipbrain.evaluation.token_fates import Fates, Layout, fates
from zipbrain.models import create
from zipbrain.paper import COMPARED
from zipbrain.pooling.steps import exact_share, pivot_count
from zipbrain.seams.dialects.attention import linear_attention
from zipbrain.seams.dialects.base import Attended

NAMES = ["FP1", "F4", "C3", "C4", "O1", "T8"]
PAIRS = ["FP1-F7", "F7-T7", "T7-P7", "P7-O1"]
MODELS = ["labram", "biot", "tfm", "eegpt", "eegpt-front", "eegpt-probe"]


def windows(names: list[str], n: int = 3, seconds: int = 3, sfreq: float = 200) -> Windows:
    x = np.random.default_rng(0).normal(0, 30, (n, len(names), int(sfreq * seconds))).astype(np.float32)
    return Windows.from_arrays(x, np.arange(n) % 2, ch_names=names, sfreq=sfreq, classes=["a", "b"], name="mine")


def small(name: str) -> tuple[nn.Module, Windows]:
    """A model of each kind with random weights, and windows that it reads."""
    torch.manual_seed(0)
    names = PAIRS if name in ("biot", "tfm") else NAMES
    w = windows(names)
    if name == "labram":
        return create("labram", n_outputs=1, ch_names=names, n_times=w.n_times).eval(), w
    if name == "biot":
        return create("biot", n_outputs=1, n_chans=4, n_times=w.n_times, dim=16, heads=2, depth=3).eval(), w
    if name == "tfm":
        return create("tfm", n_outputs=1, n_chans=4, n_times=w.n_times).eval(), w
    options: dict[str, Any] = {"eegpt": {}, "eegpt-front": {"front_end": "tuab"}, "eegpt-probe": {"head": "probe"}}[
        name
    ]
    return create("eegpt", n_outputs=1, ch_names=names, n_times=w.n_times, **options).eval(), w


def drawn(figure: Figure) -> Figure:
    """Draw it, so that a mistake that only shows there is found; every axis is labelled."""
    assert isinstance(figure, Figure)
    figure.canvas.draw()
    return figure


# -- where tokens lie --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["labram", "biot"])
def test_a_change_in_one_second_of_one_channel_moves_the_tokens_that_the_layout_names(name: str) -> None:
    model, w = small(name)
    layout = Layout.of(model, w)
    x = torch.randn(1, w.n_chans, w.n_times)
    changed = x.clone()
    changed[0, 2, 200:400] += 5 * torch.randn(200)  # third channel, second 1 to 2
    with torch.no_grad():
        moved = (model.tokens(changed) - model.tokens(x)).norm(dim=2)[0]
    share = moved / moved.max()
    found = {layout.label(i) for i in range(len(moved)) if share[i] > 0.3}
    channel = w.ch_names[2]
    expected = {"labram": {f"{channel} 1 s"}, "biot": {f"{channel} {t:g} s" for t in (0.5, 1, 1.5)}}[name]
    assert found == expected


def test_eegpt_tokens_are_channels_inside_patches_of_64_samples() -> None:
    model, w = small("eegpt")
    layout = Layout.of(model, w)
    assert layout.folded
    assert layout.shape == (6, 9)
    assert layout.length == pytest.approx(0.32)
    x = torch.randn(2, w.n_chans, w.n_times)
    changed = x.clone()
    changed[1, 4, 3 * 64 : 4 * 64] += 1  # second window, fifth channel, fourth patch
    with torch.no_grad():
        moved = (model.target_encoder.tokens(changed) - model.target_encoder.tokens(x)).norm(dim=2)[:, :6] > 0
    assert list(zip(*np.nonzero(layout.grid(moved)), strict=True)) == [(1, 4, 3)]


def test_layout_of_a_probe_is_at_256_hertz_and_a_front_end_is_told() -> None:
    model, w = small("eegpt-probe")
    layout = Layout.of(model, w)
    assert layout.length == 0.25
    assert layout.projected
    assert len(layout.starts) == 12
    model, w = small("eegpt-front")
    layout = Layout.of(model, w)
    assert layout.projected
    assert len(layout.ch_names) == 20
    assert layout.starts[0] == pytest.approx(7 / 200)
    assert layout.label(20) == "summary 1"
    with pytest.raises(UnsupportedModel, match="Linear"):
        Layout.of(nn.Linear(2, 2), w)


# -- what became of them -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("method", ["zipbrain", "tome", "dart"])
def test_fates_agree_with_the_trace(name: str, method: str) -> None:
    model, w = small(name)
    zipbrain.compress(model, method, ratio=0.6)
    found = fates(model, w, batch_size=2, device="cpu")
    groups = found.layout.shape[1] if found.layout.folded else 1
    for block, count in enumerate(found.token_counts[1:], 1):
        assert ((found.blocks >= block).sum((1, 2)) == groups * count).all()
    cells = np.arange(found.owner[0].size).reshape(found.layout.shape)
    for owner, kept in zip(found.owner, found.kept, strict=True):
        assert (owner[kept] == cells[kept]).all()  # a kept token ended in itself
        assert {*owner[owner >= 0].tolist()} == {*cells[kept].tolist()}
    assert (found.owner < 0).any() == (method == "dart")
    if found.layout.folded:  # groups stay in their column
        column = np.arange(found.layout.shape[1])
        assert (np.where(found.owner < 0, column, found.owner % found.layout.shape[1]) == column).all()


def test_a_fused_token_of_evit_has_a_number_beyond_the_grid() -> None:
    model, w = small("labram")
    zipbrain.compress(model, zipbrain.EViT(fuse=True), ratio=0.5)
    found = fates(model, w, device="cpu")
    assert (found.owner >= found.owner[0].size).any()
    assert (found.owner >= 0).all()
    drawn(plots.merge_map(found))


def test_pivots_are_those_of_the_last_block_and_stay() -> None:
    model, w = small("labram")
    zipbrain.compress(model, zipbrain.ZIPBrain(rho=0.4), ratio=0.6)
    with torch.no_grad():
        before = model(torch.ones(1, 6, 600))
    found = fates(model, w, device="cpu")
    assert found.pivots is not None
    last, end = found.token_counts[-2:]
    assert (found.pivots.sum((1, 2)) == pivot_count(last, last - end, exact_share("rho", 0.4))).all()
    assert found.kept[found.pivots].all()
    with torch.no_grad():
        torch.testing.assert_close(model(torch.ones(1, 6, 600)), before, rtol=0, atol=0)  # nothing was left behind


def test_merge_map_draws_every_group_every_kept_and_every_dropped_token() -> None:
    from matplotlib.patches import Rectangle

    model, w = small("labram")
    for method in ("zipbrain", "dart"):
        zipbrain.compress(model, method, ratio=0.6)
        found = fates(model, w, device="cpu")
        figure = drawn(plots.merge_map(found, 1, w.take([1])[0], w.sfreq, "title"))
        patches = [patch for patch in figure.axes[0].patches if isinstance(patch, Rectangle)]
        assert sum(not patch.get_fill() for patch in patches) == found.kept[1].sum()
        assert sum(patch.get_hatch() is not None for patch in patches) == (found.owner[1] < 0).sum()
        numbers = [int(text.get_text()) for text in figure.axes[0].texts]
        assert sorted(numbers) == sorted(group_numbers(found.owner[1])[group_numbers(found.owner[1]) > 0].tolist())
        legend = [text.get_text() for text in figure.legends[0].get_texts()]
        assert ("pivot of the last reducing block" in legend) == (method == "zipbrain")
        assert ("dropped" in legend) == (method == "dart")
    with pytest.raises(OptionError, match="window"):
        plots.merge_map(found, 9)


def test_groups_are_numbered_by_size() -> None:
    owner = np.array([[0, 0, 2], [5, 5, 5], [-1, 7, -1]])
    assert group_numbers(owner).tolist() == [[2, 2, 0], [1, 1, 1], [-1, 0, -1]]


# -- attention ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["labram", "biot", "tfm", "eegpt"])
def test_attention_rows_add_up_to_one_and_the_model_stays_compressed(name: str) -> None:
    model, w = small(name)
    before = attention_of(model, w, 1)
    zipbrain.compress(model, "zipbrain", ratio=0.5)
    found = attention_of(model, w, 1)
    assert found.linear == (name in ("biot", "tfm"))
    for block, shares in found.maps.items():
        np.testing.assert_allclose(shares.sum(1), 1, atol=1e-5)
        np.testing.assert_array_equal(shares, before.maps[block])  # of the uncompressed model either way
    figure = drawn(plots.attention_heat_maps(found, name))
    assert ("linear attention" in figure.get_suptitle()) == found.linear
    zipbrain.summary(model)


def test_the_effective_map_of_linear_attention_is_what_linear_attention_does() -> None:
    q, k, v = torch.randn(3, 2, 4, 9, 5, dtype=torch.float64)
    shares = effective_map(Attended(v, q, k, v, 1.0, linear=True))
    torch.testing.assert_close(shares @ v * 5**-0.5, linear_attention(q, k, v))
    torch.testing.assert_close(shares.sum(3), torch.ones(2, 4, 9, dtype=torch.float64))


def test_sinks_are_the_columns_above_three_times_the_uniform_share() -> None:
    layout = Layout(("C3", "C4"), tuple(map(float, range(10))), 1.0, leading=1)
    shares = np.full((21, 21), 0.1 / 16)
    for column, weight in ((4, 0.15), (0, 0.25), (13, 0.145), (20, 0.19), (7, 0.1)):  # 3 / 21 = 0.1429
        shares[:, column] = weight
    found = Attention({1: shares / shares.sum(1, keepdims=True)}, False, layout)
    assert found.sinks(1) == [0, 20, 4]  # at most three; column 7 is below
    assert [layout.label(place) for place in found.sinks(1)] == ["CLS", "C4 9 s", "C3 3 s"]
    assert "CLS" in drawn(plots.attention_heat_maps(found)).axes[0].get_title()


def test_blocks_and_windows_that_are_not_there_are_refused() -> None:
    model, w = small("biot")
    with pytest.raises(OptionError, match="blocks"):
        attention_of(model, w, 0, [4])
    with pytest.raises(OptionError, match="window"):
        attention_of(model, w, 3)


# -- the scalp ---------------------------------------------------------------------------------------------------------


def test_a_bipolar_channel_stands_in_the_middle_and_old_names_are_known() -> None:
    places, unknown = positions(["FP1", "F7", "EEG Fp1-F7", "T3", "T7", "ELA", "F3-A2", "A2", "F3"])
    assert unknown == ["ELA"]
    np.testing.assert_allclose(places[2], (places[0] + places[1]) / 2)
    np.testing.assert_allclose(places[6], (places[7] + places[8]) / 2)
    np.testing.assert_allclose(places[3], places[4], atol=1e-3)
    assert places[0][0] < 0 < places[0][1]  # left, in front


def test_topography_shows_mean_blocks_and_refuses_too_few_places() -> None:
    blocks = np.zeros((2, 6, 3), np.int64)
    blocks[:, 3], blocks[0, 2], blocks[:, 4] = 3, 2, 4
    names = ("C3", "C4", "O1", "O2", "ear", "A1")
    layout = Layout(names, (0.0, 1.0, 2.0), 1.0)
    found = Fates(layout, np.zeros_like(blocks), blocks, None, 4, (15, 5))
    figure = drawn(plots.survival_topography(found, "title"))
    assert "not on the map: ear, A1" in figure.axes[0].get_title()
    assert figure.axes[0].images[0].get_clim() == (0, 3)  # the 4 of `ear` is not shown
    short = Fates(Layout(("C3", "ear"), (0.0,), 1.0), blocks[:, :2], blocks[:, :2], None, 4, (2, 1))
    with pytest.raises(OptionError, match="known are C3"):
        plots.survival_topography(short)


# -- stored results ----------------------------------------------------------------------------------------------------


def record(label: str, ratio: float | str | None, kappa: float, **more: Any) -> dict[str, Any]:
    task = {"model": "LaBraM", "dataset": "TUEV", "split": "test", "classes": list("abc")}
    recipe = None if ratio is None else {"method": {"name": label.lower()}, "schedule": {"name": "ratio"}}
    removed = 0.0 if ratio is None else 0.9 if ratio == "max" else float(ratio)
    left = round(10 * (1 - removed))
    return {
        "label": label, "ratio": ratio, "task": task, "recipe": recipe, "scores": {"kappa": kappa}, "removed": removed,
        "token_counts": [10, (10 + left) // 2, left], **more,
    }  # fmt: skip


RECORDS = [
    record("Original", None, 0.66, intervals={"kappa": [0.6, 0.7]}),
    record("ZIPBrain", 0.4, 0.65, intervals={"kappa": [0.6, 0.7]}),
    record("ZIPBrain", 0.8, 0.63),
    record("ToMe", 0.4, 0.61),
    record("ToMe", "max", 0.5),
]


def test_curves_show_stored_scores_and_the_papers_beside() -> None:
    figure = drawn(plots.ratio_curves(RECORDS))
    ours, tome = figure.axes
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["ZIPBrain", "ToMe"]
    assert named(ours, "ZIPBrain").get_ydata().tolist() == [0.65, 0.63]  # type: ignore[union-attr]
    assert named(tome, "ToMe").get_xdata().tolist() == [0.4, 0.9]  # type: ignore[union-attr]
    dashed = [list(np.asarray(line.get_ydata(), float)) for line in ours.lines if line.get_linestyle() == "--"]
    assert [0.6735, 0.6539] in dashed  # the paper's table: LaBraM on TUEV at 40 and 80 %
    assert [0.6616, 0.6616] in dashed
    assert figure.get_supxlabel() == "share of tokens removed"  # nothing else is known of these
    without = drawn(plots.ratio_curves(RECORDS, paper=False)).axes
    assert not [line for axes in without for line in axes.lines if line.get_linestyle() == "--"]


def named(axes: Any, label: str) -> Any:
    """The line of this label."""
    (line,) = (line for line in axes.lines if line.get_label() == label)
    return line


def test_a_panel_shows_the_intervals_of_its_method_and_the_others_in_grey() -> None:
    heavy = record("ToMe + mass", 0.4, 0.62)
    figure = drawn(plots.ratio_curves([*RECORDS, heavy]))
    ours, tome = figure.axes
    bars = [list(line.get_ydata()) for line in ours.lines if line.get_label() == "_interval"]
    assert bars == [[0.6, 0.7]]
    grey = [line for line in ours.lines if line.get_color() == GREY]
    assert sorted(list(line.get_ydata()) for line in grey) == [[0.61, 0.5], [0.62]]
    assert named(tome, "ToMe + mass").get_linestyle() == ":"  # beside the method whose mass it is


def test_curves_stand_over_time_or_operations_where_all_records_have_them() -> None:
    counted = [{**one, "operations": 1 - 0.5 * one["removed"]} for one in RECORDS]
    operations, speed = "share of the original's operations", "times as fast as the original"
    figure = drawn(plots.ratio_curves(counted))
    assert figure.get_supxlabel() == operations
    line = named(figure.axes[0], "ZIPBrain")
    assert line.get_xdata().tolist() == [0.6, 0.8]
    assert line.get_ydata().tolist() == [0.63, 0.65]
    timed = [{**one, "extra": {"latency_ratio": 0.8}} for one in counted]
    figure = drawn(plots.ratio_curves(timed))
    assert figure.get_supxlabel() == speed
    assert set(named(figure.axes[0], "ZIPBrain").get_xdata()) == {1.25}
    assert drawn(plots.ratio_curves(timed[:3] + counted[3:])).get_supxlabel() == operations
    assert drawn(plots.pareto_front(counted, "agreement")).axes[0].get_xlabel() == operations
    assert drawn(plots.pareto_front(timed, "agreement", "latency")).axes[0].get_xlabel() == speed
    assert known_costs([Result.of(one) for one in counted]) == {"operations": 4}


def test_token_counts_of_equal_lines_are_drawn_once() -> None:
    axes = drawn(plots.token_counts(RECORDS)).axes[0]
    assert {tuple(line.get_ydata()) for line in axes.lines} == {tuple(r["token_counts"]) for r in RECORDS}
    assert len(axes.lines) == 4
    assert "40 %: ToMe, ZIPBrain" in {str(line.get_label()) for line in axes.lines}


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=12))
def test_the_front_holds_what_nothing_beats(points: list[tuple[int, int]]) -> None:
    def beaten(a: tuple[int, int]) -> bool:
        return any(b[0] <= a[0] and b[1] >= a[1] and b != a for b in points)

    assert sorted(front([(float(x), float(y)) for x, y in points])) == [
        i for i, point in enumerate(points) if not beaten(point)
    ]


def test_costs_are_measured_ones_where_a_record_has_them() -> None:
    original, pooled = record("Original", None, 0.6, extra={"macs": 200}), record("ToMe", 0.8, 0.5, extra={"macs": 90})
    whole, part, other = (Result.of(one) for one in (original, pooled, RECORDS[1]))
    assert part.costs(whole)["multiply-adds"] == 0.45
    assert part.costs(whole)["token load"] == pytest.approx((10 + 6 + 6 + 2) / 40)
    assert known_costs([whole, part]) == {"multiply-adds": 1, "token load": 1}
    assert known_costs([whole, part, other]) == {"multiply-adds": 1, "token load": 2}
    assert drawn(plots.pareto_front([original, pooled])).axes[0].get_xlabel().startswith("multiply-adds")
    some = [original, pooled, RECORDS[1]]
    assert drawn(plots.pareto_front(some)).axes[0].get_xlabel().startswith("token load")
    axes = drawn(plots.pareto_front(some, kind="multiply-adds")).axes[0]
    assert axes.get_title(loc="left") == "left out, without multiply-adds: 1 of 3 results"
    assert sum(len(line.get_xdata()) for line in axes.lines if line.get_label() != "front") == 2
    with pytest.raises(OptionError, match="latency"):
        plots.pareto_front([original, pooled], kind="latency")


def test_ablation_bars_are_differences_to_the_full_method() -> None:
    seeds = [record("random matching", "max", value) for value in (0.5, 0.6)]
    rows = [record("pruning", "max", 0.7, intervals={"kappa": [0.6, 0.8]}), record("full", "max", 0.65), *seeds]
    axes = drawn(plots.ablation_bars(rows)).axes[0]
    widths = [bar.get_width() for bar in axes.patches]
    np.testing.assert_allclose(widths, [0.05, -0.1])
    assert "lowest to highest of 2 seeds" in axes.get_title(loc="left")
    assert "interval" in axes.get_title(loc="left")
    with pytest.raises(OptionError, match="variants"):
        plots.ablation_bars(rows[:1])
    with pytest.raises(OptionError, match="2 settings"):
        plots.ablation_bars([*rows, record("full", "max", 0.6, extra={"of": "another"})])


def test_confusion_pair_shows_the_stored_counts() -> None:
    before, after = [[5, 1], [0, 4]], [[3, 3], [2, 2]]
    figure = drawn(plots.confusion_pair(before, after, ["rest", "task"]))
    for axes, counts in zip(figure.axes, (before, after), strict=True):
        shown = [int(text.get_text().splitlines()[1]) for text in axes.texts]
        assert shown == np.ravel(counts).tolist()
    with pytest.raises(OptionError, match="confusion"):
        plots.confusion_pair(before, [[1, 2, 3]], ["rest", "task"])


def test_all_pictures_are_there_and_leave_the_users_settings_alone() -> None:
    settings = dict(matplotlib.rcParams)
    drawn(plots.token_counts(RECORDS))
    assert dict(matplotlib.rcParams) == settings
    assert all(callable(getattr(plots, name)) for name in plots.__all__)
    with pytest.raises(AttributeError, match="nothing"):
        plots.nothing  # noqa: B018


def test_no_colour_means_two_things_in_a_picture() -> None:
    names = ["Original", *COMPARED, "Tuned", *(f"mine {number}" for number in range(20))]
    colours = [colour for colour, _, _ in looks(names).values()]
    assert len(set(colours)) == len(names)
    assert GREY not in looks(["ZIPBrain", "mine"])["mine"]
    for count in (3, 9, 40):
        assert len(set(palette(count))) == count


def test_groups_of_a_merge_map_have_colours_of_their_own() -> None:
    model, w = small("labram")
    zipbrain.compress(model, "zipbrain", ratio=0.6)
    found = fates(model, w, device="cpu")
    numbers = group_numbers(found.owner[1])
    axes = drawn(plots.merge_map(found, 1)).axes[0]
    faces = {patch.get_facecolor() for patch in axes.patches if patch.get_fill() and patch.get_alpha() == 0.55}
    assert len(faces) == numbers.max() > 1


def test_a_method_looks_the_same_whatever_it_is_shown_with() -> None:
    assert looks(["ToMe", "else"])["ToMe"] == looks(["ZIPBrain", "tome", "ToMe"])["ToMe"]
    assert looks(["ToMe + mass"])["ToMe + mass"][:2] == looks(["ToMe"])["ToMe"][:2]
    assert len({looks(["ZIPBrain", "ToMe", "ToFu", "EViT", "DART", "x"])[n] for n in ("ZIPBrain", "ToMe", "x")}) == 3
