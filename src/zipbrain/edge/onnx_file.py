"""What an ONNX file holds, before any runtime opens it: whole or cut off, its metadata, references to other files.

ONNX Runtime follows references to other files (external data) even where a model is given to it as bytes, so they are
looked for here first. An ONNX file is one protobuf message: fields of (number, kind, value), some of which are messages
again. Only those that can hold a tensor or the metadata are entered; the others are skipped by their length.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from zipbrain.errors import ModelFileError

_LARGEST: Final = 2**31 - 1  # bytes of a protobuf message
_DEEPEST: Final = 100  # graphs within nodes within graphs; protobuf's own limit

# Numbers of the fields that are messages of interest, by the message they stand in (onnx.proto).
_WITHIN: Final[dict[str, dict[int, str]]] = {
    "model": {7: "graph", 14: "property", 20: "training", 25: "function"},
    "training": {1: "graph", 2: "graph"},
    "function": {7: "node", 11: "attribute"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
}
_VARINT, _EIGHT, _BYTES, _FOUR = 0, 1, 2, 5
_METADATA: Final = 14  # of a model
_EXTERNAL_DATA, _DATA_LOCATION = 13, 14  # of a tensor

Field = tuple[int, int, int | memoryview, int]


class _Broken(Exception):
    """Not a protobuf message, or one that ends too early."""


def read_onnx(path: str | Path) -> tuple[bytes, dict[str, str]]:
    """The whole content of an ONNX file that needs no other file, and its metadata_props.

    A missing or truncated file, no ONNX file, and one that refers to other files are a `ModelFileError`.
    """
    path = Path(path)
    try:
        size = path.stat().st_size
        content = path.read_bytes() if size <= _LARGEST else b""
    except OSError as error:
        raise ModelFileError(f"{path}: it can't be read ({error.strerror or error}); give a .onnx file") from None
    if not size:
        raise ModelFileError(f"{path}: is empty (0 bytes); copy or export it again")
    if size > _LARGEST:
        raise ModelFileError(f"{path}: is no ONNX file, which has at most 2 GB; give what `zipbrain export` wrote")
    metadata: dict[str, str] = {}
    try:
        graphs = _look(memoryview(content), metadata, path)
    except _Broken as error:
        raise ModelFileError(f"{path}: is no ONNX file or was cut off ({error}); copy or export it again") from None
    if not graphs:
        raise ModelFileError(f"{path}: is no ONNX file (it holds no graph); give what `zipbrain export` wrote")
    return content, metadata


def graph_sha256(content: bytes) -> str:
    """Hash of everything that an ONNX file holds besides its metadata_props, so that these can hold the hash."""
    part, at = memoryview(content), 0
    digest = hashlib.sha256()
    for number, _, _, end in _fields(part):
        if number != _METADATA:
            digest.update(part[at:end])
        at = end
    return digest.hexdigest()


def _look(content: memoryview, metadata: dict[str, str], path: Path) -> int:
    """Walk through a model, fill its metadata and return how many graphs it has."""
    graphs = 0
    todo: list[tuple[str, memoryview, int]] = [("model", content, 0)]
    while todo:
        message, part, depth = todo.pop()
        if depth > _DEEPEST:
            raise _Broken("messages within messages without end")
        if message == "property":
            metadata.update([_pair(part)])
            continue
        if message == "tensor":
            for number, kind, value, _ in _fields(part):
                if number == _EXTERNAL_DATA or (number == _DATA_LOCATION and (kind != _VARINT or value != 0)):
                    found = "keeps tensors in other files (external data), which is refused"
                    raise ModelFileError(f"{path}: {found}; export it as one file")
            continue
        graphs += message == "graph"
        within = _WITHIN[message]
        for number, kind, value, _ in _fields(part):
            if number in within:
                if kind != _BYTES or not isinstance(value, memoryview):
                    raise _Broken(f"field {number} of a {message} is no message")
                todo.append((within[number], value, depth + 1))
    return graphs


def _pair(entry: memoryview) -> tuple[str, str]:
    texts = {1: "", 2: ""}
    for number, _, value, _ in _fields(entry):
        if number in texts and isinstance(value, memoryview):
            try:
                texts[number] = str(value, "utf-8")
            except UnicodeDecodeError:
                raise _Broken("metadata that is no UTF-8") from None
    return texts[1], texts[2]


def _fields(part: memoryview) -> Iterator[Field]:
    """The fields of a message: number, kind, an integer or the bytes, and the place where it ends."""
    at, end = 0, len(part)
    while at < end:
        tag, at = _varint(part, at)
        number, kind = tag >> 3, tag & 7
        if not number:
            raise _Broken("a field with the number 0")
        if kind == _VARINT:
            value, at = _varint(part, at)
            yield number, kind, value, at
            continue
        if kind == _BYTES:
            length, at = _varint(part, at)
        elif kind in (_EIGHT, _FOUR):
            length = 8 if kind == _EIGHT else 4
        else:
            raise _Broken(f"a field of the kind {kind}")
        if length > end - at:
            raise _Broken(f"{length - (end - at)} bytes are missing")
        at += length
        yield number, kind, part[at - length : at], at


def _varint(part: memoryview, at: int) -> tuple[int, int]:
    """An integer of seven bits a byte, and where the next field begins."""
    value = 0
    for count, byte in enumerate(part[at : at + 10]):
        value |= (byte & 0x7F) << (7 * count)
        if byte < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, at + count + 1
    raise _Broken("a number without an end")
