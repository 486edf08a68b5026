"""`download`: published weights in this machine's cache, each file whole and verified before it has its name."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from zipbrain.errors import DataError, OptionError
from zipbrain.files import hash_file, lock_folder, write_whole
from zipbrain.models.catalogue import CATALOGUE, WeightFile, Weights, find_weights, named_weights
from zipbrain.models.checkpoint import read_checkpoint
from zipbrain.transfer import CACHE, OFFLINE, Published, cache_folder, fetch, is_offline, matches, stand_in

log = logging.getLogger("zipbrain")

MIRROR: Final = "ZIPBRAIN_WEIGHTS_URL"  # environment: root of a mirror

_PAUSE: Final = 0.2  # seconds until it is looked again whether another process has fetched

Received = Callable[[str, int], object]


@dataclass(frozen=True)
class Downloaded:
    """Published weights on this machine."""

    weights: Weights
    files: tuple[Path, ...]
    fetched: int  # of the files, now and not earlier
    hashes: tuple[str, ...]  # by which each was verified; of a file without a published hash, the one that was found


def download(
    model: str, name: str | None = None, *, base_url: str | None = None, received: Received = lambda file, count: None
) -> Downloaded:
    """Fetch published weights into the cache, verify them, and say where they are.

    Weights of GitHub come from a pinned commit and are verified by their git blob id, in every run; where the source
    gives no hash (EEGPT) the file must be readable as a checkpoint, and has to stay as it came. A transfer that
    breaks off goes on where it stopped. What is there is not fetched again and needs no network.

    Parameters
    ----------
    model : {"labram", "biot", "eegpt", "tfm", "tfm-encoder"}
        Any case. TFM-Tokenizer has two files, its encoder one of them.
    name : str, optional
        Which of the model's weights: `zipbrain models download` lists them. The first of the model if not given.
    base_url : str, optional
        Root of a mirror with the same paths; else the environment variable ``ZIPBRAIN_WEIGHTS_URL``, else the source.
    received : callable, optional
        Called with a file's name and the number of bytes of every piece that came.

    Raises
    ------
    OptionError, DataError
        Unknown weights; no network, or forbidden by ``ZIPBRAIN_OFFLINE``; a wrong file, which is deleted.
    """
    weights = find_weights(model, name)
    parts = [file for file in weights.files if file.fills == str(model).lower()] or weights.files
    root = (base_url or os.environ.get(MIRROR) or weights.source.root).rstrip("/")
    if not root.startswith(("http://", "https://")):
        raise OptionError("base_url", root, "it must begin with http:// or https://")
    folder = cache_folder() / "weights" / weights.source.folder
    paths, fetched, hashes = [], 0, []
    for file in parts:
        target = folder / file.place
        value = _verified(target, file)
        if value is None:
            value = _fetch(weights, file, target, f"{root}/{file.path}", received)
            fetched += 1
        paths.append(target)
        hashes.append(value)
    return Downloaded(weights, tuple(paths), fetched, tuple(hashes))


def checkpoint_files(source: str | Path, model: str, option: str = "init") -> list[Path]:
    """A checkpoint's files: of published weights by their full name, such as ``"labram-base"``, else the path itself.

    `model` is the one to fill; the published weights of another one are refused in the name of `option`.
    """
    path = Path(source)
    weights = None if path.exists() else named_weights(str(source))
    if weights is not None:
        if model != weights.model and all(model != file.fills for file in weights.files):
            raise OptionError(option, str(source), f"these are weights of {weights.source.title}, the model is {model}")
        return list(download(model, weights.name).files)
    if not path.exists() and not path.suffix and len(path.parts) == 1:
        known = ", ".join(weights.full_name for weights in CATALOGUE)
        raise OptionError(option, str(source), f"there is no such file, and published weights are {known}")
    return [path]


def _verified(path: Path, file: WeightFile) -> str | None:
    """The hash of a cached file that is what it must be, or None."""
    if not path.is_file():
        return None
    if file.hash is not None:
        return file.hash if matches(path, Published(file.path, "", file.hash)) else None
    note = _note(path)
    found = hash_file(path)
    return found if note.is_file() and note.read_text().strip() == found else None


def _note(path: Path) -> Path:
    """Where the hash of a file lies for which the source gives none."""
    return path.with_name(f"{path.name}.sha256")


def _fetch(weights: Weights, file: WeightFile, target: Path, url: str, received: Received) -> str:
    """Bring one file into the cache and say its hash; it has its name only when it is whole and verified."""
    if is_offline():
        state = "does not have its published hash" if target.exists() else "is not there"
        words = f"{target} {state}, and {OFFLINE} forbids the network"
        fetch_it = f"zipbrain models download {weights.model} {weights.name}"
        raise OptionError("pretrained", weights.full_name, f"{words}: run '{fetch_it}' where there is one")
    part = target.with_name(f"{target.name}.part")
    try:
        part.parent.mkdir(parents=True, exist_ok=True)
        with _alone_in(part.parent):
            if (value := _verified(target, file)) is not None:  # another process was first
                return value
            log.warning("fetching %s from %s; licence: %s", weights.full_name, url, weights.source.licence)
            published = Published(file.path, url, file.hash)
            how = {"extra": "hub", "purpose": f"fetching {weights.full_name}"}
            fetch(published, part, threading.Event(), lambda count: received(target.name, count), **how)
            value = file.hash or _check_unhashed(part, url)
            if file.hash is None:
                write_whole(_note(target), value.encode())
            os.replace(part, target)
    except OSError as error:
        advice = f"set {CACHE} to a folder that can be written"
        raise DataError(f"{target}: can't be put there ({error.strerror or error}); {advice}") from None
    return value


def _check_unhashed(part: Path, url: str) -> str:
    """The hash of a file that can be read as a checkpoint; any other one is deleted."""
    if what := stand_in(part):
        part.unlink()
        raise DataError(f"{url}: what came is {what}; it was deleted")
    try:
        read_checkpoint(part)
    except OptionError as error:
        part.unlink()
        raise DataError(f"{url}: what came is no checkpoint ({error.allowed}); it was deleted") from None
    return hash_file(part)


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Wait until no other process fetches into a folder, and keep others out."""
    with ExitStack() as stack:
        while True:
            busy = DataError(f"{folder}: another process fetches into it")
            try:
                stack.enter_context(lock_folder(folder, busy))
                break
            except DataError:
                time.sleep(_PAUSE)
        yield
