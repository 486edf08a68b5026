"""What counts as the same answer: near-ties, windows grouped in another way, decisions and scores."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import zipbrain
from export.tiny import biot, scaled, windows
from zipbrain import EViT, ToMe, Twins, ZIPBrain
from zipbrain.export.decision_outputs import WithDecisions, gaps_of, reference
from zipbrain.export.parity import Groupings, Looks, measure
from zipbrain.pooling.tokens import Tokens

LABELS = np.arange(100) % 2
GOOD = (
    np.where(LABELS == 1, 1.0, -1.0).astype(np.float32)[:, None] * np.linspace(0.5, 2, 100, dtype=np.float32)[:, None]
)


def tokens(gap: float) -> Tokens:
    """Eight tokens on a circle; the pairs (0, 1) and (4, 5) are equally close but for `gap`."""
    angle = torch.tensor([0.0, 0.1, 1.0, 2.0, 3.0, 3.1 + gap, 4.2, 5.6], dtype=torch.float64)
    x = torch.stack((angle.cos(), angle.sin()), dim=1)[None]
    heads = x.unsqueeze(1)
    return Tokens(x, 1, heads, heads, heads)


@pytest.mark.parametrize("gap", [1e-6, 1e-2])
def test_gaps_of_any_method_are_those_between_the_scores_that_decide(gap: float) -> None:
    kept, target = gaps_of(tokens(gap), ToMe())
    assert kept.item() == pytest.approx(np.cos(0.1) - np.cos(0.1 + gap), rel=1e-3)
    assert target.item() > 0.05  # of all even tokens
    alike = tokens(gap)
    alike.x[:] = alike.x[:, :1].clone()
    assert gaps_of(alike, EViT("mean", fuse=False))[0].item() == pytest.approx(0.0, abs=1e-12)
    assert gaps_of(alike, EViT("mean", fuse=False))[1].item() == torch.inf  # it drops: there is no target to choose
    assert gaps_of(tokens(gap), Twins())[1].shape == (1, 1)


@torch.no_grad()
def test_a_reference_has_a_gap_for_every_decision_and_leaves_the_model_alone() -> None:
    x = torch.from_numpy(scaled(windows(4)))
    model = zipbrain.compress(biot(), ZIPBrain(), ratio=0.6)
    before = model(x)
    outputs, gaps = reference(WithDecisions(model), x)
    assert len(gaps) == len(outputs) - 1 == 4  # kept and target in two blocks
    assert torch.equal(outputs[0], before)
    assert all((gap >= 0).all() for gap in gaps)
    assert torch.equal(model(x), before)
    assert zipbrain.summary(model).method["name"] == "zipbrain"
    (alone,), none = reference(WithDecisions(zipbrain.restore(model)), x)
    assert none == []
    assert torch.equal(alone, model(x))


def test_a_file_that_groups_otherwise_than_the_graph_that_tells_is_counted_by_its_closest_decision() -> None:
    logits = torch.tensor([[1.0], [2.0], [4.0]])
    kept, gaps = torch.tensor([[0, 1]] * 3), [torch.tensor([[1e-7], [1e-3], [1e-3]])]
    answer = logits.clone()
    answer[0] += 0.1
    outcome = Groupings()
    outcome.add([logits, kept], gaps, [logits, kept], answer)
    assert outcome.flips == [(0, pytest.approx(1e-7))]
    assert outcome.error == 0
    assert outcome.faults() == []
    answer[1] += 0.1
    worse = Groupings()
    worse.add([logits, kept], gaps, [logits, kept], answer)
    assert "window 1 differs at a margin of 1.0e-03" in worse.faults()


def judged(precision: str, found: np.ndarray, groupings: Groupings | None = None) -> tuple[str, ...]:
    return measure(precision, GOOD, found.astype(np.float32), LABELS, 2, groupings or Groupings()).faults


def test_decisions_and_scores_are_asked_for() -> None:
    assert judged("float32", GOOD) == ()
    assert judged("int8-dynamic", 1.05 * GOOD) == ()
    one, three = GOOD.copy(), GOOD.copy()
    one[:2] *= -1
    three[:3] *= -1
    assert any("agree on 98.0%" in fault for fault in judged("float32", one))
    assert not any("agree" in fault for fault in judged("int8-static", one))
    assert any("agree on 97.0% of 100 windows, 98% are asked for" in fault for fault in judged("float16", three))
    turned = GOOD.copy()
    turned[LABELS == 1] *= 0.01
    turned[LABELS == 0] *= 0.0001
    assert judged("int8-static", turned) == ()  # same order, same decisions
    shuffled = np.where(LABELS[:, None] == 1, 1e-3, -1e-3) * GOOD
    assert any("auroc goes from 1.000" in fault for fault in judged("int8-static", shuffled))
    assert any(
        "NaN" in fault for fault in judged("int8-static", GOOD * np.where(np.arange(100) == 5, np.nan, 1)[:, None])
    )


def test_groupings_count_in_float32_alone() -> None:
    bad = Groupings(100, 1.0, 2.0)
    assert judged("float32", GOOD, bad) == ("error 5.0e-01 over 1e-05",)
    assert judged("float16", GOOD, bad) == ()


def test_numbers_that_are_not_defined_become_none() -> None:
    labels = np.zeros(4, dtype=np.int64)
    parity = measure("float32", GOOD[:4], GOOD[:4], labels, 2, Groupings(4, 0.0, 1.0))
    assert parity.to_dict()["before"] is None
    assert parity.to_dict()["windows"] == 4


def looks_of(margin: float, looked: list[bool]) -> Looks:
    """Margins 0.5, 1 and 3 of a first pass; the original answers otherwise where torch looks twice."""
    first = torch.tensor([[0.5, 0.0], [1.0, 0.0], [3.0, 0.0]])
    final = torch.where((torch.tensor([[0.5], [1.0], [3.0]]) < margin), -first, first)
    found = Looks(margin)
    found.add(first, final, torch.where(torch.tensor(looked)[:, None], -first, first), torch.tensor(looked))
    return found


def test_a_window_that_one_of_both_looks_at_twice_must_have_a_margin_next_to_the_threshold() -> None:
    same = looks_of(2.0, [True, True, False])
    assert (same.twice, same.windows, same.ties, same.error, same.faults(set())) == (2, 3, [], 0.0, [])
    near = looks_of(1.0 + 1e-6, [True, False, False])
    assert near.ties == [(1, pytest.approx(1e-6, rel=0.2))]
    assert near.faults(set()) == []
    far = looks_of(1.1, [True, False, False])
    assert far.faults(set()) == ["window 1 looks twice in one of both, 1.0e-01 from the margin"]
    assert far.faults({1}) == []  # its groups differ, and so may its margin


def test_second_looks_have_torchs_probabilities() -> None:
    def add(looks: Looks, gap: float) -> None:
        first, final = torch.tensor([[0.1, 0.0]]), torch.tensor([[0.0, 0.0]])
        looks.add(first, final, final + torch.tensor([[4 * gap, 0.0]]), torch.tensor([True]))

    looks = looks_of(2.0, [True, True, False])
    add(looks, 9e-6)
    assert (looks.beyond, looks.error) == ([], pytest.approx(9e-6, rel=0.02))
    add(looks, 3e-5)
    assert (looks.beyond, looks.faults(set())) == ([(4, pytest.approx(3e-5, rel=0.02))], [])
    add(looks, 3e-5)
    assert looks.faults(set()) == ["2 second looks differ by more than 1e-05 in probability"]
    far = looks_of(2.0, [True, True, False])
    add(far, 2e-4)
    assert far.faults(set()) == ["window 3 differs by 2.0e-04 in probability"]
    broken = looks_of(2.0, [True, True, False])
    add(broken, float("nan"))
    assert any("window 3 differs" in fault for fault in broken.faults(set()))


def test_with_a_second_look_every_decision_is_asked_for() -> None:
    one = GOOD.copy()
    one[0] *= -1
    looks = Looks(0.1, twice=7, windows=100, largest=2.0)
    parity = measure("float32", GOOD, one, LABELS, 2, Groupings(100, 0.0, 2.0), looks)
    assert parity.faults == ("1 window decided otherwise",)
    assert parity.looked_twice == 7
    looks.ties.append((0, 1e-7))
    tied = measure("float32", GOOD, one, LABELS, 2, Groupings(100, 0.0, 2.0), looks)
    assert (tied.faults, tied.other_looks, tied.look_distance) == ((), 1, 1e-7)
    grouped = Groupings(100, 0.0, 2.0, [(0, 1e-7)])
    assert measure("float32", GOOD, one, LABELS, 2, grouped, Looks(0.1, largest=2.0)).faults == ()
    assert measure("int8-static", GOOD, one, LABELS, 2, Groupings(), looks).faults == ()
