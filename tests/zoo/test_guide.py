"""The guide to other libraries can be followed: its code runs with the real ones, and a hub on this machine."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("braindecode", reason="`make zoo` makes an environment with it", exc_type=ImportError)

from hub_server import TOKEN, HubServer

# torchvision has no native library here, and transformers imports it.
PRELUDE = f"import sys; sys.path.append({str(Path(__file__).parent)!r}); import zoo; zoo.declare_torchvision()\n"
PAGE = (Path(__file__).resolve().parents[2] / "docs" / "guides" / "libraries.md").read_text()
SECTIONS = {part.split("\n", 1)[0]: part for part in re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:]}


def test_the_code_of_every_section_runs(tmp_path: Path) -> None:
    parts = {name: "\n".join(re.findall(r"```python\n(.*?)```", part, re.DOTALL)) for name, part in SECTIONS.items()}
    assert all(parts.values())
    code = PRELUDE + "\n".join(f"print({name!r}, flush=True)\n{part}" for name, part in parts.items())
    hub = HubServer()
    about = {"HF_ENDPOINT": hub.url, "HF_TOKEN": TOKEN, "HF_HUB_DISABLE_XET": "1", "HF_HUB_OFFLINE": "0"}
    about |= {"HF_HOME": str(tmp_path / "hf"), "HOME": str(tmp_path)}
    usual = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    how = {"cwd": tmp_path, "env": usual | about, "capture_output": True, "text": True}
    run = subprocess.run([sys.executable, "-W", "ignore", "-c", code], **how)  # one process: libraries load for seconds
    hub.close()
    assert run.returncode == 0, run.stdout + run.stderr
    assert all(f"{name}\n" in run.stdout for name in parts)
    assert hub.private == {"people/small-biot"}
