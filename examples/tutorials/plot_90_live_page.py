"""
9. A live session in the browser
================================

``zipbrain live --page`` shows a session: traces, the trend of a probability, alarms, electrodes. The page is a process of its
own; it reads what the session writes, and the session never waits for it.
"""

# %%
# Start both
# ----------
# The demo's stream, with its page. In a shell: ``zipbrain live --demo --page 127.0.0.1:8765``, then open that address.

import json
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    address = f"127.0.0.1:{free.getsockname()[1]}"
folder = Path(tempfile.mkdtemp()) / "bed-3"
command = ["live", "--demo", "--page", address, "--out", str(folder)]
command += ["--duration", "60", "--threads", "1"]
session = subprocess.Popen(
    [sys.executable, "-m", "zipbrain", *command], stdout=subprocess.PIPE, text=True
)

# %%
# What the browser gets
# ---------------------
# One page and a few files, none of them from anywhere else.

for _ in range(300):
    try:
        with urllib.request.urlopen(f"http://{address}/") as answer:
            print(answer.status, answer.headers["content-type"])
            print("policy:", answer.headers["content-security-policy"][:60], "...")
        break
    except OSError:
        time.sleep(0.2)

# %%
# So it looks on a desktop:
#
# .. image:: ../../benchmarks/results/live_page_desktop.png
#    :alt: An alarm in the bar on top, 23 traces, the trend of the probability, electrodes on a head
#
# and with the merge map open, which shows what the model merged in the last window:
#
# .. image:: ../../benchmarks/results/live_page_merges.png
#    :alt: The merge map over the traces
#
# On a phone:
#
# .. image:: ../../benchmarks/results/live_page_phone.png
#    :alt: The page on a phone
#    :width: 320px

# %%
# What you can do
# ---------------
# ``A`` acknowledges alarms, ``P`` pauses them for two minutes, ``E`` marks what is selected as an event, ``F`` marks a false
# alarm, ``M`` opens the merge map, arrow keys look back. What you do goes into the session's journal.

print(*session.communicate()[0].splitlines()[-6:], sep="\n")
lines = (folder / "journal.jsonl").read_text().splitlines()
made = [line for line in map(json.loads, lines) if line["kind"] == "decision"]
print(f"{len(made)} decisions in the journal")

# %%
# The guide :doc:`/guides/live_page` says who can see a page, how to show several sessions on a wall, and what happens when the
# connection is lost.
