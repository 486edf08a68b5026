"""Where rules turn over: ties, broken numbers, the largest and the smallest removals."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from zipbrain import DART, EViT, FreeSlicing, ToFu, ToMe, Twins, ZIPBrain, pool
from zipbrain.errors import OptionError
from zipbrain.pooling import Method, as_method
from zipbrain.pooling.registry import names
from zipbrain.pooling.schedule import as_schedule
from zipbrain.pooling.steps import gap_after, row_chunks

STEP = 2.0**-20


def heads(rows: Tensor) -> Tensor:
    """(T, d) -> (1, 1, T, d)."""
    return rows[None, None]


def plane(*degrees: float) -> Tensor:
    """Unit vectors (T, 2) at these angles, in float64."""
    angle = torch.tensor(degrees, dtype=torch.float64).deg2rad()
    return torch.stack((angle.cos(), angle.sin()), dim=1)


# --- ties -------------------------------------------------------------------------------------------------------------


def redundant(gap: float, pivots: int, path: str) -> int:
    """Which of tokens 0 and 1 goes, if the mean cosine of 1 to the pivots is higher by about `gap` / pivots."""
    lower, higher = 0.5, 0.5 + gap
    x = torch.zeros(2 + pivots, 4, dtype=torch.float64)
    x[2:, 0] = 10.0  # pivots, all alike
    x[0, :2] = torch.tensor([lower, (1 - lower**2) ** 0.5])
    x[1, :2] = torch.tensor([higher, (1 - higher**2) ** 0.5])
    rho = pivots / (pivots + 1)
    pooled = pool(x[None].float() if path == "compiled" else x[None], r=1, method=ZIPBrain("x", "x", "x", rho))
    return int(pooled.grouping.source[0, 0])


@pytest.mark.parametrize("pivots", [1, 4])
def test_mean_cosines_closer_than_the_resolution_are_equal_and_the_lower_index_goes(pivots: int, path: str) -> None:
    assert redundant(0.0, pivots, path) == 0
    assert redundant(3 * STEP, pivots, path) == 1  # of the mean over pivots, whatever their number
    if path == "plain":
        assert redundant(0.2 * STEP, pivots, path) == 0


def test_norms_are_compared_after_division_by_the_largest(path: str) -> None:
    for size in (1e-6, 1.0, 1e6):
        x = torch.tensor([[1.0], [1.0 - 0.2 * STEP], [1.0], [0.3]]) * size
        pooled = pool(torch.cat((x, torch.zeros(4, 1)), 1)[None], r=2, method=ZIPBrain("x", "x", "x", 0.0))
        assert 0 in pooled.grouping.kept[0].tolist()  # the only pivot: first among equals


def test_a_match_is_the_first_token_within_the_resolution_of_the_best() -> None:
    k = plane(0, 0, 90, 0).repeat(1, 1)
    k[1] = torch.tensor([1.0, 0.4 * STEP])
    pooled = pool(k[None], k=heads(k), r=1, method=ToMe())
    assert (int(pooled.grouping.source), int(pooled.grouping.target)) == (0, 1)
    worse = plane(0, 0.2, 90, 0)  # cosine below the best by 6 steps
    pooled = pool(worse[None], k=heads(worse), r=1, method=ToMe())
    assert (int(pooled.grouping.source), int(pooled.grouping.target)) == (0, 3)


# --- numbers that are none --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_broken_norm_makes_a_pivot_so_that_the_token_stays(bad: float, path: str) -> None:
    x = torch.ones(1, 8, 4) + 0.01 * torch.arange(32.0).reshape(1, 8, 4)
    x[0, 5, 2] = bad
    pooled = pool(x, q=x[:, None], k=x[:, None], v=x[:, None], r=5, method=ZIPBrain("x", "k", "k", 0.0))
    assert 5 in pooled.grouping.kept[0].tolist()


def test_a_broken_redundancy_ranks_below_every_other_so_that_the_token_stays(path: str) -> None:
    x = torch.randn(1, 9, 4, generator=torch.Generator().manual_seed(0))
    v = x[:, None].clone()
    v[0, 0, 6] = float("nan")
    for rho in (0.0, 0.5):
        pooled = pool(x, q=x[:, None], k=x[:, None], v=v, r=4, method=ZIPBrain("x", "v", "x", rho))
        assert 6 in pooled.grouping.kept[0].tolist()


def test_tomes_broken_keys_merge_last(path: str) -> None:
    k = plane(0, 1, 80, 90, 200, 203)
    k[2] = float("nan")
    pooled = pool(torch.nan_to_num(k)[None], k=heads(k), r=2, method=ToMe())
    assert pooled.grouping.source[0].tolist() == [0, 4]


# --- the most and the least that may go -------------------------------------------------------------------------------


@pytest.mark.parametrize("method", [ToMe(), ToFu(), ToFu(merge_from=None)])
@pytest.mark.parametrize(("total", "protected"), [(2, 0), (7, 0), (8, 0), (9, 1), (10, (1, 2))])
def test_tome_and_tofu_remove_at_most_half(method: ToMe, total: int, protected: int | tuple[int, int]) -> None:
    n = total - (protected if isinstance(protected, int) else sum(protected))
    x = torch.randn(2, total, 4, generator=torch.Generator().manual_seed(1))
    pooled = pool(x, k=x[:, None], r=n - 1, method=method, protected=protected)
    assert pooled.grouping.removed == min(n // 2, n - 1)
    assert pooled.x.shape[1] == total - n // 2
    assert (method.limit(7), method.limit(8), method.limit(1)) == (3, 4, 0)


@pytest.mark.parametrize("depth", [1, 2, 3, 4, 5])
def test_tofu_prunes_in_the_first_half_of_the_blocks_and_merges_from_the_next(depth: int) -> None:
    x = torch.randn(1, 8, 4, generator=torch.Generator().manual_seed(2))
    for layer in range(1, depth + 1):
        pooled = pool(x, k=x[:, None], r=3, method=ToFu(merge_from=None), layer=layer, depth=depth)
        assert bool((pooled.grouping.target == -1).all()) == (layer <= depth / 2), (layer, depth)
        pooled = pool(x, k=x[:, None], r=3, method=ToFu(merge_from=3), layer=layer, depth=depth)
        assert bool((pooled.grouping.target == -1).all()) == (layer < 3)


@pytest.mark.parametrize("bad", [0, -1, 1.5, "2"])
def test_tofus_first_merging_block_counts_from_one(bad: object) -> None:
    with pytest.raises(OptionError, match="merge_from"):
        ToFu(merge_from=bad)  # type: ignore[arg-type]
    assert ToFu(merge_from=1) == ToFu()


@pytest.mark.parametrize(
    "method", [ZIPBrain("x", "x", "x", 0.0), ZIPBrain("x", "x", "x", 1.0), EViT(), DART(), Twins(), FreeSlicing()]
)
def test_all_but_one_token_may_go_and_no_more(method: ZIPBrain, path: str) -> None:
    x = torch.randn(2, 9, 4, generator=torch.Generator().manual_seed(3))
    given = {"q": x[:, None], "k": x[:, None], "v": x[:, None]}
    assert pool(x, **given, r=7, method=method, protected=1).x.shape[1] == 2
    assert pool(x, **given, r=0, method=method, protected=1).grouping.removed == 0
    for r in (8, 9, -1):
        with pytest.raises(OptionError, match="r"):
            pool(x, **given, r=r, method=method, protected=1)


# --- schedules --------------------------------------------------------------------------------------------------------


def removals(n: int, layers: int, **options: object) -> tuple[int, ...]:
    return as_schedule(**options).removals(n, [True] * layers, lambda n: n)


@pytest.mark.parametrize(
    ("n", "layers", "ratio", "wanted"),
    [
        (10, 4, 0.2, (1, 1, 1, 1)),  # 0.5 rounds up
        (10, 4, 0.19, (0, 0, 0, 0)),
        (230, 12, 0.8, (15,) * 12),
        (8, 2, 1.0, (4, 3)),  # one token stays
        (1, 2, 1.0, (0, 0)),
        (12, 4, "max", (2, 2, 2, 2)),
        (13, 4, "max", (3, 3, 3, 3)),
        (3, 4, "max", (1, 1, 0, 0)),  # at least one in a layer, until one token stays
    ],
)
def test_a_ratio_is_rounded_half_up_in_every_layer_and_leaves_one_token(
    n: int, layers: int, ratio: float | str, wanted: tuple[int, ...]
) -> None:
    assert removals(n, layers, ratio=ratio) == wanted


def test_layers_that_do_not_reduce_take_no_part() -> None:
    assert as_schedule(r=[3, 2]).removals(10, [False, True, False, True], lambda n: n) == (0, 3, 0, 2)
    assert as_schedule(r=4).removals(9, [True, False, True], lambda n: n // 2) == (4, 0, 2)
    assert as_schedule(ratio=0.5).removals(9, [], lambda n: n) == ()


def test_a_list_of_removals_may_be_shorter_but_not_longer_than_the_layers() -> None:
    assert removals(10, 3, r=[4]) == (4, 0, 0)
    assert removals(10, 2, r=[4, 3]) == (4, 3)
    with pytest.raises(OptionError, match="2 reducing layers"):
        removals(10, 2, r=[1, 1, 1])


@pytest.mark.parametrize("given", [{}, {"ratio": 0.5, "r": 1}, {"r": -1}, {"r": True}, {"r": 1.5}, {"ratio": 1.01},
                                   {"ratio": -0.1}, {"ratio": "most"}, {"ratio": True}, {"schedule": 3}])  # fmt: skip
def test_options_that_are_no_schedule_are_refused(given: dict[str, object]) -> None:
    with pytest.raises(OptionError):
        as_schedule(**given)


def test_a_schedule_is_named_or_given_as_a_dict() -> None:
    assert removals(12, 4, schedule="maximum") == removals(12, 4, ratio="max")
    assert removals(12, 4, schedule={"name": "constant", "r": 2}) == (2, 2, 2, 2)
    assert removals(12, 2, schedule=[5, 1]) == (5, 1)


# --- what a grouping says of itself -----------------------------------------------------------------------------------


DROPPING = {"name": "composition", "match": "drop"}


@pytest.mark.parametrize(
    "form", [*names(Method), DROPPING, {"name": "evit", "fuse": False}, {"name": "tofu", "merge_from": None}]
)
def test_a_method_that_says_it_drops_does_and_others_do_not(form: Any) -> None:
    method = as_method(form)
    x = torch.randn(1, 9, 4, generator=torch.Generator().manual_seed(4))
    pooled = pool(x, x[:, None], x[:, None], x[:, None], r=3, method=method, layer=1, depth=4)
    assert bool((pooled.grouping.target == -1).any()) == method.drops


def test_the_fused_token_is_the_destination_of_all_that_go() -> None:
    x = torch.randn(2, 9, 4, generator=torch.Generator().manual_seed(5))
    pooled = pool(x, x[:, None], x[:, None], x[:, None], r=3, method=EViT(fuse=True), protected=1)
    assert pooled.grouping.kept[:, -1].tolist() == [9, 9]
    assert (pooled.grouping.destination() == 5).all()  # the last of the six that are left
    assert pooled.x.shape[1] == 6


def test_all_tokens_may_be_protected_but_not_more() -> None:
    x = torch.randn(1, 5, 4, generator=torch.Generator().manual_seed(6))
    for protected in (5, (2, 3), torch.ones(5, dtype=torch.bool)):
        assert torch.equal(pool(x, r=0, method=ZIPBrain("x", "x", "x", 0.5), protected=protected).x, x)
    for too_many in (6, (3, 3)):
        with pytest.raises(OptionError, match="protected"):
            pool(x, r=0, method=ZIPBrain("x", "x", "x", 0.5), protected=too_many)


@pytest.mark.parametrize(("batch", "columns", "count"), [(1, 4096, 3000), (64, 512, 300), (2, 10, 5), (2048, 2048, 3)])
def test_matching_holds_at_most_two_million_cosines_unless_one_row_has_more(
    batch: int, columns: int, count: int
) -> None:
    chunks = row_chunks(count, torch.empty(batch, columns, 0))
    rows = [len(range(*some.indices(count))) for some in chunks]
    assert sum(rows) == count
    assert all(batch * columns * held <= 2**21 or held == 1 for held in rows)
    assert len(chunks) == 1 or batch * columns * (rows[0] + 1) > 2**21  # no smaller than they must be


def test_the_gap_after_a_choice_is_from_the_last_chosen_to_the_next() -> None:
    score = torch.tensor([[5.0, 1.0, 3.0, 2.5]])
    assert [gap_after(score, count).tolist() for count in (1, 2, 3, 4)] == [[2.0], [0.5], [1.5], [torch.inf]]
