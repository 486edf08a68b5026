"""Every command that README and documentation show runs, page by page, with the packages that the page names."""

from __future__ import annotations

import importlib.metadata
import itertools
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path

import matplotlib
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from edge import tiny_onnx
from file_server import Server

from . import stand_ins

ROOT = Path(__file__).resolve().parents[2]
PAGES = {
    path.relative_to(ROOT / "docs" if path.name != "README.md" else ROOT).with_suffix("").as_posix(): path.read_text()
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    if not {"_build", "generated"} & {*path.parts}
}
INSTALL = r"pip install (?:-e )?'?(?:zipbrain|\.)(?:\[([\w,]+)\])?"

# --- what does not run ------------------------------------------------------------------------------------------------

_INSTALL = "tests/docs/test_install.py installs what the README says"
_MAKE = "a target of the Makefile, which works in this checkout: the test would run itself, or for minutes"
_STORED = "measures for minutes to hours, or writes a page and benchmarks/results in this checkout"
_WEIGHTS = "published weights, whose hash no stand-in has; tests/models has them from a local server"
NOT_RUN = {
    "make demo": _MAKE,
    "make test": _MAKE,
    "make bench": _MAKE,
    "make fuzz": _MAKE,
    "make fuzz CASES=500 SEED=7": _MAKE,
    "pip install -e '.[torch,report]'": _INSTALL,
    "pip install -e '.[train,live]'": _INSTALL,
    "pip install zipbrain": _INSTALL,
    "pip install 'zipbrain[torch,report]'": _INSTALL,
    "pip install 'zipbrain[archive]'": _INSTALL,
    "pip install 'zipbrain[cluster]'": _INSTALL,
    "python3 -m venv /opt/zipbrain": "writes outside of the test's folder",
    "/opt/zipbrain/bin/pip install 'zipbrain[live]'": "writes outside of the test's folder",
    "python -m benchmarks.speed.frontier": _STORED,
    "python -m benchmarks.speed.front_picture": _STORED,
    "python -m benchmarks.edge.combinations --eyes MODELS --pack eyes.npz --eegmat MODEL PREPARED": _STORED,
    "python -m benchmarks.edge.combinations --table": _STORED,
    "python -m benchmarks.training.real_data report runs": _STORED,
    "python -m benchmarks.study.networks PACKS --out STUDY --workers 8 --seconds 540": _STORED,
    "python -m benchmarks.study.recipes PACKS --out STUDY --seconds 540": _STORED,
    "python -m benchmarks.study.report collect STUDY --logits": _STORED,
    "python -m benchmarks.study.report page": _STORED,
    "zipbrain finetune --model labram --data windows/eegmat-labram --init labram-base --out runs/eegmat": _WEIGHTS,
    "zipbrain search runs/eegmat --data windows/eegmat-labram --backend dask --scheduler tcp://10.0.0.5:8786": (
        "a cluster of other machines; tests/search/test_cluster.py has one on this machine"
    ),
}

# --- what runs, and where ---------------------------------------------------------------------------------------------

# What lies in the folder before the first command of a page: stand-ins by the names that the commands use.
_TUAB = {"run": "runs/tuab", "windows of tuab": "tuab-labram"}
_EEGMAT = {"run": "runs/eegmat", "windows": "windows/eegmat-labram"}
GIVEN = {
    "benchmarks/real_eeg": {"eegmmidb": "raw/eegmmidb", "eegmat": "raw/eegmat"},
    "guides/alarms": {"model.onnx": "seizures.onnx", "truth.csv": "seizures.csv"},
    "guides/archives": {"model.onnx": "tuab.onnx", "recordings": "archive"},
    "guides/bedside": {"run": "runs/seizures", "windows": "windows/seizures", "recording.edf": "known.edf",
                       "truth.csv": "known.csv"},
    "guides/compare": {"run": "runs/tuab", "windows of tuab": "windows/tuab-labram",
                       "recipe.json": "tuned/recipe.json"},
    "guides/data": {"recordings": "recordings", "bids": "ds004000"},
    "guides/export": {**_TUAB, "recording.edf": "recording.edf"},
    "guides/live": {"model.onnx": "seizures.onnx", "recording.edf": "night.edf", "alarms.toml": "seizures.toml"},
    "guides/live_page": {"session": "bed-1 bed-2 bed-3"},
    "guides/models": {"my_model.py": "my_model.py", "windows of my own": "windows/mine", "recordings": "recordings",
                      "recipe.json": "tuned/recipe.json"},
    "guides/predict": {"recording.edf": "night.edf", "model.onnx": "isruc.onnx tuned.onnx tuab.onnx",
                       "recordings": "archive"},
    "guides/profile": _TUAB,
    "guides/report": _TUAB,
    "guides/search": _EEGMAT,
    "guides/tune": {"run": "runs/eegmat", "windows": "windows/eegmat", "recordings": "recordings",
                    "model.onnx": "with_second_look.onnx"},
    "install": {"recording.edf": "night.edf", "model.onnx": "model.onnx"},
    "reference/journal": {"session": "bed-3"},
}  # fmt: skip

# Words that only make a command short, or keep it from others of this machine; the longest key that it contains counts.
_FEW = "--batch 1 --rounds 1 --warmup 0 --no-memory --no-timeline --no-onnx-tool"
_ONE = "--limit 8 --backend sequential"
_TARGET = "zipbrain search runs/eegmat --data windows/eegmat-labram --target"
SHORT = {
    "python -m benchmarks.training.real_data run": "--tasks eyes --models slow",
    "zipbrain ablate": "--seeds 1",
    "zipbrain compare": "--ratios 0.5 --rounds 1 --threads 1",
    "--methods zipbrain,tome --ratios 0.4,max --no-mass --no-latency": "--threads 1",
    "--recipe tuned/recipe.json --onnx-tool": "--methods zipbrain --ratios 0.5 --no-mass --rounds 1 --threads 1",
    "zipbrain demo": "--limit 6 --ratios 0.8 --rounds 1 --threads 1",
    "zipbrain export": "--limit 8",
    "zipbrain finetune": "--epochs 1",
    "zipbrain finetune --model biot": "--epochs 1 --limit 30",
    "zipbrain finetune --model labram": '--epochs 1 --set \'options={"size": "tiny"}\'',
    "zipbrain live --demo": "--duration 20",
    "zipbrain live --demo --out demo": "",
    "zipbrain live --demo --out demo --page": "--duration 20 --page 127.0.0.1:0",
    "zipbrain live --demo --page": "--duration 20 --page 127.0.0.1:0",
    "--source lsl:type=EEG": "--duration 10",
    "zipbrain live page": "--address 127.0.0.1:{port}",
    "zipbrain live page bed-3 --address": "--address 0.0.0.0:{port}",
    "zipbrain live wall": "--address 127.0.0.1:{port}",
    "zipbrain profile": f"{_FEW} --methods tome --runtimes torch",
    "zipbrain search": _ONE,
    _TARGET: f"{_ONE} --ratios max",
    # Two blocks of 17 tokens gain no time, however they are compressed: so a recipe of theirs never looks twice.
    f'{_TARGET} "latency': f"{_ONE} --ratios max --target 'latency<=9'",
    "predict recordings --model model.onnx --out predictions --audit": "--model with_second_look.onnx",
    "zipbrain tune": "--methods tome --backend sequential --threads 1 --runtime torch",
}
MOVED = {"/mnt/archive": "archive"}  # what a page writes for a place of the reader's

# Packages of a command, where these are not what the page installed before it, or else what it names first; `None`
# stands for all.
EXTRAS = {
    "README": {
        "zipbrain predict": "",
        "zipbrain live --model": "live",
        **dict.fromkeys(("zipbrain data", "zipbrain finetune", "zipbrain tune", "zipbrain export"), "train,export"),
    },
    "guides/bedside": {"zipbrain tune": None, "zipbrain export": None},
    "guides/compare": {"--onnx-tool": "torch,report,export"},
    "guides/export": {"zipbrain predict": ""},
    "guides/live": {"zipbrain live --demo": "", "zipbrain live verify": "", "replay:": ""},
    "guides/models": {"zipbrain": None},
    "guides/tune": {
        "zipbrain tune": "torch,report,export",
        "zipbrain export": "torch,report,export",
        "zipbrain predict": "",
    },
}


def shown(text: str) -> Iterator[str]:
    """The command lines of a page, without prompts, comments and line breaks; of a session, not what was answered."""
    for block in re.findall(r"^```(?:bash|console|sh|shell)\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        lines = re.sub(r"\\\n\s*", "", block).splitlines()
        if "$ " in block:
            lines = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
        bare = (re.sub(r"\s+#\s.*$", "", line).strip() for line in lines)
        yield from (line for line in bare if line and not line.startswith("#"))


def with_packages(page: str) -> Iterator[tuple[str | None, str]]:
    """The lines of a page that run, each with the extras that the reader has by then; None for all."""
    named = re.search(INSTALL, PAGES[page])
    extras = None if named is None else named[1] or ""
    for line in shown(PAGES[page]):
        if found := re.search(INSTALL, line):
            extras = found[1] or ""
        if line not in NOT_RUN:
            others = (of for words, of in EXTRAS.get(page, {}).items() if words in line)
            yield next(others, extras), line


def is_elsewhere(page: str) -> bool:
    """True if another page shows all commands of this one, and more, with the same packages, and nothing is given."""
    own = {*with_packages(page)}
    return page not in GIVEN and any(own < {*with_packages(other)} for other in PAGES)


def brought(extras: str) -> set[str]:
    """The packages that an install with these extras brings, with all that they need themselves."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found, todo = {"zipbrain"}, [f"zipbrain[{extras}]", *project["dependencies"]]
    while todo:
        one = Requirement(todo.pop())
        if one.name == "zipbrain":
            todo += itertools.chain(*(project["optional-dependencies"][extra] for extra in one.extras))
        elif (name := canonicalize_name(one.name)) not in found:
            found.add(name)
            with_extras = ["", *one.extras]
            for line in importlib.metadata.requires(name) or ():
                needed = Requirement(line)
                if needed.marker is None or any(needed.marker.evaluate({"extra": extra}) for extra in with_extras):
                    todo.append(line)
    return found


def not_brought(extras: str | None) -> dict[str, list[str]]:
    """The packages and modules of this environment that are in none with these extras."""
    there = {
        name: {canonicalize_name(one) for one in of} for name, of in importlib.metadata.packages_distributions().items()
    }
    kept = set().union(*there.values()) if extras is None else brought(extras)
    modules = [name for name, packages in there.items() if not packages & kept]
    return {"modules": modules, "packages": sorted(set().union(*there.values()) - kept)}


def shortened(line: str, port: int) -> str:
    """A line as it is run."""
    for place, moved in MOVED.items():
        line = line.replace(place, moved)
    found = max((words for words in SHORT if words in line), key=len, default=None)
    return line if found is None else f"{line} {SHORT[found].replace('{port}', str(port))}"


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


# --- the tests --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stand-ins")
    stand_ins.build(folder)
    return folder


@pytest.fixture
def physionet(given: Path) -> Iterator[str]:
    """The address of a server with EEGMAT."""
    server = Server()
    for path in sorted((given / "eegmat").iterdir()):
        server.put(f"/mat/{path.name}", path.read_bytes())
    server.put("/mat/RECORDS", "".join(f"{path.name}\n" for path in sorted((given / "eegmat").iterdir())).encode())
    server.sums("/mat")
    yield f"{server.url}/mat/"
    server.http.shutdown()
    server.http.server_close()


@pytest.fixture
def folder() -> Iterator[Path]:
    """An empty folder that is gone afterwards: sessions keep an hour of signals."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


@pytest.fixture
def amplifier(folder: Path) -> Iterator[dict[str, str]]:
    """What finds a stream of EEG that nothing else on this machine sees; the stream begins when that is asked for."""
    settings = folder / ".lsl_api.cfg"
    settings.write_text(f"[lab]\nSessionID = zipbrain-{os.getpid()}\n[log]\nlevel = -3\n")
    variables = {"LSLAPICFG": str(settings)}
    script = ROOT / "tests" / "live" / "lsl_stream.py"
    command = [sys.executable, str(script), "bed", ",".join(tiny_onnx.convention().ch_names), "200", "7200"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, **variables}) as stream:
        assert stream.stdout is not None
        assert stream.stdout.readline()
        yield variables
        stream.kill()


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if [*with_packages(page)] and not is_elsewhere(page)])
def test_the_commands_of_a_page_run_with_the_packages_that_it_names(
    page: str, folder: Path, given: Path, physionet: str, request: pytest.FixtureRequest
) -> None:
    for stand_in, places in GIVEN.get(page, {}).items():
        for place in places.split():
            stand_ins.put(given / stand_in, folder / place)
    environment = {
        **os.environ, "HOME": str(folder), "MPLCONFIGDIR": matplotlib.get_configdir(), "ZIPBRAIN_EEGMAT_URL": physionet,
        "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    lines = [*with_packages(page)]
    if any("lsl:" in line for _, line in lines):
        environment |= request.getfixturevalue("amplifier")
    for extras, group in itertools.groupby(lines, key=lambda line: line[0]):
        port = free_port()
        work = {"lines": [shortened(line, port) for _, line in group], "port": port, "path": [str(ROOT)]}
        # A shell is the parent: --install-completion asks which one.
        shell = [shutil.which("bash") or "sh", "-c", '"$@"; exit $?', "-", sys.executable]
        done = subprocess.run(
            [*shell, str(Path(__file__).with_name("page_process.py"))], input=json.dumps(work | not_brought(extras)),
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, cwd=folder, env=environment,
            timeout=3600,
        )  # fmt: skip
        print(done.stdout)
        assert done.returncode == 0, f"with {extras}: {done.stdout[-6000:]}"


def test_a_command_runs_or_is_listed_and_what_is_listed_stands_on_a_page() -> None:
    lines = {line for text in PAGES.values() for line in shown(text)}
    assert set(NOT_RUN) - lines == set()
    assert [line for line in lines - set(NOT_RUN) if not line.startswith(("zipbrain ", "python -m "))] == []


def test_every_row_of_the_tables_belongs_to_a_command_that_runs() -> None:
    lines = {page: [line for _, line in with_packages(page)] for page in PAGES}
    assert set(GIVEN) <= set(PAGES)
    for page, places in GIVEN.items():
        for place in " ".join(places.values()).split():
            assert any(place in shortened(line, 0) for line in lines[page]) or place.endswith(".py"), (page, place)
    whole = [line for found in lines.values() for line in found]
    for words in [*SHORT, *MOVED]:
        assert any(words in line for line in whole), words
    for page, others in EXTRAS.items():
        for words in others:
            assert any(words in line for line in lines[page]), (page, words)
