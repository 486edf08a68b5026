"""What a window is: which channels of a recording, how filtered, sampled, cut and scaled."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

Channel = str | tuple[str, str]  # an electrode as recorded, or a difference of two


@dataclass(frozen=True)
class Convention:
    """How a corpus is prepared for a model.

    Attributes
    ----------
    model, corpus : str
    montage : tuple of (str or (str, str))
        Channels to take: an electrode, or a pair whose difference is taken (a channel recorded as that difference is
        used as it is). Empty: the scalp channels of the first recording.
    ch_names : tuple of str
        The names under which the model gets them, in the same order.
    band : tuple of (float or None), optional
        Edges of the band-pass in Hz; None filters nothing.
    notch : float, optional
        Mains frequency to remove, in Hz.
    cut_sfreq, sfreq : float
        Rate in Hz to which the recording is resampled before it is cut (None for its own), and of the windows on disk.
    window_s, hop_s : float
        Length of a window and distance between two, in seconds; `hop_s` is unused where labels fix the windows.
    scaling : str
        What `zipbrain.data.scale` does when a window is used; on disk are microvolts.
    resampling, window_resampling : str
        How the recording gets to `cut_sfreq` ("polyphase", or "fft", which treats it as periodic and needs it in
        memory), and a cut window from there to `sfreq` ("fft" or "nearest").
    filter_windows : bool
        Filter every window on its own instead of the whole recording.
    """

    model: str
    corpus: str
    montage: tuple[Channel, ...]
    ch_names: tuple[str, ...]
    band: tuple[float | None, float | None] | None
    notch: float | None
    cut_sfreq: float | None
    sfreq: float
    window_s: float
    hop_s: float
    scaling: str
    resampling: str = "polyphase"
    window_resampling: str = "fft"
    filter_windows: bool = False

    @property
    def n_times(self) -> int:
        """Samples of a window."""
        return round(self.window_s * self.sfreq)

    @property
    def filters(self) -> str:
        """Band and notch in words: what `Windows` and a trained model's `Task` carry and compare."""
        low, high = self.band or (None, None)
        edges = [f"{word} {edge:g} Hz" for word, edge in (("from", low), ("to", high)) if edge is not None]
        notch = f"notch at {self.notch:g} Hz" if self.notch else "no notch"
        return f"{' '.join(edges) or 'no band-pass'}, {notch}"

    def as_dict(self) -> dict[str, Any]:
        """Plain lists, numbers and strings, for JSON."""
        plain = asdict(self)
        plain["montage"] = [list(entry) if isinstance(entry, tuple) else entry for entry in self.montage]
        return {key: list(value) if isinstance(value, tuple) else value for key, value in plain.items()}

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> Convention:
        """Inverse of `as_dict`."""
        known = {field.name for field in fields(cls)}
        values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in plain.items() if k in known}
        values["montage"] = tuple(tuple(entry) if isinstance(entry, list) else entry for entry in plain["montage"])
        return cls(**values)
