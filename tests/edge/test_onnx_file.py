"""What is read of an ONNX file before a runtime gets it: agreement with onnx, and refusals."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from edge import tiny_onnx
from zipbrain.edge import onnx_file
from zipbrain.edge.onnx_file import read_onnx
from zipbrain.errors import ModelFileError

WHOLE = tiny_onnx.graph(tiny_onnx.description()).SerializeToString()


def test_metadata_are_those_that_onnxruntime_reads(tmp_path: Path) -> None:
    path = tiny_onnx.save(tmp_path / "m.onnx")
    content, metadata = read_onnx(path)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    assert metadata == session.get_modelmeta().custom_metadata_map
    assert content == path.read_bytes()


def test_every_message_that_can_hold_a_tensor_is_entered() -> None:
    ours = {
        "model": onnx.ModelProto, "training": onnx.TrainingInfoProto, "function": onnx.FunctionProto,
        "graph": onnx.GraphProto, "node": onnx.NodeProto, "attribute": onnx.AttributeProto,
        "sparse": onnx.SparseTensorProto, "tensor": onnx.TensorProto, "property": onnx.StringStringEntryProto,
    }  # fmt: skip
    names = {message.DESCRIPTOR.full_name: name for name, message in ours.items()}
    for name, message in ours.items():
        if name in ("tensor", "property"):
            continue
        fields = {
            field.number: names[field.message_type.full_name]
            for field in message.DESCRIPTOR.fields
            if field.message_type is not None and field.message_type.full_name in names
        }
        found = {number: kind for number, kind in fields.items() if kind != "property" or name == "model"}
        assert onnx_file._WITHIN[name] == found, name
    tensor = onnx.TensorProto.DESCRIPTOR.fields_by_name
    assert tensor["external_data"].number == onnx_file._EXTERNAL_DATA
    assert tensor["data_location"].number == onnx_file._DATA_LOCATION


def _outside() -> onnx.TensorProto:
    tensor = numpy_helper.from_array(np.ones(3, dtype=np.float32), "outside")
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    entry = tensor.external_data.add()
    entry.key, entry.value = "location", "/etc/hostname"
    return tensor


def _as_initializer(model: onnx.ModelProto) -> None:
    model.graph.initializer.append(_outside())


def _as_constant(model: onnx.ModelProto) -> None:
    model.graph.node.append(helper.make_node("Constant", [], ["c"], value=_outside()))


def _in_a_branch(model: onnx.ModelProto) -> None:
    branch = helper.make_graph([helper.make_node("Constant", [], ["c"], value=_outside())], "branch", [], [])
    model.graph.node.append(helper.make_node("If", ["x"], ["c"], then_branch=branch, else_branch=branch))


def _as_sparse(model: onnx.ModelProto) -> None:
    sparse = onnx.SparseTensorProto()
    sparse.values.CopyFrom(_outside())
    model.graph.sparse_initializer.append(sparse)


def _in_a_function(model: onnx.ModelProto) -> None:
    node = helper.make_node("Constant", [], ["c"], value=_outside())
    model.functions.append(helper.make_function("d", "f", [], ["c"], [node], [helper.make_opsetid("", 18)]))


def _in_training(model: onnx.ModelProto) -> None:
    model.training_info.add().algorithm.initializer.append(_outside())


def _without_a_location(model: onnx.ModelProto) -> None:
    tensor = _outside()
    tensor.ClearField("data_location")
    model.graph.initializer.append(tensor)


@pytest.mark.parametrize(
    "add", [_as_initializer, _as_constant, _in_a_branch, _as_sparse, _in_a_function, _in_training, _without_a_location]
)
def test_references_to_other_files_are_refused(add: Callable[[onnx.ModelProto], None], tmp_path: Path) -> None:
    model = copy.deepcopy(tiny_onnx.graph(tiny_onnx.description()))
    add(model)
    path = tmp_path / "m.onnx"
    path.write_bytes(model.SerializeToString())
    with pytest.raises(ModelFileError, match="keeps tensors in other files"):
        read_onnx(path)


def _metadata_if_readable(path: Path) -> dict[str, str]:
    """The metadata; nothing if the file is refused, which any other exception than this one is not."""
    with contextlib.suppress(ModelFileError):
        return read_onnx(path)[1]
    return {}


def test_every_truncation_is_refused_or_has_lost_the_description(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    for length in range(len(WHOLE)):
        path.write_bytes(WHOLE[:length])
        assert "zipbrain" not in _metadata_if_readable(path), length


@settings(max_examples=300)
@given(st.binary(max_size=200))
def test_foreign_bytes_are_refused_or_hold_no_description(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "foreign.onnx"
    path.write_bytes(content)
    assert "zipbrain" not in _metadata_if_readable(path)


@settings(max_examples=300)
@given(st.lists(st.tuples(st.integers(0, len(WHOLE) - 1), st.integers(0, 255)), min_size=1, max_size=8))
def test_a_damaged_file_is_read_or_refused_and_nothing_else(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[int, int]]
) -> None:
    damaged = bytearray(WHOLE)
    for place, byte in changes:
        damaged[place] = byte
    path = tmp_path_factory.getbasetemp() / "damaged.onnx"
    path.write_bytes(damaged)
    _metadata_if_readable(path)


def test_graphs_without_end_are_refused(tmp_path: Path) -> None:
    def field(number: int, content: bytes) -> bytes:
        size, length = bytearray(), len(content)
        while True:
            size.append((length & 0x7F) | (0x80 if length > 0x7F else 0))
            length >>= 7
            if not length:
                return bytes([number << 3 | 2]) + bytes(size) + content

    content = b""
    for _ in range(100):
        content = field(1, field(5, field(6, content)))
    path = tmp_path / "deep.onnx"
    path.write_bytes(field(7, content))
    with pytest.raises(ModelFileError, match="without end"):
        read_onnx(path)


@pytest.mark.parametrize(
    ("content", "words"), [(b"", "is empty"), (b"PK\x03\x04 a zip", "is no ONNX file"), (b"\x08\x09", "holds no graph")]
)
def test_no_onnx_files_are_named(content: bytes, words: str, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(content)
    with pytest.raises(ModelFileError, match=words):
        read_onnx(path)


def test_a_missing_file_and_a_folder_are_named(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="No such file"):
        read_onnx(tmp_path / "none.onnx")
    with pytest.raises(ModelFileError, match="can't be read"):
        read_onnx(tmp_path)
