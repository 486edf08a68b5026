"""A message to a viewer of the page taken apart: its header and its samples."""

from __future__ import annotations

import json
import struct
from typing import Any

import numpy as np


def read_message(message: bytes) -> tuple[dict[str, Any], np.ndarray]:
    """The header of a message, and its samples (n, C)."""
    length, rows = struct.unpack("<II", message[:8])
    header = json.loads(message[8 : 8 + length])
    return header, np.frombuffer(message, "<f4", -1, 8 + length).reshape(rows, -1) if rows else np.empty((0, 0))
