"""See the package."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from functools import partial
from pathlib import Path

import torch

from .harness import call_in_child, run_killed, wait
from .inputs import COMMANDS, Inputs, preload


def main() -> int:
    """Print a row per command; 1 if anything differs or is left over."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("commands", nargs="+", choices=[*COMMANDS, "all"])
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--home", type=Path, help="folder for inputs and runs; a temporary one if not given")
    parser.add_argument("--signal", choices=["KILL", "INT", "TERM"], default="KILL")
    given = parser.parse_args()
    torch.set_num_threads(1)
    home = given.home or Path(tempfile.mkdtemp(prefix="zipbrain-killed-"))
    inputs = Inputs(home / "inputs")
    commands = list(COMMANDS) if "all" in given.commands else given.commands
    faulty = False
    print("| command | kills | runs that came to their end | most kills of one | seconds of an unbroken run | faults |")
    print("| --- | --- | --- | --- | --- | --- |", flush=True)
    for command in commands:
        preload(command)
        if wait(call_in_child(partial(inputs.make, command), home / "tmp-inputs")):
            print((home / "tmp-inputs.log").read_text(), file=sys.stderr)
            return 1
        found = run_killed(
            command,
            partial(COMMANDS[command], inputs),
            home / command,
            kills=given.kills,
            seed=given.seed,
            blow=signal.Signals[f"SIG{given.signal}"],
        )
        print(found.line(), flush=True)
        faulty = faulty or bool(found.faults)
    return int(faulty)


if __name__ == "__main__":
    sys.exit(main())
