"""The merge map: cells of a grid from a window's source map, and from the demo's file while it decides."""

from __future__ import annotations

import numpy as np

from zipbrain.edge import EdgeModel
from zipbrain.live.decider import Decider
from zipbrain.live.demo_model import unpack_demo
from zipbrain.live.merge_map import MOST_TOKENS, merge_map
from zipbrain.signal.window_stream import StreamWindow


def test_tokens_of_channel_after_channel_keep_their_numbers():
    found = merge_map(np.array([0, 0, -1, 3, 3, 6]), ["C3", "C4"])
    assert found == {"electrodes": ["C3", "C4"], "patches": 3, "source": [0, 0, -1, 3, 3, 6]}


def test_tokens_that_meet_within_their_patch_become_cells_of_its_column():
    groups = np.array([[0, 0], [-1, 1], [1, 1]])  # (patches, channels)
    found = merge_map(groups, ["C3", "C4"])
    assert (found["electrodes"], found["patches"]) == (["C3", "C4"], 3)
    assert found["source"] == [0, -1, 5, 0, 4, 5]


def test_rows_of_projected_channels_are_numbered_and_what_is_no_grid_has_no_map():
    assert merge_map(np.zeros((2, 3), int), ["C3", "C4"])["electrodes"] == ["1", "2", "3"]
    assert merge_map(np.zeros(5, int), ["C3", "C4"]) is None
    assert merge_map(np.zeros(2 * MOST_TOKENS, int), ["C3", "C4"]) is None


def test_a_decision_keeps_its_merge_map_and_its_bits(tmp_path):
    model = EdgeModel(unpack_demo(tmp_path / "demo.onnx"), threads=1)
    convention = model.description.convention
    shape = len(convention.ch_names), convention.n_times
    x = np.random.default_rng(0).normal(0, 20, shape).astype(np.float32)
    decider = Decider(model, 1.0, is_live=False)
    decision = decider.decide(StreamWindow(3.0, 600, 1600, x, ""), 8.0, 0.0, 0.0)
    np.testing.assert_array_equal(decision.probabilities, model.probabilities(x[np.newaxis])[0])
    found = decider.merges
    assert (found["start_s"], found["stop_s"], found["looked_twice"]) == (3.0, 8.0, decision.looked_twice)
    assert found["electrodes"] == list(convention.ch_names)
    source = np.array(found["source"])
    assert len(source) == model.description.token_counts[0]
    assert len(np.unique(source)) == model.description.token_counts[-1]
    assert (source[source] == source).all()  # what others joined was kept
