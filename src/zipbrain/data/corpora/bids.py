"""Any BIDS dataset with EEG: labels from its events or from a column of its participants."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from zipbrain._lazy import import_extra
from zipbrain.data.corpora.base import Found, Source, key
from zipbrain.data.corpora.tables import SHARES, TableCorpus, in_order
from zipbrain.data.splits import by_subject
from zipbrain.errors import DataError
from zipbrain.signal.label_tables import read_table, seconds
from zipbrain.signal.recording import FILE_KINDS

_Labelled = tuple[float | None, float | None, str]  # onset, duration, label
_NOT_RAW = {"derivatives", "sourcedata"}


@dataclass(frozen=True)
class BIDS(TableCorpus):
    """Recordings of a BIDS dataset; subjects are dealt to training, validation and test 60 : 20 : 20.

    Parameters
    ----------
    column : str
        Of events.tsv, that holds the labels. An event gives the windows that fit into its duration, or one from its
        onset if it is shorter than a window.
    participants : str
        A column of participants.tsv to use instead: its value is the label of everything a subject recorded.
    task : str
        Use this task only.
    classes : str
        Use these labels only, separated by commas, in this order.
    seed : int
        Of the shuffle.
    """

    name = "bids"
    title = "a BIDS dataset"
    layout = "sub-<label>/[ses-<label>/]eeg/*_eeg.{edf,bdf,fif,set,vhdr}"
    extends = True

    column: str = "trial_type"
    participants: str = ""
    task: str = ""
    classes: str = ""
    seed: int = 12345

    def find(self, root: Path) -> Found:
        mne_bids = import_extra("mne_bids", "mne-bids", "train", "reading a BIDS dataset")
        endings = sorted({*FILE_KINDS} - {".rec", ".fif.gz"})
        paths = mne_bids.find_matching_paths(
            root, tasks=self.task or None, suffixes="eeg", extensions=endings, datatypes="eeg"
        )
        found = Found([], ())
        raw = [path for path in paths if _NOT_RAW.isdisjoint(path.fpath.relative_to(root).parts)]
        if len(raw) < len(paths):
            found.problems["recordings left out: in derivatives or sourcedata"] += len(paths) - len(raw)
        if not raw:
            self.check(found, root)
        paths = sorted(raw, key=lambda path: str(path.fpath))
        of_subject = self._of_subject(root) if self.participants else {}
        rows: dict[Path, list[_Labelled]] = {}
        for path in paths:
            name = key(path.fpath, root)
            if self.participants:
                label = of_subject.get(path.subject, "")
                rows[path.fpath] = [(None, None, label)] if label else []
                if not label:
                    found.refused[name] = f"participants.tsv has no {self.participants} for sub-{path.subject}"
                continue
            events = path.find_matching_sidecar(suffix="events", extension=".tsv", on_error="ignore")
            if events is None:
                found.refused[name] = "has no events.tsv"
            else:
                try:
                    rows[path.fpath] = self._events(Path(events), found.problems)
                except DataError as error:
                    found.refused[name] = str(error).removeprefix(f"{events}: ")
        wanted = tuple(word.strip() for word in self.classes.split(",") if word.strip())
        found.has_open_classes = not wanted
        found.classes = wanted or in_order(label for events in rows.values() for _, _, label in events)
        split = by_subject((path.subject for path in paths), SHARES, self.seed)
        for path in paths:
            labelled = rows.get(path.fpath, [])
            place = found.classes.index
            given = [[onset, duration, place(label)] for onset, duration, label in labelled if label in found.classes]
            if len(given) < len(labelled):
                found.problems["label rows left out: not one of the chosen classes"] += len(labelled) - len(given)
            if given:
                source = Source(key(path.fpath, root), path.fpath, path.subject, split[path.subject], given=given)
                found.sources.append(source)
            else:
                found.refused.setdefault(key(path.fpath, root), "has no labels")
        return found

    def _of_subject(self, root: Path) -> dict[str, str]:
        rows = read_table(root / "participants.tsv", ("participant_id", self.participants.lower()))
        labels = {row["participant_id"]: row.get(self.participants.lower(), "") for row in rows}
        return {who.removeprefix("sub-"): label for who, label in labels.items() if label not in ("", "n/a")}

    def _events(self, path: Path, problems: Counter[str]) -> list[_Labelled]:
        events: list[_Labelled] = []
        for row in read_table(path, ("onset", self.column.lower())):
            label = row.get(self.column.lower(), "")
            try:
                onset, duration = seconds(row.get("onset")), seconds(row.get("duration"))
            except ValueError:
                onset = None
            if onset is None or onset < 0 or label in ("", "n/a"):
                problems["label rows left out: no onset or no label"] += 1
            else:
                events.append((onset, duration, label))
        return events
