"""`predict_many`: many recordings through one exported file, side by side, going on where an earlier run stopped.

A recording is finished when its summary (``NAME_zipbrain.json``, written last) is there, all files it lists are there,
and its key is the same: the model file's SHA-256, the recording's size and time of last change, and the options that
change the answer (hop, units, channels).
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from zipbrain.edge.batch_results import Outcome
from zipbrain.edge.description import described
from zipbrain.edge.find_files import find_recordings, named_apart
from zipbrain.edge.model import EdgeModel, check_runtime
from zipbrain.edge.predict_one import Opener, predict
from zipbrain.edge.runtimes import available_threads
from zipbrain.edge.text import readable
from zipbrain.edge.writers import check_writable, choose_formats, file_names
from zipbrain.errors import DataError, ModelFileError, ZipbrainError
from zipbrain.jobs import run_jobs
from zipbrain.signal.cutting import check_hop
from zipbrain.signal.recording import COMPANIONS, check_units

_PATIENCE: Final = 30.0  # seconds that threads get to end


@dataclass(frozen=True)
class _Task:
    recording: Path
    folder: Path
    stem: str
    model: Path
    sha256: str
    formats: tuple[str, ...]
    hop_s: float
    units: str | None
    check: bool
    channels: dict[str, str]
    runtime: str
    threads: int
    provider: str
    spinning: bool
    overwrite: bool
    opener: Opener | None


def predict_many(
    recordings: Iterable[str | Path],
    model: str | Path,
    out: str | Path,
    *,
    formats: Sequence[str] | None = None,
    hop_s: float | None = None,
    units: str | None = None,
    check: bool = True,
    channels: Mapping[str, str] | None = None,
    runtime: str = "onnxruntime",
    threads: int | None = None,
    provider: str = "cpu",
    backend: str | None = None,
    workers: int | None = None,
    address: str | None = None,
    overwrite: bool = False,
    opener: Opener | None = None,
    progress: Callable[[str, float, int], None] | None = None,
) -> list[Outcome]:
    """Predict recordings and folders of recordings; one that can't be read does not stop the others.

    Parameters
    ----------
    recordings : iterable of path
        Files, and folders that are searched with all folders in them.
    model : path
        What `zipbrain export` wrote.
    out : path
        Folder to write to; folders within given folders are kept.
    formats, hop_s, units, check, channels, opener
        As for `predict`.
    runtime, threads, provider
        As for `EdgeModel`; if `threads` is not given, workers share the cores.
    backend, workers, address
        As for `zipbrain.jobs.run_jobs`. If no backend is given: processes for several recordings where joblib is
        installed, else one after the other.
    overwrite : bool
        Also compute what an earlier run has finished, and replace results of another model or other options.
    progress : callable, optional
        Called with the name of a recording, how many are done, and how many there are.

    Returns
    -------
    outcomes : list of Outcome
        In the order of the recordings.
    """
    check_runtime(runtime, threads, provider)
    check_units(units)
    content, description = described(model)
    hop = check_hop(description.convention.hop_s if hop_s is None else hop_s, description.convention)
    chosen, _ = choose_formats(formats, description, hop)
    places = named_apart(find_recordings(recordings, others=opener is not None))
    if backend is None:
        several = len(places) > 1 and workers != 1 and (workers or find_spec("joblib"))
        backend = "loky" if several else "sequential"
    here, cluster = backend in ("loky", "threading"), backend in ("dask", "ray")
    side_by_side = min(workers or available_threads(), len(places)) if here else 1
    count = threads or (1 if cluster else max(1, available_threads() // side_by_side))
    alone = side_by_side == 1 and not cluster
    check_writable(Path(out))
    sha256 = hashlib.sha256(content).hexdigest()
    placed = Path.absolute if cluster else Path  # workers elsewhere have another current folder
    tasks = [
        _Task(
            placed(path), placed(Path(out) / inside), stem, placed(Path(model)), sha256, chosen, hop, units, check,
            dict(channels or {}), runtime, count, provider, alone, overwrite, opener,
        )
        for path, inside, stem in places
    ]  # fmt: skip
    outcomes: dict[int, Outcome] = {}

    def tell(name: str, done: float) -> None:
        if progress is not None:
            progress(name, done, len(tasks))

    threads_here = _Threads()
    job: Callable[[_Task], Outcome] = _run
    if backend == "sequential" or (here and workers == 1):
        job = partial(_run, tell=lambda name, share: tell(name, len(outcomes) + share))
    elif backend == "threading":
        job = threads_here.run
    try:
        for index, outcome in run_jobs(job, tasks, backend=backend, workers=workers, address=address):
            outcomes[index] = outcome
            tell(outcome.recording.name, len(outcomes))
    except BaseException:
        threads_here.stop()
        raise
    return [outcomes[index] for index in range(len(tasks))]


class _Threads:
    """Workers that are threads of this process: nobody else ends them when the run is stopped."""

    def __init__(self) -> None:
        self._stopped, self._busy, self._changed = False, 0, threading.Condition()

    def run(self, task: _Task) -> Outcome:
        """Predict one recording, unless the run was stopped."""
        with self._changed:
            self._busy += 1
        try:
            return _run(task, tell=self._check)
        finally:
            with self._changed:
                self._busy -= 1
                self._changed.notify_all()

    def _check(self, name: str, share: float) -> None:
        if self._stopped:
            raise ZipbrainError("stopped")

    def stop(self) -> None:
        """Ask all to end after the windows they are at, and wait for them: at exit they would be torn down."""
        self._stopped = True
        with self._changed:
            self._changed.wait_for(lambda: not self._busy, timeout=_PATIENCE)


def _run(task: _Task, tell: Callable[[str, float], None] | None = None) -> Outcome:
    """Predict one recording in a worker: what is wrong with it is returned, what is wrong with the model raised."""
    share = None if tell is None else partial(tell, task.recording.name)
    if share is not None:
        share(0.0)
    try:
        key = _key(task)
        if not task.overwrite and (known := _finished(task, key)) is not None:
            return replace(known, status="skipped")
    except ZipbrainError as error:
        return _failed(task, str(error))
    model = _model(task)
    try:
        predict(
            task.recording, model, task.folder, formats=task.formats, hop_s=task.hop_s, units=task.units,
            check=task.check, channels=task.channels, opener=task.opener, stem=task.stem, progress=share,
            more={"key": key},
        )  # fmt: skip
        done = _finished(task, key)
    except ZipbrainError as error:
        return _failed(task, str(error))
    except Exception as error:  # a file that nobody thought of must not stop the thousand others
        return _failed(task, f"{task.recording}: unexpected {type(error).__name__}: {error}; please report it")
    return done or _failed(task, f"{task.recording}: its results went away again; run the same once more")


def _failed(task: _Task, error: str) -> Outcome:
    return Outcome(task.recording, "failed", {}, {}, readable(" ".join(error.split())))


def _key(task: _Task) -> dict[str, Any]:
    """What an answer depends on."""
    files = [
        task.recording,
        *(task.recording.with_suffix(end) for end in COMPANIONS.get(task.recording.suffix.lower(), ())),
    ]
    try:
        stats = [file.stat() for file in files if file.exists() or file is files[0]]
    except OSError as error:
        raise DataError(f"{task.recording}: can't be read ({error.strerror or error}); give a recording") from None
    return {
        "model_sha256": task.sha256,
        "recording": [[stat.st_size, stat.st_mtime_ns] for stat in stats],
        "hop_s": task.hop_s,
        "units": task.units,
        "check": task.check,
        "channels": task.channels,
    }


def _finished(task: _Task, key: dict[str, Any]) -> Outcome | None:
    """What an earlier run wrote, if it is all there; refused if it is something else's."""
    names = file_names(task.stem, task.formats)
    path = task.folder / names["summary"]
    try:
        summary = json.loads(path.read_text(encoding="utf-8"))
        same, files = summary["key"] == key, {kind: task.folder / name for kind, name in summary["files"].items()}
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        same, files = False, {}
    if not same:
        raise DataError(
            f"{path}: is of another model, another version of the recording or other options; take another --out, or "
            "--overwrite to replace it"
        )
    if not set(names) <= set(files) or not all(file.is_file() for file in files.values()):
        return None
    return Outcome(task.recording, "done", summary, files)


_ready = threading.local()  # a worker opens the model once; OpenVINO's can't be shared by threads


def _model(task: _Task) -> EdgeModel:
    asked = (task.model, task.sha256, task.runtime, task.threads, task.provider, task.spinning)
    if getattr(_ready, "asked", None) != asked:
        model = EdgeModel(
            task.model, runtime=task.runtime, threads=task.threads, provider=task.provider, spinning=task.spinning
        )
        if model.sha256 != task.sha256:
            raise ModelFileError(f"{task.model}: was changed while recordings were predicted; run the same again")
        _ready.model, _ready.asked = model, asked
    found: EdgeModel = _ready.model
    return found
