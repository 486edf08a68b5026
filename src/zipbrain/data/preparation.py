"""Raw corpus -> folder of labelled windows: resumable, parallel over recordings, the same whatever the order."""

from __future__ import annotations

import json
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Final

from zipbrain.data.cache import Cache, CacheError, ShardWriter, write_json
from zipbrain.data.conventions import CORPORA
from zipbrain.data.conventions import convention as convention_of
from zipbrain.data.corpora import Corpus, Found, Source
from zipbrain.data.corpora import corpus as corpus_of
from zipbrain.data.labelling import Cutter
from zipbrain.data.report import Report, compare, count_reasons, gather_problems
from zipbrain.data.windows import FORMAT, INDEX, SPLITS
from zipbrain.errors import DataError, MissingExtra, OptionError
from zipbrain.files import stamp_files
from zipbrain.paper import MODELS, canonical_name
from zipbrain.signal.convention import Convention
from zipbrain.signal.recording import COMPANIONS, check_units
from zipbrain.signal.scaling import SCALINGS

REPORT: Final = "report.json"
Progress = Callable[[int, int], None]


def prepare(
    corpus: str | Corpus, root: str | Path, out: str | Path, *, model: str = "labram",
    convention: Convention | None = None, units: str | None = None, check: bool = True, jobs: int = 1,
    progress: Progress | None = None,
) -> Report:  # fmt: skip
    """Turn a raw corpus into a folder of labelled windows for a model.

    May be stopped at any moment, by force too, and continued by calling it again: what is done stays done. Called on a
    finished folder it changes nothing; a recording whose file or labels have changed is prepared again. Files that
    can't be used are refused one by one, with the reason.

    Parameters
    ----------
    corpus : str or Corpus
        A name, or `zipbrain.data.corpus(name, ...)` with options.
    root : path
        Where the raw corpus lies; nothing is written there.
    out : path
        Folder to write; `zipbrain.data.open_prepared` opens it.
    model : {"labram", "eegpt", "biot", "tfm"}
        Whose input convention to follow.
    convention : Convention, optional
        Instead of the one of `model`; a `Corpus` of your own needs one that names it.
    units : {"nV", "uV", "mV", "V"}, optional
        What the files' numbers are, where it is known that their headers are wrong.
    check : bool
        Refuse recordings whose amplitudes can't be microvolts.
    jobs : int
        Recordings prepared at the same time; -1 for as many as there are cores. Results don't depend on it.
    progress : callable, optional
        Called as ``progress(done, total)`` after every recording.

    Returns
    -------
    report : Report
        Also in ``out/report.json``.
    """
    began = time.perf_counter()
    kind = corpus_of(corpus) if isinstance(corpus, str) else corpus
    root, out = Path(root), Path(out)
    usual = _usual(kind, convention, model)
    convention = convention or usual
    if kind.fixed and convention.window_s != usual.window_s:
        raise OptionError("window", convention.window_s, f"the labels of {kind.name} are for {usual.window_s:g} s")
    if (kind.fixed or kind.cued) and convention.hop_s not in (usual.hop_s, convention.window_s):
        raise OptionError("hop", convention.hop_s, f"the labels of {kind.name} say where every window begins")
    if convention.scaling not in SCALINGS:
        raise OptionError("scaling", convention.scaling, f"known scalings are {', '.join(SCALINGS)}")
    check_units(units)
    if jobs == 0 or jobs < -1:
        raise OptionError("jobs", jobs, "it must be at least 1, or -1 for all cores")
    if not root.is_dir():
        raise DataError(f"{root}: no such folder; give the one that holds the raw files of {kind.title}")
    found = kind.find(root)
    opening: dict[str, Any] = ({} if units is None else {"units": units}) | ({} if check else {"check": False})
    found.sources = [replace(source, **opening) for source in found.sources]
    convention = kind.settle(convention, found)
    folder = Cache(out, {
        "format": FORMAT, "corpus": kind.name, "corpus options": kind.options(), "convention": convention.as_dict(),
        **opening,
    })  # fmt: skip
    with folder.opened():
        shards = {source.key: folder.shard(source.key, _state(source)) for source in found.sources}
        records = {key: record for key, shard in shards.items() if (record := folder.record(shard)) is not None}
        reused = len(records)
        work = [(kind, source, convention, shards[source.key]) for source in found.sources if source.key not in records]
        done = reused
        if progress is not None:
            progress(done, len(found.sources))
        for record in _run(work, jobs):
            records[record["key"]] = record
            done += 1
            if progress is not None:
                progress(done, len(found.sources))
        refused = found.refused | {key: record["refused"] for key, record in records.items() if record["refused"]}
        index = _index(kind, convention, found, shards, records)
        some = any(index["splits"].values())
        if some:
            write_json(out / INDEX, index, indent=None)
        left = folder.forget(set(shards), set(shards.values())) if some else 0
        report = _report(
            kind, convention, usual, found, records, index, out, refused, reused, left, time.perf_counter() - began
        )
        _save(report, out / REPORT)
    if not some:
        reasons = f"{count_reasons(refused)}; see {out / REPORT}"
        raise DataError(f"{root}: no windows: all {len(refused)} files were refused: {reasons}")
    return report


def _usual(corpus: Corpus, given: Convention | None, model: str) -> Convention:
    """The table's convention; for a corpus that the table does not have, the one that was given."""
    if given is not None and given.corpus != corpus.name:
        raise OptionError("convention", given.corpus, f"the corpus is {corpus.name}: give one whose corpus is that")
    if given is not None and corpus.name not in CORPORA:
        canonical_name("model", given.model, MODELS)
        return given
    return convention_of(model if given is None else given.model, corpus.name)


def _run(work: list[tuple[Corpus, Source, Convention, Path]], jobs: int) -> Iterator[dict[str, Any]]:
    if jobs == 1 or len(work) < 2:
        yield from (prepare_one(*task) for task in work)
        return
    try:
        from joblib import Parallel, delayed
    except ModuleNotFoundError:
        raise MissingExtra("joblib", "train", "preparing several recordings at the same time") from None
    parallel = Parallel(n_jobs=jobs, backend="loky", return_as="generator_unordered", max_nbytes=None)
    yield from parallel(delayed(_as_worker)(os.getpid(), *task) for task in work)


def _as_worker(parent: int, corpus: Corpus, source: Source, convention: Convention, shard: Path) -> dict[str, Any]:
    _end_with(parent)
    return prepare_one(corpus, source, convention, shard)


@cache
def _end_with(parent: int) -> None:
    """End this worker soon after its parent, which can't tell it when it is killed: it would go on for minutes."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)  # files are renamed when they are whole, so no harm is done

    threading.Thread(target=watch, daemon=True).start()


def prepare_one(corpus: Corpus, source: Source, convention: Convention, shard: Path) -> dict[str, Any]:
    """Prepare one recording: its windows, then the record beside them.

    Returns
    -------
    record : dict
        What `shard` holds, or why there is none. JSON.
    """
    record: dict[str, Any] = {
        "key": source.key, "subject": source.subject, "split": source.split, "refused": None, "bytes": 0, "labels": [],
        "starts": [], "problems": {}, "notes": [],
    }  # fmt: skip
    try:
        _cut(corpus, source, convention, shard, record)
    except (CacheError, MissingExtra, MemoryError):
        raise
    except Exception as error:  # one broken file of thousands must not end the preparation, whatever it breaks
        record["refused"] = _reason(error, source.path)
    Cache.write_record(shard, record)
    return record


def _cut(corpus: Corpus, source: Source, convention: Convention, shard: Path, record: dict[str, Any]) -> None:
    recording = source.open()
    derivation = corpus.derive(source, recording, convention)
    plan = corpus.plan(source, recording, convention)
    cutter = Cutter(recording, derivation, convention, plan)
    with ShardWriter(shard, (len(convention.montage), convention.n_times)) as writer:
        for windows in cutter.chunks():
            writer.append(windows)
        size = writer.close()
    record["problems"] = dict(plan.problems)
    record["notes"] = list(dict.fromkeys([*recording.notes, *cutter.notes]))
    record["labels"], record["starts"], record["bytes"] = cutter.labels, cutter.starts, size
    if not cutter.labels:
        causes = ", ".join(f"{what} ({count})" for what, count in plan.problems.items())
        record["refused"] = f"no window can be cut from it: {causes or 'it is shorter than a window'}"


def _reason(error: Exception, path: Path) -> str:
    """One line without the path, which the report has already."""
    text = " ".join(str(error).split()).removeprefix(f"{path}: ") or "no message"
    return text if isinstance(error, DataError | OptionError) else f"{type(error).__name__}: {text}"


def _state(source: Source) -> list[Any]:
    """What decides a recording's windows beside the options."""
    files = [source.path, source.path.with_suffix(".fdt"), *([source.labels] if source.labels else [])]
    others = COMPANIONS.get(source.path.suffix.lower(), ())
    files += [source.path.with_suffix(end) for end in others if end != ".fdt"]
    return [stamp_files(*files), source.subject, source.split, source.given]


def _index(
    corpus: Corpus, convention: Convention, found: Found, shards: dict[str, Path], records: dict[str, dict[str, Any]]
) -> dict[str, Any]:
    splits: dict[str, list[dict[str, Any]]] = {split: [] for split in SPLITS}
    for source in found.sources:
        record = records[source.key]
        if not record["refused"]:
            entry = {"shard": f"shards/{shards[source.key].name}", "key": source.key, "subject": source.subject}
            splits[source.split].append(entry | {"labels": record["labels"]})
    return {
        "version": FORMAT, "name": corpus.name, "model": convention.model, "classes": list(found.classes),
        "ch_names": list(convention.ch_names), "sfreq": convention.sfreq, "n_times": convention.n_times,
        "convention": convention.as_dict(), "corpus_options": corpus.options(), "splits": splits,
    }  # fmt: skip


def _report(
    corpus: Corpus, convention: Convention, usual: Convention, found: Found, records: dict[str, dict[str, Any]],
    index: dict[str, Any], out: Path, refused: dict[str, str], reused: int, left: int, seconds: float,
) -> Report:  # fmt: skip
    windows: dict[str, dict[str, int]] = {}
    subjects: dict[str, set[str]] = {}
    for split, entries in index["splits"].items():
        if entries:
            count = Counter(label for entry in entries for label in entry["labels"])
            windows[split] = {name: count[place] for place, name in enumerate(found.classes)}
            subjects[split] = {entry["subject"] for entry in entries}
    warnings = _warnings(windows, subjects)
    regular = (convention.window_s, convention.hop_s) == (usual.window_s, usual.hop_s)
    checks = compare(corpus.expected if regular else (), windows)
    if corpus.hint and any(check.expected != check.found for check in checks):
        warnings.append(corpus.hint)
    if left:
        warnings.append(f"{left} recordings that were prepared before are no longer found: kept, but not in the index")
    troubled = {source.key: records[source.key]["problems"] for source in found.sources}
    used = {source.key: records[source.key] for source in found.sources if not records[source.key]["refused"]}
    return Report(
        name=corpus.name, model=convention.model, folder=str(out), classes=list(found.classes),
        ch_names=list(convention.ch_names), sfreq=convention.sfreq, window_s=convention.window_s,
        files=len(used), prepared=len(used) - reused, reused=reused, windows=windows,
        subjects={split: len(names) for split, names in subjects.items()},
        checks=checks, refused=dict(sorted(refused.items())),
        problems=gather_problems(found.problems, troubled, corpus.name),
        notes={key: record["notes"] for key, record in used.items() if record["notes"]},
        warnings=warnings, seconds=round(seconds, 2),
    )  # fmt: skip


def _warnings(windows: dict[str, dict[str, int]], subjects: dict[str, set[str]]) -> list[str]:
    warnings = []
    if windows and "train" not in windows:
        warnings.append(f"nothing to train on: all windows are in {' and '.join(windows)}")
    for split, counts in windows.items():
        empty = [name for name, count in counts.items() if not count]
        if empty:
            warnings.append(f"{split} has no windows of {', '.join(empty)}")
    names = list(subjects)
    for i, first in enumerate(names):
        for second in names[i + 1 :]:
            both = sorted(subjects[first] & subjects[second])
            if both:
                warnings.append(f"subjects in both {first} and {second}: {', '.join(both[:10])} ({len(both)} in all)")
    return warnings


def _save(report: Report, path: Path) -> None:
    """Write the report unless the one that is there differs only in what the run itself did."""
    run = ("seconds", "prepared", "reused", "folder")
    new = report.as_dict()
    with suppress(OSError, ValueError, AttributeError):
        old = json.loads(path.read_text(encoding="utf-8"))
        if {k: v for k, v in old.items() if k not in run} == {k: v for k, v in new.items() if k not in run}:
            return
    write_json(path, new)
