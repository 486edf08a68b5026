"""Multiply-adds: the hand count with a pencil, onnx-tool on a real export, and failures told in words."""

from __future__ import annotations

import sys

import pytest
import torch
from torch import Tensor, nn

import zipbrain
from zipbrain import ZIPBrain
from zipbrain.errors import MissingExtra, OptionError
from zipbrain.evaluation.paper_results import SAVED_FLOPS
from zipbrain.export.onnx_graph import export_graph
from zipbrain.models import BIOT, LaBraM, TokenEncoder
from zipbrain.profiling.flops import GraphCount, hand_flops, onnx_tool_flops, shaped
from zipbrain.seams import is_compressed

_TUAB = "FP1 FP2 F3 F4 C3 C4 P3 P4 O1 O2 F7 F8 T3 T4 T5 T6 A1 A2 FZ CZ PZ T1 T2"


def tiny() -> BIOT:
    """BIOT with 3 channels x 5 frames = 15 tokens of width 16 in two blocks of linear attention."""
    torch.manual_seed(0)
    return BIOT(2, 3, 600, dim=16, heads=2, depth=2).eval()


def test_the_hand_count_is_that_of_a_pencil() -> None:
    model = tiny()
    count = hand_flops(model)
    assert not is_compressed(model)
    block = 4 * 15 * 16 * 16 + 2 * 15 * 16 * 8 + 2 * 15 * 16 * 64  # projections, linear attention, feed-forward
    assert (count.macs, count.original, count.saved) == (2 * block, 2 * block, 0.0)
    zipbrain.compress(model, "tome", r=5)
    less = hand_flops(model)
    first = 4 * 15 * 16 * 16 + 2 * 15 * 16 * 8 + 2 * 10 * 16 * 64
    second = 4 * 10 * 16 * 16 + 2 * 10 * 16 * 8 + 2 * 5 * 16 * 64
    assert (less.macs, less.original) == (first + second, 2 * block)
    assert less.saved == pytest.approx(1 - (first + second) / (2 * block))
    assert count.pooling == 0
    assert less.pooling == (7 * 8 + 5 * 5) * 8 + (15 + 10) * 16  # keys of even and odd tokens, and features merged
    assert is_compressed(model)


def test_the_hand_count_of_labram_on_tuab_saves_what_the_paper_reports() -> None:
    model = zipbrain.compress(LaBraM(1, _TUAB.split(), 2000), ZIPBrain.from_paper("LaBraM", "TUAB"), ratio=0.8)
    assert hand_flops(model).saved == pytest.approx(SAVED_FLOPS["LaBraM", "TUAB", 0.8], abs=0.003)


def test_a_model_that_does_not_tell_its_tokens_needs_them() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    with pytest.raises(OptionError, match="give the number"):
        hand_flops(model)
    assert not is_compressed(model)
    assert hand_flops(model, 10).macs > 0


def test_onnx_tool_counts_the_exported_graph_original_and_compressed(
    capfd: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("onnx_tool", reason="onnx-tool is not installed: pip install 'zipbrain[export]'")
    model, x = tiny(), torch.randn(1, 3, 600, generator=torch.Generator().manual_seed(0))
    before = model(x)
    original = onnx_tool_flops(model, x)
    assert original.failure == ""
    assert original.macs is not None
    assert original.macs > hand_flops(model).macs  # embedding, softmax, norms and head on top
    zipbrain.compress(model, ZIPBrain(), ratio=0.6)
    pooled = onnx_tool_flops(model, x)
    assert pooled.failure == ""
    assert pooled.macs is not None
    assert pooled.macs > hand_flops(model).macs
    assert pooled.saved(original) == 1 - pooled.macs / original.macs
    assert {*pooled.uncounted} <= {"Elu", "LpNormalization"}  # small rows; their matrix products count
    assert "torchvision" not in capfd.readouterr().out
    assert torch.equal(zipbrain.restore(model)(x), before)


def test_shapes_given_to_onnx_tool_lead_to_what_it_finds_by_itself_where_it_can() -> None:
    onnx_tool = pytest.importorskip("onnx_tool", reason="onnx-tool is not installed: pip install 'zipbrain[export]'")
    model, x = TokenEncoder(16, 2, 2).eval(), torch.randn(1, 9, 16, generator=torch.Generator().manual_seed(0))
    proto = shaped(export_graph(model, x))
    graph = onnx_tool.loadmodel(proto, {"verbose": False}).graph
    graph.graph_reorder_nodes()
    graph.shape_infer()
    graph.profile()
    count = onnx_tool_flops(model, x)
    assert count.macs == int(graph.macs[0]) > 0


class Unruly(nn.Module):
    """A model that no exporter can follow."""

    def forward(self, x: Tensor) -> Tensor:
        return x * float(x.sum().item() > 0) if x.sum() > 0 else x


def test_a_failure_is_told_in_words_and_leaves_the_model_as_it_was() -> None:
    pytest.importorskip("onnx_tool", reason="onnx-tool is not installed: pip install 'zipbrain[export]'")
    model = Unruly().train()
    count = onnx_tool_flops(model, torch.ones(1, 3))
    assert count.macs is None
    assert count.failure.startswith("exporting failed with ")
    assert "\n" not in count.failure
    assert model.training
    assert count.saved(GraphCount(10)) is None
    assert GraphCount(10).saved(count) is None


def test_one_window_is_asked_for_and_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnx_tool", reason="onnx-tool is not installed: pip install 'zipbrain[export]'")
    with pytest.raises(OptionError, match="one window"):
        onnx_tool_flops(tiny(), torch.zeros(2, 3, 600))
    monkeypatch.setitem(sys.modules, "onnx_tool", None)
    with pytest.raises(MissingExtra, match=r"onnx-tool.*zipbrain\[export\]"):
        onnx_tool_flops(tiny(), torch.zeros(1, 3, 600))
