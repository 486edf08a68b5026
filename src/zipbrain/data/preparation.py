"""Raw corpus -> folder of labelled windows: resumable, parallel over recordings, the same whatever the order."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from zipbrain.data.cache import Cache, CacheError, ShardWriter, write_json
from zipbrain.data.corpora import Corpus, Found, Source
from zipbrain.data.corpora import corpus as corpus_of
from zipbrain.data.labelling import Cutter
from zipbrain.data.report import Check, Report, compare, count_reasons, gather_problems, split_warnings
from zipbrain.data.windows import FORMAT, INDEX, SPLITS
from zipbrain.errors import DataError, MissingExtra, OptionError
from zipbrain.files import stamp_files
from zipbrain.jobs import run_jobs
from zipbrain.paper import NETWORKS, canonical_name
from zipbrain.signal.convention import Convention
from zipbrain.signal.filters import check_edges
from zipbrain.signal.montage import check_distinct
from zipbrain.signal.recording import COMPANIONS, check_units
from zipbrain.signal.scaling import SCALINGS

REPORT: Final = "report.json"
_LONGEST_WINDOW: Final = 86_400  # seconds
Progress = Callable[[int, int], None]


def prepare(
    corpus: str | Corpus,
    root: str | Path,
    out: str | Path,
    *,
    model: str = "labram",
    convention: Convention | None = None,
    units: str | None = None,
    check: bool = True,
    jobs: int = 1,
    progress: Progress | None = None,
) -> Report:
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
    model : {"labram", "eegpt", "biot", "tfm", "cbramod"}
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
    _check_convention(kind, convention, usual)
    check_units(units)
    if jobs == 0 or jobs < -1:
        raise OptionError("jobs", jobs, "it must be at least 1, or -1 for all cores")
    if not os.path.isdir(root):  # false for a name that is too long
        raise DataError(f"{root}: no such folder; give the one that holds the raw files of {kind.title}")
    found = kind.find(root)
    opening: dict[str, Any] = ({} if units is None else {"units": units}) | ({} if check else {"check": False})
    found.sources = [replace(source, **opening) for source in found.sources]
    convention = kind.settle(convention, found)
    options = {"format": FORMAT, "corpus": kind.name, "corpus options": kind.options()}
    folder = Cache(out, {**options, "convention": convention.as_dict(), **opening})
    with folder.opened():
        shards = {source.key: folder.shard(source.key, _state(source)) for source in found.sources}
        records = {key: record for key, shard in shards.items() if (record := folder.record(shard)) is not None}
        run = _Run(kind, convention, found, shards, records, reused=len(records))
        work = [(kind, source, convention, shards[source.key]) for source in found.sources if source.key not in records]
        report_done = progress or (lambda done, total: None)
        report_done(len(records), len(found.sources))
        workers = None if jobs == -1 else jobs if len(work) > 1 else 1
        for _, record in run_jobs(_prepare_task, work, workers=workers):
            records[record["key"]] = record
            report_done(len(records), len(found.sources))
        run.settle_classes()
        index = run.index()
        has_windows = any(index["splits"].values())
        if has_windows:
            write_json(out / INDEX, index, indent=None)
        left = folder.forget(set(shards), set(shards.values())) if has_windows else 0
        is_regular = (convention.window_s, convention.hop_s) == (usual.window_s, usual.hop_s)
        checks = compare(kind.expected if is_regular else (), run.windows(index))
        report = run.report(index, checks, left, folder=str(out), seconds=round(time.perf_counter() - began, 2))
        _save(report, out / REPORT)
    if not has_windows:
        reasons = f"{count_reasons(report.refused)}; see {out / REPORT}"
        raise DataError(f"{root}: no windows: all {len(report.refused)} files were refused: {reasons}")
    return report


def _usual(corpus: Corpus, given: Convention | None, model: str) -> Convention:
    """The corpus's own convention; for a corpus without one, the one that was given."""
    if given is not None and given.corpus != corpus.name:
        raise OptionError("convention", given.corpus, f"the corpus is {corpus.name}: give one whose corpus is that")
    if given is not None and not corpus.inputs:
        canonical_name("model", given.model, NETWORKS)
        return given
    return corpus.convention(model if given is None else given.model)


def _check_convention(corpus: Corpus, convention: Convention, usual: Convention) -> None:
    """Refuse an unknown scaling, a band or times that can't be, and other windows than the labels are for."""
    for option, seconds in (("window", convention.window_s), ("hop", convention.hop_s)):
        if not 0 < seconds <= _LONGEST_WINDOW:
            raise OptionError(option, seconds, f"it must be a number of seconds above 0, at most {_LONGEST_WINDOW:,}")
    check_edges(convention.band, convention.notch)
    check_distinct("channels", convention.montage)
    if convention.scaling not in SCALINGS:
        raise OptionError("scaling", convention.scaling, f"known scalings are {', '.join(SCALINGS)}")
    if corpus.fixed and convention.window_s != usual.window_s:
        raise OptionError("window", convention.window_s, f"the labels of {corpus.name} are for {usual.window_s:g} s")
    if (corpus.fixed or corpus.cued) and convention.hop_s not in (usual.hop_s, convention.window_s):
        raise OptionError("hop", convention.hop_s, f"the labels of {corpus.name} say where every window begins")


def _prepare_task(task: tuple[Corpus, Source, Convention, Path]) -> dict[str, Any]:
    """Write one recording's windows, then the record of what they are or why there are none; returns the record."""
    corpus, source, convention, shard = task
    record: dict[str, Any] = {"key": source.key, "subject": source.subject, "split": source.split, "refused": None}
    record |= {"bytes": 0, "labels": [], "starts": [], "problems": {}, "notes": []}
    try:
        record |= _cut(corpus, source, convention, shard)
    except (CacheError, MissingExtra):
        raise
    except MemoryError:
        record["refused"] = (
            "there is not enough memory to prepare it; run the same command again with more, or fewer jobs"
        )
    except Exception as error:  # one broken file of thousands must not end the preparation, whatever it breaks
        reason = " ".join(str(error).split()).removeprefix(f"{source.path}: ") or "no message"
        is_known = isinstance(error, DataError | OptionError)
        record["refused"] = reason if is_known else f"{type(error).__name__}: {reason}"
    write_json(shard.with_suffix(".json"), record, indent=None)  # last, as it says that the windows are whole
    return record


def _cut(corpus: Corpus, source: Source, convention: Convention, shard: Path) -> dict[str, Any]:
    recording = source.open()
    derivation = corpus.derive(source, recording, convention)
    plan = corpus.plan(source, recording, convention)
    cutter = Cutter(recording, derivation, convention, plan)
    with ShardWriter(shard, (len(convention.montage), convention.n_times)) as writer:
        for windows in cutter.chunks():
            writer.append(windows)
        size = writer.close()
    causes = ", ".join(f"{what} ({count})" for what, count in plan.problems.items())
    refused = f"no window can be cut from it: {causes or 'it is shorter than a window'}"
    return {
        "refused": None if cutter.labels else refused,
        "bytes": size,
        "labels": cutter.labels,
        "starts": cutter.starts,
        "problems": dict(plan.problems),
        "notes": list(dict.fromkeys([*recording.notes, *cutter.notes])),
    }


def _state(source: Source) -> list[Any]:
    """What decides a recording's windows beside the options."""
    files = [source.path, source.path.with_suffix(".fdt"), *([source.labels] if source.labels else [])]
    others = COMPANIONS.get(source.path.suffix.lower(), ())
    files += [source.path.with_suffix(end) for end in others if end != ".fdt"]
    return [stamp_files(*files), source.subject, source.split, source.given]


@dataclass
class _Run:
    """What one call of `prepare` knows: recordings, where their windows lie, and what became of each."""

    corpus: Corpus
    convention: Convention
    found: Found
    shards: dict[str, Path]
    records: dict[str, dict[str, Any]]
    reused: int
    classes: tuple[str, ...] = ()  # that have windows, where the labels name the classes
    places: dict[int, int] = field(default_factory=dict)  # of the classes that were found among these
    lost: list[str] = field(default_factory=list)  # classes that were found and have no window

    def settle_classes(self) -> None:
        """Leave out classes that only refused files and windows had, where the labels name the classes."""
        used = [record for record in self.records.values() if not record["refused"]]
        counts = Counter(label for record in used for label in record["labels"])
        if self.found.has_open_classes and counts:
            kept = [place for place in range(len(self.found.classes)) if counts[place]]
            self.lost = [name for place, name in enumerate(self.found.classes) if not counts[place]]
            self.classes = tuple(self.found.classes[place] for place in kept)
            self.places = {place: number for number, place in enumerate(kept)}
        else:
            self.classes, self.places = self.found.classes, {place: place for place in range(len(self.found.classes))}

    def index(self) -> dict[str, Any]:
        """Content of the index, which `open_prepared` reads."""
        splits: dict[str, list[dict[str, Any]]] = {split: [] for split in SPLITS}
        for source in self.found.sources:
            record = self.records[source.key]
            if not record["refused"]:
                entry = {"shard": f"shards/{self.shards[source.key].name}", "key": source.key}
                labels = [self.places[label] for label in record["labels"]]
                splits[source.split].append(entry | {"subject": source.subject, "labels": labels})
        return {
            "version": FORMAT,
            **self._about(),
            "n_times": self.convention.n_times,
            "convention": self.convention.as_dict(),
            "corpus_options": self.corpus.options(),
            "splits": splits,
        }

    def _about(self) -> dict[str, Any]:
        names = {"classes": list(self.classes), "ch_names": list(self.convention.ch_names)}
        return {"name": self.corpus.name, "model": self.convention.model, **names, "sfreq": self.convention.sfreq}

    def windows(self, index: dict[str, Any]) -> dict[str, dict[str, int]]:
        """Split -> class -> count, for splits that have recordings."""
        counts = {
            split: Counter(label for entry in entries for label in entry["labels"])
            for split, entries in index["splits"].items()
            if entries
        }
        names = list(enumerate(self.classes))
        return {split: {name: count[place] for place, name in names} for split, count in counts.items()}

    def report(self, index: dict[str, Any], checks: list[Check], left: int, **about: Any) -> Report:
        """What became of every file; `left` recordings were prepared before and are no longer found."""
        sources, records, windows = self.found.sources, self.records, self.windows(index)
        subjects = {split: {entry["subject"] for entry in index["splits"][split]} for split in windows}
        warnings = split_warnings(windows, subjects)
        if self.lost:
            names = ", ".join(self.lost)
            warnings.append(f"no window has the label {names}: no class of the index, as its recordings were refused")
        if self.corpus.hint and any(check.expected != check.found for check in checks):
            warnings.append(self.corpus.hint)
        if left:
            lost = f"{left} recordings that were prepared before are no longer found"
            warnings.append(f"{lost}: kept, but not in the index")
        refused = self.found.refused | {key: record["refused"] for key, record in records.items() if record["refused"]}
        used = {source.key: records[source.key] for source in sources if not records[source.key]["refused"]}
        troubled = {source.key: records[source.key]["problems"] for source in sources}
        return Report(
            **self._about(),
            **about,
            window_s=self.convention.window_s,
            files=len(used),
            prepared=len(used) - self.reused,
            reused=self.reused,
            windows=windows,
            subjects={split: len(names) for split, names in subjects.items()},
            checks=checks,
            refused=dict(sorted(refused.items())),
            problems=gather_problems(self.found.problems, troubled, self.corpus.name),
            notes={key: record["notes"] for key, record in used.items() if record["notes"]},
            warnings=warnings,
        )


def _save(report: Report, path: Path) -> None:
    """Write the report unless the one that is there differs only in what the run itself did.

    The file tells what the folder holds, whichever run prepared it: it says so of all recordings.
    """
    run = ("seconds", "prepared", "reused", "folder")
    new = report.as_dict() | {"prepared": report.prepared + report.reused, "reused": 0}
    with suppress(OSError, ValueError, AttributeError):
        old = json.loads(path.read_text(encoding="utf-8"))
        if {k: v for k, v in old.items() if k not in run} == {k: v for k, v in new.items() if k not in run}:
            return
    write_json(path, new)
