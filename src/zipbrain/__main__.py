"""``python -m zipbrain`` is the command line."""

from __future__ import annotations

import signal
import sys


def main() -> int:
    """Run the command line and return its exit code; Ctrl-C is answered from the first moment, while it is imported."""
    try:
        from zipbrain.cli import main as run

        code = run()
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # nothing is left that could be stopped
        return code
    except KeyboardInterrupt:
        print("stopped: run the same command again", file=sys.stderr)
        return 130


if __name__ == "__main__":
    raise SystemExit(main())
