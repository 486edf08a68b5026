"""Leave with 1 if the installed wheel came without its CPU kernel: `python tests/wheel.py`."""

import sys
from importlib.metadata import files

if __name__ == "__main__":
    names = [str(file) for file in files("zipbrain") or ()]
    sys.exit(not any("_cpu." in name and name.endswith((".so", ".pyd")) for name in names))
