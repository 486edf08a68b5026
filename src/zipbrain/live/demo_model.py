"""The exported file of the demo: its graph comes packed with zipbrain, its weights are those of the demo's model.

Nothing is exported and no torch is needed: the file is put together from both and is the exported one, byte by byte.
"""

from __future__ import annotations

import hashlib
import json
import lzma
import struct
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from zipbrain.edge.description import ModelFile
from zipbrain.errors import DataError
from zipbrain.files import write_whole

GRAPH: Final = "live.onnx.xz"
WEIGHTS: Final = "model.safetensors"
FOLDER: Final = "demo_model"  # of the package

_SIGN: Final = 64  # bytes by which a tensor is looked for
_VARIED: Final = 16  # different bytes that these have at least
_KINDS: Final = {"F16": "<f2", "F32": "<f4"}


def unpack_demo(path: Path) -> Path:
    """Write the demo's exported file, unless it is there; DataError if zipbrain's own files were changed."""
    content = demo_bytes()
    if not path.is_file() or path.read_bytes() != content:
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_whole(path, content)
        except OSError as error:
            raise DataError(
                f"{path}: the demo's model can't be written ({error.strerror}); name another --out"
            ) from None
    return ModelFile.read(path).path


def demo_bytes() -> bytes:
    """The demo's exported file."""
    folder = files("zipbrain") / FOLDER
    packed = lzma.decompress((folder / GRAPH).read_bytes())
    length = struct.unpack("<I", packed[:4])[0]
    facts, rest = json.loads(packed[4 : 4 + length]), memoryview(packed)[4 + length :]
    tensors = read_tensors((folder / WEIGHTS).read_bytes())
    parts, done, place = [], 0, 0  # place: in the file that is put together
    for start, name, is_transposed in facts["pieces"]:
        parts.append(bytes(rest[done : done + start - place]))
        values = tensors[name].T if is_transposed else tensors[name]
        parts.append(np.ascontiguousarray(values, dtype="<f4").tobytes())
        done, place = done + start - place, start + len(parts[-1])
    content = b"".join([*parts, bytes(rest[done:])])
    if hashlib.sha256(content).hexdigest() != facts["sha256"]:
        raise DataError(f"{folder}: the demo's model was changed; install zipbrain again")
    return content


def pack_demo(content: bytes, weights: bytes) -> bytes:
    """An exported file without the tensors of a safetensors file, packed; the inverse of `demo_bytes`."""
    known: dict[bytes, tuple[str, bool]] = {}
    for name, tensor in read_tensors(weights).items():
        known[np.ascontiguousarray(tensor, dtype="<f4").tobytes()] = name, False
        if tensor.ndim == 2:
            known.setdefault(np.ascontiguousarray(tensor.T, dtype="<f4").tobytes(), (name, True))
    pieces: list[tuple[int, int, str, bool]] = []
    for values, (name, is_transposed) in known.items():
        sign = values[:_SIGN]
        start = content.find(sign) if len(set(sign)) > _VARIED else -1  # what is alike everywhere packs well by itself
        while start >= 0:
            if content[start : start + len(values)] == values:
                pieces.append((start, start + len(values), name, is_transposed))
            start = content.find(sign, start + 1)
    kept, end, rest = [], 0, []
    for start, stop, name, is_transposed in sorted(pieces):
        if start >= end:
            kept.append((start, name, is_transposed))
            rest.append(content[end:start])
            end = stop
    facts = json.dumps({"sha256": hashlib.sha256(content).hexdigest(), "pieces": kept}).encode()
    return lzma.compress(struct.pack("<I", len(facts)) + facts + b"".join([*rest, content[end:]]), preset=9)


def read_tensors(content: bytes) -> dict[str, NDArray[Any]]:
    """The floating-point tensors of a safetensors file by name."""
    length = struct.unpack("<Q", content[:8])[0]
    facts, base = json.loads(content[8 : 8 + length]), 8 + length
    tensors = {}
    for name, fact in facts.items():
        if name != "__metadata__" and fact["dtype"] in _KINDS:
            start, stop = fact["data_offsets"]
            values = np.frombuffer(content[base + start : base + stop], _KINDS[fact["dtype"]])
            tensors[name] = values.reshape(fact["shape"])
    return tensors
