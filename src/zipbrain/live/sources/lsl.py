"""A stream of the Lab Streaming Layer, in microvolts, found again where it was lost."""

from __future__ import annotations

import time
from typing import Any, Final

import numpy as np

from zipbrain.errors import DataError, OptionError
from zipbrain.live.lsl_library import load_pylsl
from zipbrain.live.source import Chunk, SourceLost
from zipbrain.live.sources.base import SourceKind
from zipbrain.signal.recording import MICROVOLTS, RATES, Array, check_units

_KEYS: Final = ("name", "type", "source_id", "hostname")  # by which a stream is chosen
_UNITS: Final = MICROVOLTS | {"microvolt": 1.0, "microvolts": 1.0, "millivolts": 1e3, "volts": 1e6, "nanovolts": 1e-3}
_VOLTAGES: Final = ("eeg", "eog", "ecg", "emg", "ref", "")  # types of channels without a unit that are voltages
_FIRST_S: Final = 4.0  # seconds of looking for a stream at the start
_AGAIN_S: Final = 0.5  # of each look for a stream that was lost
_SILENT_S: Final = 3.0  # without samples after which the connection is made anew
_BUFFER_S: Final = 60  # of samples that liblsl keeps for us
_MOST_CHANNELS: Final = 4096
_MOST: Final = 1 << 15  # samples of a chunk


class LSLStream:
    """A stream as a source; its values become microvolts by the units of its description."""

    is_live = True
    limits: Array | None = None
    ch_names: tuple[str, ...]
    sfreq: float

    def __init__(self, info: Any, predicate: str, units: str | None = None) -> None:
        self._pylsl, self._predicate, self._units = load_pylsl(), predicate, units
        self.notes: list[str] = []
        self._inlet: Any = None
        self._heard = time.monotonic()
        self._connect(info)
        self.name = f"lsl:{self._info.name()}"

    def read(self, timeout_s: float) -> Chunk | None:
        """The next samples with their stamps in this machine's clock."""
        if self._inlet is None or time.monotonic() - self._heard > _SILENT_S:
            self._heard = time.monotonic()
            self._reconnect(min(timeout_s, _AGAIN_S))
            return None
        try:
            rows, stamps = self._inlet.pull_chunk(timeout_s, _MOST, min_samples=1, as_numpy=True)
        except RuntimeError as error:  # pylsl's LostError among them
            self.close()
            raise SourceLost(f"{self.name}: {str(error) or 'the stream was lost'}") from None
        if not len(stamps):
            return None
        self._heard = time.monotonic()
        samples = rows.T[self._rows].astype(np.float64) * self._scales
        return Chunk(samples, np.asarray(stamps, dtype=np.float64) + self._offset)

    def close(self) -> None:
        """Close the stream."""
        if self._inlet is not None:
            self._inlet.close_stream()
            self._inlet = None

    def _reconnect(self, timeout_s: float) -> None:
        """Open the stream again if it is there; `SourceLost` if there is only another one, perhaps of another bed."""
        found = self._pylsl.resolve_bypred(self._predicate, 1, timeout_s)
        if not found:
            return
        wanted = _identity(self._info)
        if not (same := [info for info in found if _identity(info) == wanted]):  # it may answer after the other one
            found += self._pylsl.resolve_bypred(self._predicate, len(found) + 1, timeout_s)
            same = [info for info in found if _identity(info) == wanted]
        before = self.ch_names, self.sfreq
        self.close()
        if not same:
            words = f"{found[0].name()} (source_id={found[0].source_id()}, {found[0].hostname()}) is another stream"
            raise SourceLost(f"{self.name}: the stream has gone, and {words}; start a new session for it")
        try:
            self._connect(same[0])
        except (DataError, RuntimeError) as error:
            self.close()
            raise SourceLost(str(error)) from None
        if (self.ch_names, self.sfreq) != before:
            names, rate = self.ch_names, self.sfreq
            self.close()
            self.ch_names, self.sfreq = before
            words = f"came back with {len(names)} channels at {rate:g} Hz in place of {len(before[0])} at {before[1]:g}"
            raise SourceLost(f"{self.name}: {words} Hz, or other names; start a new session for it")

    def _connect(self, info: Any) -> None:
        pylsl = self._pylsl
        inlet = pylsl.StreamInlet(info, max_buflen=_BUFFER_S, recover=False, processing_flags=pylsl.proc_none)
        self._info = inlet.info(_FIRST_S)
        name, count, rate = self._info.name(), self._info.channel_count(), float(self._info.nominal_srate())
        if self._info.channel_format() == pylsl.cf_string:
            raise DataError(f"lsl:{name}: a stream of texts (markers), not of samples; name an EEG stream")
        if not RATES[0] <= rate <= RATES[1]:
            words = "has no regular rate" if not rate else f"has {rate:g} Hz"
            raise DataError(f"lsl:{name}: {words}, but EEG has {RATES[0]:g} to {RATES[1]:,.0f} Hz; name another stream")
        if count > _MOST_CHANNELS:
            raise DataError(f"lsl:{name}: has {count} channels, at most {_MOST_CHANNELS} are read; name another stream")
        rows, names, scales, left_out = _choose_channels(self._info, self._units)
        if not rows:
            raise DataError(f"lsl:{name}: holds no channel in volts ({'; '.join(left_out)}); name another stream")
        self._rows, self._scales = np.array(rows), np.array(scales)[:, np.newaxis]
        self.ch_names, self.sfreq = tuple(names), rate
        self.notes = [f"channel {words}" for words in left_out]
        inlet.open_stream(_FIRST_S)
        self._offset = inlet.time_correction(_FIRST_S)  # once: a correction that moves would look like a jumping clock
        self._inlet, self._heard = inlet, time.monotonic()


def _identity(info: Any) -> tuple[str, ...]:
    """What a stream keeps when it is started again: the source_id for which it is made, else name, type and host."""
    given = info.source_id()
    return (given,) if given else (info.name(), info.type(), info.hostname())


def _choose_channels(info: Any, units: str | None) -> tuple[list[int], list[str], list[float], list[str]]:
    """Rows that are voltages, their names, what makes microvolts of them, and why others are left out."""
    rows, names, scales, left_out = [], [], [], []
    channel = info.desc().child("channels").child("channel")
    for row in range(info.channel_count()):
        label, kind, unit = (channel.child_value(field).strip() for field in ("label", "type", "unit"))
        channel = channel.next_sibling("channel")
        label = label or str(row + 1)
        scale = _UNITS.get(unit.lower()) if unit else 1.0 if kind.lower() in _VOLTAGES else None
        if scale is None:
            left_out.append(f"{label} left out: it is no voltage ({unit or kind})")
            continue
        rows.append(row)
        names.append(label)
        scales.append(scale if units is None else MICROVOLTS[units.lower()])
    return rows, names, scales, left_out


class LSLKind(SourceKind):
    """Streams on this machine and its network."""

    name = "lsl"
    form = "lsl:NAME, lsl:type=EEG"

    def open(self, what: str, options: dict[str, str], **reading: Any) -> LSLStream:
        """Look for the one stream of this name, type, source_id or hostname."""
        check_units(units := reading.get("units"))
        key, equals, value = what.partition("=")
        key, value = (key, value) if equals and key in _KEYS else ("name", what)
        quote = '"' if "'" in value else "'"
        if quote in value or not value:
            raise OptionError("--source", f"lsl:{what}", "a stream's name holds one kind of quotes at most")
        pylsl = load_pylsl()
        predicate = f"{key}={quote}{value}{quote}"
        found = pylsl.resolve_bypred(predicate, 1, _FIRST_S)
        if not found:
            words = f"no stream has the {key} {value!r}"
            raise DataError(f"lsl:{what}: {words}; start it, or see zipbrain live --list")
        found = pylsl.resolve_bypred(predicate, 2, 1.0) or found  # a second one may answer later
        if len(found) > 1:
            several = ", ".join(f"{info.name()} (source_id={info.source_id()}, {info.hostname()})" for info in found)
            raise DataError(
                f"lsl:{what}: {len(found)} streams have that {key}: {several}; name one by lsl:source_id=..."
            )
        try:
            return LSLStream(found[0], predicate, units)
        except RuntimeError as error:
            raise DataError(f"lsl:{what}: the stream could not be opened ({error}); is it still running?") from None

    def find(self) -> list[dict[str, Any]]:
        """All streams that answer within a second."""
        return [
            {
                "source": f"lsl:{info.name()}",
                "type": info.type(),
                "channels": info.channel_count(),
                "rate": float(info.nominal_srate()),
                "source_id": info.source_id(),
                "host": info.hostname(),
            }
            for info in load_pylsl().resolve_streams(1.0)
        ]
