"""Files that are written whole or not at all, and values that JSON can hold (stdlib only)."""

from __future__ import annotations

import json
import os
import secrets
from pathlib import Path
from typing import Any


def write_whole(path: Path, content: bytes) -> None:
    """Write a file whole or not at all."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with open(temporary, "xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def json_ready(content: dict[str, Any]) -> dict[str, Any]:
    """The same content as JSON would give it back; NaN and infinity, which JSON lacks, become None."""
    ready: dict[str, Any] = json.loads(json.dumps(content), parse_constant=lambda _: None)
    return ready
