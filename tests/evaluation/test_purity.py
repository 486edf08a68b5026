"""Event-carrying tokens are followed correctly, and chance is what random places would give."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from zipbrain.data.synthetic import Synthetic
from zipbrain.errors import OptionError
from zipbrain.evaluation import plots
from zipbrain.evaluation.purity import FATES, carrying, follow, purity, table
from zipbrain.evaluation.token_fates import Fates, Layout
from zipbrain.evaluation.trial import recipe_for
from zipbrain.models import create
from zipbrain.seams import compress, is_compressed

SECONDS = tuple(map(float, range(4)))


def fates_of(owner: list[list[int]] | np.ndarray, folded: bool = False) -> Fates:
    """Fates of one window whose cells ended where `owner` says."""
    cells = np.atleast_3d(np.array(owner, np.int64)[None])
    layout = Layout(tuple("ABCDEFGH"[: cells.shape[1]]), SECONDS[: cells.shape[2]], 1.0, folded)
    left = len({*cells[cells >= 0].tolist()})
    return Fates(layout, cells, np.zeros_like(cells), None, 1, (cells[0].size, left))


def test_a_token_carries_the_event_if_half_its_time_lies_in_carrying_seconds() -> None:
    truth = np.array([[[False, True, False, False], [True, False, False, True]]])
    plain = Layout(("A", "B"), SECONDS, 1.0)
    np.testing.assert_array_equal(carrying(plain, truth), truth)
    frames = Layout(("A", "B"), tuple(i / 2 for i in range(7)), 1.0)  # BIOT: 1 s every 0.5 s
    assert carrying(frames, truth)[0].astype(int).tolist() == [[0, 1, 1, 1, 0, 0, 0], [1, 1, 0, 0, 0, 1, 1]]
    patches = Layout(("A", "B"), tuple(0.32 * i for i in range(12)), 0.32)  # EEGPT at 200 Hz
    inside = carrying(patches, truth)[0, 0]
    assert np.flatnonzero(inside).tolist() == [3, 4, 5]  # 0.96 to 1.92: the first lies by 0.28 in it, 1.92 by 0.08


def test_fates_of_carriers_are_told_apart() -> None:
    # Group 0: two carriers. Group 2: carrier with background. 4: carrier alone. 5: background alone. 6, 7: dropped.
    found = fates_of([[0, 0, 2, 2], [4, 5, -1, -1]])
    carries = np.array([[[True, True, True, False], [True, False, True, False]]])
    result = follow(found, carries, "by hand")
    assert result.shares == {"alone": 0.2, "pure": 0.4, "mixed": 0.2, "dropped": 0.2}
    assert result.company == pytest.approx((1 + 1 + 0.5 + 1) / 4)
    assert (result.windows, result.carriers, result.removed) == (1, 5, 0.5)


@pytest.mark.parametrize("folded", [False, True])
def test_chance_is_what_tokens_in_random_places_give(folded: bool) -> None:
    rng = np.random.default_rng(0)
    if folded:  # groups inside columns: cell = row * 3 + column
        owner = np.array([[0, 1, 2], [0, 1, -1], [6, 1, 8], [6, 10, 8], [12, 10, 8]])
    else:
        owner = np.array([[0, 0, 0], [3, 3, -1], [6, 7, 7], [7, 10, -1], [12, 0, 14]])
    found, carries = fates_of(owner, folded), rng.random((1, 5, 3)) < 0.5
    expected = follow(found, carries, "").random
    assert sum(expected.values()) == pytest.approx(1)
    drawn = []
    for _ in range(1200):
        if folded:
            moved = np.stack([rng.permutation(carries[0, :, column]) for column in range(3)], 1)[None]
        else:
            moved = rng.permutation(carries.ravel()).reshape(carries.shape)
        drawn.append([follow(found, moved, "").shares[name] for name in FATES])
    np.testing.assert_allclose(np.mean(drawn, 0), [expected[name] for name in FATES], atol=0.03)


@pytest.mark.parametrize("method", ["zipbrain", "tome", "evit", "dart"])
def test_purity_of_a_compressed_model(method: str) -> None:
    torch.manual_seed(0)
    corpus = Synthetic("events", n_subjects=3, windows_per_subject=12, montage="bipolar")
    model = create("biot", n_outputs=6, n_chans=16, n_times=1000, dim=16, heads=2, depth=2).eval()
    recipe = recipe_for(model, method, ratio=0.5)
    result = purity(model, corpus, recipe, device="cpu")
    assert not is_compressed(model)
    assert sum(result.shares.values()) == pytest.approx(1)
    assert sum(result.random.values()) == pytest.approx(1)
    assert result.windows == 10  # all but the two of the background class
    assert result.removed == pytest.approx(0.5)
    assert (result.shares["dropped"] > 0) == (method == "dart")
    again = purity(compress(model, recipe), corpus, device="cpu", label=result.label)
    assert again == result
    few = purity(model, corpus, recipe, limit=6, device="cpu")
    assert few.windows < result.windows
    assert table([result])[0]["random pure"] == result.random["pure"]
    figure = plots.purity_bars([result, few])
    figure.canvas.draw()
    assert sum(bar.get_width() for bar in figure.axes[0].patches) == pytest.approx(4)  # two bars each, of length 1


def test_what_can_not_be_followed_is_refused() -> None:
    mixed = Layout(("A",), SECONDS, 1.0, projected=True)
    with pytest.raises(OptionError, match="mixtures of channels"):
        carrying(mixed, np.zeros((1, 1, 4), bool))
    with pytest.raises(OptionError, match="1 channels"):
        carrying(Layout(("A",), SECONDS, 1.0), np.zeros((1, 2, 4), bool))
    with pytest.raises(OptionError, match="carry an event"):
        follow(fates_of([[0, 0]]), np.zeros((1, 1, 2), bool), "")
    with pytest.raises(OptionError, match="results"):
        plots.purity_bars([])
